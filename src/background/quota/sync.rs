//! Compares the orders on an export with the volumes and archives of a backend, and writes or removes what differs.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::backend::QuotaSettings;
use crate::background::orphan_scan::is_export_error;
use crate::background::runner::{self, BackendTask};
use crate::runtime::reads;
use crate::runtime::retry::jittered;
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::claim_condition::bound_claim;
use crate::state::context::Context;
use crate::state::quota::{OrderedLimit, clear_report, order_archive, order_volume, report_unlimited};
use export_store::{ExportError, ExportStore, NoLimit};

/// Maximum number of volumes that are compared per second. Each takes three calls on the export, and a new order three
/// more. Ten thousand volumes take 17 minutes.
const VOLUMES_PER_SECOND: u32 = 10;
/// Number of volumes per batch. Limits the memory.
const BATCH: usize = 500;
/// Time between two comparisons. It finds limits that are no longer in force, and what a crash left undone.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Time until an interrupted comparison resumes.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Compares the orders of one backend.
#[derive(Default)]
pub(super) struct QuotaSync {
    /// The last volume that was compared, if a comparison was interrupted.
    after: String,
    last_error: String,
}

/// Reason why a comparison was interrupted; it resumes later.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    /// The export is not connected.
    #[error("the export is not connected")]
    NotConnected,
    /// The settings changed.
    #[error("spec.quota changed")]
    Changed,
    /// The export cannot be read or written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] WriteError),
}

impl BackendTask for QuotaSync {
    const INTERRUPTIBLE: bool = false;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.quota.sync_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        let done = match &known.object.spec.quota {
            Some(settings) => {
                backend.quota.begin_sync(Instant::now());
                self.compare(ctx, backend, settings).await
            }
            None if backend.quota.is_withdrawing() => withdraw(ctx, backend).await,
            None => {
                self.after.clear();
                return Duration::MAX;
            }
        };
        match done {
            Ok(next) => {
                backend.quota.end_sync(Instant::now());
                self.after.clear();
                self.last_error.clear();
                next
            }
            Err(SyncError::Changed) => {
                self.after.clear();
                Duration::ZERO
            }
            Err(error) => {
                let text = error.to_string();
                if text != self.last_error && !matches!(error, SyncError::NotConnected) {
                    tracing::info!(
                        backend = backend.name,
                        "the quota orders are not compared for now: {text}"
                    );
                }
                self.last_error = text;
                jittered(RETRY_INTERVAL)
            }
        }
    }
}

impl QuotaSync {
    /// Compares the orders of all volumes and archives, and removes those of others. Returns the time until the next
    /// comparison.
    async fn compare(
        &mut self,
        ctx: &Context,
        backend: &Backend,
        settings: &QuotaSettings,
    ) -> Result<Duration, SyncError> {
        let mut ticks = runner::ticks(VOLUMES_PER_SECOND);
        loop {
            let batch = ctx.capacity.volumes_after(&backend.name, &self.after, BATCH);
            if batch.is_empty() {
                break;
            }
            for volume in batch {
                ticks.tick().await;
                let export = connected(ctx, backend, Some(settings))?;
                // That of a volume that was just archived is that of the archive.
                if !export.has_archive(&volume)
                    && let Some(bytes) = ctx.capacity.counted_size_of(&volume)
                {
                    let ordered = order_volume(backend, &export, settings, (&volume, bytes)).await;
                    if let Some(OrderedLimit::Nothing(why)) = skip_own_error(&volume, ordered)? {
                        skip_one_object(&volume, report_unlimited_volume(ctx, &volume, why).await)?;
                    }
                }
                self.after = volume;
            }
        }
        let export = connected(ctx, backend, Some(settings))?;
        for archive in export.archives() {
            ticks.tick().await;
            let export = connected(ctx, backend, Some(settings))?;
            if let Some(bytes) = ctx.capacity.archive_size_of(&archive) {
                skip_own_error(
                    &archive,
                    order_archive(backend, &export, settings, (&archive, bytes)).await,
                )?;
            }
        }
        let is_known = |volume: &str| ctx.capacity.has_volume(volume) || export.has_archive(volume);
        for volume in export.ordered_volumes(&is_known).await? {
            ticks.tick().await;
            let export = connected(ctx, backend, Some(settings))?;
            if export.remove_stale_order(&volume, false).await? {
                tracing::info!(backend = backend.name, volume, "removed a quota order without a record");
            }
        }
        Ok(jittered(INTERVAL))
    }
}

