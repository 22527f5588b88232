//! Whether the quota agent of an export runs. Pure.
//!
//! The heartbeat counts as long as it changes by the clock of this process: no clocks of two machines are compared.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::api::backend::QuotaSettings;
use crate::api::conditions::{PlannedCondition, Reason};
use export_store::AgentState;
use export_store::quota::{AgentProblem, Heartbeat, MAX_HEARTBEAT_AGE, Usage};

/// Age of recent usage in heartbeats, which are at most 10 seconds apart. The agent writes the usage every 30 seconds.
const RECENT: u64 = 30;

/// Number of processes of the agent that are remembered after another one replaced them: one restart a minute for half a
/// day.
const MAX_REPLACED: usize = 720;

/// The heartbeat of a quota agent, over time.
#[derive(Debug, Default)]
pub struct AgentWatch {
    found: Option<Found>,
    seen: Seen,
    /// Condition that was reported last.
    reported: Option<PlannedCondition>,
}

#[derive(Debug)]
enum Found {
    Missing,
    Untrusted(String),
    Heartbeat {
        heartbeat: Heartbeat,
        /// Time when this heartbeat was first read.
        read_at: Instant,
        /// True if another heartbeat was read before it, so that it is known to be new.
        renewed: bool,
    },
}

impl AgentWatch {
    /// Records what was found on the export.
    pub fn observe(&mut self, found: AgentState, now: Instant) {
        let former = self.found.take();
        self.found = Some(match (found, former) {
            (AgentState::Missing, _) => Found::Missing,
            (AgentState::Untrusted(why), _) => Found::Untrusted(why),
            (AgentState::Heartbeat(heartbeat), former) => match (self.seen.record(&heartbeat), former) {
                (Age::Old, Some(former @ Found::Heartbeat { .. })) => former,
                (age, former) => Found::Heartbeat {
                    heartbeat,
                    read_at: now,
                    renewed: match age {
                        Age::New => true,
                        // Before, there was none: this one is new.
                        Age::First => matches!(former, Some(Found::Missing)),
                        Age::Old => false,
                    },
                },
            },
        });
    }

    /// Returns the condition QuotasEnforced.
    pub fn condition(&self, settings: &QuotaSettings, now: Instant) -> PlannedCondition {
        let (heartbeat, read_at, renewed) = match &self.found {
            None => return PlannedCondition::unknown(Reason::NotProbed, "the quota agent was not looked for yet"),
            Some(Found::Missing) => {
                return PlannedCondition::fails(
                    Reason::QuotaAgentMissing,
                    "no quota agent has written a heartbeat to the export: run nfs-operator quota-agent on the server, with the \
                     key of this cluster",
                );
            }
            Some(Found::Untrusted(why)) => {
                return PlannedCondition::fails(
                    Reason::QuotaAgentUntrusted,
                    format!(
                        "the heartbeat of the quota agent cannot be used: {why}; put the line that `kubectl nfs secret \
                         quota-key` prints into the key file of the agent"
                    ),
                );
            }
            Some(Found::Heartbeat {
                heartbeat,
                read_at,
                renewed,
            }) => (heartbeat, *read_at, *renewed),
        };
        let is_fresh = now.saturating_duration_since(read_at) <= MAX_HEARTBEAT_AGE;
        match (is_fresh, renewed) {
            (true, true) => capability(heartbeat, settings),
            (true, false) => PlannedCondition::unknown(
                Reason::QuotaAgentObserved,
                "waiting for the next heartbeat of the quota agent, which shows that it runs",
            ),
            (false, _) => PlannedCondition::fails(
                Reason::QuotaAgentNotResponding,
                format!(
                    "the quota agent has not renewed its heartbeat for more than {} s: check its process and its log on the server",
                    MAX_HEARTBEAT_AGE.as_secs()
                ),
            ),
        }
    }

    /// Returns why the file system enforces no limits at all, if the agent reported that last. Limits that it set before are
    /// not in force then. It counts whatever the age of the heartbeat: limits stay as they were while the agent is stopped.
    pub fn unenforced(&self) -> Option<String> {
        match &self.found {
            Some(Found::Heartbeat { heartbeat, .. }) if is_unenforced(heartbeat) => Some(problem(heartbeat)),
            _ => None,
        }
    }

    /// Returns the condition, and remembers it as reported.
    pub fn report(&mut self, settings: &QuotaSettings, now: Instant) -> PlannedCondition {
        let condition = self.condition(settings, now);
        self.reported = Some(condition.clone());
        condition
    }

