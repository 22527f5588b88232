//! What is known of the quota agent of a backend, and of the limits that are not in force yet.

mod accounted;
mod agent;
mod orders;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use accounted::accounted_usage;
pub use agent::AgentWatch;
pub use orders::{
    clear_report, condition_now, order_archive, order_new_archive, order_provisioned, order_volume, report_on_claim,
};

use crate::api::backend::QuotaSettings;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::waiting::ClaimRef;
use export_store::quota::{LimitState, Usage};
use export_store::{AgentState, LimitOrder, LimitReport, VolumeLimit};

/// Delay of the first look at the report about an order, unless the heartbeat announces reports before.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Time for which a report is expected at any moment: the agent reacts within a second, often much faster.
const EXPECTED_WITHIN: Duration = Duration::from_secs(10);
/// Longest delay between two looks at the report about an order. An agent that is slow, or stopped, costs one read for
/// each pending volume in this time.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Time for which a limit is known to be in force after its report was read.
const IN_FORCE: Duration = Duration::from_secs(5);

/// State of the limits on one backend. The lock is never held across an await.
#[derive(Debug, Default)]
pub struct QuotaState {
    /// Notified when there is a limit to look after, or the settings changed.
    pub watch_requested: Arc<Notify>,
    /// Notified when the orders of all volumes and archives are to be compared with them.
    pub sync_requested: Arc<Notify>,
    /// Held while the usage is read, so that it is in memory once.
    usage_reader: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    agent: AgentWatch,
    /// Limits that are not in force yet, or became so just now, by volume.
    pending: BTreeMap<String, PendingLimit>,
    /// True if the settings were removed and orders or conditions may be left.
    withdrawing: bool,
    /// What the claims of volumes last reported, by volume.
    reported: HashMap<String, Reported>,
}

/// What a claim reports about the limit of its volume.
type Reported = (Reason, String);

/// A limit that is not in force yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingLimit {
    /// The order.
    pub order: LimitOrder,
    /// The claim that is to be woken, and that reports the limit.
    pub claim: LimitedClaim,
    /// What the agent last reported about the order.
    pub state: LimitReport,
    /// Time of the order, as far as this process knows.
    pub since: Instant,
    next: Instant,
    delay: Duration,
}

/// The claim of a volume with a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitedClaim {
    /// The claim.
    pub claim: ClaimRef,
    /// UID of the claim.
    pub uid: String,
}

impl QuotaState {
    /// Records what was found of the agent. Returns true if the condition is another one than before.
    pub fn observe_agent(&self, found: AgentState, settings: &QuotaSettings, now: Instant) -> bool {
        let mut state = self.state();
        let before = state.agent.reported().cloned();
        state.agent.observe(found, now);
        let after = state.agent.report(settings, now);
        before != Some(after)
    }

    /// Records that the agent could not be looked for. Returns true if the condition is another one than before, because
    /// the last heartbeat became too old.
    pub fn observe_nothing(&self, settings: &QuotaSettings, now: Instant) -> bool {
        let mut state = self.state();
        let before = state.agent.reported().cloned();
        let after = state.agent.report(settings, now);
        before != Some(after)
    }

    /// Returns the condition QuotasEnforced.
    pub fn condition(&self, settings: &QuotaSettings, now: Instant) -> PlannedCondition {
        self.state().agent.condition(settings, now)
    }

    /// Returns true if the agent runs and can limit directories.
    pub fn is_agent_ready(&self, settings: &QuotaSettings, now: Instant) -> bool {
        self.condition(settings, now).status == Some(true)
    }

    /// Returns true if usage that was read from the export is that of the running agent, and recent.
    pub fn confirms(&self, usage: &Usage, settings: &QuotaSettings, now: Instant) -> bool {
        let state = self.state();
        state.agent.condition(settings, now).status == Some(true) && state.agent.confirms(usage)
    }

    /// Forgets the agent and all pending limits: the settings were removed.
    pub fn disable(&self) {
        let mut state = self.state();
        state.agent = AgentWatch::default();
        state.pending.clear();
        state.reported.clear();
    }

    /// Records whether orders or conditions may be left although the settings were removed.
    pub fn set_withdrawing(&self, withdrawing: bool) {
        self.state().withdrawing = withdrawing;
    }

    /// Returns true if orders or conditions may be left although the settings were removed.
    pub fn is_withdrawing(&self) -> bool {
        self.state().withdrawing
    }

