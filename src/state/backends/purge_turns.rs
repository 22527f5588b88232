//! Turns of the expired archives of a backend. Does no I/O.

use std::time::Duration;

use export_store::fair_queue::FairQueue;
use tokio::time::Instant;

/// Time for which the turn of an archive that is requeued is reserved. Its reconciliation takes seconds at most, unless it
/// was deleted, or has not expired any more.
const RESERVED: Duration = Duration::from_secs(10);

/// Expired archives that wait to be purged. Namespaces take turns: however many archives of one namespace expire, one of
/// another namespace waits for at most one of them.
pub(super) struct PurgeTurns {
    /// Time of the last purge; initially, the start of the process.
    last: Instant,
    waiting: FairQueue<String>,
    /// The archive whose turn it is, and since when.
    next: Option<(String, Instant)>,
}

/// Answer to an archive that is to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeTurn {
    /// It is purged now.
    Now,
    /// It waits at least for this time.
    Wait(Duration),
    /// It waits, and it is the turn of this archive, which is to be requeued.
    Other(String),
}

impl PurgeTurns {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: now,
            waiting: FairQueue::default(),
            next: None,
        }
    }

    /// Requests the turn of an archive. At most one is granted per `pause`.
    pub(super) fn request(&mut self, archive: &str, namespace: &str, pause: Duration, now: Instant) -> PurgeTurn {
        if pause.is_zero() {
            return PurgeTurn::Now;
        }
        self.waiting.push(archive.to_owned(), namespace);
        let left = pause.saturating_sub(now.saturating_duration_since(self.last));
        if !left.is_zero() {
            return PurgeTurn::Wait(left);
        }
        match &self.next {
            Some((next, _)) if next == archive => return self.grant(archive, now),
            Some((_, since)) => {
                let reserved = RESERVED.saturating_sub(now.saturating_duration_since(*since));
                if !reserved.is_zero() {
                    return PurgeTurn::Wait(reserved);
                }
            }
            None => {}
        }
        match self.waiting.pop() {
            Some(next) if next != archive => {
                self.next = Some((next.clone(), now));
                PurgeTurn::Other(next)
            }
            Some(_) | None => self.grant(archive, now),
        }
    }

    /// Removes an archive that is not to be purged any more.
    pub(super) fn forget(&mut self, archive: &str) {
        self.waiting.remove(&archive.to_owned());
        self.next.take_if(|(next, _)| next == archive);
    }

    /// Returns the number of archives that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn grant(&mut self, archive: &str, now: Instant) -> PurgeTurn {
        self.waiting.remove(&archive.to_owned());
        self.next = None;
        self.last = now;
        PurgeTurn::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(3600);

    #[test]
    fn an_archive_that_is_not_to_be_purged_any_more_leaves_the_queue() {
        let start = Instant::now();
        let mut turns = PurgeTurns::new(start);
        for archive in ["held", "one"] {
            assert_eq!(turns.request(archive, archive, PAUSE, start), PurgeTurn::Wait(PAUSE));
        }
        turns.forget("held");
        assert_eq!(turns.waiting(), 1);
        assert_eq!(turns.request("one", "one", PAUSE, start + PAUSE), PurgeTurn::Now);
    }

    #[test]
    fn expired_archives_are_purged_one_per_pause_and_the_first_one_waits_too() {
        let start = Instant::now();
        let mut turns = PurgeTurns::new(start);
        let mut at = |seconds| turns.request("a", "team", PAUSE, start + Duration::from_secs(seconds));
        assert_eq!(at(0), PurgeTurn::Wait(PAUSE), "the process just started");
        assert_eq!(at(3599), PurgeTurn::Wait(Duration::from_secs(1)));
        assert_eq!(at(3600), PurgeTurn::Now);
        assert_eq!(at(3601), PurgeTurn::Wait(Duration::from_secs(3599)));
    }

    #[test]
    fn thousands_of_archives_of_one_namespace_delay_that_of_another_by_one_turn() {
        let mut now = Instant::now();
        let mut turns = PurgeTurns::new(now);
        let many: Vec<String> = (0..5000).map(|number| format!("many-{number}")).collect();
        for archive in &many {
            assert_eq!(turns.request(archive, "large", PAUSE, now), PurgeTurn::Wait(PAUSE));
        }
        assert_eq!(turns.request("one", "small", PAUSE, now), PurgeTurn::Wait(PAUSE));
        let mut purged = Vec::new();
        // Whichever archive comes first after the pause, the next one in turn is purged.
        for archive in many.iter().rev().take(3) {
            now += PAUSE;
            let next = match turns.request(archive, "large", PAUSE, now) {
                PurgeTurn::Other(next) => next,
                turn => unreachable!("{archive} is the last one: {turn:?}"),
            };
            assert_eq!(turns.request(archive, "large", PAUSE, now), PurgeTurn::Wait(RESERVED));
            let namespace = if next == "one" { "small" } else { "large" };
            assert_eq!(turns.request(&next, namespace, PAUSE, now), PurgeTurn::Now);
            purged.push(next);
        }
        assert_eq!(purged, ["many-0", "one", "many-1"]);
    }

    #[test]
    fn an_archive_that_does_not_use_its_turn_does_not_stop_the_others() {
        let start = Instant::now();
        let mut turns = PurgeTurns::new(start);
        for archive in ["deleted", "other"] {
            assert_eq!(turns.request(archive, archive, PAUSE, start), PurgeTurn::Wait(PAUSE));
        }
        let now = start + PAUSE;
        let deleted = PurgeTurn::Other("deleted".to_owned());
        assert_eq!(turns.request("other", "other", PAUSE, now), deleted);
        assert_eq!(turns.request("other", "other", PAUSE, now), PurgeTurn::Wait(RESERVED));
        assert_eq!(turns.request("other", "other", PAUSE, now + RESERVED), PurgeTurn::Now);
    }
}
