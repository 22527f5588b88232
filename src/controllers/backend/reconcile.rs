//! The reconciler of backends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::cure::{self, Unblocks};
use super::departure;
use super::probe::{Probe, probe};
use super::records;
use super::status::{self, Observed};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ABANDON, ACCEPT_IDENTITY, BACKEND_FINALIZER, COUNT_NOW, SCAN_NOW, managers};
use crate::api::{NfsBackend, NfsBackendStatus, RecoveryRequest};
use crate::background::archive_objects::create_missing_objects;
use crate::background::garbage_collection::{gc_backups, gc_pending};
use crate::background::orphan_scan;
use crate::background::purge::run_purger;
use crate::background::usage;
use crate::recovery;
use crate::runtime::metrics::BackendMetrics;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::archives_of;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use crate::state::recovery::Missing;
use export_store::ExportStore;

/// A backend that cannot serve is probed at least this often: claims wait for it.
const UNREADY_INTERVAL: Duration = Duration::from_secs(10);
/// Doubts of many claims at once are one probe.
const NOT_BEFORE: Duration = Duration::from_millis(500);

/// Probes a backend, keeps its status, and wakes the claims that wait for it.
pub async fn reconcile(object: Arc<NfsBackend>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let backend = registered(&ctx, &object);
    if too_soon(&backend, &object) {
        return Ok(Action::requeue(NOT_BEFORE));
    }
    ensure_finalizer(&ctx, &object).await?;
    let found = probe(&ctx, &object, &backend).await;
    let held = held(&ctx, &object, &backend, &found);
    if object.metadata.deletion_timestamp.is_some() && held.is_none() {
        return let_go(&ctx, &object, &backend).await;
    }
    let (ready, status) = learn(&ctx, &object, &backend, &found, held);
    // From now on, however long the API server takes for what follows: a backend is not believed for long.
    let due = Instant::now() + jittered(next_probe(&object, &ready));
    let written = write_status(&ctx, &object, &status).await;
    let said = written.is_ok().then_some(&status);
    tidy(&ctx, &object, &backend, &found, said).await?;
    written?;
    Ok(Action::requeue(due.saturating_duration_since(Instant::now())))
}

fn registered(ctx: &Arc<Context>, object: &Arc<NfsBackend>) -> Arc<Backend> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    let (backend, new) = ctx.backends.get_or_create(&name, &uid, ctx.settings.slots, object);
    if new {
        tokio::spawn(run_purger(Arc::downgrade(&backend)));
        orphan_scan::begin(ctx, &backend, object);
        recovery::begin(ctx, &backend);
        usage::begin(ctx, &backend, object);
        ctx.backends.object_appeared(&Missing::Backend(name));
    }
    backend
}

/// A failed write: the probe's result is known here all the same.
pub fn on_error(object: Arc<NfsBackend>, error: &WriteError, _: Arc<Context>) -> Action {
    tracing::warn!(backend = object.name_any(), "{error}");
    Action::requeue(writes::AFTER_ERROR)
}

fn interval(object: &NfsBackend) -> Duration {
    object
        .spec
        .probe_interval
        .parse::<kube::core::Duration>()
        .map_or(Duration::from_secs(30), Duration::from)
}

fn next_probe(object: &NfsBackend, ready: &PlannedCondition) -> Duration {
    let asked = interval(object);
    if ready.status == Some(true) {
        asked
    } else {
        asked.min(UNREADY_INTERVAL)
    }
}

fn too_soon(backend: &Backend, object: &NfsBackend) -> bool {
    let known = backend.known();
    known.ready.reason != Reason::NotProbed
        && known.probed_at.elapsed() < NOT_BEFORE
        && known.object.metadata.generation == object.metadata.generation
        && known.object.annotations() == object.annotations()
        && known.object.metadata.deletion_timestamp == object.metadata.deletion_timestamp
}

async fn ensure_finalizer(ctx: &Context, object: &NfsBackend) -> Result<(), WriteError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    match writes::with_finalizer(&object.metadata, BACKEND_FINALIZER, true) {
        Some(finalizers) => match writes::set_finalizers(&api(ctx), object, &finalizers).await {
            // It was edited meanwhile: the next event tells, and this probe is of use all the same.
            Err(WriteError::Conflict | WriteError::NotFound) => Ok(()),
            written => written,
        },
        None => Ok(()),
    }
}

/// Why a backend that is being deleted can't go yet.
fn held(ctx: &Context, object: &NfsBackend, backend: &Backend, found: &Probe) -> Option<PlannedCondition> {
    object.metadata.deletion_timestamp.as_ref()?;
    if object.annotations().get(ABANDON).is_some_and(|value| value == "true") {
        return None;
    }
    let volumes = ctx.capacity.totals(&backend.name).volumes;
    let last_known = || {
        object
            .status
            .as_ref()
            .and_then(|status| u64::try_from(status.archives?).ok())
    };
    // What has an object and was not seen now (its record is damaged, say) holds the backend too.
    let objects = archives_of(ctx, &backend.name).len() as u64;
    let archives = found.archives.or_else(last_known).unwrap_or(0).max(objects);
    (volumes > 0 || archives > 0).then(|| {
        PlannedCondition::fails(
            Reason::Deleting,
            format!(
                "waits for {volumes} volumes and {archives} archives: delete them, or annotate the backend with \
                 {ABANDON}=true to let it go and leave them on the export"
            ),
        )
    })
}