    /// Records a limit that is not in force yet: the reports about it are read until it is.
    pub fn track(&self, volume: &str, order: LimitOrder, claim: LimitedClaim, found: LimitReport, now: Instant) {
        let mut state = self.state();
        if let Some(former) = state.pending.get_mut(volume)
            && former.order == order
        {
            former.claim = claim;
            former.state = found;
            return;
        }
        let since = now;
        let pending = PendingLimit {
            order,
            claim,
            state: found,
            since,
            next: now + FIRST_DELAY,
            delay: FIRST_DELAY,
        };
        state.pending.insert(volume.to_owned(), pending);
        drop(state);
        self.watch_requested.notify_one();
    }

    /// Forgets a pending limit: it is in force and reported, or the volume has none any more.
    pub fn forget(&self, volume: &str) {
        self.state().pending.remove(volume);
    }

    /// Forgets a volume that does not exist any more.
    pub fn forget_volume(&self, volume: &str) {
        let mut state = self.state();
        state.pending.remove(volume);
        state.reported.remove(volume);
    }

    /// Returns true if the claim of a volume last reported this reason.
    pub fn has_reported(&self, volume: &str, reason: Reason) -> bool {
        self.state()
            .reported
            .get(volume)
            .is_some_and(|(reported, _)| *reported == reason)
    }

    /// Returns true if the claim of a volume does not report this condition yet.
    pub fn must_report(&self, volume: &str, planned: &PlannedCondition) -> bool {
        let state = self.state();
        let reported = state.reported.get(volume);
        reported.is_none_or(|(reason, message)| (*reason, message) != (planned.reason, &planned.message))
    }

    /// Records what the claim of a volume reports.
    pub fn set_reported(&self, volume: &str, planned: &PlannedCondition) {
        let reported = (planned.reason, planned.message.clone());
        self.state().reported.insert(volume.to_owned(), reported);
    }

    /// Returns the number of limits that are not in force.
    pub fn count_pending(&self) -> u64 {
        let state = self.state();
        let pending = state.pending.values().filter(|pending| !pending.state.is_in_force());
        pending.count() as u64
    }

    /// Returns the pending limit of a volume.
    pub fn pending(&self, volume: &str) -> Option<PendingLimit> {
        self.state().pending.get(volume).cloned()
    }

    /// Returns true if the limit of a volume was found in force a moment ago, so that its order and the report about it need
    /// not be read again. `file_id` is that of its directory, if it may be another one by now.
    pub fn is_in_force(&self, volume: &str, limit: VolumeLimit, file_id: Option<u64>) -> bool {
        self.state().pending.get(volume).is_some_and(|pending| {
            let order = &pending.order;
            let is_same = order.limit == limit && file_id.is_none_or(|file_id| file_id == order.file_id);
            is_same && pending.state.is_in_force()
        })
    }

    /// Returns true while a report is expected at any moment.
    pub fn expects_report(&self, now: Instant) -> bool {
        let state = self.state();
        let mut pending = state.pending.values();
        pending.any(|pending| {
            !pending.state.is_in_force() && now.saturating_duration_since(pending.since) < EXPECTED_WITHIN
        })
    }

    /// Returns the pending limits whose reports are due, or all because the agent announced reports, and postpones the next
    /// look at each. Forgets those that are in force and that nobody asked for since.
    pub fn take_due(&self, now: Instant, announced: bool) -> Vec<(String, PendingLimit)> {
        let mut state = self.state();
        let State { pending, reported, .. } = &mut *state;
        pending.retain(|volume, pending| {
            let is_reported = matches!(reported.get(volume), Some((Reason::LimitInForce, _)));
            !(pending.state.is_in_force() && is_reported && pending.next <= now)
        });
        let mut due = Vec::new();
        for (volume, pending) in &mut state.pending {
            if announced && !pending.state.is_in_force() {
                due.push((volume.clone(), pending.clone()));
            } else if pending.next <= now {
                pending.delay = (pending.delay * 2).min(MAX_DELAY);
                pending.next = now + pending.delay;
                due.push((volume.clone(), pending.clone()));
            }
        }
        due
    }

    /// Returns the time of the next look at a report.
    pub fn next_due(&self) -> Option<Instant> {
        self.state().pending.values().map(|pending| pending.next).min()
    }

