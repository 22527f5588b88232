//! Reads the heartbeat of the quota agent, and its reports about limits that are not in force yet.

use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{StreamExt as _, stream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::backend::QuotaSettings;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::background::runner::BackendTask;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::quota::{LimitedClaim, PendingLimit, condition_now, report_on_claim};
use export_store::quota::LimitState;
use export_store::{AgentState, ExportStore, LimitReport};

/// Interval of the reads of the heartbeat while the agent runs. It writes one at least as often.
const FRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of the reads while reports are expected at any moment: the heartbeat announces them.
const EXPECTING_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the reads while the agent does not run, or is not known to: claims may wait for it.
const WAITING_INTERVAL: Duration = Duration::from_secs(2);
/// Time until a task looks again for an export that is not connected. A probe that connects it comes first.
const NOT_CONNECTED: Duration = Duration::from_secs(30);
/// Number of reports that are read, or written to claims, at the same time: enough to hide round trips.
const CONCURRENT: usize = 16;
/// Time for which a limit may be pending before its claim reports that: most are in force sooner, and two writes would be
/// of no use.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Watches the agent of one backend.
#[derive(Default)]
pub(super) struct QuotaWatcher {
    /// Time of the last read of the heartbeat, and of the next one unless reports are expected.
    read: Option<(Instant, Instant)>,
    announcements: Announcements,
}

/// The reports that the agent announced in its heartbeats, in comparison with those that were read.
#[derive(Default)]
struct Announcements {
    /// Instance of the agent, and the number of its reports, when they were last read.
    last: Option<(String, u64)>,
    /// Reports that were read before a heartbeat announced them.
    early: u64,
}

impl Announcements {
    /// Records the instance of the agent and the number of its reports. Returns the number of new ones; `None` if there is no
    /// news. Those of an agent that was not known before are not new: the first comparison of all volumes reads them.
    fn observe(&mut self, found: Option<(String, u64)>) -> Option<u64> {
        let found = found.filter(|found| self.last.as_ref() != Some(found))?;
        let new = match &self.last {
            None => 0,
            Some((instance, before)) if *instance == found.0 => found.1.saturating_sub(*before),
            // Another process counts from 0.
            Some(_) => {
                self.early = 0;
                found.1
            }
        };
        self.last = Some(found);
        Some(new)
    }

    /// Records how many reports were read that the agent announces. Returns true if it announced more: it changed those of
    /// limits that nobody waits for.
    fn explain(&mut self, announced: u64, read: u64) -> bool {
        let known = self.early + read;
        self.early = known.saturating_sub(announced);
        announced > known
    }
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
        let mut announced = None;
        if self.next_read(backend, settings) <= Instant::now() {
            let (next, found) = read_agent(ctx, backend, settings, &export).await;
            self.read = Some((Instant::now(), next));
            announced = self.announcements.observe(found);
        }
        let due = backend.quota.take_due(Instant::now(), announced.is_some());
        let looks: Vec<Look> = stream::iter(due)
            .map(|(volume, pending)| {
                let export = Arc::clone(&export);
                async move { look(ctx, backend, settings, &export, volume, pending).await }
            })
            .buffer_unordered(CONCURRENT)
            .filter_map(ready)
            .collect()
            .await;
        let read = looks.iter().filter(|look| look.is_announced).count() as u64;
        // The claims that wait for their limits are awake by now.
        stream::iter(looks.iter().filter(|look| look.is_due))
            .for_each_concurrent(CONCURRENT, |look| look.report(ctx, backend))
            .await;
        if self.announcements.explain(announced.unwrap_or_default(), read) {
            backend.quota.request_recheck();
        }
        if backend.quota.take_recheck(Instant::now()) {
            backend.quota.sync_requested.notify_one();
        }
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
    let unenforced = backend.quota.unenforced();
    let changed = match found {
        Ok(found) => {
            let changed = backend.quota.observe_agent(found, settings, now);
            // What the claims of all volumes report is wrong now.
            match (unenforced, backend.quota.unenforced()) {
                (before, now) if before == now => {}
                (Some(_), Some(_)) => backend.quota.request_recheck(),
                _ => backend.quota.sync_requested.notify_one(),
            }
            changed
        }
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

/// What was read of the report about an order.
struct Look {
    volume: String,
    claim: LimitedClaim,
    planned: PlannedCondition,
    /// The claim has to report it now.
    is_due: bool,
    /// It is new, and one that the agent announces: the limit is in force, or failed.
    is_announced: bool,
}

impl Look {
    /// Reports on the claim.
    async fn report(&self, ctx: &Context, backend: &Backend) {
        match report_on_claim(ctx, &self.claim, &self.planned).await {
            Ok(()) => backend.quota.set_reported(&self.volume, &self.planned),
            Err(error) => tracing::warn!(
                backend = backend.name,
                volume = self.volume,
                "failed to report the limit on the claim: {error}"
            ),
        }
    }
}

/// Reads the report about an order, and wakes the claim on news. Returns `None` if nothing could be read.
async fn look(
    ctx: &Context,
    backend: &Backend,
    settings: &QuotaSettings,
    export: &ExportStore,
    volume: String,
    pending: PendingLimit,
) -> Option<Look> {
    let has_volume = ctx.capacity.has_volume(&volume);
    if !has_volume && !backend.has_pending(&volume) {
        // It was deleted, or rolled back.
        backend.quota.forget(&volume);
        backend.quota.forget_reported(&volume);
        return None;
    }
    let found = match export.limit_report(&volume, &pending.order).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(
                backend = backend.name,
                volume,
                "failed to read the report of the quota agent: {error}"
            );
            return None;
        }
    };
    let in_force = found.is_in_force();
    let is_ended = matches!(
        found,
        LimitReport::Reported(LimitState::InForce | LimitState::Failed { .. })
    );
    let planned = condition_now(backend, settings, &found);
    let is_news = backend.quota.record(&volume, &pending.order, found);
    if in_force || is_news {
        ctx.waiting_claims.wake(pending.claim.claim.clone());
    }
    let is_due = in_force || planned.reason == Reason::LimitFailed || pending.since.elapsed() >= REPORT_AFTER;
    Some(Look {
        // A claim that waits for its volume reports that in its condition Provisioned.
        is_due: is_due && (in_force || has_volume) && backend.quota.must_report(&volume, &planned),
        is_announced: is_news && is_ended,
        claim: pending.claim,
        volume,
        planned,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reports_that_nobody_waits_for_are_unexplained() {
        let mut announcements = Announcements::default();
        let of = |instance: &str, reported| Some((instance.to_owned(), reported));
        assert_eq!(announcements.observe(None), None);
        assert_eq!(announcements.observe(of("a", 7)), Some(0), "they were there before");
        assert_eq!(announcements.observe(of("a", 7)), None);
        assert_eq!(announcements.observe(of("a", 9)), Some(2));
        assert!(!announcements.explain(2, 2), "both were awaited");
        assert_eq!(announcements.observe(of("a", 10)), Some(1));
        assert!(announcements.explain(1, 0));
        // A report is on the export before the heartbeat that announces it.
        assert!(!announcements.explain(0, 1));
        assert!(!announcements.explain(1, 0));
        assert!(announcements.explain(1, 0));
        assert!(!announcements.explain(0, 1));
        assert_eq!(
            announcements.observe(of("b", 2)),
            Some(2),
            "another process counts from 0"
        );
        assert!(announcements.explain(2, 1));
        assert_eq!(announcements.observe(None), None);
        assert_eq!(announcements.observe(of("b", 2)), None);
    }
}
