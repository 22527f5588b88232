//! The reconciler of backends.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use tokio::time::Instant;

use super::probe::{Probe, probe};
use super::records;
use super::removal::{deletion_blocker, remove};
use super::status::{self, BeaconPlan, Observed};
use super::unblocks::{Unblocks, unblocks};
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::api::names::{BACKEND_FINALIZER, managers};
use crate::api::requests::BackendRequest;
use crate::api::{NfsBackend, NfsBackendStatus};
use crate::background::{accept_directories, garbage_collection, orphan_scan, purge, quota, usage};
use crate::recovery;
use crate::runtime::backend_metrics::BackendFigures;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::{archives_of, backups_of};
use crate::state::backends::{Announcement, Backend, ProbeSnapshot};
use crate::state::backups;
use crate::state::candidates::wake_fitting_claims;
use crate::state::context::Context;
use crate::state::last_written::Cached;
use crate::state::recovery::MissingDependency;

/// Maximum interval between probes of a backend that is not ready: claims wait for it.
const MAX_UNREADY_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between probes: the requests of many claims result in one probe.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// Probes a backend, writes its status, and wakes the claims that wait for it.
pub async fn reconcile(object: Arc<NfsBackend>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let backend = register(&ctx, &object);
    if was_just_probed(&backend, &object) {
        return Ok(Action::requeue(MIN_INTERVAL));
    }
    // Most of the memory of a reconciliation is that of its probe, and at a start, all are due.
    ctx.backend_probes
        .run(|| probe_and_report(&ctx, &object, &backend))
        .await
}

/// Probes a backend, writes its status, and starts what needs a confirmed export.
async fn probe_and_report(ctx: &Context, object: &Arc<NfsBackend>, backend: &Backend) -> Result<Action, WriteError> {
    if !ctx.backends.is_current(backend) {
        // Its object vanished while it waited to be probed.
        return Ok(Action::await_change());
    }
    if !writes::add_finalizer(&api(ctx), &**object, BACKEND_FINALIZER).await? {
        // Without it, the object could vanish with its volumes and with the only beacon that its export may have.
        return Ok(Action::requeue(writes::AFTER_CONFLICT));
    }
    let began = Instant::now();
    let probe = probe(ctx, object, backend).await;
    let took = began.elapsed();
    if !ctx.backends.is_current(backend) {
        if ctx.backends.get(&backend.name).is_none() {
            // The probe may have connected again, and the calls of a connection are counted.
            ctx.metrics.remove_backend(&backend.name);
        }
        return Ok(Action::await_change());
    }
    if !ctx.write_fence.may_write() {
        // The Lease expired during the probe, which may have failed for that reason alone.
        return Ok(Action::requeue(MIN_INTERVAL));
    }
    let blocker = deletion_blocker(ctx, object, backend, &probe).await;
    if object.metadata.deletion_timestamp.is_some() && blocker.is_none() {
        return remove(ctx, object, backend, &probe).await;
    }
    let before = reported_reason(backend, object);
    let beacon = plan_beacon(backend, &probe).await;
    let fresh = beacon.fresh.clone();
    let (ready, status) = apply_probe(ctx, object, backend, (&probe, took), blocker, beacon);
    // Measured from here, however long the following writes take: a probe is valid for a limited time.
    let next_probe = Instant::now() + jittered(probe_delay(object, &ready));
    let first = backend.announcement().is_none();
    if let Some(fresh) = fresh.filter(|fresh| status.export.next_beacon == Some(fresh.next.to_string())) {
        backend.plan_announcement(fresh);
    }
    // Whether the status can be written or not: the next probe finds no transition.
    if before.is_none_or(|before| before != ready.reason.to_string()) {
        publish_transition(ctx, object, &ready);
    }
    let written = write_status(ctx, object, &status).await;
    if written.is_ok() {
        backend.set_announced();
        if first && backend.next_beacon().is_some() {
            // The new leader replaces the beacon of the former one.
            ctx.request_probe(&backend.name);
        }
    }
    run_maintenance(ctx, object, backend, &probe).await;
    written?;
    Ok(Action::requeue(next_probe.saturating_duration_since(Instant::now())))
}

/// Returns the reason of the condition Ready before this probe: in the status, if this process has not probed yet.
fn reported_reason(backend: &Backend, object: &NfsBackend) -> Option<String> {
    match backend.last_probe().ready.reason {
        Reason::NotProbed => {
            let status = object.status.as_ref()?;
            let ready = BackendCondition::Ready.to_string();
            let condition = status.conditions.iter().find(|condition| condition.type_ == ready)?;
            Some(condition.reason.clone())
        }
        reason => Some(reason.to_string()),
    }
}

