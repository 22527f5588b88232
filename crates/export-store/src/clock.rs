//! The wall clock, which names entries of the trash and times in records.

use std::fmt;

use jiff::Timestamp;

/// A wall clock. It may be wrong, and it may be set back.
pub trait WallClock: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SystemClock;

impl WallClock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