/// The last word to a backend that goes: nothing on its export is touched.
async fn let_go(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Result<Action, WriteError> {
    if let Some(finalizers) = writes::with_finalizer(&object.metadata, BACKEND_FINALIZER, false) {
        match writes::set_finalizers(&api(ctx), object, &finalizers).await {
            Err(WriteError::NotFound) => {}
            written => written?,
        }
    }
    departure::forget(ctx, &backend.name, &backend.uid);
    tracing::info!(backend = backend.name, "let go");
    Ok(Action::await_change())
}

/// Takes in what a probe found: for the claims that wait first, then for the metrics and the status.
fn learn(
    ctx: &Context,
    object: &Arc<NfsBackend>,
    backend: &Backend,
    found: &Probe,
    held: Option<PlannedCondition>,
) -> (PlannedCondition, NfsBackendStatus) {
    let totals = ctx.capacity.totals(&backend.name);
    let purged = backend.purged();
    // What was found on another export says nothing of this one.
    let scanned = backend.scanned().filter(|scanned| {
        let confirmed = found.confirmed();
        confirmed.is_none_or(|identity| identity.id == scanned.export_id)
    });
    let observed = Observed {
        object,
        probe: found,
        totals,
        purged: &purged,
        orphans: scanned.as_ref().map(|scanned| &scanned.orphans),
        readoption: backend.recovery.stage(),
        usage: usage::status(ctx, object, backend),
        held,
        now: Timestamp::now(),
    };
    let ready = status::ready(&observed);
    let former = backend.known();
    let known = ProbeSnapshot {
        object: Arc::clone(object),
        store: found.confirmed().and(found.export.clone()),
        identity: found.confirmed().cloned(),
        ready: ready.clone(),
        probed_at: Instant::now(),
        interval: interval(object),
        statistics: found.statistics,
        provisioned: totals.bytes,
    };
    let cured = cure::of(&former, &known);
    backend.set_snapshot(known);
    if former.object.spec.usage != object.spec.usage {
        backend.usage_scan.requested.notify_one();
    }
    backend.claims.wake_next(&ctx.waiting_claims);
    backend.reclaims.wake_next(&ctx.waiting_volumes);
    match cured {
        Unblocks::Nothing => {}
        Unblocks::Doubt => ctx.waiting_claims.wake_debounced(),
        Unblocks::Anything => {
            ctx.waiting_claims.wake_all();
            ctx.waiting_volumes.wake_all();
            archives_of(ctx, &backend.name)
                .into_iter()
                .for_each(|archive| ctx.requeue_archive(archive));
        }
    }
    if former.ready.reason != ready.reason {
        tracing::info!(backend = backend.name, reason = %ready.reason, "{}", ready.message);
    }
    let figures = BackendMetrics {
        ready: ready.status == Some(true),
        statistics: found.statistics,
        volumes: totals.volumes,
        provisioned: totals.bytes,
        archives: found.archives,
        trash: purged.left.entries,
        stuck: purged.failed,
    };
    ctx.metrics.backend_probed(&backend.name, &figures);
    (ready.clone(), status::status(&observed, &ready))
}

async fn write_status(ctx: &Context, object: &NfsBackend, status: &NfsBackendStatus) -> Result<(), WriteError> {
    if object.status.as_ref() == Some(status) {
        return Ok(());
    }
    let fields = json!({"status": status});
    writes::apply(
        &api(ctx),
        object,
        managers::STATUS,
        fields,
        true,
        "write the backend's status",
    )
    .await
}

/// What a confirmed export lets us tidy up: directories of claims that are gone, what was asked for by an annotation. `said`:
/// the status, if it was written.
async fn tidy(
    ctx: &Arc<Context>,
    object: &NfsBackend,
    backend: &Arc<Backend>,
    found: &Probe,
    said: Option<&NfsBackendStatus>,
) -> Result<(), WriteError> {
    let (Some(export), Some(_)) = (&found.export, found.confirmed()) else {
        return Ok(());
    };
    if backend.is_recovered_on(export) {
        records::adopt(ctx, object, backend, export).await?;
    }
    recovery::follow(ctx, object, backend, said).await?;
    begin_sweep(ctx, object, backend, export);
    if let Some(asked) = orphan_scan::is_asked_for(object) {
        backend.scan_requested.notify_one();
        writes::remove_annotation(&api(ctx), object, SCAN_NOW, asked).await?;
    }
    if let Some(asked) = usage::is_asked_for(object) {
        backend.usage_scan.update(|progress| progress.asked = true);
        backend.usage_scan.requested.notify_one();
        writes::remove_annotation(&api(ctx), object, COUNT_NOW, asked).await?;
    }
    match object.annotations().get(ACCEPT_IDENTITY) {
        // An acceptance holds once: left on the backend, it would accept the next copy of the export unasked.
        Some(accepted) => writes::remove_annotation(&api(ctx), object, ACCEPT_IDENTITY, accepted).await,
        None => Ok(()),
    }
}

/// One sweep of a backend at a time, and beside the probes: it asks the API server about each directory that was begun, which
/// may be thousands, and the next probe must not come late for that.
fn begin_sweep(ctx: &Arc<Context>, object: &NfsBackend, backend: &Arc<Backend>, export: &Arc<ExportStore>) {
    // What is to be made again must not be taken for what nobody wants.
    let sweeps = RecoveryRequest::of(object).is_none();
    let Ok(turn) = Arc::clone(&backend.gc_lock).try_lock_owned() else {
        return;
    };
    let (ctx, backend, export) = (Arc::clone(ctx), Arc::clone(backend), Arc::clone(export));
    tokio::spawn(async move {
        if sweeps {
            gc_pending(&ctx, &backend, &export).await;
        }
        create_missing_objects(&ctx, &backend, &export).await;
        gc_backups(&ctx, &backend, &export).await;
        drop(turn);
    });
}

fn api(ctx: &Context) -> Api<NfsBackend> {
    Api::all(ctx.clients.calls.clone())
}
