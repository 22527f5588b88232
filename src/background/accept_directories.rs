//! Accepts the directories of an export that was restored or moved file by file, as an administrator requested: records,
//! volumes and archives get the fileids that their directories have now.
//!
//! An interrupted run is repeated from the beginning, and changes nothing of what was accepted already.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;

use super::runner::{self, BackendTask};
use crate::api::NfsBackend;
use crate::api::archive::{FileId, NfsArchive, NfsArchiveStatus};
use crate::api::conditions::Reason;
use crate::api::names::{ACCEPT_DIRECTORIES, VOLUME_FILE_ID, managers};
use crate::api::requests::{ALL, BackendRequest, ids};
use crate::compat::nfs_subdir::location::alias_backend;
use crate::runtime::api_error::api_error_text;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use crate::state::volume_indexer::index_volume;
use export_store::text::counted;
use export_store::{Acceptance, AcceptanceScope, AcceptedDirectory, ExportError, ExportStore};

const REQUEST: BackendRequest = BackendRequest::AcceptDirectories;
/// Maximum number of problems that get an event; the log has all.
const MAX_EVENTS: usize = 10;
/// Pause after an interruption.
const RETRY: Duration = Duration::from_secs(30);
/// Maximum number of attempts to update an object that others write to at the same time.
const TRIES: usize = 3;

/// Reason why a run was interrupted.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    /// The records of the export were not read yet.
    #[error("the identity of the export is not confirmed")]
    NotConfirmed,
    /// The administrator withdrew or replaced the request, the backend has another connection or is gone, or the operator
    /// stops.
    #[error("the request, the backend or its connection changed")]
    Changed,
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
    /// Number of those whose directory is accepted, now or before.
    accepted: usize,
    /// Number of those that this run changed.
    changed: usize,
    /// Number of those that were refused.
    refused: usize,
    /// What went wrong with the first of them.
    problems: Vec<String>,
}

/// Starts the task that accepts directories.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    let task = DirectoryAcceptance { interruption: None };
    runner::spawn(ctx, backend, task, Duration::MAX);
}

struct DirectoryAcceptance {
    /// Value of the annotation whose last interruption was reported, and its cause.
    interruption: Option<(String, String)>,
}

impl BackendTask for DirectoryAcceptance {
    const INTERRUPTIBLE: bool = false;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.acceptance_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        let Some(value) = backend.requests.due(&known.object, REQUEST) else {
            backend.requests.withdraw(REQUEST);
            return Duration::MAX;
        };
        match accept(ctx, backend, &known, value).await {
            Ok(outcome) => {
                self.interruption = None;
                let summary = outcome.summary();
                report(ctx, &known.object, &outcome, &summary);
                let now = ctx.clock.now();
                backend.requests.complete_with(REQUEST, value, Some(summary), now);
                // Reports what is left, and removes the condition of claims whose directory was missing.
                backend.scan_requested.notify_one();
                // The limits are set for the directories as they are now.
                backend.quota.sync_requested.notify_one();
                // The next probe lists the request as handled.
                ctx.request_probe(&backend.name);
                Duration::MAX
            }
            Err(error) => {
                self.report_interruption(ctx, &known.object, value, &error);
                jittered(RETRY)
            }
        }
    }
}

impl DirectoryAcceptance {
    /// Publishes an event if the cause differs from the last one.
    fn report_interruption(&mut self, ctx: &Context, object: &NfsBackend, value: &str, error: &AcceptError) {
        let cause = error.to_string();
        tracing::warn!(
            backend = object.name_any(),
            "the directories are not all accepted yet: {cause}"
        );
        if matches!(error, AcceptError::NotConfirmed | AcceptError::Changed) {
            return;
        }
        let interruption = (value.to_owned(), cause);
        if self.interruption.as_ref() != Some(&interruption) {
            let note = format!("interrupted, and tried again: {}", interruption.1);
            ctx.publish_about_backend(object, Severity::Warning, Reason::DirectoryNotAccepted, "Accept", &note);
        }
        self.interruption = Some(interruption);
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
    let all = ids(value).any(|id| id == ALL);
    let volumes = match all {
        true => export.recorded_volumes(&|_| false).await?,
        false => ids(value).map(str::to_owned).collect(),
    };
    let mut run = Run {
        ctx,
        backend,
        known,
        export,
        value,
        all,
        outcome: Outcome::default(),
    };
    for volume in &volumes {
        run.accept_one(volume).await?;
    }
    Ok(run.outcome)
}

/// A run in progress.
struct Run<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    known: &'a ProbeSnapshot,
    export: &'a Arc<ExportStore>,
    /// Value of the annotation.
    value: &'a str,
    /// All volumes and archives of the backend are requested.
    all: bool,
    outcome: Outcome,
}

