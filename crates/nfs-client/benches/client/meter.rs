//! The time in which only READDIRs are in flight, measured between client and server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rig::{Action, Direction, Proxy};

/// READDIR in NFSv4 (RFC 8881 section 18.23).
const READDIR: u32 = 26;
/// READDIR and READDIRPLUS in NFSv3 (RFC 1813 sections 3.3.16 and 3.3.17).
const READDIR_3: [u32; 2] = [16, 17];

#[derive(Default)]
struct State {
    /// Calls without a reply, by their ID, and whether each is a READDIR.
    open: HashMap<u32, bool>,
    /// The time since which only READDIRs are in flight.
    since: Option<Instant>,
    alone: Duration,
    calls: usize,
}

impl State {
    fn turn(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.since.take() {
            self.alone += now.duration_since(since);
        }
        if !self.open.is_empty() && self.open.values().all(|is_readdir| *is_readdir) {
            self.since = Some(now);
        }
    }
}

/// The share of READDIR in a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Number of READDIR calls.
    pub calls: usize,
    /// The share of the time in which nothing else was in flight, 0 to 1.
    pub alone: f64,
}

/// Observes a proxy until its hooks are cleared.
pub struct Meter(Arc<Mutex<State>>);

impl Meter {
    pub fn put(proxy: &Proxy) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let (up, down) = (Arc::clone(&state), Arc::clone(&state));
        proxy.on_record(Direction::Up, move |call| {
            if let Some(id) = word(call, 0) {
                let is_readdir = is_readdir(call);
                let mut state = lock(&up);
                state.calls += usize::from(is_readdir);
                state.open.insert(id, is_readdir);
                state.turn();
            }
            Action::Forward
        });
        proxy.on_record(Direction::Down, move |reply| {
            if let Some(id) = word(reply, 0) {
                let mut state = lock(&down);
                state.open.remove(&id);
                state.turn();
            }
            Action::Forward
        });
        Self(state)
    }

    pub fn share_of(&self, took: Duration) -> Share {
        let state = lock(&self.0);
        Share {
            calls: state.calls,
            alone: state.alone.as_secs_f64() / took.as_secs_f64().max(f64::EPSILON),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

fn word(record: &[u8], at: usize) -> Option<u32> {
    let bytes = record.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns whether a call is a READDIR: in NFSv4, the third operation after SEQUENCE and PUTFH.
fn is_readdir(call: &[u8]) -> bool {
    find_readdir(call).unwrap_or(false)
}

fn find_readdir(call: &[u8]) -> Option<bool> {
    let padded = |length: u32| (length as usize).next_multiple_of(4);
    if word(call, 16)? == 3 {
        return Some(READDIR_3.contains(&word(call, 20)?));
    }
    // Credential, an empty verifier, an empty tag, the minor version and the number of operations.
    let arguments = 32 + padded(word(call, 28)?) + 8;
    let operations = arguments + 12;
    // SEQUENCE: session, sequence, slot, highest slot, cache.
    let second = operations + 4 + 16 + 16;
    let third = second + 8 + padded(word(call, second + 4)?);
    Some(word(call, third)? == READDIR)
}
