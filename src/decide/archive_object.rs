//! The NfsArchive object that describes an archive, and the values that an object specifies for its archive.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;

use crate::api::archive::{ArchivedClaim, DeletionPolicy, FileId, NfsArchive, NfsArchiveSpec, NfsArchiveStatus};
use crate::api::consistency::{CopiedData, CopiedSnapshot};
use crate::api::names::{ARCHIVE_BACKEND, ARCHIVE_EXPORT_ID, ARCHIVE_FINALIZER};
use export_store::{ArchiveRef, RecordedArchive, RetentionTerms};

/// Returns the object that describes a recorded archive, with the part of its status that comes from the record.
pub fn archive_object(recorded: &RecordedArchive, backend: &str) -> NfsArchive {
    let terms = &recorded.archive.terms;
    NfsArchive {
        metadata: ObjectMeta {
            name: Some(recorded.volume.clone()),
            finalizers: Some(vec![ARCHIVE_FINALIZER.to_owned()]),
            annotations: Some(location(backend, &recorded.export_id)),
            ..ObjectMeta::default()
        },
        spec: NfsArchiveSpec {
            claim_ref: ArchivedClaim {
                namespace: recorded.claim.namespace.clone(),
                name: recorded.claim.name.clone(),
            },
            expiration_time: terms.expires.and_then(time),
            legal_hold: terms.held,
            deletion_policy: deletion_policy(terms),
            allowed_namespaces: None,
            destination: None,
            consistency: None,
            max_snapshot_age: None,
            backup_ref: None,
        },
        status: Some(recorded_status(recorded, backend)),
    }
}

/// Returns the part of an archive's status that its record describes.
fn recorded_status(recorded: &RecordedArchive, backend: &str) -> NfsArchiveStatus {
    let archive = &recorded.archive;
    let copy = archive.copy.as_ref();
    NfsArchiveStatus {
        backend_name: backend.to_owned(),
        export_id: recorded.export_id.clone(),
        directory: archive.target.clone(),
        file_id: Some(FileId(recorded.file_id.to_string())),
        volume_name: recorded.of_volume().to_owned(),
        claim_uid: recorded.claim.uid.clone(),
        namespace_uid: recorded.claim.namespace_uid.clone(),
        requested_size: archive.size.clone().map(Quantity),
        storage_class_name: archive.class.clone(),
        volume_creation_time: archive.volume_created.and_then(time),
        archive_time: archive.since.and_then(time),
        snapshot: copy.and_then(|copy| copy.snapshot.as_ref()).map(copied_snapshot),
        copied: copy.and_then(|copy| copy.amount.as_ref()).map(CopiedData::from),
        ..NfsArchiveStatus::default()
    }
}

fn copied_snapshot(recorded: &export_store::CopiedSnapshot) -> CopiedSnapshot {
    CopiedSnapshot {
        name: recorded.name.clone(),
        last_probe_time: recorded.taken_after.and_then(time),
    }
}

/// Returns an object whose status describes the recorded archive. What else the status has is kept, except that it counts
/// as not written for any generation, so that it is written even if nothing else changed.
pub fn described(object: &NfsArchive, recorded: &RecordedArchive, backend: &str) -> NfsArchive {
    let former = object.observed();
    let status = NfsArchiveStatus {
        state: former.state,
        printed: former.printed.clone(),
        usage: former.usage.clone(),
        conditions: former.conditions.clone(),
        ..recorded_status(recorded, backend)
    };
    NfsArchive {
        status: Some(status),
        ..object.clone()
    }
}

/// Returns the annotations that an object lacks to name the location in its status, or `None` if it has them.
pub fn missing_location(object: &NfsArchive) -> Option<BTreeMap<String, String>> {
    let observed = object.observed();
    let wanted = location(&observed.backend_name, &observed.export_id);
    let present = wanted
        .iter()
        .all(|(key, value)| object.annotations().get(key) == Some(value));
    (!present).then_some(wanted)
}

/// Removes the annotations that the cache does not need: all of an archive whose status names its location.
pub fn drop_unused_annotations(object: &mut NfsArchive) {
    let is_complete = object.is_complete();
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.retain(|key, _| !is_complete && [ARCHIVE_BACKEND, ARCHIVE_EXPORT_ID].contains(&key.as_str()));
    }
}

