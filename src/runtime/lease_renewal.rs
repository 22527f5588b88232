//! A leadership: the Lease is renewed until it is given back or lost.

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

/// Giving the Lease back is a courtesy: it runs out by itself.
const GOODBYE: Duration = Duration::from_secs(2);

/// A Lease that is ours.
pub struct LeaseRenewer {
    leases: Api<Lease>,
    name: String,
    /// Namespace and name.
    shown: String,
    me: HolderIdentity,
    terms: LeaseTimings,
    /// Others stand by: what is not renewed in time is lost.
    elect: bool,
    guard: WriteFence,
    /// As last written.
    lease: Lease,
    /// When the last renewal that succeeded was sent, since boot: nobody can have seen it before.
    renewed: watch::Sender<Duration>,
    hurry: Arc<Notify>,
}

/// What the rest of the operator has of a leadership; clones are one.
#[derive(Clone)]
pub struct Leadership {
    renewed: watch::Receiver<Duration>,
    hurry: Arc<Notify>,
}

impl Leadership {
    /// Whether we lead, asked of the API server now. False: it does not answer, or this process is about to end.
    pub async fn confirm(&self, patience: Duration) -> bool {
        let asked = since_boot();
        self.hurry.notify_one();
        let mut renewed = self.renewed.clone();
        let confirmed = timeout(patience, renewed.wait_for(|sent| *sent >= asked)).await;
        confirmed.is_ok_and(|renewed| renewed.is_ok())
    }
}

impl LeaseRenewer {
    /// Begins with the Lease as it was written by a call that was sent then.
    pub(crate) fn new(candidate: &LeaderElector, lease: Lease, sent: Duration) -> Self {
        let term = Self {
            leases: candidate.leases.clone(),
            name: candidate.election.name.clone(),
            shown: candidate.lease.clone(),
            me: candidate.me.clone(),
            terms: candidate.election.terms,
            elect: candidate.election.elect,
            guard: candidate.guard.clone(),
            lease,
            renewed: watch::Sender::new(sent),
            hurry: Arc::default(),
        };
        term.open_guard(sent);
        term
    }

    /// For the rest of the operator.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            renewed: self.renewed.subscribe(),
            hurry: Arc::clone(&self.hurry),
        }
    }

    /// Renews the Lease until `release` says that it is to be given back; an error: it was lost, and nothing may be
    /// written any more.
    pub async fn keep(mut self, mut release: oneshot::Receiver<()>) -> Result<(), LeaseError> {
        loop {
            tokio::select! {
                _ = &mut release => {
                    self.give_back().await;
                    return Ok(());
                }
                () = self.hurry.notified() => {}
                () = sleep(self.pause()) => {}
            }
            if let Err(cause) = self.renew().await {
                self.guard.close();
                let lease = self.shown.clone();
                return Err(LeaseError::Lost { lease, cause });
            }
        }
    }

    /// Gives the Lease back: nothing is written any more, and the next one may begin at once.
    pub(crate) async fn give_back(self) {
        self.guard.close();
        let former = self.lease.spec.clone().unwrap_or_default();
        let nobodys = Lease {
            spec: Some(lease::released(&former, Timestamp::now())),
            ..self.lease.clone()
        };
        let params = PostParams::default();
        let given = timeout(GOODBYE, self.leases.replace(&self.name, &params, &nobodys)).await;
        match given {
            Ok(Ok(_)) => tracing::info!(lease = self.shown, "gave the Lease back"),
            Ok(Err(error)) => tracing::warn!(lease = self.shown, "the Lease is left to run out: {error}"),
            Err(_) => tracing::warn!(lease = self.shown, "the Lease is left to run out: no answer"),
        }
    }

    /// One renewal; an error when the Lease is lost, and how.
    async fn renew(&mut self) -> Result<(), String> {
        let sent = since_boot();
        // Who comes too late does not renew: another may be about to take what ran out.
        self.in_time()?;
        let patience = self.terms.renew_deadline / 2;
        match timeout(patience.min(self.left()), self.write()).await {
            Ok(Ok(lease)) => {
                self.lease = lease;
                self.open_guard(sent);
                self.renewed.send_replace(sent);
                return Ok(());
            }
            Ok(Err(error)) if matches!(http_status(&error), Some(404 | 409)) => self.look_again().await?,
            Ok(Err(error)) => tracing::warn!(lease = self.shown, "cannot renew the Lease: {error}"),
            Err(_) => tracing::warn!(lease = self.shown, "cannot renew the Lease: no answer"),
        }
        self.in_time()
    }

    /// Writes the Lease if it is as we know it.
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

    /// Somebody wrote to the Lease, or deleted it: it is still ours if it says so, and then renewed at once.
    async fn look_again(&mut self) -> Result<(), String> {
        let patience = (self.terms.renew_deadline / 2).min(self.left());
        match timeout(patience, self.leases.get_opt(&self.name)).await {
            Ok(Ok(Some(found))) => {
                let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                if holder != Some(&self.me.name) {
                    return Err(match holder {
                        None | Some("") => "it was taken from us".to_owned(),
                        Some(holder) => format!("{holder} holds it now"),
                    });
                }
                self.lease = found;
                self.hurry.notify_one();
            }
            Ok(Ok(None)) => {
                let mut anew = Lease {
                    spec: self.lease.spec.clone(),
                    ..Lease::default()
                };
                anew.metadata.name = Some(self.name.clone());
                self.lease = anew;
            }
            Ok(Err(error)) => tracing::warn!(lease = self.shown, "cannot read the Lease: {error}"),
            Err(_) => tracing::warn!(lease = self.shown, "cannot read the Lease: no answer"),
        }
        Ok(())
    }

    fn in_time(&self) -> Result<(), String> {
        if self.left().is_zero() {
            return Err(format!("it could not be renewed for {:?}", self.terms.renew_deadline));
        }
        Ok(())
    }

    /// How long we lead still if no renewal succeeds.
    fn left(&self) -> Duration {
        if !self.elect {
            // Nobody waits for it: who starts anew takes it when it ran out, and then we are told so.
            return Duration::MAX;
        }
        (*self.renewed.borrow() + self.terms.renew_deadline).saturating_sub(since_boot())
    }

    fn pause(&self) -> Duration {
        self.terms.retry_period.min(self.left())
    }

    fn open_guard(&self, sent: Duration) {
        self.guard.open(self.elect.then(|| sent + self.terms.renew_deadline));
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.guard.close();
    }
}
