//! Creates the NfsArchive objects of archives that have none.

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::archive_object::{archive_object, archive_ref, is_same_archive, retention_terms};
use crate::decide::terms::revision;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportError, ExportStore, SignatureStatus};

/// Maximum number of objects created in one run: a thousand archives of an earlier release must not delay the garbage
/// collection of backups.
const MAX_CREATED: usize = 500;
/// Maximum number of objects created concurrently.
const MAX_CONCURRENT: usize = 16;

/// Reason why an archive has no object.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The record cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// This cluster did not sign the record: an unsigned record alone creates nothing.
    #[error("this cluster did not sign its record; see the backend's condition RecordsTrusted")]
    Unsigned,
    /// Another object has the name.
    #[error("{}", .0.message)]
    NameTaken(PlannedCondition),
    /// The API server did not create the object.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Creates the objects of a backend's archives that have none: archives of an earlier release, and those whose object was
/// lost or whose creation was interrupted.
pub async fn create_missing_objects(ctx: &Context, backend: &Backend, export: &ExportStore) {
    let missing = export
        .archives()
        .into_iter()
        // Unsigned records must not crowd out the others.
        .filter(|volume| !export.is_unsigned(volume) && ctx.stores.archives.get(&ObjectRef::new(volume)).is_none());
    let creations = stream::iter(missing.take(MAX_CREATED)).map(|volume| async move {
        let created = ensure_object(ctx, &backend.name, export, &volume).await;
        (volume, created)
    });
    let mut creations = creations.buffer_unordered(MAX_CONCURRENT);
    while let Some((volume, created)) = creations.next().await {
        match created {
            Ok(()) | Err(CreateError::Write(WriteError::Conflict)) => {}
            Err(error) => tracing::warn!(
                backend = backend.name,
                volume,
                "failed to create the object of an archive: {error}"
            ),
        }
    }
}

/// Creates the object of a volume's archive if it does not exist. Does nothing if the volume has no archive.
pub async fn ensure_object(
    ctx: &Context,
    backend: &str,
    export: &ExportStore,
    volume: &str,
) -> Result<(), CreateError> {
    let Some(recorded) = export.find_archive(volume).await? else {
        return Ok(());
    };
    if recorded.trust != SignatureStatus::Signed {
        return Err(CreateError::Unsigned);
    }
    let wanted = archive_object(&recorded, backend);
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    match api.create(&PostParams::default(), &wanted).await {
        Ok(created) => {
            publish_archived_event(ctx, &wanted);
            if let Some(archive) = archive_ref(&created) {
                let terms = retention_terms(&created);
                export
                    .bind_archive_object(&archive, &terms, &revision(&created))
                    .await?;
            }
            Ok(())
        }
        // The existing object may describe another archive.
        Err(error) if writes::http_status(&error) == Some(409) => {
            let existing = reads::get_opt(&api, volume)
                .await
                .map_err(WriteError::action("read the archive's object"))?;
            match existing {
                Some(existing) if is_same_archive(&existing, &wanted) => Ok(()),
                Some(_) => Err(CreateError::NameTaken(PlannedCondition::fails(
                    Reason::ArchiveNameTaken,
                    format!(
                        "NfsArchive {volume} exists and does not describe {} on backend {backend}: inspect it; set its \
                         deletionPolicy to Retain and delete it only if no data depends on it",
                        wanted.spec.directory
                    ),
                ))),
                // The object was deleted in the meantime: the next attempt creates it.
                None => Err(WriteError::Conflict.into()),
            }
        }
        Err(error) => {
            Err(WriteError::action("create the archive's object (is the kind NfsArchive installed?)")(error).into())
        }
    }
}

/// Publishes an event about a new archive object on the claim, which may be the only object that its users can see.
pub fn publish_archived_event(ctx: &Context, object: &NfsArchive) {
    let (name, claim) = (object.name_any(), &object.spec.claim);
    tracing::info!(
        archive = name,
        backend = object.spec.backend,
        "created the object of an archive"
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
    let note = format!("the data of claim {} is kept{until} as NfsArchive {name}", claim.name);
    ctx.events
        .publish(regarding, Severity::Normal, Reason::Archived, "Archive", &note);
}
