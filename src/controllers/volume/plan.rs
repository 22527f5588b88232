//! Plan for a volume in its current state. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use crate::api::backend::OnDelete;
use crate::api::names::{PROVISIONED_BY, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_CLAIM_UID, VOLUME_READOPTED};
use crate::decide::reclaim::{self, ReclaimDecision, Refusal};
use crate::decide::volume_directory::claim_ref;
use crate::runtime::writes::with_finalizer;
use crate::state::context::Settings;
use crate::state::volume_metadata::is_retained_without_claim;
use export_store::ClaimRef;

/// Plan for a volume.
#[derive(Debug, PartialEq, Eq)]
pub enum VolumePlan {
    /// Transfer its record on the export to the claim that it is bound to.
    TransferRecord,
    /// Leave the directory unchanged.
    Keep {
        /// True if the volume's metadata must be saved in its record: recovery must know that the volume is not to be
        /// reclaimed.
        save_metadata: bool,
        /// The finalizers to set; `None` if they are correct.
        finalizers: Option<Vec<String>>,
    },
    /// Leave everything unchanged, and report the reason.
    Refuse(Refusal),
    /// Apply this policy to the directory.
    Reclaim(OnDelete),
}

/// The claim that the record of a volume on the export is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOwner {
    /// The one that the volume is, or was last, bound to.
    Claim,
    /// An earlier one: the directory was archived or deleted for it before the volume was bound to another one.
    FormerClaim(ClaimRef),
    /// There is no record.
    Nobody,
}

/// Returns the plan for a volume. `on_delete` is the policy of its backend.
pub fn plan(volume: &PersistentVolume, settings: &Settings, on_delete: OnDelete) -> VolumePlan {
    // First: until the record is transferred, it is not that of the volume's claim.
    match needs_transfer(volume, settings) {
        true => VolumePlan::TransferRecord,
        false => plan_without_transfer(volume, settings, on_delete),
    }
}

/// Returns the plan for a volume with a record of this owner.
pub(super) fn plan_for(
    owner: &RecordOwner,
    volume: &PersistentVolume,
    settings: &Settings,
    on_delete: OnDelete,
) -> VolumePlan {
    match owner {
        RecordOwner::Claim => plan(volume, settings, on_delete),
        // There is nothing to transfer.
        RecordOwner::FormerClaim(_) | RecordOwner::Nobody => plan_without_transfer(volume, settings, on_delete),
    }
}

/// Returns what is left to do about a volume if its record cannot be transferred.
pub(super) fn plan_without_transfer(volume: &PersistentVolume, settings: &Settings, on_delete: OnDelete) -> VolumePlan {
    // An adopted directory is not considered here: its record shows that, and the export store then archives it.
    match reclaim::decide(volume, &settings.provisioners(), on_delete) {
        ReclaimDecision::Nothing => VolumePlan::Keep {
            save_metadata: is_retained_without_claim(volume),
            finalizers: missing_finalizer(volume, settings),
        },
        ReclaimDecision::RemoveFinalizer => VolumePlan::Keep {
            save_metadata: true,
            finalizers: with_finalizer(&volume.metadata, RECLAIM_FINALIZER, false),
        },
        ReclaimDecision::Refuse(refusal) => VolumePlan::Refuse(refusal),
        ReclaimDecision::Reclaim(on_delete) => VolumePlan::Reclaim(on_delete),
    }
}

/// Returns true if there is nothing to do about a volume until it changes.
pub fn is_settled(volume: &PersistentVolume, settings: &Settings) -> bool {
    // The backend's policy does not matter: it only selects how to reclaim.
    plan(volume, settings, OnDelete::Archive)
        == VolumePlan::Keep {
            save_metadata: false,
            finalizers: None,
        }
}

/// Returns true if a volume is bound to a claim, and its record may still be that of a previous one: it was recovered, or
/// it was released, made available again and bound to another claim.
fn needs_transfer(volume: &PersistentVolume, settings: &Settings) -> bool {
    let annotations = volume.annotations();
    let ours = annotations.get(PROVISIONED_BY).is_some_and(|by| settings.serves(by));
    let bound_to = claim_ref(volume).uid;
    ours && annotations.contains_key(VOLUME_BACKEND)
        && !bound_to.is_empty()
        && (annotations.contains_key(VOLUME_READOPTED) || recorded_claim(volume).is_some_and(|uid| uid != bound_to))
}

