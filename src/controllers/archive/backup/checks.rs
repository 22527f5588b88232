//! Checks before and after a backup is copied. Pure.

use crate::api::archive::{ArchivedClaim, NfsArchive, NfsArchiveStatus};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::object_name::is_object_name;
use export_store::{ClaimRef, RecordedArchive};

/// Source of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) claim: ClaimRef,
    /// The claim's volume.
    pub(super) volume: String,
    /// The backend that gets the copy.
    pub(super) backend: String,
    /// The identity of the export there.
    pub(super) export_id: String,
}

/// Checks that the names are valid for a namespace and a claim: they become part of the path of a request.
pub(super) fn check_names(claim: &ArchivedClaim) -> Result<(), PlannedCondition> {
    if is_object_name(&claim.namespace) && is_object_name(&claim.name) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        Reason::InvalidSpec,
        format!(
            "spec.claimRef names {:?} in namespace {:?}, which is not a valid name of a claim: create a new object with valid \
             names",
            claim.name, claim.namespace
        ),
    ))
}

/// Checks that the claim is still the one that an earlier step described in the object.
pub(super) fn check_unchanged(described: &NfsArchiveStatus, found: &Subject) -> Result<(), PlannedCondition> {
    let claim = &found.claim;
    let origin = (&described.claim_uid, &described.namespace_uid, &described.volume_name);
    let differs = |message: String| Err(PlannedCondition::fails(Reason::CopySourceUnsuitable, message));
    if origin != (&claim.uid, &claim.namespace_uid, &found.volume) {
        return differs(format!(
            "claim {}/{} was recreated since this object described it: delete this object, and create a new one for the \
             current claim",
            claim.namespace, claim.name
        ));
    }
    if (&described.backend_name, &described.export_id) != (&found.backend, &found.export_id) {
        return differs(format!(
            "the copy of claim {}/{} would now be on backend {} and export {}, which differ from those in this object: delete \
             this object, and create a new one",
            claim.namespace, claim.name, found.backend, found.export_id
        ));
    }
    Ok(())
}

/// Checks that the finished backup is the one that the object requested.
pub(super) fn check_copy(object: &NfsArchive, recorded: &RecordedArchive) -> Result<(), PlannedCondition> {
    let observed = object.observed();
    let requested = (&*observed.claim_uid, &*observed.volume_name, &*observed.export_id);
    if requested == (&*recorded.claim.uid, recorded.of_volume(), &*recorded.export_id) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        Reason::RecordUnusable,
        "the copy on the export is of another claim or volume than the one in this object: nothing is changed; create an \
         object with another name for a new copy",
    ))
}

/// Returns the condition for an object whose name is in use by an unrelated record.
pub(super) fn name_taken(name: &str, state: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::ArchiveNameTaken,
        format!(
            "the name {name} is already in use on the export ({state}): delete this object, and create one with another \
             name; an archive of that name gets its object back"
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn described(change: (&str, Value)) -> NfsArchiveStatus {
        let mut status = json!({
            "backendName": "main", "exportID": "e", "volumeName": "pvc-1", "claimUID": "1", "namespaceUID": "ns",
        });
        let (pointer, value) = change;
        if let Some(field) = status.pointer_mut(pointer) {
            *field = value;
        }
        serde_json::from_value(status).unwrap()
    }

    fn found() -> Subject {
        Subject {
            claim: ClaimRef {
                namespace: "team".into(),
                namespace_uid: "ns".into(),
                name: "data".into(),
                uid: "1".into(),
            },
            volume: "pvc-1".into(),
            backend: "main".into(),
            export_id: "e".into(),
        }
    }

    #[test]
    fn a_source_that_differs_from_its_description_is_not_copied() {
        assert_eq!(check_unchanged(&described(("/none", json!(0))), &found()), Ok(()));
        for pointer in ["/claimUID", "/namespaceUID", "/volumeName", "/backendName", "/exportID"] {
            let condition = check_unchanged(&described((pointer, json!("other"))), &found()).unwrap_err();
            assert_eq!(condition.reason, Reason::CopySourceUnsuitable, "{pointer}");
            assert!(
                condition.message.contains("team/data") && condition.message.contains("delete"),
                "{condition:?}"
            );
        }
    }

    #[test]
    fn only_valid_names_become_part_of_a_request() {
        let claim = |namespace: &str, name: &str| ArchivedClaim {
            namespace: namespace.into(),
            name: name.into(),
        };
        assert_eq!(check_names(&claim("team", "data")), Ok(()));
        for (namespace, name) in [
            ("team", "../secrets"),
            ("team", "a..b"),
            ("team", ""),
            ("kube-system/secrets", "data"),
            ("", "data"),
        ] {
            let condition = check_names(&claim(namespace, name)).unwrap_err();
            assert_eq!(condition.reason, Reason::InvalidSpec, "{namespace} {name}");
        }
    }
}
