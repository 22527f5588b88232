//! Accepts the directories of an export that was restored or moved file by file, as an administrator requested: records,
//! volumes and archives get the fileids that their directories have now.
//!
//! An interrupted run is repeated from the beginning, and changes nothing of what was accepted already.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Resource as _, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;

use super::orphan_scan::is_export_error;
use super::runner::{self, BackendTask};
use crate::api::NfsBackend;
use crate::api::archive::{FileId, NfsArchive, NfsArchiveStatus};
use crate::api::conditions::Reason;
use crate::api::names::{ACCEPT_DIRECTORIES, VOLUME_BACKEND, VOLUME_FILE_ID, managers};
use crate::api::requests::{ALL, BackendRequest, ids};
use crate::runtime::api_error::api_error_text;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use export_store::text::counted;
use export_store::{Acceptance, AcceptedDirectory, ExportError, ExportStore};

const REQUEST: BackendRequest = BackendRequest::AcceptDirectories;
/// Maximum number of refused volumes that get an event; the log has all.
const MAX_EVENTS: usize = 10;

/// Reason why a run was interrupted.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    /// The records of the export were not read yet.
    #[error("the identity of the export is not confirmed")]
    NotConfirmed,
    /// The operator stops.
    #[error("the operator stops")]
    Stopping,
    /// The export cannot be read or changed.
    #[error("{0}")]
    Export(#[from] ExportError),
    /// An object cannot be read.
    #[error("failed to read a volume or an archive: {}", api_error_text(.0))]
    Read(#[from] Box<kube::Error>),
    /// An object cannot be changed.
    #[error("{0}")]
    Write(#[from] WriteError),
}

/// What became of the volumes and archives.
#[derive(Debug, Default)]
struct Outcome {
    /// Number of those whose directory is another one than before.
    accepted: usize,
    /// Number of those whose directory is the one that was known already.
    unchanged: usize,
    /// Those that were refused.
    refused: Vec<String>,
    /// Why the first of them were.
    reasons: Vec<String>,
}

/// Starts the task that accepts directories.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    runner::spawn(ctx, backend, DirectoryAcceptance, Duration::MAX);
}

struct DirectoryAcceptance;

impl BackendTask for DirectoryAcceptance {
    const INTERRUPTIBLE: bool = false;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.acceptance_requested
    }

    /// Runs if the administrator still requests it. Each probe requests another run until the request is handled.
    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        let Some(value) = backend.requests.due(&known.object, REQUEST) else {
            return Duration::MAX;
        };
        match accept(ctx, backend, &known, value).await {
            Ok(outcome) => {
                let summary = summary(&outcome);
                report(ctx, &known.object, &outcome, &summary);
                let now = ctx.clock.now();
                backend.requests.complete_with(REQUEST, value, Some(summary), now);
                // Reports what is left, and removes the condition of claims whose directory was missing.
                backend.scan_requested.notify_one();
                // The next probe lists the request as handled.
                ctx.request_probe(&backend.name);
            }
            Err(error) => tracing::warn!(
                backend = backend.name,
                "the directories are not all accepted; the next probe retries it: {error}"
            ),
        }
        Duration::MAX
    }
}

/// Accepts the directories that a value requests.
async fn accept(ctx: &Context, backend: &Backend, known: &ProbeSnapshot, value: &str) -> Result<Outcome, AcceptError> {
    let (Some(export), Some(_)) = (&known.store, &known.identity) else {
        return Err(AcceptError::NotConfirmed);
    };
    if !backend.is_recovered_on(export) {
        return Err(AcceptError::NotConfirmed);
    }
    let run = Run {
        ctx,
        backend,
        known,
        export,
        all: ids(value).any(|id| id == ALL),
    };
    let mut volumes = match run.all {
        true => export.recorded_volumes(&|_| false).await?,
        false => ids(value).map(str::to_owned).collect(),
    };
    let mut outcome = Outcome::default();
    // A directory can have the fileid that another record knows until that other one is accepted, too.
    loop {
        let before = volumes.len();
        outcome.refused.clear();
        outcome.reasons.clear();
        for volume in &volumes {
            run.accept_one(volume, &mut outcome).await?;
        }
        if outcome.refused.is_empty() || outcome.refused.len() == before {
            return Ok(outcome);
        }
        volumes.clone_from(&outcome.refused);
    }
}

/// A run in progress.
struct Run<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    known: &'a ProbeSnapshot,
    export: &'a ExportStore,
    /// All volumes and archives of the backend are requested.
    all: bool,
}

