//! Whose the Lease is, judged by what was seen of it and when. Pure.
//!
//! A Lease carries the time at which its holder renewed it, by the holder's clock. That time is only compared with
//! itself: as long as it changes, the holder lives. How long it has not changed is measured by the observer's own
//! clock, so no decision hangs on two clocks agreeing.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// A pause between two tries may be this much longer than asked, so that candidates do not move in step.
pub const JITTER: f64 = 1.2;

/// The times of a leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// A Lease that was not renewed for this long is anybody's.
    pub duration: Duration,
    /// A leader that could not renew for this long is one no more.
    pub renew_deadline: Duration,
    /// How often a leader renews, and a standby looks.
    pub retry_period: Duration,
}

impl Default for LeaseTimings {
    /// What Kubernetes' own controllers use.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTimings {
    /// These times, if they do not contradict each other; else what to change.
    pub fn validated(self) -> Result<Self, String> {
        let Self {
            duration,
            renew_deadline,
            retry_period,
        } = self;
        if duration < Duration::from_secs(1) {
            return Err(format!(
                "--lease-duration {duration:?} is too short: a Lease counts whole seconds, give it one at least"
            ));
        }
        if renew_deadline >= duration {
            return Err(format!(
                "--renew-deadline {renew_deadline:?} is not below --lease-duration {duration:?}: a leader that cannot \
                 renew must end before another may begin; lower the former or raise the latter"
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

/// Who a process is among those that want the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderIdentity {
    /// The `holderIdentity`: no other process ever has it.
    pub name: String,
    instance: Option<String>,
}

impl HolderIdentity {
    /// Made of what the administrator calls this place (`--instance`), else of the host's name, and a random number.
    pub fn new(instance: Option<&str>, host: &str, random: u32) -> Self {
        Self {
            name: match instance {
                Some(instance) => format!("{instance}/{random:08x}"),
                None => format!("{host}_{random:08x}"),
            },
            instance: instance.map(str::to_owned),
        }
    }

    /// Whether a holder was this process in a former life: then it is dead, for the instance is one place.
    fn was(&self, holder: &str) -> bool {
        let place = holder.rsplit_once('/').map(|(place, _)| place);
        place.is_some() && place == self.instance.as_deref()
    }
}

/// Whose the Lease is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Nobody's: never taken, released, run out, or a former life's.
    Free,
    /// Ours.
    Ours,
    /// Somebody else's.
    Held {
        /// Who.
        holder: String,
        /// Whether it was seen to be alive: it renewed or took the Lease while we looked.
        alive: bool,
        /// When it runs out, unless it is renewed.
        runs_out_in: Duration,
    },
}

/// What was seen of a Lease so far.
#[derive(Debug, Default)]
pub struct Observer {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    mark: RenewalKey,
    /// By the observer's clock.
    since: Duration,
    alive: bool,
}

/// What changes with each renewal.
type RenewalKey = (String, Option<MicroTime>, Option<i32>);

impl Observer {
    /// Takes in what the Lease says at `now` (any clock of the observer's that goes on while the machine sleeps), and
    /// judges. `own` is the lease duration that we were given; a longer one of the holder's counts.
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
        let (since, alive) = self.note(lease, holder, now);
        let asked = u64::try_from(lease.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let runs_out_in = (since + own.max(Duration::from_secs(asked))).saturating_sub(now);
        if runs_out_in.is_zero() {
            return LeaseStatus::Free;
        }
        LeaseStatus::Held {
            holder: holder.to_owned(),
            alive,
            runs_out_in,
        }
    }

    /// Since when the Lease is as it is, and whether it was seen to change before.
    fn note(&mut self, lease: &LeaseSpec, holder: &str, now: Duration) -> (Duration, bool) {
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

/// What the Lease says when we take it.
pub fn taken(former: Option<&LeaseSpec>, me: &HolderIdentity, terms: &LeaseTimings, now: Timestamp) -> LeaseSpec {
    let transitions = former.and_then(|former| former.lease_transitions);
    LeaseSpec {
        acquire_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions.map_or(0, |count| count.saturating_add(1))),
        ..renewed(former, me, terms, now)
    }
}

/// What it says when we renew it.
pub fn renewed(former: Option<&LeaseSpec>, me: &HolderIdentity, terms: &LeaseTimings, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(me.name.clone()),
        lease_duration_seconds: Some(whole_seconds(terms.duration)),
        renew_time: Some(MicroTime(now)),
        ..former.cloned().unwrap_or_default()
    }
}

/// What it says when we give it back: nobody's, at once.
pub fn released(former: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        // The API server takes no 0.
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