/// Returns how serious this reason of the condition Ready is.
fn severity(reason: Reason) -> Severity {
    match reason.is_intended() {
        true => Severity::Normal,
        false => Severity::Warning,
    }
}

/// Publishes an event about the backend, whose condition Ready has another reason now.
fn publish_transition(ctx: &Context, object: &NfsBackend, ready: &PlannedCondition) {
    let severity = severity(ready.reason);
    ctx.events
        .publish(object.object_ref(&()), severity, ready.reason, "Probe", &ready.message);
}

/// Handles a failed write. The result of the probe is in memory nevertheless.
pub fn on_error(object: Arc<NfsBackend>, error: &WriteError, _: Arc<Context>) -> Action {
    tracing::warn!(backend = object.name_any(), "{error}");
    Action::requeue(writes::AFTER_ERROR)
}

/// Returns the state of this backend. Starts its background tasks if it is new.
fn register(ctx: &Arc<Context>, object: &Arc<NfsBackend>) -> Arc<Backend> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    let (backend, new) = ctx.backends.get_or_create(&name, &uid, ctx.settings.slots, object);
    if new {
        backend.requests.restore(object, ctx.clock.now());
        purge::start(ctx, &backend);
        garbage_collection::start(ctx, &backend);
        orphan_scan::start(ctx, &backend, object);
        accept_directories::start(ctx, &backend);
        usage::start(ctx, &backend, object);
        quota::start(ctx, &backend, object);
        recovery::start(ctx, &backend);
        ctx.backends.object_appeared(&MissingDependency::Backend(name));
    }
    backend
}

fn was_just_probed(backend: &Backend, object: &NfsBackend) -> bool {
    let known = backend.last_probe();
    known.ready.reason != Reason::NotProbed
        && known.probed_at.elapsed() < MIN_INTERVAL
        && known.object.metadata.generation == object.metadata.generation
        && known.object.annotations() == object.annotations()
        && known.object.metadata.deletion_timestamp == object.metadata.deletion_timestamp
}

/// Returns the interval of the backend's probes.
pub(super) fn probe_interval(object: &NfsBackend) -> Duration {
    object.spec.probe_interval.get().unwrap_or(Duration::from_secs(30))
}

fn probe_delay(object: &NfsBackend, ready: &PlannedCondition) -> Duration {
    let interval = probe_interval(object);
    if ready.status == Some(true) {
        interval
    } else {
        interval.min(MAX_UNREADY_INTERVAL)
    }
}

/// Returns the beacons for the status: those in it, and the ones to announce with its next write.
async fn plan_beacon(backend: &Backend, probe: &Probe) -> BeaconPlan {
    let announced = backend.announcement();
    let (Some(export), Some(_)) = (&probe.export, probe.confirmed()) else {
        return BeaconPlan { announced, fresh: None };
    };
    let is_next_pending = match &announced {
        Some(announced) => export.may_have_beacon(&announced.next).await,
        None => false,
    };
    let fresh = Announcement::due(announced.as_ref(), export.beacon().await, is_next_pending);
    BeaconPlan { announced, fresh }
}

