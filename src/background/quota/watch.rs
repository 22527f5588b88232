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
    /// Fewer reports were found than the agent announced: orders may have been written meanwhile that were not known here yet,
    /// or a report could not be read. All are looked for once more with the next heartbeat.
    is_incomplete: bool,
}

/// The reports that a heartbeat announces and an earlier one did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Nothing,
    Reports(u64),
    /// Any number of them.
    Any,
}

impl Expected {
    fn is_met_by(self, found: u64) -> bool {
        matches!(self, Self::Reports(expected) if found >= expected)
    }

    fn is_missed_by(self, found: u64) -> bool {
        matches!(self, Self::Reports(expected) if found < expected)
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
        let mut expected = Expected::Nothing;
        if self.next_read(backend, settings) <= Instant::now() {
            let (next, found) = read_agent(ctx, backend, settings, &export).await;
            self.read = Some((Instant::now(), next));
            expected = expected_reports(self.announced.as_ref(), found.as_ref());
            self.announced = found.or_else(|| self.announced.take());
        }
        let look_at = |orders: Vec<(String, PendingLimit)>| {
            let looks = stream::iter(orders).map(|(volume, pending)| {
                let export = Arc::clone(&export);
                async move { u64::from(look(ctx, backend, settings, &export, &volume, &pending).await) }
            });
            looks
                .buffer_unordered(CONCURRENT)
                .fold(0, async |sum, ended| sum + ended)
        };
        look_at(backend.quota.take_due(Instant::now())).await;
        let is_repeated = std::mem::take(&mut self.is_incomplete);
        if expected != Expected::Nothing || is_repeated {
            let mut found = 0;
            // The agent handles orders about as they come. What it has not announced need not be read.
            for orders in backend.quota.awaited().chunks(CONCURRENT) {
                found += look_at(orders.to_vec()).await;
                if !is_repeated && expected.is_met_by(found) {
                    break;
                }
            }
            self.is_incomplete = expected.is_missed_by(found);
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

/// Returns the reports that a heartbeat announces. `before` and `now` are instances of the agent with the numbers of their
/// reports. Pure.
fn expected_reports(before: Option<&(String, u64)>, now: Option<&(String, u64)>) -> Expected {
    match (before, now) {
        (_, None) => Expected::Nothing,
        (before, now) if before == now => Expected::Nothing,
        (Some((before, earlier)), Some((instance, reported))) if before == instance && earlier < reported => {
            Expected::Reports(reported - earlier)
        }
        // Another process may have written any number of them.
        _ => Expected::Any,
    }
}

/// Reads the report about an order. Wakes the claim on news, and reports on it. Returns true if it is one that a heartbeat
/// announces, and was not known yet.
async fn look(
    ctx: &Context,
    backend: &Backend,
    settings: &QuotaSettings,
    export: &ExportStore,
    volume: &str,
    pending: &PendingLimit,
) -> bool {
    let has_volume = ctx.capacity.has_volume(volume);
    if !has_volume && !backend.has_pending(volume) {
        // It was deleted, or rolled back.
        backend.quota.forget_volume(volume);
        return false;
    }
    let found = match export.limit_report(volume, &pending.order).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(
                backend = backend.name,
                volume,
                "failed to read the report of the quota agent: {error}"
            );
            return false;
        }
    };
    let in_force = found.is_in_force();
    let is_final = found.is_in_force() || found.has_failed();
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
        } else {
            backend.quota.set_reported(volume, &planned);
        }
    }
    is_news && is_final
}

#[cfg(test)]
mod tests {
    use super::{Expected, expected_reports};

    #[test]
    fn a_heartbeat_announces_what_was_reported_since_the_one_before() {
        let beat = |instance: &str, reported| Some((instance.to_owned(), reported));
        let expected =
            |before: Option<(String, u64)>, now: Option<(String, u64)>| expected_reports(before.as_ref(), now.as_ref());
        assert_eq!(expected(beat("a", 3), beat("a", 3)), Expected::Nothing);
        assert_eq!(expected(beat("a", 3), beat("a", 5)), Expected::Reports(2));
        assert_eq!(expected(beat("a", 3), beat("b", 1)), Expected::Any, "another process");
        assert_eq!(expected(beat("a", 3), beat("a", 2)), Expected::Any, "put back");
        assert_eq!(expected(None, beat("a", 5)), Expected::Any, "the first heartbeat");
        assert_eq!(expected(beat("a", 3), None), Expected::Nothing);
    }

    #[test]
    fn reports_are_looked_for_until_all_that_were_announced_are_found() {
        assert!(!Expected::Reports(2).is_met_by(1) && Expected::Reports(2).is_met_by(2));
        assert!(!Expected::Any.is_met_by(u64::MAX), "all are read");
        assert!(Expected::Reports(2).is_missed_by(1) && !Expected::Reports(2).is_missed_by(2));
        assert!(!Expected::Any.is_missed_by(0) && !Expected::Nothing.is_missed_by(0));
    }
}
