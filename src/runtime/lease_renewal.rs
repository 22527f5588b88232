//! Renews the Lease until it is released or lost.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::runtime::election::{LeaderElector, LeaseError};
use crate::runtime::lease::{self, HolderIdentity, LeaseTimings};
use crate::runtime::write_fence::{WriteFence, since_boot};
use crate::runtime::writes::http_status;

/// Maximum time to release the Lease. An unreleased Lease expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The Lease that this process holds, and its renewal.
pub struct LeaseRenewer {
    leases: Api<Lease>,
    name: String,
    /// Namespace and name.
    qualified_name: String,
    me: HolderIdentity,
    terms: LeaseTimings,
    /// Other processes may stand by. If so, a Lease that is not renewed in time is lost.
    elect: bool,
    fence: WriteFence,
    /// The Lease as last written.
    lease: Lease,
    /// Time since boot at which the last successful renewal was sent: nobody can have seen it earlier.
    renewed: watch::Sender<Duration>,
    renew_now: Arc<Notify>,
}

/// Lets the rest of the operator confirm that this process leads. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    renewed: watch::Receiver<Duration>,
    renew_now: Arc<Notify>,
}

impl Leadership {
    /// Asks the API server whether this process leads. Returns false if there is no answer within `patience`, or if the
    /// process is about to end.
    pub async fn confirm(&self, patience: Duration) -> bool {
        let requested_at = since_boot();
        self.renew_now.notify_one();
        let mut renewed = self.renewed.clone();
        let confirmed = timeout(patience, renewed.wait_for(|sent| *sent >= requested_at)).await;
        confirmed.is_ok_and(|renewed| renewed.is_ok())
    }
}

impl LeaseRenewer {
    /// Starts from the Lease as written by a call that was sent at `sent` (time since boot).
    pub(crate) fn new(elector: &LeaderElector, lease: Lease, sent: Duration) -> Self {
        let term = Self {
            leases: elector.leases.clone(),
            name: elector.election.name.clone(),
            qualified_name: elector.lease.clone(),
            me: elector.me.clone(),
            terms: elector.election.timings,
            elect: elector.election.elect,
            fence: elector.fence.clone(),
            lease,
            renewed: watch::Sender::new(sent),
            renew_now: Arc::default(),
        };
        term.open_fence(sent);
        term
    }

    /// Returns a handle for the rest of the operator.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            renewed: self.renewed.subscribe(),
            renew_now: Arc::clone(&self.renew_now),
        }
    }

    /// Renews the Lease until `release` fires, then releases it.
    ///
    /// # Errors
    /// The Lease was lost: nothing may be written anymore.
    pub async fn run(mut self, mut release: oneshot::Receiver<()>) -> Result<(), LeaseError> {
        loop {
            tokio::select! {
                _ = &mut release => {
                    self.release().await;
                    return Ok(());
                }
                () = self.renew_now.notified() => {}
                () = sleep(self.pause()) => {}
            }
            if let Err(cause) = self.renew().await {
                self.fence.close();
                let lease = self.qualified_name.clone();
                return Err(LeaseError::Lost { lease, cause });
            }
        }
    }

    /// Releases the Lease: this process writes nothing anymore, and the next leader may start at once.
    pub(crate) async fn release(self) {
        self.fence.close();
        let former = self.lease.spec.clone().unwrap_or_default();
        let released = Lease {
            spec: Some(lease::released(&former, Timestamp::now())),
            ..self.lease.clone()
        };
        let params = PostParams::default();
        let replaced = timeout(RELEASE_TIMEOUT, self.leases.replace(&self.name, &params, &released)).await;
        match replaced {
            Ok(Ok(_)) => tracing::info!(lease = self.qualified_name, "released the Lease"),
            Ok(Err(error)) => tracing::warn!(
                lease = self.qualified_name,
                "cannot release the Lease; it expires on its own: {error}"
            ),
            Err(_) => tracing::warn!(
                lease = self.qualified_name,
                "cannot release the Lease; it expires on its own: no answer"
            ),
        }
    }

    /// Renews once. Returns an error with the cause if the Lease is lost.
    async fn renew(&mut self) -> Result<(), String> {
        let sent = since_boot();
        // Too late to renew: another process may be about to take the expired Lease.
        self.in_time()?;
        let patience = self.terms.renew_deadline / 2;
        match timeout(patience.min(self.left()), self.write()).await {
            Ok(Ok(lease)) => {
                self.lease = lease;
                self.open_fence(sent);
                self.renewed.send_replace(sent);
                return Ok(());
            }
            Ok(Err(error)) if matches!(http_status(&error), Some(404 | 409)) => self.reread().await?,
            Ok(Err(error)) => tracing::warn!(lease = self.qualified_name, "cannot renew the Lease: {error}"),
            Err(_) => tracing::warn!(lease = self.qualified_name, "cannot renew the Lease: no answer"),
        }
        self.in_time()
    }

    /// Writes the Lease, on condition that nobody else wrote it.
    async fn write(&self) -> Result<Lease, kube::Error> {
        let spec = lease::renewed(self.lease.spec.as_ref(), &self.me, &self.terms, Timestamp::now());
        let lease = Lease {
            spec: Some(spec),
            ..self.lease.clone()
        };
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            self.leases.replace(&self.name, &params, &lease).await
        } else {
            self.leases.create(&params, &lease).await
        }
    }

    /// Reads the Lease after somebody wrote or deleted it. If it still names this process, it is renewed at once.
    async fn reread(&mut self) -> Result<(), String> {
        let patience = (self.terms.renew_deadline / 2).min(self.left());
        match timeout(patience, self.leases.get_opt(&self.name)).await {
            Ok(Ok(Some(found))) => {
                let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                if holder != Some(&self.me.name) {
                    return Err(match holder {
                        None | Some("") => "its holder was removed".to_owned(),
                        Some(holder) => format!("{holder} holds it now"),
                    });
                }
                self.lease = found;
                self.renew_now.notify_one();
            }
            Ok(Ok(None)) => {
                let mut recreated = Lease {
                    spec: self.lease.spec.clone(),
                    ..Lease::default()
                };
                recreated.metadata.name = Some(self.name.clone());
                self.lease = recreated;
            }
            Ok(Err(error)) => tracing::warn!(lease = self.qualified_name, "cannot read the Lease: {error}"),
            Err(_) => tracing::warn!(lease = self.qualified_name, "cannot read the Lease: no answer"),
        }
        Ok(())
    }

    fn in_time(&self) -> Result<(), String> {
        if self.left().is_zero() {
            return Err(format!("it could not be renewed for {:?}", self.terms.renew_deadline));
        }
        Ok(())
    }

    /// Returns how long this process leads if no further renewal succeeds.
    fn left(&self) -> Duration {
        if !self.elect {
            // There is no standby. If a starting process takes the expired Lease, the next renewal detects it.
            return Duration::MAX;
        }
        (*self.renewed.borrow() + self.terms.renew_deadline).saturating_sub(since_boot())
    }

    fn pause(&self) -> Duration {
        self.terms.retry_period.min(self.left())
    }

    fn open_fence(&self, sent: Duration) {
        self.fence.open(self.elect.then(|| sent + self.terms.renew_deadline));
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.fence.close();
    }
}
