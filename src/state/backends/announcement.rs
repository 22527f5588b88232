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
mod tests {
    use super::*;

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
