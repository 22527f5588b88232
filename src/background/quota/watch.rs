//! Reads the heartbeat of the quota agent, and its reports about limits that are not in force yet.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::backend::QuotaSettings;
use crate::api::conditions::Reason;
use crate::background::runner::BackendTask;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::quota::{PendingLimit, condition_now, report_on_claim};
use export_store::{AgentState, ExportStore};

/// Interval of the reads of the heartbeat while the agent runs. It writes one at least as often.
const FRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of the reads while reports are expected at any moment: the heartbeat announces them.
const EXPECTING_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the reads while the agent does not run, or is not known to: claims may wait for it.
const WAITING_INTERVAL: Duration = Duration::from_secs(2);
/// Time until a task looks again for an export that is not connected. A probe that connects it comes first.
const NOT_CONNECTED: Duration = Duration::from_secs(30);
/// Number of reports that are read at the same time: enough to hide round trips.
const CONCURRENT: usize = 8;
/// Time for which a limit may be pending before its claim reports that: most are in force sooner, and two writes would be
/// of no use.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Watches the agent of one backend.
#[derive(Default)]
pub(super) struct QuotaWatcher {
    /// Time of the last read of the heartbeat, and of the next one unless reports are expected.
    read: Option<(Instant, Instant)>,
    /// Instance of the agent, and the number of its reports, when they were last read.
    announced: Option<(String, u64)>,
}

impl QuotaWatcher {
    /// Returns the time of the next read of the heartbeat.
    fn next_read(&self, backend: &Backend, settings: &QuotaSettings) -> Instant {
        let now = Instant::now();
        let Some((last, next)) = self.read else { return now };
        match backend.quota.is_agent_ready(settings, now) && backend.quota.expects_report(now) {
            true => next.min(last + EXPECTING_INTERVAL),
            false => next,
        }
    }
}

impl BackendTask for QuotaWatcher {
    const INTERRUPTIBLE: bool = true;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.quota.watch_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        let Some(settings) = &known.object.spec.quota else {
            backend.quota.disable();
            *self = Self::default();
            return Duration::MAX;
        };
        let Some(export) = known.store.clone() else {
            if backend.quota.observe_nothing(settings, Instant::now()) {
                ctx.request_probe(&backend.name);
            }
            return NOT_CONNECTED;
        };
        let mut announced = false;
        if self.next_read(backend, settings) <= Instant::now() {
            let (next, found) = read_agent(ctx, backend, settings, &export).await;
            self.read = Some((Instant::now(), next));
            announced = found.is_some() && found != self.announced;
            self.announced = found.or_else(|| self.announced.take());
        }
        let due = backend.quota.take_due(Instant::now(), announced);
        stream::iter(due)
            .for_each_concurrent(CONCURRENT, |(volume, pending)| {
                let export = Arc::clone(&export);
                async move { look(ctx, backend, settings, &export, &volume, &pending).await }
            })
            .await;
        let next_read = self.next_read(backend, settings);
        let next = backend.quota.next_due().map_or(next_read, |due| due.min(next_read));
        next.saturating_duration_since(Instant::now())
    }
}

/// Reads the heartbeat, and requests a probe if the condition of the backend changed. Returns the time of the next read, and
/// the instance of the agent with the number of its reports.
async fn read_agent(
    ctx: &Context,
    backend: &Backend,
    settings: &QuotaSettings,
    export: &ExportStore,
) -> (Instant, Option<(String, u64)>) {
    let found = export.quota_agent().await;
    let now = Instant::now();
    let announced = match &found {
        Ok(AgentState::Heartbeat(heartbeat)) => Some((heartbeat.instance.clone(), heartbeat.reported)),
        _ => None,
    };
    let changed = match found {
        Ok(found) => backend.quota.observe_agent(found, settings, now),
        Err(error) => {
            tracing::debug!(
                backend = backend.name,
                "failed to read the heartbeat of the quota agent: {error}"
            );
            backend.quota.observe_nothing(settings, now)
        }
    };
    let condition = backend.quota.condition(settings, now);
    if changed {
        tracing::info!(backend = backend.name, reason = %condition.reason, "quota agent: {}", condition.message);
        // The status reports it, and claims that wait for the agent are woken.
        ctx.request_probe(&backend.name);
        if condition.status == Some(true) {
            backend.quota.sync_requested.notify_one();
        }
    }
    let interval = match condition.status {
        Some(true) => FRESH_INTERVAL,
        _ => WAITING_INTERVAL,
    };
    (now + interval, announced)
}

/// Reads the report about an order. Wakes the claim on news, and reports on it.
async fn look(
    ctx: &Context,
    backend: &Backend,
    settings: &QuotaSettings,
    export: &ExportStore,
    volume: &str,
    pending: &PendingLimit,
) {
    let has_volume = ctx.capacity.has_volume(volume);
    if !has_volume && !backend.has_pending(volume) {
        // It was deleted, or rolled back.
        backend.quota.forget_volume(volume);
        return;
    }
    let found = match export.limit_report(volume, &pending.order).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(
                backend = backend.name,
                volume,
                "failed to read the report of the quota agent: {error}"
            );
            return;
        }
    };
    let in_force = found.is_in_force();
    let planned = condition_now(backend, settings, &found);
    let is_news = backend.quota.record(volume, &pending.order, found);
    if in_force || is_news {
        ctx.waiting_claims.wake(pending.claim.claim.clone());
    }
    let is_due = in_force || planned.reason == Reason::LimitFailed || pending.since.elapsed() >= REPORT_AFTER;
    // A claim that waits for its volume reports that in its condition Provisioned.
    if is_due && (in_force || has_volume) && backend.quota.must_report(volume, &planned) {
        if let Err(error) = report_on_claim(ctx, &pending.claim, &planned).await {
            tracing::warn!(
                backend = backend.name,
                volume,
                "failed to report the limit on the claim: {error}"
            );
            return;
        }
        backend.quota.set_reported(volume, &planned);
    }
}