    /// Records what the agent reports about the order of a volume, unless there is another order by now. Returns true if
    /// it is news.
    pub fn record(&self, volume: &str, order: &LimitOrder, found: LimitReport) -> bool {
        let mut state = self.state();
        let Some(pending) = state.pending.get_mut(volume).filter(|pending| pending.order == *order) else {
            return false;
        };
        let is_news = pending.state != found;
        pending.state = found;
        if is_news && pending.state.is_in_force() {
            // Its claim is woken, and asks for it.
            pending.next = Instant::now() + IN_FORCE;
        }
        is_news
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each holder makes changes that are consistent after each statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what a claim reports about the limit of its volume. `agent` is the condition of the backend's agent.
pub fn limit_condition(found: &LimitReport, agent: &PlannedCondition) -> PlannedCondition {
    let pending = |what: &str| match agent.status {
        Some(true) => PlannedCondition::fails(Reason::LimitPending, what),
        _ => {
            let message = format!("{what}; {}: {}", agent.reason, agent.message);
            PlannedCondition::fails(Reason::LimitPending, message)
        }
    };
    match found {
        LimitReport::Reported(LimitState::InForce) => {
            PlannedCondition::holds(Reason::LimitInForce, "the size of the volume is enforced")
        }
        LimitReport::Unreported => {
            pending("the limit of the volume was ordered, and the quota agent has not set it yet")
        }
        // Their number is in the report. It would be a write for each look.
        LimitReport::Reported(LimitState::Pending { .. }) => {
            pending("the quota agent is adding the existing files of the volume to its limit")
        }
        LimitReport::Reported(LimitState::Failed { reason, message }) => PlannedCondition::fails(
            Reason::LimitFailed,
            format!("the quota agent cannot set the limit of the volume: {reason:?}: {message}"),
        ),
        LimitReport::Unusable(why) => PlannedCondition::fails(
            Reason::LimitPending,
            format!(
                "the report of the quota agent about the volume cannot be used: {why}; restart the agent with the key of this \
                 cluster"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::backend::{ArchiveQuota, QuotaEnforcement};
    use export_store::quota::Heartbeat;

    fn order(generation: u64) -> LimitOrder {
        LimitOrder {
            generation,
            file_id: 1,
            limit: VolumeLimit::default(),
        }
    }

    fn claim() -> LimitedClaim {
        LimitedClaim {
            claim: ClaimRef::new("data").within("team"),
            uid: "u".to_owned(),
        }
    }

    #[test]
    fn a_report_is_looked_for_less_and_less_often() {
        let (state, start) = (QuotaState::default(), Instant::now());
        state.track("v", order(1), claim(), LimitReport::Unreported, start);
        let mut looks = Vec::new();
        for millis in 0..60_000 {
            let now = start + Duration::from_millis(millis);
            if !state.take_due(now, false).is_empty() {
                looks.push(millis);
            }
        }
        assert_eq!(looks, [1000, 3000, 7000, 15_000, 25_000, 35_000, 45_000, 55_000]);
    }

    #[test]
    fn while_the_agent_is_stopped_for_an_hour_limits_stay_as_reported_and_new_orders_wait_and_name_it() {
        let settings = QuotaSettings {
            enforce: QuotaEnforcement::Required,
            inodes: None,
            archives: ArchiveQuota::Keep,
        };
        let beat = |instance: &str, sequence| {
            AgentState::Heartbeat(Heartbeat {
                instance: instance.to_owned(),
                sequence,
                agent_version: "1.0.0".to_owned(),
                file_system: "xfs".to_owned(),
                enforced: true,
                inodes_counted: true,
                ignored_orders: 0,
                reported: 1,
                reason: None,
                message: None,
            })
        };
        let (state, start) = (QuotaState::default(), Instant::now());
        state.observe_agent(beat("a", 1), &settings, start);
        state.observe_agent(beat("a", 2), &settings, start + Duration::from_secs(5));
        let in_force = LimitReport::Reported(LimitState::InForce);
        let old = limit_condition(&in_force, &state.condition(&settings, start));
        state.set_reported("old", &old);
        let stopped = start + Duration::from_secs(60);
        state.track("new", order(1), claim(), LimitReport::Unreported, stopped);
        let mut looks = 0;
        for second in 0..3600 {
            let now = stopped + Duration::from_secs(second);
            // The heartbeat is read, and is always the last one.
            state.observe_agent(beat("a", 2), &settings, now);
            assert!(!state.is_agent_ready(&settings, now), "{second}");
            looks += state.take_due(now, false).len();
            let agent = state.condition(&settings, now);
            assert_eq!(agent.reason, Reason::QuotaAgentNotResponding, "{second}");
            let waits = limit_condition(&LimitReport::Unreported, &agent);
            assert!(waits.reason == Reason::LimitPending && waits.message.contains("QuotaAgentNotResponding"));
            // What the claim of a volume with a limit reports depends on the report only.
            assert!(
                !state.must_report("old", &limit_condition(&in_force, &agent)),
                "{second}"
            );
        }
        assert!(looks < 400, "{looks} looks at the report about one order");
        assert_eq!(state.count_pending(), 1);
        let back = stopped + Duration::from_secs(3601);
        state.observe_agent(beat("b", 1), &settings, back);
        assert!(state.is_agent_ready(&settings, back));
        assert_eq!(state.take_due(back, true).len(), 1, "the order is looked after at once");
        assert!(state.record("new", &order(1), in_force));
        assert_eq!(state.count_pending(), 0);
    }

    #[test]
    fn the_report_about_an_earlier_order_ends_nothing() {
        let (state, now) = (QuotaState::default(), Instant::now());
        state.track("v", order(1), claim(), LimitReport::Unreported, now);
        state.track("v", order(2), claim(), LimitReport::Unreported, now);
        assert!(!state.record("v", &order(1), LimitReport::Reported(LimitState::InForce)));
        assert_eq!(
            state.pending("v").map(|pending| pending.state),
            Some(LimitReport::Unreported)
        );
        assert!(state.record("v", &order(2), LimitReport::Reported(LimitState::InForce)));
    }

    #[test]
    fn an_announcement_makes_all_limits_due_that_are_not_in_force() {
        let (state, start) = (QuotaState::default(), Instant::now());
        for volume in ["a", "b"] {
            state.track(volume, order(1), claim(), LimitReport::Unreported, start);
        }
        state.record("a", &order(1), LimitReport::Reported(LimitState::InForce));
        let due = state.take_due(start, true);
        assert_eq!(due.iter().map(|(volume, _)| volume.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(state.expects_report(start) && !state.expects_report(start + EXPECTED_WITHIN));
        state.record("b", &order(1), LimitReport::Reported(LimitState::InForce));
        assert!(!state.expects_report(start));
    }

    #[test]
    fn a_limit_is_known_to_be_in_force_only_for_a_moment_and_for_what_was_ordered() {
        let (state, start) = (QuotaState::default(), Instant::now());
        state.track("v", order(1), claim(), LimitReport::Unreported, start);
        let is_in_force = |file_id| state.is_in_force("v", VolumeLimit::default(), file_id);
        assert!(!is_in_force(None));
        state.record("v", &order(1), LimitReport::Reported(LimitState::InForce));
        assert!(is_in_force(None) && is_in_force(Some(1)) && !is_in_force(Some(2)));
        let larger = VolumeLimit {
            bytes: Some(1),
            inodes: None,
        };
        assert!(!state.is_in_force("v", larger, None));
        let late = Instant::now() + IN_FORCE;
        assert_eq!(state.take_due(late, false).len(), 1, "its claim does not report it yet");
        let in_force = PlannedCondition::holds(Reason::LimitInForce, "");
        state.set_reported("v", &in_force);
        assert_eq!(state.take_due(late + MAX_DELAY, false), []);
        assert!(!is_in_force(None));
    }

    #[test]
    fn the_order_of_a_claim_that_is_checked_again_keeps_its_age() {
        let (state, start) = (QuotaState::default(), Instant::now());
        state.track("v", order(1), claim(), LimitReport::Unreported, start);
        let later = start + Duration::from_secs(5);
        state.track(
            "v",
            order(1),
            claim(),
            LimitReport::Reported(LimitState::Pending { visited: 3 }),
            later,
        );
        let pending = state.pending("v").map(|pending| (pending.since, pending.state));
        assert_eq!(
            pending,
            Some((start, LimitReport::Reported(LimitState::Pending { visited: 3 })))
        );
    }

    #[test]
    fn a_claim_without_a_limit_in_force_reports_the_state_of_the_agent() {
        let running = PlannedCondition::holds(Reason::QuotaAgentReady, "it runs");
        let stopped = PlannedCondition::fails(Reason::QuotaAgentNotResponding, "check its process");
        let pending = limit_condition(&LimitReport::Unreported, &running);
        assert!(pending.reason == Reason::LimitPending && !pending.message.contains("it runs"));
        let pending = limit_condition(&LimitReport::Unreported, &stopped);
        assert!(
            pending.message.ends_with("QuotaAgentNotResponding: check its process"),
            "{pending:?}"
        );
        let in_force = limit_condition(&LimitReport::Reported(LimitState::InForce), &stopped);
        assert_eq!((in_force.status, in_force.reason), (Some(true), Reason::LimitInForce));
    }
}