    /// Reports whether the agent that renews the heartbeat wrote this usage recently.
    pub fn confirms(&self, usage: &Usage) -> bool {
        matches!(&self.found, Some(Found::Heartbeat { heartbeat, .. })
            if heartbeat.instance == usage.instance
                && heartbeat.sequence.saturating_sub(usage.sequence) <= RECENT)
    }

    /// Returns the condition that was reported last.
    pub fn reported(&self) -> Option<&PlannedCondition> {
        self.reported.as_ref()
    }
}

/// The heartbeats that were read: a copy of an earlier one, which whoever is root on the export can put back, shows
/// nothing.
#[derive(Debug, Default)]
struct Seen {
    /// Instance and sequence of the newest heartbeat.
    newest: Option<(String, u64)>,
    /// Earlier instances, which write no more heartbeats.
    replaced: VecDeque<String>,
}

/// A heartbeat in comparison with those that were read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    /// None was read before it.
    First,
    /// It was written after all of them.
    New,
    /// It was read before, or is older than one that was.
    Old,
}

impl Seen {
    fn record(&mut self, heartbeat: &Heartbeat) -> Age {
        let instance = &heartbeat.instance;
        let age = match &self.newest {
            None => Age::First,
            Some((newest, sequence)) if newest == instance && heartbeat.sequence <= *sequence => Age::Old,
            Some((newest, _)) if newest == instance => Age::New,
            Some(_) if self.replaced.contains(instance) => Age::Old,
            Some(_) => Age::New,
        };
        if age != Age::Old {
            let newest = self.newest.replace((instance.clone(), heartbeat.sequence));
            self.replaced
                .extend(newest.map(|(former, _)| former).filter(|former| former != instance));
            let excess = self.replaced.len().saturating_sub(MAX_REPLACED);
            self.replaced.drain(..excess);
        }
        age
    }
}

/// Returns true if the file system enforces no limits, whoever set them. Other problems keep the agent from changing limits:
/// those in force stay.
fn is_unenforced(heartbeat: &Heartbeat) -> bool {
    let agent_only = matches!(
        heartbeat.reason,
        Some(AgentProblem::RootInheritsProject | AgentProblem::ToolFailed | AgentProblem::KeyMissing)
    );
    !heartbeat.enforced && !agent_only
}

/// Describes what prevents the agent from enforcing sizes.
fn problem(heartbeat: &Heartbeat) -> String {
    let reason = heartbeat
        .reason
        .map(|reason| format!("{reason:?}: "))
        .unwrap_or_default();
    let message = heartbeat
        .message
        .as_deref()
        .unwrap_or("the quota agent gives no cause: check its log");
    format!("{}: {reason}{message}", heartbeat.file_system)
}

