//! What somebody does because of what earlier events left: combinations that chance alone brings about too seldom.

use std::time::Duration;

use super::{Kind, World};
use crate::actors::{archives, volumes};
use crate::oracle::Violation;

/// Follow-ups in a thousand actions.
const RATE: u32 = 150;
/// Number of things that administrators do to backends that nobody uses any more.
const RETIREMENT: u32 = 16;
/// Time in which archives are purged that are not the last ones.
const PURGED: Duration = Duration::from_secs(120);
/// Time between two of them, at most.
const PAUSE: Duration = Duration::from_secs(25);

impl World {
    /// Lets somebody follow up on what is there now, at times.
    pub(super) fn follow_up(&self) {
        let chance = &self.follow_ups;
        if !self.scenario.has(Kind::FollowUps) || !chance.in_thousand(RATE) {
            return;
        }
        match chance.below(8) {
            0..3 if self.scenario.has(Kind::Administrators) => volumes::follow_up(&self.api, chance, &self.trace),
            3..6 => self.users.use_name_again(chance),
            6..8 if self.scenario.has(Kind::Kills) => self.processes.kill_at_write(chance),
            _ => {}
        }
    }

    /// Once users have deleted all claims: administrators reclaim what was retained, delete all archives, and at times
    /// retire backends.
    pub(super) async fn clean_up(&mut self) -> Result<(), Violation> {
        if !self.scenario.has(Kind::FollowUps) {
            return Ok(());
        }
        let keeps_last = self.follow_ups.in_thousand(300);
        if keeps_last {
            self.administrator.keep_last();
        }
        volumes::reclaim_all(&self.api, &self.trace);
        self.settle().await?;
        if keeps_last {
            self.pass(PURGED).await?;
        }
        archives::delete_all(&self.api, &self.trace);
        self.settle().await?;
        if self.administrator.shares_an_export() && self.follow_ups.in_thousand(500) {
            self.retire_backends().await?;
        }
        Ok(())
    }

    /// Suspends, deletes and creates backends, while processes end and requests fail. Then those that are left have to serve
    /// again.
    async fn retire_backends(&mut self) -> Result<(), Violation> {
        for _ in 0..RETIREMENT {
            match self.follow_ups.below(6) {
                0 => self.administrator.suspend(),
                1 | 2 => self.administrator.delete_or_create_backend(),
                3 if self.scenario.has(Kind::Kills) => self.processes.restart_all(),
                4 if self.scenario.has(Kind::Kills) => self.processes.kill_at_write(&self.follow_ups),
                5 if self.scenario.has(Kind::ApiFaults) => self.change_api_faults(),
                _ => {}
            }
            self.pass(self.follow_ups.duration(PAUSE)).await?;
        }
        self.end_faults();
        self.settle().await
    }
}
