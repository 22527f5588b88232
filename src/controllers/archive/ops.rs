//! The steps of an archive's plan that change the export and the object.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, CustomResourceExt, Resource, ResourceExt};
use serde_json::json;

use super::plan::ExportState;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ARCHIVE_FINALIZER;
use crate::decide::archive_object::{missing_location, retention_terms};
use crate::decide::terms;
use crate::runtime::api_error::api_error_text;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ArchiveRef, ExportError, ExportStore, RetentionTerms};

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The step failed on the export.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The step failed in the cluster.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The steps of one archive.
pub struct ArchiveOps<'a> {
    pub ctx: &'a Context,
    pub backend: &'a Backend,
    pub export: &'a ExportStore,
    /// The object as read from the API server just now.
    pub object: &'a NfsArchive,
    pub archive: &'a ArchiveRef,
}

impl ArchiveOps<'_> {
    /// Moves the data into the trash: announces the purge on the export (if the record has the
    /// terms of this object), then deletes the object (which the API server
    /// refuses while it has a legal hold), then purges. Returns false if nothing was purged.
    ///
    /// On a full export, the purge cannot be announced, and would free space. If it is interrupted after the object is
    /// deleted, the archive gets an object with the same retention again.
    pub async fn purge(&self) -> Result<bool, OpsError> {
        let (terms, revision) = (retention_terms(self.object), terms::revision(self.object));
        let announced = match self.export.begin_purge(self.archive, &terms, &revision).await {
            Ok(true) => true,
            Ok(false) => return Ok(false),
            Err(error) if error.is_full() => false,
            Err(error) => return Err(error.into()),
        };
        let cancel = async || match announced {
            true => self.export.cancel_purge(self.archive).await,
            false => Ok(true),
        };
        if self.object.metadata.deletion_timestamp.is_none() && !self.delete_object().await? {
            cancel().await?;
            return Ok(false);
        }
        // Checked last, because after this the data cannot be recovered.
        if is_crd_deleting(self.ctx).await? && cancel().await? {
            return Ok(false);
        }
        if announced {
            self.export.end_purge(self.archive).await?;
        } else if !self.export.purge_unrecorded(self.archive, &terms, &revision).await? {
            return Ok(false);
        }
        self.backend.purge_requested.notify_one();
        let (claim, directory) = (&self.object.spec.claim_ref, &self.object.observed().directory);
        let note = format!(
            "moved {directory} of claim {}/{} into the trash",
            claim.namespace, claim.name
        );
        self.ctx.metrics.backends.archive_purged(&self.backend.name);
        self.finish(Reason::ArchivePurged, &note).await?;
        Ok(true)
    }

    /// Removes the record and the object of an archive whose volume has the data. Returns false if the object has a legal
    /// hold.
    pub async fn complete_restore(&self, state: &ExportState) -> Result<bool, OpsError> {
        let ExportState::Restoring { target, .. } = state else {
            return Ok(false);
        };
        if self.object.metadata.deletion_timestamp.is_none() && !self.delete_object().await? {
            return Ok(false);
        }
        self.export.finish_restore(self.archive, target).await?;
        let claim = &target.claim;
        let note = format!(
            "restored to claim {}/{} as volume {}",
            claim.namespace, claim.name, target.volume
        );
        self.finish(Reason::ArchiveRestored, &note).await?;
        Ok(true)
    }

    async fn finish(&self, reason: Reason, note: &str) -> Result<(), WriteError> {
        tracing::info!(archive = self.archive.volume, backend = self.backend.name, "{note}");
        remove_finalizer(self.ctx, self.object).await?;
        publish(self.ctx, self.object, Severity::Normal, reason, note);
        Ok(())
    }

    /// Deletes the object if it has not changed since it was read. Returns false if it has, or if it has a legal hold.
    async fn delete_object(&self) -> Result<bool, WriteError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: self.object.uid(),
                resource_version: self.object.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match api(self.ctx).delete(&self.archive.volume, &params).await {
            Ok(_) => Ok(true),
            Err(error) if writes::http_status(&error).is_some_and(|code| matches!(code, 403 | 404 | 409 | 422)) => {
                tracing::info!(
                    archive = self.archive.volume,
                    "the API server refuses to delete the archive: {}",
                    api_error_text(&error)
                );
                Ok(false)
            }
            Err(cause) => Err(WriteError::action("delete the archive's object")(cause)),
        }
    }
}

/// Reports whether the CustomResourceDefinition is being deleted or does not exist. Read from the API server, because
/// every archive's object is deleted with it.
pub async fn is_crd_deleting(ctx: &Context) -> Result<bool, WriteError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(ctx.clients.calls.clone());
    let definition = reads::get_metadata_opt(&definitions, NfsArchive::crd_name())
        .await
        .map_err(WriteError::action("read the definition of NfsArchive"))?;
    Ok(definition.is_none_or(|definition| definition.metadata.deletion_timestamp.is_some()))
}

