//! Acquires the Lease ([`lease`](crate::runtime::lease) decides when).
//!
//! Every process holds the Lease while it works. With `--leader-elect`, others stand by; without, they refuse to start.

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::runtime::clients::Clients;
use crate::runtime::lease::{self, HolderIdentity, JITTER, LeaseStatus, LeaseTimings, Observer};
use crate::runtime::lease_renewal::LeaseRenewer;
use crate::runtime::other_installations::OtherInstallations;
use crate::runtime::readiness::{Readiness, ReadinessState};
use crate::runtime::write_fence::{WriteFence, since_boot};
use crate::runtime::writes::http_status;

/// Settings of the leader election.
#[derive(Debug, Clone)]
pub struct Election {
    /// Other processes may stand by (`--leader-elect`).
    pub elect: bool,
    /// Namespace of the Lease. If unset, the namespace of the Kubernetes configuration.
    pub namespace: Option<String>,
    /// Name of the Lease.
    pub name: String,
    /// Timings of the Lease.
    pub timings: LeaseTimings,
}

impl Election {
    /// Returns how long a request may stay in flight after the renew deadline: another process leads no sooner than
    /// this. Returns `None` if nobody stands by.
    pub fn max_in_flight(&self) -> Option<Duration> {
        let LeaseTimings {
            duration,
            renew_deadline,
            ..
        } = self.timings;
        self.elect.then(|| duration.saturating_sub(renew_deadline))
    }
}

/// This process does not lead, or no longer leads.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another operator works, and this one may not stand by.
    #[error(
        "the Lease {lease} is held by {holder}, which renews it: another operator is running; stop it first, or start \
         both with --leader-elect"
    )]
    Taken {
        /// Namespace and name.
        lease: String,
        /// Identity of the holder.
        holder: String,
    },
    /// Another installation works in this cluster.
    #[error(
        "the Lease {lease} is held by {holder}: another nfs-operator is installed in this cluster, and one operator \
         serves a cluster; uninstall one of them, or give both the same --lease-namespace and --leader-elect"
    )]
    Rival {
        /// Namespace and name.
        lease: String,
        /// Identity of the holder.
        holder: String,
    },
    /// The API server denies access.
    #[error(
        "cannot {action} the Lease {lease}: {cause}; apply config/rbac, or correct --lease-namespace and --lease-name"
    )]
    Refused {
        /// Namespace and name.
        lease: String,
        /// The action that failed.
        action: &'static str,
        /// The API server's answer.
        #[source]
        cause: Box<kube::Error>,
    },
    /// Another process holds the Lease, or may soon.
    #[error("lost the Lease {lease}: {cause}")]
    Lost {
        /// Namespace and name.
        lease: String,
        /// How it was lost.
        cause: String,
    },
}

/// Acquires the Lease for this process.
pub struct LeaderElector {
    pub(crate) leases: Api<Lease>,
    watched_leases: Api<Lease>,
    other_installations: OtherInstallations,
    pub(crate) election: Election,
    pub(crate) me: HolderIdentity,
    pub(crate) fence: WriteFence,
    /// Namespace and name.
    pub(crate) lease: String,
}

/// The result of an attempt.
enum Attempt {
    Taken(Box<LeaseRenewer>),
    Retry { after: Duration },
}

impl LeaderElector {
    /// Creates an elector. Nothing is read yet.
    pub fn new(clients: &Clients, election: Election, me: HolderIdentity, fence: WriteFence) -> Self {
        let own = || clients.lease.default_namespace().to_owned();
        let namespace = election.namespace.clone().unwrap_or_else(own);
        Self {
            leases: Api::namespaced(clients.lease.clone(), &namespace),
            watched_leases: Api::namespaced(clients.watches.clone(), &namespace),
            other_installations: OtherInstallations::new(clients.lease.clone(), &namespace, &election.name),
            lease: format!("{namespace}/{}", election.name),
            election,
            me,
            fence,
        }
    }

    /// Waits for the Lease and takes it. Reports the state to `readiness` meanwhile.
    pub async fn acquire(mut self, readiness: &Readiness) -> Result<LeaseRenewer, LeaseError> {
        let mut observer = Observer::default();
        let mut releases = pin!(self.releases());
        loop {
            // A call that hangs must not outlast the Lease. A call that was cut off may have taken the Lease: the next
            // attempt then finds this process's name in it.
            let patience = self.election.timings.renew_deadline;
            let pause = match timeout(patience, self.attempt(&mut observer, readiness)).await {
                Ok(Ok(Attempt::Taken(term))) => return Ok(*term),
                Ok(Ok(Attempt::Retry { after })) => after,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    tracing::warn!(lease = self.lease, "the API server does not answer; retrying");
                    self.pause()
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                Some(()) = releases.next() => {}
            }
        }
    }

