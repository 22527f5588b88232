//! Accidents that happen alone, so that the operator has to notice them and to work in spite of them in bounded time.

use std::time::Duration;

use tokio::time::Instant;

use super::World;
use crate::oracle::Violation;

/// Time in which the operator has to report another export in the place of its own.
const REPORT: Duration = Duration::from_secs(300);
/// Number of things that users do meanwhile.
const MEANWHILE: u32 = 6;
/// Time between two of them, at most.
const PAUSE: Duration = Duration::from_secs(20);

impl World {
    /// In half of all runs, has an accident once everything is settled.
    pub(super) async fn have_accident(&mut self) -> Result<(), Violation> {
        match self.chance.below(4) {
            0 => self.exchange_export().await,
            1 => {
                // Until all claims are deleted, and everything is settled again.
                self.storage.fill_disk();
                self.storage.leave();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Puts another export in the place of the right one, until the operator has reported it for a while.
    async fn exchange_export(&mut self) -> Result<(), Violation> {
        if !self.storage.replace() {
            return Ok(());
        }
        self.storage.leave();
        let end = Instant::now() + REPORT;
        while !self.storage.is_replacement_reported() {
            if Instant::now() >= end {
                let waited = REPORT.as_secs();
                return Err(Violation(format!("another export is not reported after {waited} s")));
            }
            self.pass(Duration::from_secs(5)).await?;
        }
        self.trace.record("operator", "reports another export");
        for _ in 0..MEANWHILE {
            self.users.act();
            self.pass(self.chance.duration(PAUSE)).await?;
        }
        self.storage.repair();
        self.settle().await
    }
}