impl Run<'_> {
    async fn accept_one(&self, volume: &str, outcome: &mut Outcome) -> Result<(), AcceptError> {
        if self.ctx.shutdown.is_cancelled() {
            return Err(AcceptError::Stopping);
        }
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let object = reads::get_opt(&api, volume).await.map_err(Box::new)?;
        match self.accept_directory(volume, object.as_ref()).await? {
            Acceptance::Accepted(accepted) => {
                let updated = match (&object, accepted.archive) {
                    (_, true) => self.update_archive(volume, &accepted).await?,
                    (Some(object), false) => self.update_volume(&api, object, &accepted).await?,
                    (None, false) => false,
                };
                match accepted.changed || updated {
                    true => outcome.accepted += 1,
                    false => outcome.unchanged += 1,
                }
            }
            Acceptance::OtherBackend(_) if self.all => {}
            Acceptance::OtherBackend(other) => {
                outcome.refuse(volume, &format!("it belongs to backend {other}: annotate that backend"));
            }
            Acceptance::Refused(why) => outcome.refuse(volume, &why),
        }
        Ok(())
    }

    async fn accept_directory(
        &self,
        volume: &str,
        object: Option<&PersistentVolume>,
    ) -> Result<Acceptance, ExportError> {
        let named = object.and_then(|object| object.annotations().get(VOLUME_BACKEND));
        if let Some(other) = named.filter(|named| **named != self.backend.name) {
            return Ok(Acceptance::OtherBackend(other.clone()));
        }
        let request = match object.map(|object| self.known.reclaim_request(object)).transpose() {
            Ok(request) => request,
            Err(condition) => return Ok(Acceptance::Refused(condition.message)),
        };
        match self.export.accept_directory(volume, request.as_ref()).await {
            Err(error) if !is_export_error(&error) => Ok(Acceptance::Refused(error.to_string())),
            accepted => accepted,
        }
    }

    /// Updates the fileid in the annotation of a volume. Returns false if the volume has it already, or none: volumes of
    /// nfs-subdir-external-provisioner have no annotation.
    async fn update_volume(
        &self,
        api: &Api<PersistentVolume>,
        object: &PersistentVolume,
        accepted: &AcceptedDirectory,
    ) -> Result<bool, WriteError> {
        let file_id = accepted.file_id.to_string();
        let annotated = object.annotations().get(VOLUME_FILE_ID);
        if annotated.is_none_or(|annotated| *annotated == file_id) {
            return Ok(false);
        }
        let fields = json!({"metadata": {"annotations": {VOLUME_FILE_ID: file_id}}});
        writes::patch_as_read(api, object, fields, false, "update the fileid of a volume").await?;
        // Its limit is ordered again, for the directory that it has now.
        self.backend.quota.forget(&object.name_any());
        Ok(true)
    }

    /// Updates the fileid in the status of an archive. Returns false if the archive has it already, or no status, which is
    /// written from the record.
    async fn update_archive(&self, name: &str, accepted: &AcceptedDirectory) -> Result<bool, AcceptError> {
        let api: Api<NfsArchive> = Api::all(self.ctx.clients.calls.clone());
        let Some(object) = reads::get_opt(&api, name).await.map_err(Box::new)? else {
            return Ok(false);
        };
        let observed = object.observed();
        let is_same = observed.backend_name == self.backend.name
            && Some(observed.export_id.as_str()) == self.known.export_id()
            && observed.claim_uid == accepted.claim_uid
            && observed.directory == accepted.directory;
        if !is_same || object.file_id().is_none_or(|known| known == accepted.file_id) {
            return Ok(false);
        }
        let status = NfsArchiveStatus {
            file_id: Some(FileId(accepted.file_id.to_string())),
            // Owned by another field manager.
            usage: None,
            ..observed.clone()
        };
        let (version, action) = (object.resource_version(), "update the fileid of an archive");
        writes::apply_status(&api, &object, managers::STATUS, &status, version, action).await?;
        Ok(true)
    }
}

impl Outcome {
    fn refuse(&mut self, volume: &str, why: &str) {
        tracing::warn!(volume, "its directory is not accepted: {why}");
        if self.reasons.len() < MAX_EVENTS {
            self.reasons.push(format!("{volume:?}: {why}"));
        }
        self.refused.push(volume.to_owned());
    }
}

/// Publishes the result, and the first refusals.
fn report(ctx: &Context, object: &NfsBackend, outcome: &Outcome, summary: &str) {
    let publish = |severity: Severity, reason: Reason, note: &str| {
        tracing::info!(backend = object.name_any(), %reason, "{note}");
        ctx.events
            .publish(object.object_ref(&()), severity, reason, "Accept", note);
    };
    for reason in &outcome.reasons {
        let note = format!("{reason}; to try again, append @ and any text to the annotation {ACCEPT_DIRECTORIES}");
        publish(Severity::Warning, Reason::DirectoryNotAccepted, &note);
    }
    publish(Severity::Normal, Reason::DirectoriesAccepted, summary);
}

fn summary(outcome: &Outcome) -> String {
    let directories = |count: usize| match count {
        1 => "1 directory".to_owned(),
        _ => format!("{count} directories"),
    };
    format!(
        "accepted {}, {} had not changed, {} not accepted",
        directories(outcome.accepted),
        outcome.unchanged,
        counted(outcome.refused.len(), "volume"),
    )
}