    /// Yields when the Lease is released, so that a standby takes it without waiting for its next attempt.
    fn releases(&self) -> impl Stream<Item = ()> + use<> {
        let changes = watcher::watch_object(self.watched_leases.clone(), &self.election.name).default_backoff();
        // Attempts meet the same failures as this watch, and report them.
        changes.filter_map(|change| ready(change.ok().filter(|lease| is_free(lease.as_ref())).map(drop)))
    }

    /// Reads the Lease once, and takes it if it is free.
    async fn attempt(&mut self, observer: &mut Observer, readiness: &Readiness) -> Result<Attempt, LeaseError> {
        let found = match self.leases.get_opt(&self.election.name).await {
            Ok(found) => found,
            Err(error) => return self.retry_or_fail("read", error),
        };
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        match observer.observe(spec, &self.me, self.election.timings.duration, since_boot()) {
            LeaseStatus::Held { holder, alive, .. } if alive && !self.election.elect => {
                let lease = self.lease.clone();
                return Err(LeaseError::Taken { lease, holder });
            }
            LeaseStatus::Held {
                holder, runs_out_in, ..
            } => {
                self.stand_by(holder, readiness);
                let after = self.pause().min(runs_out_in);
                return Ok(Attempt::Retry { after });
            }
            LeaseStatus::Free | LeaseStatus::Ours => {}
        }
        match self
            .other_installations
            .find(&self.me, self.election.timings.duration)
            .await
        {
            Ok(None) => {}
            Ok(Some(rival)) if rival.alive => return Err(rival.refusal()),
            Ok(Some(rival)) => {
                self.wait_for(&rival.holder, &rival.lease, readiness);
                return Ok(self.retry());
            }
            Err(error) => return self.retry_or_fail("list", error),
        }
        match self.take(found).await {
            Ok(Some(term)) => self.check_again(term).await,
            Ok(None) => Ok(self.retry()),
            Err(error) => self.retry_or_fail("write", error),
        }
    }

    /// Writes this process's name into the Lease. Returns `None` if another process was faster.
    async fn take(&self, found: Option<Lease>) -> Result<Option<LeaseRenewer>, kube::Error> {
        let sent = since_boot();
        let former = found.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = lease::taken(former, &self.me, &self.election.timings, Timestamp::now());
        let params = PostParams::default();
        let written = match found {
            // With the resourceVersion that was read: the API server refuses if anybody wrote since.
            Some(lease) => {
                let lease = Lease {
                    spec: Some(spec),
                    ..lease
                };
                self.leases.replace(&self.election.name, &params, &lease).await
            }
            None => {
                let mut lease = Lease {
                    spec: Some(spec),
                    ..Lease::default()
                };
                lease.metadata.name = Some(self.election.name.clone());
                self.leases.create(&params, &lease).await
            }
        };
        match written {
            Ok(lease) => Ok(Some(LeaseRenewer::new(self, lease, sent))),
            Err(error) if http_status(&error) == Some(409) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Two installations may take their Leases at the same time. Each checks once more, so at least one sees the other.
    async fn check_again(&mut self, term: LeaseRenewer) -> Result<Attempt, LeaseError> {
        match self
            .other_installations
            .find(&self.me, self.election.timings.duration)
            .await
        {
            Ok(None) => Ok(Attempt::Taken(Box::new(term))),
            Ok(Some(rival)) => {
                term.release().await;
                Err(rival.refusal())
            }
            Err(error) => {
                term.release().await;
                self.retry_or_fail("list", error)
            }
        }
    }

    /// Handles a Lease that another process holds.
    fn stand_by(&self, holder: String, readiness: &Readiness) {
        if !self.election.elect {
            return self.wait_for(&holder, &self.lease, readiness);
        }
        if readiness.set_state(ReadinessState::Standby(holder.clone())) {
            tracing::info!(lease = self.lease, leader = holder, "standing by");
        }
    }

    fn wait_for(&self, holder: &str, lease: &str, readiness: &Readiness) {
        let reason = format!("the Lease {lease} is held by {holder}, which may be dead: waiting for it to expire");
        if readiness.set_state(ReadinessState::Waiting(reason.clone())) {
            tracing::info!("{reason}");
        }
    }

    /// Fails if only a person can fix the cause; retries otherwise.
    fn retry_or_fail(&self, action: &'static str, error: kube::Error) -> Result<Attempt, LeaseError> {
        // 404: the namespace does not exist.
        if matches!(http_status(&error), Some(403 | 404)) {
            return Err(LeaseError::Refused {
                lease: self.lease.clone(),
                action,
                cause: Box::new(error),
            });
        }
        tracing::warn!(lease = self.lease, "cannot {action} the Lease; retrying: {error}");
        Ok(self.retry())
    }

    fn retry(&self) -> Attempt {
        Attempt::Retry { after: self.pause() }
    }

    fn pause(&self) -> Duration {
        let retry_period = self.election.timings.retry_period;
        retry_period.mul_f64(rand::rng().random_range(1.0..JITTER))
    }
}

fn is_free(lease: Option<&Lease>) -> bool {
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    holder.unwrap_or_default().is_empty()
}
