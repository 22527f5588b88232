//! What an archive that somebody asks for is told. Pure.

use crate::api::archive::{ArchivedClaim, NfsArchive, NfsArchiveSpec};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::copy_jobs::Progress;
use export_store::naming::is_object_name;
use export_store::{ClaimRef, RecordedArchive};

/// What is copied, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The claim.
    pub(crate) claim: ClaimRef,
    /// Its volume.
    pub(crate) volume: String,
    /// The backend that it lies on, and that its copy will.
    pub(crate) backend: String,
    /// The identity of the export there.
    pub(crate) export_id: String,
}

/// Whether a claim can have these names: they become part of a request's path.
pub(crate) fn nameable(claim: &ArchivedClaim) -> Result<(), PlannedCondition> {
    if is_object_name(&claim.namespace) && is_object_name(&claim.name) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        Reason::InvalidSpec,
        format!(
            "spec.claim names {:?} in namespace {:?}, and no claim can have such a name: make a new object that names one",
            claim.name, claim.namespace
        ),
    ))
}

/// Whether the object says the same as what was found. It says what was found first, or what somebody wrote there.
pub(crate) fn agrees(spec: &NfsArchiveSpec, found: &Subject) -> Result<(), PlannedCondition> {
    let claim = &found.claim;
    let said = (&spec.claim.uid, &spec.claim.namespace_uid, &spec.volume);
    let differs = |what: String| Err(PlannedCondition::fails(Reason::CopySourceUnsuitable, what));
    if said != (&claim.uid, &claim.namespace_uid, &found.volume) {
        return differs(format!(
            "claim {}/{} is another one by now than this object says: delete this object, and make a new one for the claim \
             that is there",
            claim.namespace, claim.name
        ));
    }
    if (&spec.backend, &spec.export_id) != (&found.backend, &found.export_id) {
        return differs(format!(
            "claim {}/{} lies on backend {} and export {} by now, and this object says others: delete it, and make a new one",
            claim.namespace, claim.name, found.backend, found.export_id
        ));
    }
    Ok(())
}

/// Whether the archive that is there is about what the object says.
pub(crate) fn is_of(object: &NfsArchive, kept: &RecordedArchive) -> Result<(), PlannedCondition> {
    let spec = &object.spec;
    let said = (&*spec.claim.uid, &*spec.volume, &*spec.export_id);
    if said == (&*kept.claim.uid, kept.of_volume(), &*kept.export_id) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        Reason::RecordUnusable,
        "the copy that was made is of another claim or volume than this object says: nothing is touched; delete this object",
    ))
}

/// The record on the export by the object's name is another one's.
pub(crate) fn taken(name: &str, state: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::ArchiveNameTaken,
        format!(
            "the export has something else by the name {name} ({state}): delete this object, and make one under another \
             name. An archive of that name then gets its own object again"
        ),
    )
}

/// How far the copy is; none when it is not under way.
pub(crate) fn progress(claim: &ArchivedClaim, progress: &Progress) -> Option<PlannedCondition> {
    let of = format!("copying claim {}/{}", claim.namespace, claim.name);
    let message = match progress {
        Progress::None => return None,
        Progress::Waiting => format!("{of}: other copies go first"),
        Progress::Copying(tally) => format!("{of}: {}", tally.progress()),
    };
    Some(PlannedCondition::fails(Reason::Copying, message))
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
    fn what_was_said_first_must_still_be_so_when_the_copy_is_begun() {
        assert_eq!(agrees(&spec(("/none", json!(0))), &found()), Ok(()));
        for pointer in ["/claim/uid", "/claim/namespaceUID", "/volume", "/backend", "/exportID"] {
            let told = agrees(&spec((pointer, json!("other"))), &found()).unwrap_err();
            assert_eq!(told.reason, Reason::CopySourceUnsuitable, "{pointer}");
            assert!(
                told.message.contains("team/data") && told.message.contains("delete"),
                "{told:?}"
            );
        }
    }

    #[test]
    fn only_what_can_be_a_claims_name_becomes_part_of_a_request() {
        assert_eq!(nameable(&spec(("/none", json!(0))).claim), Ok(()));
        for (pointer, name) in [
            ("/claim/name", "../secrets"),
            ("/claim/name", "a..b"),
            ("/claim/name", ""),
            ("/claim/namespace", "kube-system/secrets"),
            ("/claim/namespace", ""),
        ] {
            let told = nameable(&spec((pointer, json!(name))).claim).unwrap_err();
            assert_eq!(told.reason, Reason::InvalidSpec, "{pointer} {name}");
        }
    }

    #[test]
    fn progress_is_told_while_there_is_any() {
        let claim = spec(("/none", json!(0))).claim;
        assert_eq!(progress(&claim, &Progress::None), None);
        let waits = progress(&claim, &Progress::Waiting).unwrap();
        assert_eq!(waits.message, "copying claim team/data: other copies go first");
        let begun = progress(&claim, &Progress::Copying(export_store::TallySnapshot::default())).unwrap();
        assert_eq!((begun.status, begun.reason), (Some(false), Reason::Copying));
        assert!(
            begun.message.starts_with("copying claim team/data: 0 files"),
            "{begun:?}"
        );
    }
}