fn location(backend: &str, export_id: &str) -> BTreeMap<String, String> {
    let annotations = [(ARCHIVE_BACKEND, backend), (ARCHIVE_EXPORT_ID, export_id)];
    annotations
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Reports whether a record is of the claim that an object names.
pub fn is_of_claim(object: &NfsArchive, recorded: &RecordedArchive) -> bool {
    let claim = &object.spec.claim_ref;
    (&claim.namespace, &claim.name) == (&recorded.claim.namespace, &recorded.claim.name)
}

/// Returns a time in the format of the API; `None` if it is out of range.
pub(crate) fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

/// Returns the deletion policy of recorded terms.
pub fn deletion_policy(terms: &RetentionTerms) -> DeletionPolicy {
    match terms.delete {
        true => DeletionPolicy::Delete,
        false => DeletionPolicy::Retain,
    }
}

/// Returns the retention that the object requests.
pub fn retention_terms(object: &NfsArchive) -> RetentionTerms {
    RetentionTerms {
        held: object.spec.legal_hold,
        expires: object.spec.expiration_time.as_ref().map(|at| at.0.as_second()),
        delete: object.spec.deletion_policy == DeletionPolicy::Delete,
    }
}

/// Returns the archive that an object describes: the record on the export has the name of the object. `None` if the
/// fileid is not a 64-bit number, or if the object is not complete.
pub fn archive_ref(object: &NfsArchive) -> Option<ArchiveRef> {
    let observed = object.observed();
    Some(ArchiveRef {
        volume: object.name_any(),
        claim_uid: observed.claim_uid.clone(),
        file_id: object.file_id()?,
    })
}

/// Reports whether two objects describe the same directory.
pub fn is_same_archive(one: &NfsArchive, other: &NfsArchive) -> bool {
    let identity = |object: &NfsArchive| {
        let observed = object.observed().clone();
        let place = (observed.backend_name, observed.export_id, observed.directory);
        let claim = (
            object.spec.claim_ref.clone(),
            observed.claim_uid,
            observed.namespace_uid,
        );
        (place, observed.file_id, observed.volume_name, claim)
    };
    identity(one) == identity(other)
}

/// Reports whether the status of an object has every value of the archive's record.
pub fn agrees_with_record(object: &NfsArchive, recorded: &RecordedArchive, backend: &str) -> bool {
    let expected = archive_object(recorded, backend);
    let described = |object: &NfsArchive| {
        let observed = object.observed().clone();
        (
            observed.requested_size,
            observed.storage_class_name,
            observed.volume_creation_time,
            observed.archive_time,
        )
    };
    is_same_archive(object, &expected) && described(object) == described(&expected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::api::archive::ArchiveSummary;
    use export_store::naming::DirectoryPath;
    use export_store::{ArchivePhase, ArchiveState, ClaimRef, CopyState, SignatureStatus};

    fn recorded() -> RecordedArchive {
        RecordedArchive {
            volume: "pvc-1".into(),
            claim: ClaimRef {
                namespace: "team".into(),
                namespace_uid: "ns".into(),
                name: "data".into(),
                uid: "1".into(),
            },
            directory: DirectoryPath::parse("team-data").unwrap(),
            file_id: u64::MAX,
            archive: ArchiveState {
                target: "archived-team-data".into(),
                mode: 0o777,
                uid: Some(0),
                gid: Some(0),
                since: Some(1000),
                volume_created: Some(500),
                retention: Some(1000),
                size: Some("1Gi".into()),
                class: Some("nfs".into()),
                terms: RetentionTerms {
                    held: true,
                    expires: Some(2000),
                    delete: true,
                },
                revision: None,
                copy: None,
                released: false,
            },
            phase: ArchivePhase::Archived,
            exists: true,
            export_id: "export".into(),
            trust: SignatureStatus::Signed,
        }
    }

    #[test]
    fn an_object_that_is_made_again_says_what_the_lost_one_said() {
        let recorded = recorded();
        let object = archive_object(&recorded, "main");
        assert_eq!(retention_terms(&object), recorded.archive.terms);
        let archive = archive_ref(&object).unwrap();
        assert_eq!((archive.file_id, &*archive.claim_uid), (u64::MAX, "1"));
        assert_eq!(object.metadata.finalizers.unwrap(), [ARCHIVE_FINALIZER]);
    }

    #[test]
    fn an_object_that_lost_its_status_still_names_its_backend_and_export() {
        let described = archive_object(&recorded(), "main");
        assert_eq!(missing_location(&described), None);
        let lost = NfsArchive {
            status: None,
            ..described.clone()
        };
        assert_eq!((lost.backend_name(), lost.export_id()), ("main", "export"));
        let mut unannotated = described.clone();
        unannotated.metadata.annotations = None;
        assert_eq!(missing_location(&unannotated), described.metadata.annotations);
        let edited = (ARCHIVE_EXPORT_ID.to_owned(), "other".to_owned());
        unannotated.metadata.annotations = Some([edited].into());
        assert_eq!(unannotated.export_id(), "export", "the status takes precedence");
        assert_eq!(missing_location(&unannotated), described.metadata.annotations);
    }

    #[test]
    fn the_object_of_a_copy_has_the_name_that_was_asked_for_and_names_the_volume_that_was_copied() {
        let mut copied = recorded();
        assert!(!archive_object(&copied, "main").is_on_demand());
        copied.volume = "nightly".into();
        copied.archive.copy = Some(CopyState {
            volume: "pvc-1".into(),
            requested_by: "o".into(),
            outcome: None,
            amount: None,
            manifest: None,
            checkpoint: None,
            snapshot: None,
            shares_files: false,
        });
        let object = archive_object(&copied, "main");
        assert!(object.is_on_demand() && object.is_complete());
        assert_eq!(object.observed().volume_name, "pvc-1");
        assert_eq!(archive_ref(&object).unwrap().volume, "nightly");
        let asking = NfsArchive { status: None, ..object };
        assert!(asking.is_on_demand() && !asking.is_complete());
        assert_eq!(archive_ref(&asking), None);
    }

    #[test]
    fn an_object_about_another_directory_is_not_taken_for_the_archives() {
        let wanted = archive_object(&recorded(), "main");
        let edited = NfsArchive {
            spec: NfsArchiveSpec {
                legal_hold: false,
                ..wanted.spec.clone()
            },
            ..wanted.clone()
        };
        assert!(is_same_archive(&edited, &wanted));
        for change in [
            |status: &mut NfsArchiveStatus| status.backend_name = "other".into(),
            |status: &mut NfsArchiveStatus| status.file_id = Some("7".into()),
            |status: &mut NfsArchiveStatus| status.claim_uid = "2".into(),
            |status: &mut NfsArchiveStatus| status.namespace_uid = "new".into(),
            |status: &mut NfsArchiveStatus| status.directory = "archived-x".into(),
            |status: &mut NfsArchiveStatus| status.export_id = "copy".into(),
        ] {
            let mut other = wanted.clone();
            change(other.status.as_mut().unwrap());
            assert!(!is_same_archive(&other, &wanted));
        }
    }

    #[test]
    fn a_lost_status_is_that_of_the_record_again_and_is_written() {
        let recorded = recorded();
        let wanted = archive_object(&recorded, "main");
        let lost = NfsArchive {
            status: Some(NfsArchiveStatus {
                observed_generation: Some(1),
                state: Some(ArchiveSummary::Held),
                ..NfsArchiveStatus::default()
            }),
            ..wanted.clone()
        };
        let again = described(&lost, &recorded, "main");
        assert!(is_same_archive(&again, &wanted) && agrees_with_record(&again, &recorded, "main"));
        assert_eq!(again.observed().observed_generation, None);
        assert_eq!(again.observed().state, Some(ArchiveSummary::Held));
    }

    #[test]
    fn a_record_is_not_that_of_an_object_with_another_claim() {
        let wanted = archive_object(&recorded(), "main");
        assert!(is_of_claim(&wanted, &recorded()));
        let mut other = wanted;
        other.spec.claim_ref.name = "other".into();
        assert!(!is_of_claim(&other, &recorded()));
    }
}