/// Returns the UID of the claim in the record of a volume, according to the volume.
pub(super) fn recorded_claim(volume: &PersistentVolume) -> Option<String> {
    let annotations = volume.annotations();
    let transferred = annotations
        .get(VOLUME_READOPTED)
        .or_else(|| annotations.get(VOLUME_CLAIM_UID));
    let provisioned_for = || volume.metadata.name.as_deref()?.strip_prefix("pvc-").map(str::to_owned);
    transferred.cloned().or_else(provisioned_for)
}

/// Returns all finalizers that a volume needs, if the operator's finalizer is missing. After its reclaim policy was
/// edited to Delete, the volume must not be deleted before its directory is reclaimed.
fn missing_finalizer(volume: &PersistentVolume, settings: &Settings) -> Option<Vec<String>> {
    let needed = reclaim::needs_finalizer(volume, &settings.provisioners());
    needed.then(|| with_finalizer(&volume.metadata, RECLAIM_FINALIZER, true))?
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_record_of_a_volume_that_was_bound_to_another_claim_is_transferred_once() {
        let settings = Settings::for_tests("p", &[]);
        let plan_of = |annotations: Value, bound_to: &str| {
            let mut all = json!({"pv.kubernetes.io/provisioned-by": "p", "nfs-operator.io/backend": "main"});
            crate::runtime::writes::merge(&mut all, annotations);
            let volume = serde_json::from_value(json!({
                "metadata": {"name": "pvc-a", "annotations": all, "finalizers": ["nfs-operator.io/reclaim"]},
                "spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"name": "c", "uid": bound_to}},
                "status": {"phase": "Bound"},
            }));
            plan(&volume.unwrap(), &settings, OnDelete::Archive) == VolumePlan::TransferRecord
        };
        for (what, annotations, bound_to, expected) in [
            ("its own claim", json!({}), "a", false),
            ("another claim", json!({}), "b", true),
            ("transferred", json!({"nfs-operator.io/claim-uid": "b"}), "b", false),
            ("a third claim", json!({"nfs-operator.io/claim-uid": "b"}), "c", true),
            (
                "its own claim again",
                json!({"nfs-operator.io/claim-uid": "b"}),
                "a",
                true,
            ),
            ("reserved, not bound", json!({}), "", false),
            ("recovered", json!({"nfs-operator.io/readopted": "a"}), "a", true),
            (
                "another provisioner's",
                json!({"pv.kubernetes.io/provisioned-by": "q"}),
                "b",
                false,
            ),
        ] {
            assert_eq!(plan_of(annotations, bound_to), expected, "{what}");
        }
    }

    #[test]
    fn a_volume_whose_record_is_not_transferred_is_reclaimed_for_the_owner_of_the_record() {
        let settings = Settings::for_tests("p", &[]);
        let former = RecordOwner::FormerClaim(ClaimRef::default());
        let keep = |finalizers: Option<&[&str]>| VolumePlan::Keep {
            save_metadata: finalizers.is_some_and(<[&str]>::is_empty),
            finalizers: finalizers.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        };
        let (none, finalizer): (&[&str], &[&str]) = (&[], &[RECLAIM_FINALIZER]);
        for (policy, phase, finalizers, expected) in [
            ("Retain", "Bound", finalizer, keep(Some(none))),
            ("Delete", "Bound", none, keep(Some(finalizer))),
            ("Delete", "Bound", finalizer, keep(None)),
            ("Delete", "Released", finalizer, VolumePlan::Reclaim(OnDelete::Delete)),
            ("Retain", "Released", finalizer, keep(Some(none))),
        ] {
            let volume = serde_json::from_value(json!({
                "metadata": {"name": "pvc-a", "finalizers": finalizers, "annotations": {
                    "pv.kubernetes.io/provisioned-by": "p", "nfs-operator.io/backend": "main"}},
                "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"name": "c", "uid": "b"}},
                "status": {"phase": phase},
            }));
            let volume: PersistentVolume = volume.unwrap();
            for owner in [&former, &RecordOwner::Nobody] {
                let planned = plan_for(owner, &volume, &settings, OnDelete::Delete);
                assert_eq!(planned, expected, "{policy} {phase} {finalizers:?}");
            }
            let planned = plan_for(&RecordOwner::Claim, &volume, &settings, OnDelete::Delete);
            assert_eq!(planned, VolumePlan::TransferRecord);
        }
    }
}
