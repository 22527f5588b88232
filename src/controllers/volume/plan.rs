//! Plan for a volume in its current state. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use crate::api::backend::OnDelete;
use crate::api::names::{RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_READOPTED};
use crate::decide::reclaim::{self, ReclaimDecision, Refusal};
use crate::decide::reclaim_request::claim_ref;
use crate::runtime::writes::with_finalizer;
use crate::state::context::Settings;
use crate::state::volume_metadata::is_retained_without_claim;

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

/// Returns the plan for a volume. `on_delete` is the policy of its backend.
pub fn plan(volume: &PersistentVolume, settings: &Settings, on_delete: OnDelete) -> VolumePlan {
    // First: until the record is transferred, it is not that of the volume's claim.
    if needs_transfer(volume) {
        return VolumePlan::TransferRecord;
    }
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

/// Returns true if a recovered volume is bound, and its record may still be that of its previous claim.
fn needs_transfer(volume: &PersistentVolume) -> bool {
    volume.annotations().contains_key(VOLUME_READOPTED)
        && volume.annotations().contains_key(VOLUME_BACKEND)
        && !claim_ref(volume).uid.is_empty()
}

/// Returns all finalizers that a volume needs, if the operator's finalizer is missing. After its reclaim policy was
/// edited to Delete, the volume must not be deleted before its directory is reclaimed.
fn missing_finalizer(volume: &PersistentVolume, settings: &Settings) -> Option<Vec<String>> {
    let needed = reclaim::needs_finalizer(volume, &settings.provisioners());
    needed.then(|| with_finalizer(&volume.metadata, RECLAIM_FINALIZER, true))?
}
