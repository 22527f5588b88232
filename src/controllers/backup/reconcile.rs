//! The reconciler of backups.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::cleanup::clean_up;
use super::plan::{BackupStep, Observed, Report};
use super::request::{Requested, request_archive, started};
use super::status::status;
use crate::api::NfsArchive;
use crate::api::backup::NfsBackup;
use crate::api::names::{managers, qualified_name};
use crate::runtime::reads;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::last_written::Cached;

/// Interval between checks of a backup. Its archive's changes are reported at once.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Interval between checks of a backup whose archive cannot be read.
const WAIT_INTERVAL: Duration = Duration::from_secs(15);
/// Delay after the object was changed.
const NEXT_STEP_DELAY: Duration = Duration::from_millis(200);

/// Requests the archive of a backup, or reports what became of it.
pub async fn reconcile(backup: Arc<NfsBackup>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    if backup.metadata.deletion_timestamp.is_some() {
        clean_up(&ctx, &backup).await?;
        return Ok(Action::await_change());
    }
    let archive = find_archive(&ctx, &backup).await?;
    let namespace = ctx.namespace(&backup.namespace().unwrap_or_default());
    let observed = Observed {
        backup: &backup,
        archive: archive.as_deref(),
        namespace_uid: namespace
            .as_ref()
            .and_then(|namespace| namespace.metadata.uid.as_deref())
            .unwrap_or_default(),
        now: ctx.clock.now(),
    };
    match observed.plan() {
        BackupStep::Request => request(&ctx, &backup).await,
        BackupStep::Delete => {
            writes::delete_as_read(&api(&ctx, &backup), &*backup, "delete a backup that has ended").await?;
            Ok(Action::await_change())
        }
        BackupStep::Report(report) => {
            ctx.backup_retries.reset(&backup.uid().unwrap_or_default());
            write_status(&ctx, &backup, observed.own_archive(), &report).await?;
            Ok(Action::requeue(jittered(CHECK_INTERVAL)))
        }
        BackupStep::Wait => Ok(Action::requeue(jittered(WAIT_INTERVAL))),
    }
}

/// Returns the object with the name of the backup's archive. The cache may not have one that was just created, so the API
/// server is asked before a backup counts as lost.
async fn find_archive(ctx: &Context, backup: &NfsBackup) -> Result<Option<Arc<NfsArchive>>, WriteError> {
    let name = backup.archive_name();
    let cached = ctx.stores.archives.get(&ObjectRef::new(&name));
    let is_expected = backup.observed().archive_uid.is_some() || backup.claim_name().is_none();
    if cached.is_some() || !is_expected {
        return Ok(cached);
    }
    let _slot = ctx.backup_slots.acquire(&backup.namespace().unwrap_or_default()).await;
    let archives: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let live = reads::get_opt(&archives, &name).await;
    Ok(live
        .map_err(WriteError::action("read the archive of a backup"))?
        .map(Arc::new))
}

/// Requests the archive of a backup that has none, and reports the result. Namespaces take turns: thousands of backups of one
/// of them delay those of another by one.
async fn request(ctx: &Context, backup: &NfsBackup) -> Result<Action, WriteError> {
    let Some(claim) = backup.claim_name() else {
        return Ok(Action::await_change());
    };
    let _slot = ctx.backup_slots.acquire(&backup.namespace().unwrap_or_default()).await;
    let uid = backup.uid().unwrap_or_default();
    match request_archive(ctx, backup, claim).await? {
        Requested::Archive(archive) => {
            tracing::info!(
                backup = qualified_name(backup),
                archive = archive.name_any(),
                "requested the archive of a backup"
            );
            write_status(ctx, backup, Some(&archive), &started()).await?;
            Ok(Action::requeue(jittered(CHECK_INTERVAL)))
        }
        Requested::Changed => Ok(Action::requeue(NEXT_STEP_DELAY)),
        Requested::Refused(report) => {
            if write_status(ctx, backup, None, &report).await? {
                let (reason, message) = (report.ready.reason, &report.ready.message);
                tracing::info!(backup = qualified_name(backup), %reason, "{message}");
            }
            Ok(Action::requeue(ctx.backup_retries.record_failure(&uid)))
        }
    }
}

/// Handles a failed request.
pub fn on_error(backup: Arc<NfsBackup>, error: &WriteError, ctx: Arc<Context>) -> Action {
    if matches!(error, WriteError::Conflict) {
        return Action::requeue(writes::AFTER_CONFLICT);
    }
    tracing::warn!(backup = qualified_name(backup.as_ref()), "{error}");
    let uid = backup.uid().unwrap_or_default();
    Action::requeue(writes::pause_after(error, &ctx.backup_retries, &uid))
}

/// Writes the status unless the object has it. Returns true if it was written.
async fn write_status(
    ctx: &Context,
    backup: &NfsBackup,
    archive: Option<&NfsArchive>,
    report: &Report,
) -> Result<bool, WriteError> {
    let planned = status(backup, archive, report, ctx.clock.now());
    // With the resourceVersion, an old description cannot replace a newer one, nor that of another object of the name.
    let version = backup.resource_version();
    let (api, action) = (api(ctx, backup), "write the status of the backup");
    let write = writes::apply_status(&api, backup, managers::STATUS, &planned, version, action);
    let cached = Cached::new(&backup.metadata, managers::STATUS, backup.status.as_ref());
    let written = ctx.last_written.write_unless_current(&cached, &planned, write);
    match written.await {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(false),
        written => written,
    }
}

fn api(ctx: &Context, backup: &NfsBackup) -> Api<NfsBackup> {
    Api::namespaced(ctx.clients.calls.clone(), &backup.namespace().unwrap_or_default())
}
