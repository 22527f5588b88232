//! Renews the Leases until they are released or lost.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::runtime::election::{Election, LeaseError};
use crate::runtime::held_lease::HeldLease;
use crate::runtime::lease::LeaseTimings;
use crate::runtime::write_fence::WriteFence;

/// The Leases that this process holds, and their renewal.
pub struct LeaseRenewer {
    lease: HeldLease,
    cluster_lock: HeldLease,
    timings: LeaseTimings,
    /// Other processes stand by. If so, a Lease that is not renewed in time is lost. If not, writes are suspended until it
    /// is renewed.
    elect: bool,
    /// The suspension was reported.
    suspended: bool,
    fence: WriteFence,
    /// Time since boot at which the last successful renewal was sent: nobody can have seen it earlier.
    renewed: watch::Sender<Duration>,
    renew_now: Arc<Notify>,
}

/// Lets the rest of the operator confirm that this process leads. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    renewed: watch::Receiver<Duration>,
    renew_now: Arc<Notify>,
    fence: WriteFence,
}

impl Leadership {
    /// Asks the API server whether this process leads. Returns false if there is no answer within `patience`, or if the
    /// process is about to end.
    pub async fn confirm(&self, patience: Duration) -> bool {
        let requested_at = self.fence.clock().since_boot();
        self.renew_now.notify_one();
        let mut renewed = self.renewed.clone();
        let confirmed = timeout(patience, renewed.wait_for(|sent| *sent >= requested_at)).await;
        confirmed.is_ok_and(|renewed| renewed.is_ok())
    }

    /// Waits until this process may write. Returns false if it never will, because it is about to end.
    pub async fn wait_until_writable(&self) -> bool {
        let mut renewed = self.renewed.clone();
        // The fence is opened before the renewal is published.
        renewed.wait_for(|_| self.fence.may_write()).await.is_ok()
    }
}

impl LeaseRenewer {
    /// Starts from the Leases as written by calls that were sent at `sent` (time since boot) or later.
    pub(crate) fn new(
        election: &Election,
        fence: WriteFence,
        (lease, cluster_lock): (HeldLease, HeldLease),
        sent: Duration,
    ) -> Self {
        let renewer = Self {
            lease,
            cluster_lock,
            timings: election.timings,
            elect: election.elect,
            suspended: false,
            fence,
            renewed: watch::Sender::new(sent),
            renew_now: Arc::default(),
        };
        renewer.open_fence(sent);
        renewer
    }

    /// Returns a handle for the rest of the operator.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            renewed: self.renewed.subscribe(),
            renew_now: Arc::clone(&self.renew_now),
            fence: self.fence.clone(),
        }
    }

    /// Renews the Leases until `release` fires, then releases that of the election.
    ///
    /// # Errors
    /// A Lease was lost: nothing may be written anymore.
    pub async fn run(mut self, mut release: oneshot::Receiver<()>) -> Result<(), LeaseError> {
        loop {
            tokio::select! {
                _ = &mut release => break,
                () = self.renew_now.notified() => {}
                () = sleep(self.pause()) => {}
            }
            if let Err(lost) = self.renew().await {
                self.fence.close();
                return Err(lost);
            }
        }
        self.fence.close();
        // The cluster lock expires on its own: until then, only this installation can take it, which may be restarting.
        self.lease.release().await;
        Ok(())
    }

    /// Renews both Leases once.
    async fn renew(&mut self) -> Result<(), LeaseError> {
        let sent = self.fence.clock().since_boot();
        // Too late to renew: another process may be about to take the expired Lease.
        self.check_deadline()?;
        let patience = self.patience();
        let renewals = try_join(self.lease.renew(), self.cluster_lock.renew());
        match timeout(patience, renewals).await {
            Ok(renewed) => {
                if renewed? == (true, true) {
                    self.open_fence(sent);
                    self.renewed.send_replace(sent);
                }
            }
            Err(_) => tracing::warn!(
                lease = self.lease.qualified_name(),
                cluster_lock = self.cluster_lock.qualified_name(),
                "cannot renew the Leases: no answer"
            ),
        }
        self.check_deadline()
    }

    /// Handles the end of the time for which the last renewal permits writes.
    fn check_deadline(&mut self) -> Result<(), LeaseError> {
        let expired = self.left().is_zero();
        if expired && self.elect {
            return Err(LeaseError::Lost {
                lease: self.lease.qualified_name().to_owned(),
                cause: format!("it could not be renewed for {:?}", self.timings.renew_deadline),
            });
        }
        // Nobody stands by. If a starting process takes an expired Lease, the next renewal detects it.
        match (self.suspended, expired) {
            (false, true) => tracing::warn!(
                lease = self.lease.qualified_name(),
                "the Lease could not be renewed for {:?}: nothing is written until it is renewed",
                self.timings.renew_deadline
            ),
            (true, false) => tracing::info!(lease = self.lease.qualified_name(), "renewed the Lease: writes resume"),
            _ => {}
        }
        self.suspended = expired;
        Ok(())
    }

    /// Returns how long this process may write if no further renewal succeeds.
    fn left(&self) -> Duration {
        (*self.renewed.borrow() + self.timings.renew_deadline).saturating_sub(self.fence.clock().since_boot())
    }

    /// Returns how long to wait for the API server: not beyond the deadline, which has to take effect in time.
    fn patience(&self) -> Duration {
        self.before_deadline(self.timings.renew_deadline / 2)
    }

    fn pause(&self) -> Duration {
        self.before_deadline(self.timings.retry_period)
    }

    /// Shortens `time` to end at the deadline, unless that has passed.
    fn before_deadline(&self, time: Duration) -> Duration {
        let left = self.left();
        if left.is_zero() { time } else { time.min(left) }
    }

    fn open_fence(&self, sent: Duration) {
        self.fence.open(Some(sent + self.timings.renew_deadline));
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.fence.close();
    }
}

#[cfg(test)]
mod tests;
