//! Faults of a server and its network: by chance from a seeded generator, or for chosen calls.

use std::fmt;
use std::time::Duration;

use nfs_client::wire::v3::nfs;
use nfs_client::wire::v4::op;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// What a call is, for those who choose its fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSummary {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Operations of a COMPOUND, by number.
    pub operations: Vec<u32>,
}

impl CallSummary {
    /// Returns true for MKDIR, and for a COMPOUND with CREATE, which the client sends for directories and symbolic links.
    pub fn makes_directory(&self) -> bool {
        self.operations.contains(&op::CREATE) || (self.version, self.procedure) == (3, nfs::MKDIR)
    }
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call is held for a time before it is executed, whatever becomes of its connection.
    Hold(Duration),
    /// The call is never executed and never answered, and its connection stays.
    Hang,
    /// The connection is cut; the call is not executed.
    CutBefore,
    /// The call is executed; then the connection is cut, without the reply.
    CutAfter,
    /// The call is executed, and its reply never sent.
    LoseReply,
    /// The reply is sent twice.
    RepeatReply,
    /// The server answers DELAY, in NFSv3 JUKEBOX, and executes nothing.
    Busy,
    /// The server takes this time between any two operations of a COMPOUND: other calls are executed in between.
    Interleave(Duration),
    /// The server crashes in the middle of a COMPOUND, after this number of operations, and restarts at once.
    CrashAfter(usize),
}

/// How often each fault hits a call by chance, in calls per 100,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// [`Fault::Hold`], for up to [`max_hold`](Self::max_hold).
    pub hold: u32,
    /// Longest hold.
    pub max_hold: Duration,
    /// [`Fault::Hang`].
    pub hang: u32,
    /// [`Fault::CutBefore`].
    pub cut_before: u32,
    /// [`Fault::CutAfter`].
    pub cut_after: u32,
    /// [`Fault::LoseReply`].
    pub lose_reply: u32,
    /// [`Fault::RepeatReply`].
    pub repeat_reply: u32,
    /// [`Fault::Busy`].
    pub busy: u32,
    /// [`Fault::Interleave`], with up to 10 ms.
    pub interleave: u32,
    /// [`Fault::CrashAfter`], after up to 8 operations.
    pub crash: u32,
    /// Refused connections, per 100,000 attempts.
    pub refuse: u32,
    /// Time that every call takes at most, each way.
    pub latency: Duration,
}

struct Scripted {
    matches: Box<dyn FnMut(&CallSummary) -> bool + Send>,
    fault: Fault,
}

/// The faults of a server.
pub struct Faults {
    rng: StdRng,
    rates: FaultRates,
    scripted: Vec<Scripted>,
    /// Number of calls so far.
    pub calls: u64,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("rates", &self.rates)
            .field("scripted", &self.scripted.len())
            .finish_non_exhaustive()
    }
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Time before the call arrives.
    pub latency: Duration,
    /// Its fault.
    pub fault: Option<Fault>,
}

impl Faults {
    /// Returns no faults yet; chance comes from this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            rates: FaultRates::default(),
            scripted: Vec::new(),
            calls: 0,
        }
    }

    /// Sets how often faults happen by chance.
    pub fn set_rates(&mut self, rates: FaultRates) {
        self.rates = rates;
    }

    /// Lets this happen to the next call that matches.
    pub fn script(&mut self, matches: impl FnMut(&CallSummary) -> bool + Send + 'static, fault: Fault) {
        self.scripted.push(Scripted {
            matches: Box::new(matches),
            fault,
        });
    }

    /// Number of chosen faults that have not happened yet.
    pub fn scripted(&self) -> usize {
        self.scripted.len()
    }

    /// Ends all faults, those by chance and the chosen ones.
    pub fn clear(&mut self) {
        self.rates = FaultRates::default();
        self.scripted.clear();
    }

    /// Whether an attempt to connect is refused.
    pub(super) fn refuses_connection(&mut self) -> bool {
        let rate = self.rates.refuse;
        rate > 0 && self.rng.random_range(0..100_000) < rate
    }

    /// Decides what happens to a call, which is described only if a chosen fault waits for one.
    pub(super) fn plan(&mut self, describe: impl FnOnce() -> CallSummary) -> Plan {
        self.calls += 1;
        let latency = self.up_to(self.rates.latency);
        let fault = match self.take_scripted(describe) {
            Some(fault) => Some(fault),
            None => self.by_chance(),
        };
        Plan { latency, fault }
    }

    /// Takes the chosen fault that hits a call.
    fn take_scripted(&mut self, describe: impl FnOnce() -> CallSummary) -> Option<Fault> {
        if self.scripted.is_empty() {
            return None;
        }
        let call = describe();
        let index = self
            .scripted
            .iter_mut()
            .position(|scripted| (scripted.matches)(&call))?;
        Some(self.scripted.remove(index).fault)
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        if longest.is_zero() {
            return longest;
        }
        longest.mul_f64(self.rng.random_range(0.0..1.0))
    }

    fn by_chance(&mut self) -> Option<Fault> {
        let rates = self.rates;
        let hold = self.rates.hold;
        let table = [
            (hold, Fault::Hold(rates.max_hold)),
            (rates.hang, Fault::Hang),
            (rates.cut_before, Fault::CutBefore),
            (rates.cut_after, Fault::CutAfter),
            (rates.lose_reply, Fault::LoseReply),
            (rates.repeat_reply, Fault::RepeatReply),
            (rates.busy, Fault::Busy),
            (rates.interleave, Fault::Interleave(Duration::from_millis(10))),
            (rates.crash, Fault::CrashAfter(8)),
        ];
        if table.iter().all(|(rate, _)| *rate == 0) {
            return None;
        }
        let mut draw = self.rng.random_range(0..100_000u32);
        for (rate, fault) in table {
            if draw < rate {
                return Some(match fault {
                    Fault::Hold(longest) => Fault::Hold(self.up_to(longest)),
                    Fault::Interleave(longest) => Fault::Interleave(self.up_to(longest)),
                    Fault::CrashAfter(most) => Fault::CrashAfter(self.rng.random_range(1..=most)),
                    fault => fault,
                });
            }
            draw -= rate;
        }
        None
    }
}