/// Reports on the claim of a volume why the volume has no limit.
async fn report_unlimited_volume(ctx: &Context, volume: &str, why: NoLimit) -> Result<(), WriteError> {
    match claim_of(ctx, volume).await? {
        Some(claim) => report_unlimited(ctx, &claim, why).await,
        None => Ok(()),
    }
}

/// Removes what the claim of a volume reports about its limit.
async fn clear_volume_report(ctx: &Context, volume: &str) -> Result<(), WriteError> {
    match claim_of(ctx, volume).await? {
        Some(claim) => clear_report(ctx, &claim).await,
        None => Ok(()),
    }
}

/// Returns the claim that a volume is bound to.
async fn claim_of(ctx: &Context, volume: &str) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let found = reads::get_opt(&volumes, volume).await;
    match found.map_err(WriteError::action("read a volume to report about its limit"))? {
        Some(volume) => bound_claim(ctx, &volume).await,
        None => Ok(None),
    }
}

/// Removes all orders of a backend, and what the claims of its volumes report about them.
async fn withdraw(ctx: &Context, backend: &Backend) -> Result<Duration, SyncError> {
    let mut ticks = runner::ticks(VOLUMES_PER_SECOND);
    for name in connected(ctx, backend, None)?.ordered_volumes(&|_| false).await? {
        ticks.tick().await;
        let export = connected(ctx, backend, None)?;
        export.remove_stale_order(&name, true).await?;
    }
    // Those that have no limit report that, too.
    let mut after = String::new();
    loop {
        let batch = ctx.capacity.volumes_after(&backend.name, &after, BATCH);
        if batch.is_empty() {
            break;
        }
        for volume in batch {
            ticks.tick().await;
            connected(ctx, backend, None)?;
            skip_one_object(&volume, clear_volume_report(ctx, &volume).await)?;
            after = volume;
        }
    }
    backend.quota.set_withdrawing(false);
    tracing::info!(backend = backend.name, "removed the limits of the volumes");
    // The status no longer reports it.
    ctx.request_probe(&backend.name);
    Ok(Duration::MAX)
}

/// Returns the export, if it is connected and the backend still asks for these settings.
fn connected(
    ctx: &Context,
    backend: &Backend,
    settings: Option<&QuotaSettings>,
) -> Result<Arc<ExportStore>, SyncError> {
    let known = backend.last_probe();
    if !ctx.backends.is_current(backend) || known.object.spec.quota.as_ref() != settings {
        return Err(SyncError::Changed);
    }
    if ctx.shutdown.is_cancelled() {
        return Err(SyncError::NotConnected);
    }
    known.store.clone().ok_or(SyncError::NotConnected)
}

/// Ignores an error that is about one volume only: the next comparison tries it again.
fn skip_own_error<T>(volume: &str, done: Result<T, ExportError>) -> Result<Option<T>, SyncError> {
    match done {
        Err(error) if is_export_error(&error) => Err(error.into()),
        Err(error) => {
            tracing::warn!(volume, "failed to order the limit of the volume: {error}");
            Ok(None)
        }
        Ok(done) => Ok(Some(done)),
    }
}

/// Ignores that an object is gone, or that the API server refuses a request about it, for example because of a webhook: the
/// others are not delayed.
fn skip_one_object(volume: &str, done: Result<(), WriteError>) -> Result<(), SyncError> {
    match done {
        Ok(()) | Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        Err(error) if error.is_refusal() => {
            tracing::warn!(volume, "failed to report on the claim about its limit: {error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
