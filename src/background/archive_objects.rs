//! Creates the NfsArchive objects of archives that have none.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::requests::BackendRequest;
use crate::decide::archive_object::{archive_object, archive_ref, is_of_claim, is_same_archive, retention_terms};
use crate::decide::terms::revision;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::{count_archive, count_released};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportError, ExportStore, RecordedArchive, SignatureStatus};

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
/// lost or whose creation was interrupted. If an administrator requests that, also those of released archives.
pub async fn create_missing_objects(ctx: &Context, backend: &Backend, export: &Arc<ExportStore>) {
    count_released(ctx, &backend.name, export);
    let known = backend.last_probe();
    let request = BackendRequest::ImportArchives;
    // Before the records were read, no archive is known.
    let requested = backend.requests.due(&known.object, request);
    let requested = requested.filter(|_| backend.is_recovered_on(export));
    let missing: Vec<String> = export
        .archives()
        .into_iter()
        // Unsigned records must not crowd out the others.
        .filter(|volume| !export.is_unsigned(volume) && (requested.is_some() || !export.is_released(volume)))
        .filter(|volume| ctx.stores.archives.get(&ObjectRef::new(volume)).is_none())
        .collect();
    let mut complete = missing.len() <= MAX_CREATED;
    let creations = stream::iter(missing.into_iter().take(MAX_CREATED)).map(|volume| async move {
        let created = match export.find_archive(&volume).await {
            Ok(recorded) => create_object(ctx, &backend.name, export, recorded, requested.is_some()).await,
            Err(error) => Err(error.into()),
        };
        (volume, created)
    });
    let mut creations = creations.buffer_unordered(MAX_CONCURRENT);
    while let Some((volume, created)) = creations.next().await {
        complete &= created.is_ok();
        match created {
            Ok(()) | Err(CreateError::Write(WriteError::Conflict)) => {}
            Err(error) => tracing::warn!(
                backend = backend.name,
                volume,
                "failed to create the object of an archive: {error}"
            ),
        }
    }
    if let Some(value) = requested.filter(|_| complete) {
        backend.requests.complete(request, value, ctx.clock.now());
        ctx.request_probe(&backend.name);
    }
}

/// Creates the object of a volume's archive if it does not exist. Does nothing if the volume has no archive, or a released
/// one. The record is read, unless it was just `recorded`.
pub async fn ensure_object(
    ctx: &Context,
    backend: &str,
    export: &ExportStore,
    volume: &str,
    recorded: Option<Box<RecordedArchive>>,
) -> Result<(), CreateError> {
    let recorded = match recorded {
        Some(recorded) => Some(*recorded),
        None => export.find_archive(volume).await?,
    };
    create_object(ctx, backend, export, recorded, false).await
}

async fn create_object(
    ctx: &Context,
    backend: &str,
    export: &ExportStore,
    recorded: Option<RecordedArchive>,
    import: bool,
) -> Result<(), CreateError> {
    let Some(recorded) = recorded else {
        return Ok(());
    };
    let volume = &recorded.volume;
    if recorded.trust != SignatureStatus::Signed {
        return Err(CreateError::Unsigned);
    }
    let wanted = archive_object(&recorded, backend);
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    // Before the volume is deleted, so that no claim gets the space in between, and before the watch can report that the
    // object was deleted.
    count_archive(ctx, &wanted);
    if recorded.archive.released && !import {
        return Ok(());
    }
    // The API server ignores the status of a new object; the controller of archives writes it.
    let requested = NfsArchive {
        status: None,
        ..wanted.clone()
    };
    match api.create(&PostParams::default(), &requested).await {
        Ok(created) => {
            tracing::info!(archive = volume, backend, "created the object of an archive");
            if let Some(archive) = archive_ref(&wanted) {
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
                // Its status is not written yet: the controller of archives finds this record.
                Some(existing) if existing.observed().backend_name.is_empty() && is_of_claim(&existing, &recorded) => {
                    Ok(())
                }
                Some(existing) => {
                    // Archives are counted by name.
                    count_archive(ctx, &existing);
                    Err(CreateError::NameTaken(name_taken(&wanted)))
                }
                // The object was deleted in the meantime: the next attempt creates it, if there still is an archive.
                None => {
                    if ctx.capacity.remove_archive(volume) {
                        ctx.waiting_claims.capacity_freed();
                    }
                    Err(WriteError::Conflict.into())
                }
            }
        }
        Err(error) => {
            Err(WriteError::action("create the archive's object (is the kind NfsArchive installed?)")(error).into())
        }
    }
}

/// Returns the condition for an archive whose name another one has.
fn name_taken(wanted: &NfsArchive) -> PlannedCondition {
    let (name, observed) = (wanted.name_any(), wanted.observed());
    PlannedCondition::fails(
        Reason::ArchiveNameTaken,
        format!(
            "NfsArchive {name} exists and does not describe {} on backend {}: inspect it; set its deletionPolicy to \
             Retain and delete it only if no data depends on it",
            observed.directory, observed.backend_name
        ),
    )
}
