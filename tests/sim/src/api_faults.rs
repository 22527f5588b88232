//! Faults of the API server: by chance, or scripted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::api_server::{Fault, Faults};
use crate::chance::Chance;
use crate::life::Life;
use crate::trace::Trace;

/// Latency of a request and of its answer, at most.
const LATENCY: Duration = Duration::from_millis(8);
/// Delay of an event during faults, at most.
const SLOW_WATCH: Duration = Duration::from_secs(20);

/// Faults of the API server: by chance, or scripted.
#[derive(Debug)]
pub struct ApiFaults {
    chance: Chance,
    watches: Chance,
    trace: Trace,
    /// Requests in a thousand that fail.
    rate: AtomicU32,
    /// Watches are slow.
    slow: AtomicBool,
    /// Requests that were executed, except for those about Leases.
    requests: AtomicU64,
    kill: Mutex<Option<Kill>>,
    scripted: Mutex<ScriptedFaults>,
}

/// Faults that do not depend on chance.
#[derive(Debug, Default)]
pub struct ScriptedFaults {
    /// Requests about Leases fail.
    pub refuse_leases: bool,
    /// Objects cannot be created at this path.
    pub refuse_creations: Option<&'static str>,
    /// Events of this kind are delayed for as long as a slow watch delays them at most.
    pub delay_events: Option<&'static str>,
    /// The connection of the next request that creates an object at this path is cut at once, and the request is executed
    /// after this time.
    pub create_late: Option<(&'static str, Duration)>,
}

impl ScriptedFaults {
    /// Returns what happens to a request.
    fn request(&mut self, method: &str, path: &str) -> Option<Fault> {
        if self.refuse_leases && path.contains("/leases") {
            return Some(Fault::Refuse(503));
        }
        if method != "POST" {
            return None;
        }
        if self.refuse_creations == Some(path) {
            return Some(Fault::Refuse(503));
        }
        let late = self.create_late.take_if(|(late, _)| *late == path);
        late.map(|(_, delay)| Fault::ExecuteLate(delay))
    }
}

/// A process that is killed at one of its next requests.
#[derive(Debug)]
struct Kill {
    client: String,
    life: Life,
    /// Number of requests before.
    left: u64,
    /// Only requests that change more than a Lease or a status count.
    at_write: bool,
    /// It is killed before the request is executed, or after.
    before: bool,
}

impl ApiFaults {
    /// Returns no faults yet.
    pub fn new(seed: u64, trace: Trace) -> Self {
        Self {
            chance: Chance::new(seed, "requests"),
            watches: Chance::new(seed, "watches"),
            trace,
            rate: AtomicU32::new(0),
            slow: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            kill: Mutex::new(None),
            scripted: Mutex::new(ScriptedFaults::default()),
        }
    }

    /// Kills a process at one of its next requests: before it is executed, or between that and the answer.
    pub fn kill(&self, client: String, life: Life, requests: u64, before: bool) {
        *self.kill.lock() = Some(Kill {
            client,
            life,
            left: requests,
            at_write: false,
            before,
        });
    }

    /// Kills a process at one of its next requests that change more than a Lease or a status.
    pub fn kill_at_write(&self, client: String, life: Life, writes: u64, before: bool) {
        *self.kill.lock() = Some(Kill {
            client,
            life,
            left: writes,
            at_write: true,
            before,
        });
    }

    /// Returns the number of requests that were executed, except for those about Leases.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Kills no process any more.
    pub fn end_kills(&self) {
        *self.kill.lock() = None;
    }

    /// Kills the process if this is the request.
    fn kill_at(&self, client: &str, method: &str, path: &str, before: bool) {
        let mut pending = self.kill.lock();
        let Some(kill) = pending
            .as_mut()
            .filter(|kill| kill.client == client && kill.before == before)
            .filter(|kill| !kill.at_write || is_write(method, path))
        else {
            return;
        };
        if kill.left > 0 {
            kill.left -= 1;
            return;
        }
        kill.life.kill();
        let when = if before { "before" } else { "after" };
        self.trace
            .record("world", format_args!("kills {client} {when} {method} {path}"));
        *pending = None;
    }

    /// Sets how many requests in a thousand fail, and whether watches are slow.
    pub fn set(&self, rate: u32, slow: bool) {
        self.rate.store(rate, Ordering::Relaxed);
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Changes the faults that do not depend on chance.
    pub fn script(&self, change: impl FnOnce(&mut ScriptedFaults)) {
        let mut scripted = self.scripted.lock();
        change(&mut scripted);
        self.trace.record("api", format_args!("has {scripted:?}"));
    }

    /// Returns what happens to a request by chance.
    fn by_chance(&self) -> Option<Fault> {
        let fails = self.chance.in_thousand(self.rate.load(Ordering::Relaxed));
        fails.then(|| match self.chance.below(6) {
            0 => Fault::Refuse(429),
            1 => Fault::Refuse(503),
            2 => Fault::CutBefore,
            3 => Fault::CutAfter,
            _ => Fault::FailAfter,
        })
    }
}

/// Returns true for a request that changes more than a Lease or a status.
fn is_write(method: &str, path: &str) -> bool {
    method != "GET" && !path.contains("/leases") && !path.contains("/events") && !path.ends_with("/status")
}

impl Faults for ApiFaults {
    fn request(&self, client: &str, method: &str, path: &str) -> (Duration, Fault, Duration) {
        self.kill_at(client, method, path, true);
        let (before, after) = (self.chance.duration(LATENCY), self.chance.duration(LATENCY));
        let scripted = self.scripted.lock().request(method, path);
        let Some(fault) = scripted.or_else(|| self.by_chance()) else {
            return (before, Fault::None, after);
        };
        self.trace
            .record("api", format_args!("{fault:?} for {client}: {method} {path}"));
        (before, fault, after)
    }

    fn watch_delay(&self, _client: &str, plural: &str) -> Duration {
        if self.scripted.lock().delay_events == Some(plural) {
            return SLOW_WATCH;
        }
        match self.slow.load(Ordering::Relaxed) && self.watches.in_thousand(200) {
            true => self.watches.duration(SLOW_WATCH),
            false => self.watches.duration(LATENCY),
        }
    }

    fn cuts_watch(&self, _client: &str) -> bool {
        let rate = self.rate.load(Ordering::Relaxed) / 4;
        rate > 0 && self.watches.in_thousand(rate)
    }

    fn answered(&self, client: &str, method: &str, path: &str, (code, changed): (u16, bool)) {
        if !path.contains("/leases") {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        if method != "GET" && !path.contains("/leases/") {
            let effect = if changed { "" } else { ", without a change" };
            self.trace
                .record(client, format_args!("{method} {path}: {code}{effect}"));
        }
        self.kill_at(client, method, path, false);
    }
}
