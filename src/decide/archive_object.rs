//! The NfsArchive object that describes an archive, and the values that an object specifies for its archive.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;

use crate::api::archive::{ArchivedClaim, DeletionPolicy, FileId, NfsArchive, NfsArchiveSpec};
use crate::api::names::ARCHIVE_FINALIZER;
use export_store::{ArchiveRef, RecordedArchive, RetentionTerms};

/// Returns the object that describes a recorded archive.
pub fn archive_object(recorded: &RecordedArchive, backend: &str) -> NfsArchive {
    let claim = &recorded.claim;
    let terms = &recorded.archive.terms;
    NfsArchive {
        metadata: ObjectMeta {
            name: Some(recorded.volume.clone()),
            finalizers: Some(vec![ARCHIVE_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: NfsArchiveSpec {
            backend: backend.to_owned(),
            export_id: recorded.export_id.clone(),
            directory: recorded.archive.target.clone(),
            file_id: Some(FileId(recorded.file_id.to_string())),
            volume: recorded.of_volume().to_owned(),
            claim: ArchivedClaim {
                namespace: claim.namespace.clone(),
                namespace_uid: claim.namespace_uid.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone(),
            },
            size: recorded.archive.size.clone(),
            storage_class_name: recorded.archive.class.clone(),
            volume_created_at: recorded.archive.volume_created.and_then(time),
            archived_at: recorded.archive.since.and_then(time),
            expires_at: terms.expires.and_then(time),
            legal_hold: terms.held,
            deletion_policy: deletion_policy(terms),
            allowed_namespaces: None,
        },
        status: None,
    }
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
        expires: object.spec.expires_at.as_ref().map(|at| at.0.as_second()),
        delete: object.spec.deletion_policy == DeletionPolicy::Delete,
    }
}

/// Returns the archive that an object describes: the record on the export has the name of the object. `None` if the
/// fileid is not a 64-bit number, or if the object is not complete.
pub fn archive_ref(object: &NfsArchive) -> Option<ArchiveRef> {
    Some(ArchiveRef {
        volume: object.name_any(),
        claim_uid: object.spec.claim.uid.clone(),
        file_id: object.spec.file_id.as_ref()?.parse().ok()?,
    })
}

/// Reports whether two objects describe the same directory.
pub fn is_same_archive(one: &NfsArchive, other: &NfsArchive) -> bool {
    let identity = |object: &NfsArchive| {
        let spec = &object.spec;
        let place = (spec.backend.clone(), spec.export_id.clone(), spec.directory.clone());
        (place, spec.file_id.clone(), spec.volume.clone(), spec.claim.clone())
    };
    identity(one) == identity(other)
}

/// Reports whether an object has every value of the archive's record, except those that users may edit.
pub fn agrees_with_record(object: &NfsArchive, recorded: &RecordedArchive, backend: &str) -> bool {
    let expected = archive_object(recorded, backend);
    let fixed = |object: &NfsArchive| {
        let spec = &object.spec;
        (
            spec.size.clone(),
            spec.storage_class_name.clone(),
            spec.volume_created_at.clone(),
            spec.archived_at.clone(),
        )
    };
    is_same_archive(object, &expected) && fixed(object) == fixed(&expected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
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
    fn the_object_of_a_copy_has_the_name_that_was_asked_for_and_names_the_volume_that_was_copied() {
        let mut copied = recorded();
        assert!(!archive_object(&copied, "main").is_on_demand());
        copied.volume = "nightly".into();
        copied.archive.copy = Some(CopyState {
            volume: "pvc-1".into(),
            requested_by: "o".into(),
            outcome: None,
        });
        let object = archive_object(&copied, "main");
        assert!(object.is_on_demand() && object.is_complete());
        assert_eq!(object.spec.volume, "pvc-1");
        assert_eq!(archive_ref(&object).unwrap().volume, "nightly");
        let asking = NfsArchive {
            spec: NfsArchiveSpec {
                file_id: None,
                ..object.spec.clone()
            },
            ..object
        };
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
            |spec: &mut NfsArchiveSpec| spec.backend = "other".into(),
            |spec: &mut NfsArchiveSpec| spec.file_id = Some("7".into()),
            |spec: &mut NfsArchiveSpec| spec.claim.uid = "2".into(),
            |spec: &mut NfsArchiveSpec| spec.directory = "archived-x".into(),
            |spec: &mut NfsArchiveSpec| spec.export_id = "copy".into(),
        ] {
            let mut other = wanted.clone();
            change(&mut other.spec);
            assert!(!is_same_archive(&other, &wanted));
        }
    }
}
