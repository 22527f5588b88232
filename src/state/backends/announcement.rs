//! The next beacon of a backend. The status has it before the export does, so that the beacon is recognized after a crash
//! between the two writes.

use export_store::Beacon;

/// Beacons in the status of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The beacon on the export, if there was one.
    pub current: Option<Beacon>,
    /// The beacon that replaces it.
    pub next: Beacon,
}

impl Announcement {
    /// Returns the announcement to make once the export has the `current` beacon. `None` if the last one of this process
    /// is not on the export yet: the write of its beacon may have been executed although it failed, so the status must
    /// keep that beacon until the export is seen with it. Another backend on the export may have changed the `current`
    /// beacon before that write; then `is_next_pending` is true.
    pub fn due(last: Option<&Self>, current: Option<Beacon>, is_next_pending: bool) -> Option<Self> {
        let may_follow = |last: &Self| is_next_pending && current.as_ref() != Some(&last.next);
        if last.is_some_and(|last| last.current == current || may_follow(last)) {
            return None;
        }
        Some(Self {
            next: Beacon::after(current.as_ref()),
            current,
        })
    }
}

/// The announcement of this process, if any.
#[derive(Debug, Default)]
pub(super) struct AnnouncementState {
    announced: Option<Announcement>,
    /// The status with it was written.
    written: bool,
}

impl AnnouncementState {
    pub(super) fn get(&self) -> Option<Announcement> {
        self.announced.clone()
    }

    /// Records an announcement that is about to be written to the status.
    pub(super) fn plan(&mut self, announcement: Announcement) {
        if self.announced.as_ref() != Some(&announcement) {
            self.announced = Some(announcement);
            self.written = false;
        }
    }

    pub(super) fn set_written(&mut self) {
        self.written = true;
    }

    /// Returns the beacon that may be written to the export.
    pub(super) fn next(&self) -> Option<Beacon> {
        let announced = self.announced.as_ref().filter(|_| self.written);
        announced.map(|announced| announced.next.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_beacon_whose_write_may_have_been_executed_remains_announced_until_the_export_has_it() {
        let due = |last: &Announcement, current: Option<&Beacon>, is_next_pending| {
            Announcement::due(Some(last), current.cloned(), is_next_pending)
        };
        let first = Announcement::due(None, None, false).unwrap();
        assert_eq!((&first.current, due(&first, None, false)), (&None, None));
        let second = due(&first, Some(&first.next), false).unwrap();
        assert_eq!(second.current.as_ref(), Some(&first.next));
        assert_eq!(due(&second, second.current.as_ref(), false), None);
        assert_eq!(due(&second, second.current.as_ref(), true), None);
        // Another backend on the export, or an administrator who accepted another export.
        let other = Beacon::after(second.current.as_ref());
        let third = due(&second, Some(&other), false).unwrap();
        assert_eq!(third.current.as_ref(), Some(&other));
        // The other backend wrote its beacon, and the write of the second one after that had no reply.
        assert_eq!(due(&second, Some(&other), true), None);
        assert!(due(&second, Some(&second.next), true).is_some(), "the export has it");
    }

    #[test]
    fn a_beacon_is_written_to_the_export_only_after_the_status_has_it() {
        let mut state = AnnouncementState::default();
        let first = Announcement {
            current: None,
            next: Beacon::after(None),
        };
        state.plan(first.clone());
        assert_eq!(state.next(), None);
        state.set_written();
        assert_eq!(state.next().as_ref(), Some(&first.next));
        state.plan(first.clone());
        assert_eq!(state.next().as_ref(), Some(&first.next), "the status did not change");
        let second = Announcement {
            next: Beacon::after(Some(&first.next)),
            current: Some(first.next),
        };
        state.plan(second);
        assert_eq!(state.next(), None);
    }
}