/// Deletes the object of an archive that has no data yet.
pub async fn delete_incomplete(ctx: &Context, object: &NfsArchive) -> Result<(), WriteError> {
    let deleted = writes::delete_as_read(&api(ctx), object, "delete an archive that nobody requests any more").await;
    deleted.map(drop)
}

/// Annotates an object with the location in its status, before that status is written: a tool that restores the object
/// without its status restores the annotations. Returns true if they were missing, so that the object has changed.
pub async fn annotate_location(ctx: &Context, described: &NfsArchive) -> Result<bool, WriteError> {
    let Some(location) = missing_location(described).filter(|_| described.metadata.deletion_timestamp.is_none()) else {
        return Ok(false);
    };
    let annotations = json!({"metadata": {"annotations": location}});
    let action = "annotate the archive with its location";
    writes::patch_as_read(&api(ctx), described, annotations, false, action).await?;
    Ok(true)
}

/// Writes stricter terms to an object that is older than its record. If the object changed meanwhile, the next
/// reconciliation compares it again.
pub async fn restore_terms(ctx: &Context, object: &NfsArchive, terms: &RetentionTerms) -> Result<(), WriteError> {
    let action = "restore the archive's retention from its record";
    match writes::patch_as_read(&api(ctx), object, terms::fields(terms), false, action).await {
        Ok(_) => {
            let note = "this object is older than its record on the export, or replaces the one that the record knows: \
                        legalHold, expirationTime and deletionPolicy were restored as far as they are stricter in the record; \
                        edit them again if that is not intended";
            tracing::warn!(archive = object.name_any(), "{note}");
            publish(ctx, object, Severity::Warning, Reason::RetentionRestored, note);
            Ok(())
        }
        Err(WriteError::Conflict | WriteError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Records that the data of an archive are kept without an object, and lets the object go unless it changed since it was
/// read: its deletion policy may be another one by now. The record is first: from then on, no object is created for it.
pub async fn release(
    ctx: &Context,
    object: &NfsArchive,
    export: &ExportStore,
    archive: &ArchiveRef,
) -> Result<(), OpsError> {
    export.release_archive(archive).await?;
    remove_finalizer_as_read(ctx, object).await?;
    let (claim, observed) = (&object.spec.claim_ref, object.observed());
    let note = format!(
        "deleted with deletionPolicy Retain: {} stays on backend {}; to import it again, create an NfsArchive with this name \
         for claim {}/{}",
        observed.directory, observed.backend_name, claim.namespace, claim.name
    );
    tracing::info!(archive = object.name_any(), backend = observed.backend_name, "{note}");
    publish(ctx, object, Severity::Normal, Reason::ArchiveReleased, &note);
    Ok(())
}

/// Removes the operator's finalizer from an object.
pub async fn remove_finalizer(ctx: &Context, object: &NfsArchive) -> Result<(), WriteError> {
    writes::drop_finalizer(&api(ctx), object, ARCHIVE_FINALIZER).await
}

/// Removes the operator's finalizer from an object unless it changed since it was read: by now, its data may have to be
/// deleted.
pub async fn remove_finalizer_as_read(ctx: &Context, object: &NfsArchive) -> Result<(), WriteError> {
    writes::remove_finalizer_as_read(&api(ctx), object, ARCHIVE_FINALIZER).await
}

/// Publishes an event about an archive.
pub fn publish(ctx: &Context, object: &NfsArchive, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(object.object_ref(&()), severity, reason, "Keep", note);
}

/// Publishes an event about an archive unless it is the last one that was published.
pub fn inform_once(ctx: &Context, object: &NfsArchive, reported: &PlannedCondition) {
    if ctx.last_reported.changed(&object.uid().unwrap_or_default(), reported) {
        publish(ctx, object, Severity::Normal, reported.reason, &reported.message);
    }
}

/// Logs and publishes a warning about an archive unless it is the last one that was published.
pub fn warn_once(ctx: &Context, object: &NfsArchive, reported: &PlannedCondition) {
    if ctx.last_reported.changed(&object.uid().unwrap_or_default(), reported) {
        tracing::warn!(archive = object.name_any(), reason = %reported.reason, "{}", reported.message);
        publish(ctx, object, Severity::Warning, reported.reason, &reported.message);
    }
}

/// The API of archives.
pub fn api(ctx: &Context) -> Api<NfsArchive> {
    Api::all(ctx.clients.calls.clone())
}