/// Applies the result of a probe: first for waiting claims, then for metrics. Returns the condition Ready and the status.
fn apply_probe(
    ctx: &Context,
    object: &Arc<NfsBackend>,
    backend: &Backend,
    (probe, took): (&Probe, Duration),
    blocker: Option<PlannedCondition>,
    beacon: BeaconPlan,
) -> (PlannedCondition, NfsBackendStatus) {
    // An acceptance is valid once: otherwise, it would also accept the next copy of the export.
    let accepted = probe
        .confirmed()
        .and_then(|_| backend.requests.due(object, BackendRequest::AcceptIdentity));
    if let Some(accepted) = accepted {
        backend
            .requests
            .complete(BackendRequest::AcceptIdentity, accepted, ctx.clock.now());
    }
    let totals = ctx.capacity.totals(&backend.name);
    let purged = backend.purged();
    // The result of a scan of another export does not apply.
    let last_scan = backend.scanned().filter(|scan| {
        let confirmed = probe.confirmed();
        confirmed.is_none_or(|identity| identity.id == scan.export_id)
    });
    let observed = Observed {
        object,
        probe,
        identity: backend.confirmed(),
        cluster_id: &ctx.cluster_id,
        beacon,
        totals,
        purged: &purged,
        orphans: last_scan.as_ref().map(|scan| &scan.orphans),
        recovery: backend.recovery.progress(),
        usage: usage::status(ctx, object, backend),
        quota: quota::condition(backend, object),
        blocker,
        handled_requests: backend.requests.handled(),
        now: ctx.clock.now(),
    };
    let ready = status::ready(&observed);
    // The space of another export is not that of the backend.
    let statistics = probe.confirmed().and(probe.statistics);
    let previous = backend.last_probe();
    let known = ProbeSnapshot {
        object: Arc::clone(object),
        // Nothing works on an export whose records were not read: archives and unfinished work are not known before.
        store: probe
            .confirmed()
            .and(probe.export.clone())
            .filter(|export| backend.is_recovered_on(export)),
        identity: probe.confirmed().cloned(),
        writable: probe
            .writable
            .as_ref()
            .is_some_and(|writable| writable.status == Some(true)),
        ready: ready.clone(),
        probed_at: Instant::now(),
        interval: probe_interval(object),
        statistics,
        provisioned: totals.bytes,
    };
    let unblocked = unblocks(&previous, &known);
    backend.set_snapshot(known);
    quota::probed(backend, &previous.object, object);
    if previous.object.spec.usage != object.spec.usage {
        backend.usage_scan.requested.notify_one();
    }
    wake_waiting(ctx, backend, unblocked);
    if previous.ready.reason != ready.reason {
        let (backend, reason) = (&backend.name, ready.reason);
        match severity(reason) {
            Severity::Normal => tracing::info!(backend, %reason, "{}", ready.message),
            Severity::Warning => tracing::warn!(backend, %reason, "{}", ready.message),
        }
    }
    let figures = BackendFigures {
        ready: ready.status == Some(true),
        reason: ready.reason,
        probe_duration: took,
        probe_interval: probe_interval(object),
        statistics,
        volumes: totals.volumes,
        provisioned: totals.bytes,
        archives: probe.archives,
        archived: totals.archived,
        trash: purged.left.entries,
        stuck: purged.failed,
        unsigned_records: probe
            .unsigned_records
            .as_ref()
            .map(|records| records.own.len() + records.further),
        quota: quota::figures(backend, object),
    };
    ctx.metrics.backends.probed(&backend.name, &figures, ctx.clock.now());
    (ready.clone(), status::status(&observed, &ready))
}

/// Wakes everything that may proceed after a probe.
fn wake_waiting(ctx: &Context, backend: &Backend, unblocked: Unblocks) {
    ctx.storage_capacity_changed.notify_one();
    // The free space may have grown, and a claim that was woken for capacity may not have used it.
    wake_fitting_claims(ctx);
    backend.claims.wake_next(&ctx.waiting_claims);
    ctx.condition_writes.wake_next(&ctx.waiting_claims);
    backend.reclaims.wake_next(&ctx.waiting_volumes);
    match unblocked {
        Unblocks::Nothing => {}
        Unblocks::StaleProbe => ctx.waiting_claims.wake_if(|_, blockers| blockers.probe),
        Unblocks::Space => {
            ctx.waiting_claims.wake_if(|_, blockers| blockers.probe);
            backups_of(ctx, &backend.name)
                .into_iter()
                .for_each(|archive| ctx.requeue_archive(archive));
        }
        Unblocks::Anything => {
            ctx.waiting_claims.backend_changed(&backend.name);
            ctx.waiting_volumes.backend_changed(&backend.name);
            backups::requeue_waiting(ctx, &backend.name);
            archives_of(ctx, &backend.name)
                .into_iter()
                .for_each(|archive| ctx.requeue_archive(archive));
        }
    }
}

async fn write_status(ctx: &Context, object: &NfsBackend, status: &NfsBackendStatus) -> Result<(), WriteError> {
    let (api, action) = (api(ctx), "write the backend's status");
    let write = writes::apply_status(&api, object, managers::STATUS, status, None, action);
    let cached = Cached::new(&object.metadata, managers::STATUS, object.status.as_ref());
    let written = ctx.last_written.write_unless_current(&cached, status, write);
    written.await.map(drop)
}

/// Starts what needs a confirmed export: garbage collection, and everything that annotations request.
async fn run_maintenance(ctx: &Context, object: &NfsBackend, backend: &Backend, probe: &Probe) {
    let (Some(export), Some(_)) = (&probe.export, probe.confirmed()) else {
        return;
    };
    if backend.is_recovered_on(export) {
        records::adopt(ctx, object, backend, export).await;
    }
    recovery::after_probe(object, backend);
    backend.gc_requested.notify_one();
    if backend.requests.submit(object, BackendRequest::Scan) {
        backend.scan_requested.notify_one();
    }
    if backend.requests.submit(object, BackendRequest::AcceptDirectories) {
        backend.acceptance_requested.notify_one();
    }
    if backend.requests.submit(object, BackendRequest::Count) {
        backend.usage_scan.update(|progress| progress.requested = true);
        backend.usage_scan.requested.notify_one();
    }
}

/// The API of backends.
pub(super) fn api(ctx: &Context) -> Api<NfsBackend> {
    Api::all(ctx.clients.calls.clone())
}
