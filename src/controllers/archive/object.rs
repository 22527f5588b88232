//! The object of an archive, as it is made of the record on the export.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use crate::api::archive::{ArchivedClaim, DeletionPolicy, FileId, NfsArchive, NfsArchiveSpec};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ARCHIVE_FINALIZER;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use export_store::{ArchiveRef, ExportError, ExportStore, RecordedArchive, RetentionTerms, Trust};

/// Why an archive has no object.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// The record can't be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// This cluster did not sign the record: nothing is made on its word alone.
    #[error("this cluster did not sign its record; the backend's condition RecordsTrusted says what to do")]
    Doubted,
    /// Another object has the name.
    #[error("{}", .0.message)]
    Taken(PlannedCondition),
    /// The API server did not take it.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The object for an archive.
pub fn object(kept: &RecordedArchive, backend: &str) -> NfsArchive {
    let claim = &kept.claim;
    let terms = &kept.note.terms;
    NfsArchive {
        metadata: ObjectMeta {
            name: Some(kept.volume.clone()),
            finalizers: Some(vec![ARCHIVE_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: NfsArchiveSpec {
            backend: backend.to_owned(),
            export_id: kept.export_id.clone(),
            directory: kept.note.target.clone(),
            file_id: Some(FileId(kept.file_id.to_string())),
            volume: kept.of_volume().to_owned(),
            claim: ArchivedClaim {
                namespace: claim.namespace.clone(),
                namespace_uid: claim.namespace_uid.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone(),
            },
            size: kept.note.size.clone(),
            storage_class_name: kept.note.class.clone(),
            archived_at: kept.note.since.and_then(time),
            expires_at: terms.expires.and_then(time),
            legal_hold: terms.held,
            deletion_policy: match terms.delete {
                true => DeletionPolicy::Delete,
                false => DeletionPolicy::Retain,
            },
            allowed_namespaces: None,
        },
        status: None,
    }
}

fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

/// What the object says shall become of the archive.
pub fn terms(object: &NfsArchive) -> RetentionTerms {
    RetentionTerms {
        held: object.spec.legal_hold,
        expires: object.spec.expires_at.as_ref().map(|at| at.0.as_second()),
        delete: object.spec.deletion_policy == DeletionPolicy::Delete,
    }
}

/// The archive that an object is about: the record on the export has the object's name. None when its fileid is no number of
/// 64 bits, or it is not complete.
pub fn which(object: &NfsArchive) -> Option<ArchiveRef> {
    Some(ArchiveRef {
        volume: object.name_any(),
        claim_uid: object.spec.claim.uid.clone(),
        file_id: object.spec.file_id.as_ref()?.parse().ok()?,
    })
}

/// Makes the object of a volume's archive, unless it is there. Nothing to do when no archive is kept of the volume.
pub async fn ensure(ctx: &Context, backend: &str, export: &ExportStore, volume: &str) -> Result<(), EnsureError> {
    let Some(kept) = export.find_archive(volume).await? else {
        return Ok(());
    };
    if kept.trust != Trust::Signed {
        return Err(EnsureError::Doubted);
    }
    let wanted = object(&kept, backend);
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    match api.create(&PostParams::default(), &wanted).await {
        Ok(_) => {
            announce(ctx, &wanted);
            Ok(())
        }
        // 409 on create is a question, not a success.
        Err(error) if writes::http_status(&error) == Some(409) => {
            let there = api
                .get_opt(volume)
                .await
                .map_err(WriteError::of("read the archive's object"))?;
            match there {
                Some(there) if is_about(&there, &wanted) => Ok(()),
                Some(_) => Err(EnsureError::Taken(PlannedCondition::fails(
                    Reason::ArchiveNameTaken,
                    format!(
                        "NfsArchive {volume} is there and about something else than {} on backend {backend}: look at \
                         it, and delete it",
                        wanted.spec.directory
                    ),
                ))),
                // It went in this moment: the next look makes it.
                None => Err(WriteError::Conflict.into()),
            }
        }
        Err(error) => {
            Err(WriteError::of("create the archive's object (is the kind NfsArchive installed?)")(error).into())
        }
    }
}

/// Whether two objects are about the same directory.
fn is_about(there: &NfsArchive, wanted: &NfsArchive) -> bool {
    let about = |object: &NfsArchive| {
        let spec = &object.spec;
        let place = (spec.backend.clone(), spec.export_id.clone(), spec.directory.clone());
        (place, spec.file_id.clone(), spec.volume.clone(), spec.claim.clone())
    };
    about(there) == about(wanted)
}

/// Whether an object says all that the archive's record says, apart from what people may edit.
pub fn says_the_same(there: &NfsArchive, kept: &RecordedArchive, backend: &str) -> bool {
    let wanted = object(kept, backend);
    let made = |object: &NfsArchive| {
        let spec = &object.spec;
        (
            spec.size.clone(),
            spec.storage_class_name.clone(),
            spec.archived_at.clone(),
        )
    };
    is_about(there, &wanted) && made(there) == made(&wanted)
}

/// Tells those who have or had the claim: in its namespace, which is all that they may see.
pub(crate) fn announce(ctx: &Context, object: &NfsArchive) {
    let (name, claim) = (object.name_any(), &object.spec.claim);
    tracing::info!(
        archive = name,
        backend = object.spec.backend,
        "made the archive's object"
    );
    if claim.namespace.is_empty() || claim.name.is_empty() {
        return;
    }
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(claim.uid.clone()),
        ..ObjectReference::default()
    };
    let until = object
        .spec
        .expires_at
        .as_ref()
        .map_or_else(String::new, |at| format!(" until {}", at.0));
    let note = format!("the data of claim {} are kept{until} as NfsArchive {name}", claim.name);
    ctx.events
        .publish(regarding, Severity::Normal, Reason::Archived, "Archive", &note);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use export_store::naming::DirectoryPath;
    use export_store::{ArchiveState, ClaimRef, CopyState, Stage};

    fn kept() -> RecordedArchive {
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
            note: ArchiveState {
                target: "archived-team-data".into(),
                mode: 0o777,
                uid: Some(0),
                gid: Some(0),
                since: Some(1000),
                size: Some("1Gi".into()),
                class: Some("nfs".into()),
                terms: RetentionTerms {
                    held: true,
                    expires: Some(2000),
                    delete: true,
                },
                copy: None,
            },
            stage: Stage::Kept,
            there: true,
            export_id: "export".into(),
            trust: Trust::Signed,
        }
    }

    #[test]
    fn an_object_that_is_made_again_says_what_the_lost_one_said() {
        let kept = kept();
        let made = object(&kept, "main");
        assert_eq!(terms(&made), kept.note.terms);
        let which = which(&made).unwrap();
        assert_eq!((which.file_id, &*which.claim_uid), (u64::MAX, "1"));
        assert_eq!(made.metadata.finalizers.unwrap(), [ARCHIVE_FINALIZER]);
    }

    #[test]
    fn the_object_of_a_copy_has_the_name_that_was_asked_for_and_names_the_volume_that_was_copied() {
        let mut copied = kept();
        assert!(!object(&copied, "main").is_on_demand());
        copied.volume = "nightly".into();
        copied.note.copy = Some(CopyState {
            volume: "pvc-1".into(),
            asked_by: "o".into(),
            outcome: None,
        });
        let made = object(&copied, "main");
        assert!(made.is_on_demand() && made.is_complete());
        assert_eq!(made.spec.volume, "pvc-1");
        assert_eq!(which(&made).unwrap().volume, "nightly");
        let asking = NfsArchive {
            spec: NfsArchiveSpec {
                file_id: None,
                ..made.spec.clone()
            },
            ..made
        };
        assert_eq!(which(&asking), None);
    }

    #[test]
    fn an_object_about_another_directory_is_not_taken_for_the_archives() {
        let wanted = object(&kept(), "main");
        let edited = NfsArchive {
            spec: NfsArchiveSpec {
                legal_hold: false,
                ..wanted.spec.clone()
            },
            ..wanted.clone()
        };
        assert!(is_about(&edited, &wanted));
        for change in [
            |spec: &mut NfsArchiveSpec| spec.backend = "other".into(),
            |spec: &mut NfsArchiveSpec| spec.file_id = Some("7".into()),
            |spec: &mut NfsArchiveSpec| spec.claim.uid = "2".into(),
            |spec: &mut NfsArchiveSpec| spec.directory = "archived-x".into(),
            |spec: &mut NfsArchiveSpec| spec.export_id = "copy".into(),
        ] {
            let mut other = wanted.clone();
            change(&mut other.spec);
            assert!(!is_about(&other, &wanted));
        }
    }
}
