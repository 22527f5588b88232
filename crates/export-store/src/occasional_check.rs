//! A check that every tenth probe makes, because its result seldom changes and an idle operator only probes.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of probes between two that make the check.
const PROBES_BETWEEN: u32 = 9;

/// A check that is due at first, and with every tenth probe after it passed.
#[derive(Debug, Default)]
pub struct OccasionalCheck {
    /// Number of probes before the one that makes the check again.
    left: AtomicU32,
}

impl OccasionalCheck {
    /// Reports whether this probe makes the check. Call it once in each probe.
    pub fn is_due(&self) -> bool {
        let left = |probes: u32| probes.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
            .is_err()
    }

    /// Records that the check passed.
    pub fn set_passed(&self) {
        self.left.store(PROBES_BETWEEN, Ordering::Relaxed);
    }

    /// Makes the check due with the next probe.
    pub fn set_due(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_probe_makes_a_check_that_passes() {
        let check = OccasionalCheck::default();
        let mut due = Vec::new();
        for probe in 0..21 {
            if check.is_due() {
                due.push(probe);
                check.set_passed();
            }
        }
        assert_eq!(due, [0, 10, 20]);
    }

    #[test]
    fn a_check_that_fails_is_due_again() {
        let check = OccasionalCheck::default();
        assert!(check.is_due() && check.is_due());
        check.set_passed();
        assert!(!check.is_due());
        check.set_due();
        assert!(check.is_due());
    }
}
