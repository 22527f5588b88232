//! Checks before and after a backup is copied. Pure.

use crate::api::archive::{ArchivedClaim, NfsArchive, NfsArchiveSpec};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::object_name::is_object_name;
use export_store::{ClaimRef, RecordedArchive};

/// Source of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) claim: ClaimRef,
    /// The claim's volume.
    pub(super) volume: String,
    /// The backend that has the volume and gets the copy.
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
            "spec.claim names {:?} in namespace {:?}, which is not a valid name of a claim: create a new object with valid \
             names",
            claim.name, claim.namespace
        ),
    ))
}

/// Checks that the claim still matches the object, as written by an earlier step or by a user.
pub(super) fn check_unchanged(spec: &NfsArchiveSpec, found: &Subject) -> Result<(), PlannedCondition> {
    let claim = &found.claim;
    let described = (&spec.claim.uid, &spec.claim.namespace_uid, &spec.volume);
    let differs = |message: String| Err(PlannedCondition::fails(Reason::CopySourceUnsuitable, message));
    if described != (&claim.uid, &claim.namespace_uid, &found.volume) {
        return differs(format!(
            "claim {}/{} was recreated since this object described it: delete this object, and create a new one for the \
             current claim",
            claim.namespace, claim.name
        ));
    }
    if (&spec.backend, &spec.export_id) != (&found.backend, &found.export_id) {
        return differs(format!(
            "claim {}/{} is now on backend {} and export {}, which differ from those in this object: delete this object, \
             and create a new one",
            claim.namespace, claim.name, found.backend, found.export_id
        ));
    }
    Ok(())
}

/// Checks that the finished backup is the one that the object requested.
pub(super) fn check_copy(object: &NfsArchive, recorded: &RecordedArchive) -> Result<(), PlannedCondition> {
    let spec = &object.spec;
    let requested = (&*spec.claim.uid, &*spec.volume, &*spec.export_id);
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

    fn spec(change: (&str, Value)) -> NfsArchiveSpec {
        let mut spec = json!({
            "backend": "main", "exportID": "e", "volume": "pvc-1",
            "claim": {"namespace": "team", "namespaceUID": "ns", "name": "data", "uid": "1"},
        });
        let (pointer, value) = change;
        if let Some(field) = spec.pointer_mut(pointer) {
            *field = value;
        }
        serde_json::from_value(spec).unwrap()
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
        assert_eq!(check_unchanged(&spec(("/none", json!(0))), &found()), Ok(()));
        for pointer in ["/claim/uid", "/claim/namespaceUID", "/volume", "/backend", "/exportID"] {
            let condition = check_unchanged(&spec((pointer, json!("other"))), &found()).unwrap_err();
            assert_eq!(condition.reason, Reason::CopySourceUnsuitable, "{pointer}");
            assert!(
                condition.message.contains("team/data") && condition.message.contains("delete"),
                "{condition:?}"
            );
        }
    }

    #[test]
    fn only_valid_names_become_part_of_a_request() {
        assert_eq!(check_names(&spec(("/none", json!(0))).claim), Ok(()));
        for (pointer, name) in [
            ("/claim/name", "../secrets"),
            ("/claim/name", "a..b"),
            ("/claim/name", ""),
            ("/claim/namespace", "kube-system/secrets"),
            ("/claim/namespace", ""),
        ] {
            let condition = check_names(&spec((pointer, json!(name))).claim).unwrap_err();
            assert_eq!(condition.reason, Reason::InvalidSpec, "{pointer} {name}");
        }
    }
}
