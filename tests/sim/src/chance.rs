//! Choices by chance. Each concern of a run has a source of its own, so that fewer choices of one leave the others alone.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of choices. Clones share it.
#[derive(Debug, Clone)]
pub struct Chance(Arc<Mutex<StdRng>>);

impl Chance {
    /// Returns the source of a concern in the run of a seed.
    pub fn new(seed: u64, concern: &str) -> Self {
        // FNV-1a: any function that tells the names apart.
        let number = concern.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed ^ number))))
    }

    /// Returns true in `count` of 1,000 cases.
    pub fn in_thousand(&self, count: u32) -> bool {
        self.below(1000) < u64::from(count)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub fn below(&self, limit: u64) -> u64 {
        match limit {
            0 => 0,
            limit => self.0.lock().random_range(0..limit),
        }
    }

    /// Returns one of the items.
    pub fn choose<'a, T>(&self, items: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(u64::try_from(items.len()).unwrap_or(0))).unwrap_or(0);
        items.get(index)
    }

    /// Returns a duration below `limit`, in microseconds.
    pub fn duration(&self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX)))
    }
}
