//! The steps of an archive's plan, carried out.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, CustomResourceExt, Resource, ResourceExt};

use super::plan::ExportState;
use crate::api::archive::NfsArchive;
use crate::api::conditions::Reason;
use crate::api::names::ARCHIVE_FINALIZER;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ArchiveRef, ExportError, ExportStore};

/// Why a step was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// On the export.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// In the cluster.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// An archive, and where it lies.
pub struct ArchiveOps<'a> {
    /// What every reconciler is handed.
    pub ctx: &'a Context,
    /// Its backend.
    pub backend: &'a Backend,
    /// Its export.
    pub export: &'a ExportStore,
    /// The object, read live.
    pub object: &'a NfsArchive,
    /// What it is about.
    pub which: &'a ArchiveRef,
}

impl ArchiveOps<'_> {
    /// Into the trash with the data: announced on the export, then the object's deletion is asked for (which the API
    /// server refuses when it is held), then done. False: it was spared.
    pub async fn purge(&self) -> Result<bool, ActError> {
        self.export.begin_purge(self.which).await?;
        if self.object.metadata.deletion_timestamp.is_none() && !self.delete_object().await? {
            self.export.cancel_purge(self.which).await?;
            return Ok(false);
        }
        // Asked last of all: from here on the data can't be had back.
        if crd_deleting(self.ctx).await? && self.export.cancel_purge(self.which).await? {
            return Ok(false);
        }
        self.export.end_purge(self.which).await?;
        self.backend.trash.notify_one();
        let claim = &self.object.spec.claim;
        let note = format!(
            "{} of claim {}/{} is purged",
            self.object.spec.directory, claim.namespace, claim.name
        );
        tracing::info!(archive = self.which.volume, backend = self.backend.name, "{note}");
        event(self.ctx, self.object, Severity::Normal, Reason::ArchivePurged, &note);
        let_go(self.ctx, self.object).await?;
        Ok(true)
    }

    /// The volume that an archive was restored to is there: the archive is none any more. False: the object is held.
    pub async fn finish(&self, sight: &ExportState) -> Result<bool, ActError> {
        let ExportState::Restoring { to, .. } = sight else {
            return Ok(false);
        };
        if self.object.metadata.deletion_timestamp.is_none() && !self.delete_object().await? {
            return Ok(false);
        }
        self.export.finish_restore(self.which, to).await?;
        let claim = &to.claim;
        let note = format!(
            "restored to claim {}/{} as volume {}",
            claim.namespace, claim.name, to.volume
        );
        tracing::info!(archive = self.which.volume, backend = self.backend.name, "{note}");
        event(self.ctx, self.object, Severity::Normal, Reason::ArchiveRestored, &note);
        let_go(self.ctx, self.object).await?;
        Ok(true)
    }

    /// Asks for the object's deletion, if it is still as it was read; false when it is not, or is held.
    async fn delete_object(&self) -> Result<bool, WriteError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: self.object.uid(),
                resource_version: self.object.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match api(self.ctx).delete(&self.which.volume, &params).await {
            Ok(_) => Ok(true),
            Err(error) if writes::http_status(&error).is_some_and(|code| matches!(code, 403 | 404 | 409 | 422)) => {
                tracing::info!(archive = self.which.volume, "its purge is refused: {error}");
                Ok(false)
            }
            Err(cause) => Err(WriteError::of("delete the archive's object")(cause)),
        }
    }
}

/// Whether the kind is being deleted, or is gone: read live, for every archive's object goes with it.
pub async fn crd_deleting(ctx: &Context) -> Result<bool, WriteError> {
    let kinds: Api<CustomResourceDefinition> = Api::all(ctx.clients.calls.clone());
    let kind = kinds
        .get_metadata_opt(NfsArchive::crd_name())
        .await
        .map_err(WriteError::of("read the definition of NfsArchive"))?;
    Ok(kind.is_none_or(|kind| kind.metadata.deletion_timestamp.is_some()))
}

/// Drops our finalizer from an object.
pub async fn let_go(ctx: &Context, object: &NfsArchive) -> Result<(), WriteError> {
    writes::drop_finalizer(&api(ctx), object, ARCHIVE_FINALIZER).await
}

/// Sends an event about an archive.
pub fn event(ctx: &Context, object: &NfsArchive, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(object.object_ref(&()), severity, reason, "Keep", note);
}

/// All archives.
pub fn api(ctx: &Context) -> Api<NfsArchive> {
    Api::all(ctx.clients.calls.clone())
}
