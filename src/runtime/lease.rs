//! Determines who holds the Lease, from observations of it over time. Does no I/O.
//!
//! A Lease contains the time of its last renewal, by the holder's clock. An observer only checks whether that time
//! changes: while it does, the holder is alive. The observer's own clock measures the time since the last change, so no
//! decision depends on synchronized clocks.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// Maximum factor by which a pause between two attempts is extended, so that candidates are not synchronized.
pub const JITTER: f64 = 1.2;

/// Timings of the leader election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// Time since the last renewal after which the Lease expires.
    pub duration: Duration,
    /// Time since the last renewal after which a leader stops leading.
    pub renew_deadline: Duration,
    /// Interval between renewals by the leader, and between attempts of a standby.
    pub retry_period: Duration,
}

impl Default for LeaseTimings {
    /// Returns the defaults of Kubernetes' own controllers.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTimings {
    /// Returns the timings if they are consistent, or an error message with the remedy.
    pub fn validated(self) -> Result<Self, String> {
        let Self {
            duration,
            renew_deadline,
            retry_period,
        } = self;
        if duration < Duration::from_secs(1) {
            return Err(format!(
                "--lease-duration {duration:?} is too short: specify at least 1s, because a Lease counts whole seconds"
            ));
        }
        if renew_deadline >= duration {
            return Err(format!(
                "--renew-deadline {renew_deadline:?} is not below --lease-duration {duration:?}: a leader that cannot \
                 renew must exit before the Lease expires; lower the former or raise the latter"
            ));
        }
        if retry_period.is_zero() || retry_period.mul_f64(JITTER) >= renew_deadline {
            return Err(format!(
                "--retry-period {retry_period:?} leaves no room for a renewal before --renew-deadline \
                 {renew_deadline:?}: it must be above zero, and {JITTER} times of it below the deadline"
            ));
        }
        Ok(self)
    }
}

/// Identity of a candidate for the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderIdentity {
    /// The `holderIdentity`. No two processes share one, except that of their installation.
    pub name: String,
    instance: Option<String>,
}

impl HolderIdentity {
    /// Creates an identity from the instance name (`--instance`), or from the host name if unset, and a random number.
    pub fn new(instance: Option<&str>, host: &str, random: u32) -> Self {
        Self {
            name: match instance {
                Some(instance) => format!("{instance}/{random:08x}"),
                None => format!("{host}_{random:08x}"),
            },
            instance: instance.map(str::to_owned),
        }
    }

    /// Creates the identity of an installation, from namespace and name of its Lease: at most one of its processes leads.
    pub fn of_installation(lease: &str) -> Self {
        Self {
            name: lease.to_owned(),
            instance: None,
        }
    }

    /// Returns true if the holder is a previous process of this instance, which has ended: an instance is one process.
    fn was(&self, holder: &str) -> bool {
        let place = holder.rsplit_once('/').map(|(place, _)| place);
        place.is_some() && place == self.instance.as_deref()
    }
}

/// Status of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Never taken, released, expired, or held by a previous process of this instance.
    Free,
    /// This process holds it.
    Ours,
    /// Another process holds it.
    Held {
        /// Identity of the holder.
        holder: String,
        /// The holder was seen to renew or take the Lease.
        alive: bool,
        /// Time until the Lease expires, unless it is renewed.
        runs_out_in: Duration,
    },
}

/// Observations of a Lease.
#[derive(Debug, Default)]
pub struct Observer {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    mark: RenewalKey,
    /// Time of the last change, by the observer's clock.
    since: Duration,
    alive: bool,
}

/// Fields of the Lease of which at least one changes with each renewal.
type RenewalKey = (String, Option<MicroTime>, Option<i32>);

impl Observer {
    /// Records the Lease as read at `now` and returns its status. `now` is from a clock of the observer that includes
    /// time in suspend. `own` is the configured lease duration; if the holder's is longer, that one applies.
    pub fn observe(
        &mut self,
        lease: Option<&LeaseSpec>,
        me: &HolderIdentity,
        own: Duration,
        now: Duration,
    ) -> LeaseStatus {
        let holder = lease.and_then(|lease| lease.holder_identity.as_deref()).unwrap_or("");
        let Some(lease) = lease.filter(|_| !holder.is_empty()) else {
            self.seen = None;
            return LeaseStatus::Free;
        };
        if holder == me.name {
            return LeaseStatus::Ours;
        }
        if me.was(holder) {
            return LeaseStatus::Free;
        }
        let (since, alive) = self.last_change(lease, holder, now);
        let holders_duration = u64::try_from(lease.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let runs_out_in = (since + own.max(Duration::from_secs(holders_duration))).saturating_sub(now);
        if runs_out_in.is_zero() {
            return LeaseStatus::Free;
        }
        LeaseStatus::Held {
            holder: holder.to_owned(),
            alive,
            runs_out_in,
        }
    }

    /// Returns the time of the last change, and true if a change was observed.
    fn last_change(&mut self, lease: &LeaseSpec, holder: &str, now: Duration) -> (Duration, bool) {
        let mark = (holder.to_owned(), lease.renew_time.clone(), lease.lease_transitions);
        let alive = match &self.seen {
            Some(seen) if seen.mark == mark => return (seen.since, seen.alive),
            former => former.is_some(),
        };
        self.seen = Some(Seen {
            mark,
            since: now,
            alive,
        });
        (now, alive)
    }
}

/// Returns the spec that takes the Lease.
pub fn acquire_spec(
    former: Option<&LeaseSpec>,
    me: &HolderIdentity,
    timings: &LeaseTimings,
    now: Timestamp,
) -> LeaseSpec {
    let transitions = former.and_then(|former| former.lease_transitions);
    LeaseSpec {
        acquire_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions.map_or(0, |count| count.saturating_add(1))),
        ..renew_spec(former, me, timings, now)
    }
}

/// Returns the spec that renews the Lease.
pub fn renew_spec(
    former: Option<&LeaseSpec>,
    me: &HolderIdentity,
    timings: &LeaseTimings,
    now: Timestamp,
) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(me.name.clone()),
        lease_duration_seconds: Some(whole_seconds(timings.duration)),
        renew_time: Some(MicroTime(now)),
        ..former.cloned().unwrap_or_default()
    }
}

/// Returns the spec that releases the Lease, so that another process can take it at once.
pub fn release_spec(former: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        // The API server rejects 0.
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(now)),
        ..former.clone()
    }
}

fn whole_seconds(duration: Duration) -> i32 {
    let up = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(up).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
