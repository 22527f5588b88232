//! A session and its slots (RFC 8881 section 2.10).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::numbers::op;
use crate::xdr::Encoder;

/// Calls in flight on a connection without a session: servers have that many threads and more for one client.
const CALLS_WITHOUT_SESSION: u32 = 32;

/// A session on the server; it outlives connections.
#[derive(Debug)]
pub struct Session {
    /// The server's name for it.
    pub id: [u8; 16],
    /// The client that it belongs to.
    pub client_id: u64,
    /// Minor version that it was made with.
    pub minor: u32,
    /// Longest request, in bytes.
    pub longest_request: usize,
    /// Longest reply, in bytes.
    pub longest_reply: usize,
    /// Number of slots.
    pub slot_count: u32,
    /// Slots that no call holds.
    pub slots: Slots,
    began: Instant,
    /// Milliseconds from `began` to the newest SEQUENCE that succeeded: the server renewed our lease then.
    renewed: AtomicU64,
}

impl Session {
    /// A session that was just made.
    pub fn new(
        id: [u8; 16],
        client_id: u64,
        minor: u32,
        (longest_request, longest_reply): (usize, usize),
        slot_count: u32,
    ) -> Self {
        Self {
            id,
            client_id,
            minor,
            longest_request,
            longest_reply,
            slot_count,
            slots: Slots::new(slot_count),
            began: Instant::now(),
            renewed: AtomicU64::new(0),
        }
    }

    /// What stands for a session in NFSv4.0: its slots bound the calls in flight, and mean nothing to the server.
    pub fn none(sizes: (usize, usize)) -> Self {
        Self::new([0; 16], 0, 0, sizes, CALLS_WITHOUT_SESSION)
    }

    /// Whether the server knows of the slots: it does in a real session.
    pub fn has_slots(&self) -> bool {
        self.minor > 0
    }

    /// The lease was renewed now.
    pub fn renew(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.renewed.fetch_max(now, Ordering::Relaxed);
    }

    /// Time since the lease was renewed.
    pub fn since_renewal(&self) -> Duration {
        self.began
            .elapsed()
            .saturating_sub(Duration::from_millis(self.renewed.load(Ordering::Relaxed)))
    }

    /// SEQUENCE with its arguments.
    pub fn sequence(&self, slot: &Slot, keep_reply: bool) -> Vec<u8> {
        let mut message = Encoder::new();
        message
            .u32(op::SEQUENCE)
            .fixed(&self.id)
            .u32(slot.sequence)
            .u32(slot.id);
        message.u32(self.slot_count.saturating_sub(1)).boolean(keep_reply);
        message.into_bytes()
    }
}

/// A slot in somebody's hands. Dropping it without [`Slots::release`] takes it out of use until the session is made
/// anew: right for a slot whose sequence number is no longer known.
#[derive(Debug)]
pub struct Slot {
    /// Its number.
    pub id: u32,
    /// The sequence number that the next request carries.
    pub sequence: u32,
}

/// The slots that are free.
#[derive(Debug)]
pub struct Slots {
    permits: Semaphore,
    /// Lowest first, as the protocol asks, so that the server may shrink its table. Holds (number, sequence).
    free: Mutex<BinaryHeap<Reverse<(u32, u32)>>>,
}

impl Slots {
    fn new(count: u32) -> Self {
        Self {
            permits: Semaphore::new(count as usize),
            // A new slot's first request has the sequence number 1 (RFC 8881 section 2.10.6.1).
            free: Mutex::new((0..count).map(|id| Reverse((id, 1))).collect()),
        }
    }

    fn free(&self) -> MutexGuard<'_, BinaryHeap<Reverse<(u32, u32)>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free slot; `None` once the session is lost.
    pub async fn acquire(&self) -> Option<Slot> {
        let permit = self.permits.acquire().await.ok()?;
        permit.forget();
        let Reverse((id, sequence)) = self.free().pop()?;
        Some(Slot { id, sequence })
    }

    /// Gives a slot back. `used`: the server took the request, so the next one has the next sequence number.
    pub fn release(&self, slot: Slot, used: bool) {
        let sequence = if used {
            slot.sequence.wrapping_add(1)
        } else {
            slot.sequence
        };
        self.free().push(Reverse((slot.id, sequence)));
        self.permits.add_permits(1);
    }

    /// Nobody gets a slot of this session any more.
    pub fn close(&self) {
        self.permits.close();
    }
}