/// Returns the condition while the agent runs: what the file system can do.
fn capability(heartbeat: &Heartbeat, settings: &QuotaSettings) -> PlannedCondition {
    let Heartbeat {
        agent_version,
        file_system,
        ..
    } = heartbeat;
    if !heartbeat.enforced {
        return PlannedCondition::fails(Reason::QuotasNotSupported, problem(heartbeat));
    }
    if settings.inodes.is_some() && !heartbeat.inodes_counted {
        return PlannedCondition::fails(
            Reason::QuotasNotSupported,
            format!("{file_system} does not limit the number of inodes: remove spec.quota.inodes"),
        );
    }
    let ignored = match heartbeat.ignored_orders {
        0 => String::new(),
        orders => format!("; warning: it ignores {orders} orders, which are damaged or signed with another key"),
    };
    let message = format!("quota agent {agent_version} enforces sizes on {file_system}{ignored}");
    PlannedCondition::holds(Reason::QuotaAgentReady, message)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::backend::{ArchiveQuota, QuotaEnforcement};

    pub fn settings(inodes: Option<i64>) -> QuotaSettings {
        QuotaSettings {
            enforce: QuotaEnforcement::Required,
            inodes,
            archives: ArchiveQuota::Keep,
        }
    }

    pub fn beat(instance: &str, sequence: u64) -> Heartbeat {
        Heartbeat {
            instance: instance.to_owned(),
            sequence,
            agent_version: "1.0.0".to_owned(),
            file_system: "xfs".to_owned(),
            enforced: true,
            inodes_counted: false,
            ignored_orders: 0,
            reported: 0,
            reason: None,
            message: None,
        }
    }

    /// Returns the reason after each observation, at these seconds.
    fn reasons(found: &[(u64, AgentState)]) -> Vec<Reason> {
        let (mut watch, start) = (AgentWatch::default(), Instant::now());
        let observed = found.iter().map(|(seconds, found)| {
            let now = start + Duration::from_secs(*seconds);
            watch.observe(found.clone(), now);
            watch.condition(&settings(None), now).reason
        });
        observed.collect()
    }

    #[test]
    fn a_heartbeat_counts_once_it_changed_and_as_long_as_it_keeps_changing() {
        use Reason::{QuotaAgentMissing, QuotaAgentNotResponding, QuotaAgentObserved, QuotaAgentReady};
        let at = |seconds, instance, sequence| (seconds, AgentState::Heartbeat(beat(instance, sequence)));
        let left_by_a_stopped_agent = [at(0, "a", 5), at(10, "a", 5), at(31, "a", 5)];
        assert_eq!(
            reasons(&left_by_a_stopped_agent),
            [QuotaAgentObserved, QuotaAgentObserved, QuotaAgentNotResponding]
        );
        let stops_and_is_restarted = [
            at(0, "a", 5),
            at(2, "a", 6),
            at(32, "a", 6),
            at(33, "a", 6),
            at(34, "b", 1),
        ];
        assert_eq!(
            reasons(&stops_and_is_restarted),
            [
                QuotaAgentObserved,
                QuotaAgentReady,
                QuotaAgentReady,
                QuotaAgentNotResponding,
                QuotaAgentReady
            ]
        );
        let put_back = [at(0, "a", 5), at(2, "a", 9), at(30, "a", 8), at(33, "a", 7)];
        assert_eq!(reasons(&put_back).last(), Some(&QuotaAgentNotResponding));
        let another_process_put_back = [at(0, "a", 8), at(2, "b", 3), at(4, "a", 9), at(33, "a", 10)];
        assert_eq!(
            reasons(&another_process_put_back).last(),
            Some(&QuotaAgentNotResponding)
        );
        let removed_and_put_back = [
            at(0, "a", 5),
            at(2, "a", 9),
            (3, AgentState::Missing),
            at(4, "a", 8),
            at(6, "a", 9),
        ];
        assert_eq!(reasons(&removed_and_put_back).last(), Some(&QuotaAgentObserved));
        let starts = [(0, AgentState::Missing), at(2, "a", 1)];
        assert_eq!(reasons(&starts), [QuotaAgentMissing, QuotaAgentReady]);
        let forged = [
            at(0, "a", 1),
            at(1, "a", 2),
            (2, AgentState::Untrusted("forged".to_owned())),
        ];
        assert_eq!(reasons(&forged).last(), Some(&Reason::QuotaAgentUntrusted));
    }

    #[test]
    fn an_agent_that_cannot_do_what_is_asked_is_not_ready() {
        let able = capability(&beat("a", 1), &settings(None));
        assert_eq!((able.status, able.reason), (Some(true), Reason::QuotaAgentReady));
        let inodes = capability(&beat("a", 1), &settings(Some(1000)));
        assert_eq!(
            (inodes.status, inodes.reason),
            (Some(false), Reason::QuotasNotSupported)
        );
        assert!(inodes.message.contains("spec.quota.inodes"), "{}", inodes.message);
        let off = Heartbeat {
            enforced: false,
            message: Some("mount with prjquota".to_owned()),
            ..beat("a", 1)
        };
        let off = capability(&off, &settings(None));
        assert!(
            off.reason == Reason::QuotasNotSupported && off.message.contains("prjquota"),
            "{off:?}"
        );
    }

    #[test]
    fn limits_are_not_in_force_only_while_the_file_system_enforces_none() {
        let start = Instant::now();
        let found = |enforced, reason| {
            let mut watch = AgentWatch::default();
            let heartbeat = Heartbeat {
                enforced,
                reason,
                message: Some("why".to_owned()),
                ..beat("a", 1)
            };
            watch.observe(AgentState::Heartbeat(heartbeat), start);
            watch.unenforced()
        };
        let off = found(false, Some(AgentProblem::QuotasOff));
        assert_eq!(off.as_deref(), Some("xfs: QuotasOff: why"));
        for reason in [
            None,
            Some(AgentProblem::FileSystemUnsupported),
            Some(AgentProblem::Unknown),
        ] {
            assert!(found(false, reason).is_some(), "{reason:?}");
        }
        for (enforced, reason) in [
            (true, None),
            (false, Some(AgentProblem::ToolFailed)),
            (false, Some(AgentProblem::RootInheritsProject)),
            (false, Some(AgentProblem::KeyMissing)),
        ] {
            assert_eq!(found(enforced, reason), None, "{reason:?}");
        }
        assert_eq!(AgentWatch::default().unenforced(), None);
    }
}