impl Run<'_> {
    async fn accept_one(&mut self, volume: &str) -> Result<(), AcceptError> {
        for _ in 0..TRIES {
            if !self.is_requested() {
                return Err(AcceptError::Changed);
            }
            match self.try_accept(volume).await {
                Err(AcceptError::Write(WriteError::Conflict)) => {}
                // The other volumes do not wait for an object that the API server refuses to change.
                Err(AcceptError::Write(error)) if error.is_refusal() => {
                    let why = format!("its record is changed, and its object is not: {error}");
                    self.outcome.refuse(volume, &why);
                    return Ok(());
                }
                done => return done,
            }
        }
        self.outcome.refuse(volume, &WriteError::Conflict.to_string());
        Ok(())
    }

    /// Reports whether the administrator still requests this on the same export.
    fn is_requested(&self) -> bool {
        let now = self.backend.last_probe();
        let is_same_export = now.store.as_ref().is_some_and(|store| Arc::ptr_eq(store, self.export));
        is_same_export
            && !self.ctx.shutdown.is_cancelled()
            && self.ctx.backends.is_current(self.backend)
            && self.backend.requests.due(&now.object, REQUEST) == Some(self.value)
    }

    async fn try_accept(&mut self, volume: &str) -> Result<(), AcceptError> {
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let object = reads::get_opt(&api, volume).await.map_err(Box::new)?;
        match self.accept_directory(volume, object.as_ref()).await? {
            Acceptance::Accepted(accepted) => {
                let mut changed = accepted.changed;
                if let Some(object) = &object {
                    changed |= self.update_volume(&api, object, accepted.file_id).await?;
                }
                changed |= self.update_archive(volume, &accepted).await?;
                self.outcome.accepted += 1;
                self.outcome.changed += usize::from(changed);
                for warning in &accepted.warnings {
                    let problem = format!("{warning}: set owner and mode on the server");
                    self.outcome.add_problem(volume, &problem);
                }
            }
            Acceptance::OtherBackend(_) if self.all => {}
            Acceptance::OtherBackend(other) => {
                let why = format!("it belongs to backend {other}: annotate that backend");
                self.outcome.refuse(volume, &why);
            }
            Acceptance::Refused(why) => self.outcome.refuse(volume, &why),
        }
        Ok(())
    }

    async fn accept_directory(
        &self,
        volume: &str,
        object: Option<&PersistentVolume>,
    ) -> Result<Acceptance, ExportError> {
        // Only its record describes a volume of nfs-subdir-external-provisioner.
        let aliases = &self.ctx.settings.served.aliases;
        let described = object.filter(|object| alias_backend(object, aliases).is_none());
        let directory = described.map(|object| self.known.volume_directory(object)).transpose();
        let object = match &directory {
            Ok(directory) => Ok(directory.as_ref()),
            Err(condition) => Err(condition.message.as_str()),
        };
        let scope = match self.all {
            true => AcceptanceScope::All,
            false => AcceptanceScope::Named,
        };
        match self.export.accept_directory(volume, scope, object).await {
            Err(error) if !Reason::needs_probe(&error) => Ok(Acceptance::Refused(error.to_string())),
            result => result,
        }
    }

    /// Updates the fileid in the annotation of a volume. Returns false if the volume has it already, or no such annotation.
    async fn update_volume(
        &self,
        api: &Api<PersistentVolume>,
        object: &PersistentVolume,
        file_id: u64,
    ) -> Result<bool, WriteError> {
        let file_id = file_id.to_string();
        let annotated = object.annotations().get(VOLUME_FILE_ID);
        if annotated.is_none_or(|annotated| *annotated == file_id) {
            return Ok(false);
        }
        let fields = json!({"metadata": {"annotations": {VOLUME_FILE_ID: file_id}}});
        let patched = writes::patch_as_read(api, object, fields, false, "update the fileid of a volume").await;
        let Some(patched) = unless_gone(patched)? else {
            return Ok(false);
        };
        // The next volume is compared with this one before the watch brings it.
        let ctx = self.ctx;
        index_volume(&patched, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
        Ok(true)
    }

    /// Updates the fileid in the status of an archive. Returns false if there is none, if it has the fileid already, or if it
    /// has no status, which is written from the record.
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
        let written = writes::apply_status(&api, &object, managers::STATUS, &status, version, action).await;
        Ok(unless_gone(written)?.is_some())
    }
}

/// Returns `None` if the object that was to be changed is gone.
fn unless_gone<T>(written: Result<T, WriteError>) -> Result<Option<T>, WriteError> {
    match written {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(None),
        written => written.map(Some),
    }
}

impl Outcome {
    fn refuse(&mut self, volume: &str, why: &str) {
        self.refused += 1;
        let hint = format!("to try again, append @ and any text to the annotation {ACCEPT_DIRECTORIES}");
        self.add_problem(volume, &format!("{why}; {hint}"));
    }

    fn add_problem(&mut self, volume: &str, problem: &str) {
        tracing::warn!(volume, "accepting its directory: {problem}");
        if self.problems.len() < MAX_EVENTS {
            self.problems.push(format!("{volume:?}: {problem}"));
        }
    }

    fn summary(&self) -> String {
        let directories = match self.accepted {
            1 => "1 directory is accepted".to_owned(),
            count => format!("{count} directories are accepted"),
        };
        let refused = counted(self.refused, "volume");
        format!(
            "{directories}, {} of them changed now, {refused} not accepted",
            self.changed
        )
    }
}

/// Publishes the result, and the first problems.
fn report(ctx: &Context, object: &NfsBackend, outcome: &Outcome, summary: &str) {
    for problem in &outcome.problems {
        ctx.publish_about_backend(
            object,
            Severity::Warning,
            Reason::DirectoryNotAccepted,
            "Accept",
            problem,
        );
    }
    ctx.publish_about_backend(object, Severity::Normal, Reason::DirectoriesAccepted, "Accept", summary);
}
