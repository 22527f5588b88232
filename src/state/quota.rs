//! What is known of the quota agent of a backend, and of the limits that are not in force yet.

mod accounted;
mod agent;
mod orders;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use accounted::{accounted_usage, accounted_volume};
pub use agent::AgentWatch;
pub use orders::{
    OrderedLimit, clear_report, condition_now, order_archive, order_new_archive, order_provisioned, order_volume,
    report_on_claim, report_unlimited,
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

/// Minimum time between a comparison of all orders and one that the agent causes, by changing reports that nobody waits for.
const RECHECK_PAUSE: Duration = Duration::from_secs(60);

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
    /// True if the reports about all volumes should be read again.
    recheck_wanted: bool,
    sync: SyncTimes,
}

/// The comparison of all orders, over time.
#[derive(Debug, Default)]
enum SyncTimes {
    /// It has not ended yet.
    #[default]
    Awaited,
    /// One runs since then.
    Running(Instant),
    /// The last one ended.
    Ended { at: Instant, took: Duration },
}

impl SyncTimes {
    /// Returns true if the agent may cause another comparison: it takes at most a quarter of the time.
    fn may_recheck(&self, now: Instant) -> bool {
        match self {
            Self::Awaited | Self::Running(_) => false,
            Self::Ended { at, took } => now.saturating_duration_since(*at) >= RECHECK_PAUSE.max(*took * 3),
        }
    }
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
        let mut state = self.state.lock();
        let before = state.agent.reported().cloned();
        state.agent.observe(found, now);
        let after = state.agent.report(settings, now);
        before != Some(after)
    }

    /// Records that the agent could not be looked for. Returns true if the condition is another one than before, because
    /// the last heartbeat became too old.
    pub fn observe_nothing(&self, settings: &QuotaSettings, now: Instant) -> bool {
        let mut state = self.state.lock();
        let before = state.agent.reported().cloned();
        let after = state.agent.report(settings, now);
        before != Some(after)
    }

    /// Returns the condition QuotasEnforced.
    pub fn condition(&self, settings: &QuotaSettings, now: Instant) -> PlannedCondition {
        self.state.lock().agent.condition(settings, now)
    }

    /// Returns true if the agent runs and can limit directories.
    pub fn is_agent_ready(&self, settings: &QuotaSettings, now: Instant) -> bool {
        self.condition(settings, now).status == Some(true)
    }

    /// Returns true if usage that was read from the export is that of the running agent, and recent.
    pub fn confirms(&self, usage: &Usage, settings: &QuotaSettings, now: Instant) -> bool {
        let state = self.state.lock();
        state.agent.condition(settings, now).status == Some(true) && state.agent.confirms(usage)
    }

    /// Forgets the agent and all pending limits: the settings were removed.
    pub fn disable(&self) {
        let mut state = self.state.lock();
        state.agent = AgentWatch::default();
        state.pending.clear();
        state.reported.clear();
        state.recheck_wanted = false;
        state.sync = SyncTimes::default();
    }

    /// Records whether orders or conditions may be left although the settings were removed.
    pub fn set_withdrawing(&self, withdrawing: bool) {
        self.state.lock().withdrawing = withdrawing;
    }

    /// Returns true if orders or conditions may be left although the settings were removed.
    pub fn is_withdrawing(&self) -> bool {
        self.state.lock().withdrawing
    }

    /// Records that the agent changed reports that nobody waits for, so that those about all volumes should be read again.
    pub fn request_recheck(&self) {
        self.state.lock().recheck_wanted = true;
    }

    /// Returns true if the reports about all volumes should be read again now, and forgets that.
    pub fn take_recheck(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_due = state.recheck_wanted && state.sync.may_recheck(now);
        if is_due {
            state.recheck_wanted = false;
        }
        is_due
    }

    /// Records that a comparison of all orders begins or resumes.
    pub fn begin_sync(&self, now: Instant) {
        let mut state = self.state.lock();
        if !matches!(state.sync, SyncTimes::Running(_)) {
            state.sync = SyncTimes::Running(now);
            // It reads them.
            state.recheck_wanted = false;
        }
    }

    /// Records that all orders were compared.
    pub fn end_sync(&self, now: Instant) {
        let mut state = self.state.lock();
        if let SyncTimes::Running(since) = state.sync {
            let took = now.saturating_duration_since(since);
            state.sync = SyncTimes::Ended { at: now, took };
        }
    }

    /// Records a limit that is not in force yet: the reports about it are read until it is.
    pub fn track(&self, volume: &str, order: LimitOrder, claim: LimitedClaim, found: LimitReport, now: Instant) {
        let mut state = self.state.lock();
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
        self.state.lock().pending.remove(volume);
    }

    /// Forgets what the claim of a volume reports: the volume is gone, or the claim reports something else.
    pub fn forget_reported(&self, volume: &str) {
        self.state.lock().reported.remove(volume);
    }

    /// Returns what the claim of a volume reports, if the agent reports this about its limit.
    pub fn limit_condition(&self, found: &LimitReport, settings: &QuotaSettings, now: Instant) -> PlannedCondition {
        let state = self.state.lock();
        let agent = state.agent.condition(settings, now);
        limit_condition(found, &agent, state.agent.unenforced().as_deref())
    }

    /// Returns why the file system enforces no limits, if the agent reported that last.
    pub fn unenforced(&self) -> Option<String> {
        self.state.lock().agent.unenforced()
    }

    /// Returns true if the claim of a volume does not report this condition yet.
    pub fn must_report(&self, volume: &str, planned: &PlannedCondition) -> bool {
        !is_reported(&self.state.lock().reported, volume, planned)
    }

    /// Records what the claim of a volume reports.
    pub fn set_reported(&self, volume: &str, planned: &PlannedCondition) {
        let reported = (planned.reason, planned.message.clone());
        self.state.lock().reported.insert(volume.to_owned(), reported);
    }

    /// Returns the number of limits that are not in force.
    pub fn count_pending(&self) -> u64 {
        let state = self.state.lock();
        let pending = state.pending.values().filter(|pending| !pending.state.is_in_force());
        pending.count() as u64
    }

    /// Returns the pending limit of a volume.
    pub fn pending(&self, volume: &str) -> Option<PendingLimit> {
        self.state.lock().pending.get(volume).cloned()
    }

    /// Returns true if the limit of a volume was found in force a moment ago, so that its order and the report about it need
    /// not be read again. `file_id` is that of its directory, if it may be another one by now.
    pub fn is_in_force(&self, volume: &str, limit: VolumeLimit, file_id: Option<u64>) -> bool {
        self.state.lock().pending.get(volume).is_some_and(|pending| {
            let order = &pending.order;
            let is_same = order.limit == limit && file_id.is_none_or(|file_id| file_id == order.file_id);
            is_same && pending.state.is_in_force()
        })
    }

    /// Returns true while a report is expected at any moment.
    pub fn expects_report(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let mut pending = state.pending.values();
        pending.any(|pending| {
            !pending.state.is_in_force() && now.saturating_duration_since(pending.since) < EXPECTED_WITHIN
        })
    }

    /// Returns the pending limits whose reports are due, or all because the agent announced reports, and postpones the next
    /// look at each. Forgets those that are in force and that nobody asked for since.
    pub fn take_due(&self, now: Instant, announced: bool) -> Vec<(String, PendingLimit)> {
        let mut state = self.state.lock();
        let State {
            pending,
            reported,
            agent,
            ..
        } = &mut *state;
        let in_force = in_force_condition(agent.unenforced().as_deref());
        pending.retain(|volume, pending| {
            let is_done = pending.state.is_in_force() && is_reported(reported, volume, &in_force);
            !(is_done && pending.next <= now)
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
        self.state.lock().pending.values().map(|pending| pending.next).min()
    }

    /// Records what the agent reports about the order of a volume, unless there is another order by now. Returns true if
    /// it is news.
    pub fn record(&self, volume: &str, order: &LimitOrder, found: LimitReport) -> bool {
        let mut state = self.state.lock();
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
}

/// Returns true if the claim of a volume reports this condition.
fn is_reported(reported: &HashMap<String, Reported>, volume: &str, planned: &PlannedCondition) -> bool {
    let reported = reported.get(volume);
    reported.is_some_and(|(reason, message)| (*reason, message) == (planned.reason, &planned.message))
}

/// Returns what a claim reports whose limit is in force, as far as the report about its volume says: that is as old as the
/// limit. `unenforced` is why the file system does not enforce limits any more.
fn in_force_condition(unenforced: Option<&str>) -> PlannedCondition {
    match unenforced {
        None => PlannedCondition::holds(Reason::LimitInForce, "the size of the volume is enforced"),
        Some(why) => PlannedCondition::fails(
            Reason::QuotasNotSupported,
            format!("the limit of the volume is set, and the file system does not enforce it: {why}"),
        ),
    }
}

/// Returns what a claim reports about the limit of its volume. `agent` is the condition of the backend's agent, `unenforced`
/// why the file system enforces no limits.
fn limit_condition(found: &LimitReport, agent: &PlannedCondition, unenforced: Option<&str>) -> PlannedCondition {
    let pending = |what: &str| match agent.status {
        Some(true) => PlannedCondition::fails(Reason::LimitPending, what),
        _ => {
            let message = format!("{what}; {}: {}", agent.reason, agent.message);
            PlannedCondition::fails(Reason::LimitPending, message)
        }
    };
    match found {
        LimitReport::Reported(LimitState::InForce) => in_force_condition(unenforced),
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
                "the report of the quota agent about the volume cannot be used: {why}; put the line that `kubectl nfs secret \
                 quota-key` prints into the key file of the agent"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::agent::tests::{beat as heartbeat, settings};
    use super::*;
    use export_store::quota::{AgentProblem, Heartbeat};

    fn order(generation: u64) -> LimitOrder {
        LimitOrder {
            generation,
            file_id: 1,
            limit: VolumeLimit::default(),
        }
    }

    fn beat(instance: &str, sequence: u64) -> AgentState {
        AgentState::Heartbeat(heartbeat(instance, sequence))
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
        let settings = settings(None);
        let (state, start) = (QuotaState::default(), Instant::now());
        state.observe_agent(beat("a", 1), &settings, start);
        state.observe_agent(beat("a", 2), &settings, start + Duration::from_secs(5));
        let in_force = LimitReport::Reported(LimitState::InForce);
        let old = state.limit_condition(&in_force, &settings, start);
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
            let waits = state.limit_condition(&LimitReport::Unreported, &settings, now);
            assert!(waits.reason == Reason::LimitPending && waits.message.contains("QuotaAgentNotResponding"));
            // What the claim of a volume with a limit reports depends on the report only.
            assert!(
                !state.must_report("old", &state.limit_condition(&in_force, &settings, now)),
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
    fn a_claim_reports_that_the_file_system_stopped_to_enforce_its_limit_and_that_it_does_again() {
        let (state, start, settings) = (QuotaState::default(), Instant::now(), settings(None));
        let in_force = LimitReport::Reported(LimitState::InForce);
        let observe = |sequence, enforced: bool| {
            let off = Heartbeat {
                enforced,
                reason: (!enforced).then_some(AgentProblem::QuotasOff),
                message: (!enforced).then(|| "mount it with prjquota".to_owned()),
                ..heartbeat("a", sequence)
            };
            state.observe_agent(AgentState::Heartbeat(off), &settings, start);
            state.limit_condition(&in_force, &settings, start)
        };
        observe(1, true);
        let enforced = observe(2, true);
        assert_eq!((enforced.status, enforced.reason), (Some(true), Reason::LimitInForce));
        state.set_reported("v", &enforced);

        // The report about the volume is as it was.
        let off = observe(3, false);
        assert_eq!((off.status, off.reason), (Some(false), Reason::QuotasNotSupported));
        assert!(off.message.contains("QuotasOff: mount it with prjquota"), "{off:?}");
        assert!(state.must_report("v", &off));
        state.track("v", order(1), claim(), in_force.clone(), start);
        let now = start + FIRST_DELAY;
        assert_eq!(state.take_due(now, false).len(), 1, "its claim does not report it yet");
        state.set_reported("v", &off);
        assert_eq!(state.take_due(now + MAX_DELAY, false), [], "it is not polled");
        assert_eq!(state.pending("v"), None);

        let on = observe(4, true);
        assert!(state.must_report("v", &on));
        assert_eq!(on, enforced);
    }

    #[test]
    fn an_agent_that_changes_reports_causes_comparisons_for_a_quarter_of_the_time_at_most() {
        let (state, start) = (QuotaState::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        state.request_recheck();
        assert!(!state.take_recheck(start), "the first comparison did not end yet");
        state.begin_sync(start);
        assert!(!state.take_recheck(after(1)), "it reads them");
        state.request_recheck();
        state.end_sync(after(2));
        assert!(!state.take_recheck(after(61)) && state.take_recheck(after(62)));
        assert!(!state.take_recheck(after(63)), "nothing changed since");
        state.begin_sync(after(100));
        state.request_recheck();
        // It was interrupted.
        state.begin_sync(after(150));
        state.end_sync(after(200));
        assert!(!state.take_recheck(after(499)) && state.take_recheck(after(500)));
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
        state.set_reported("v", &in_force_condition(None));
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
        let pending = limit_condition(&LimitReport::Unreported, &running, None);
        assert!(pending.reason == Reason::LimitPending && !pending.message.contains("it runs"));
        let pending = limit_condition(&LimitReport::Unreported, &stopped, None);
        assert!(
            pending.message.ends_with("QuotaAgentNotResponding: check its process"),
            "{pending:?}"
        );
        let in_force = limit_condition(&LimitReport::Reported(LimitState::InForce), &stopped, None);
        assert_eq!((in_force.status, in_force.reason), (Some(true), Reason::LimitInForce));
    }
}
