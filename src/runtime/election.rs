//! Acquires the Leases ([`lease`](crate::runtime::lease) decides when).
//!
//! Every process holds two Leases while it works. One is for the election among the processes of an installation: with
//! `--leader-elect`, others stand by; without, they refuse to start. The other is the cluster lock, which the leader
//! holds in the name of its installation: other installations refuse to start (docs/adr/0016-a-lock-out-of-reach.md).

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::runtime::api_error::api_error_text;
use crate::runtime::clients::Clients;
use crate::runtime::held_lease::{LeaseObject, missing};
use crate::runtime::lease::{HolderIdentity, JITTER, LeaseStatus, LeaseTimings, Observer};
use crate::runtime::lease_renewal::LeaseRenewer;
use crate::runtime::readiness::{Readiness, ReadinessState};
use crate::runtime::write_fence::WriteFence;
use crate::runtime::writes::http_status;

/// Name of the Lease that one installation of a cluster holds, whatever the names of its other objects.
pub const CLUSTER_LOCK: &str = "nfs-operator-cluster-lock";

/// Settings of the leader election.
#[derive(Debug, Clone)]
pub struct Election {
    /// Other processes may stand by (`--leader-elect`).
    pub elect: bool,
    /// Namespace of the Lease. If unset, the namespace of the Kubernetes configuration.
    pub namespace: Option<String>,
    /// Name of the Lease.
    pub name: String,
    /// Namespace of the cluster lock.
    pub cluster_lock_namespace: String,
    /// Timings of both Leases.
    pub timings: LeaseTimings,
}

impl Election {
    /// Returns how long a request may stay in flight after the renew deadline: another process leads no sooner than
    /// this.
    pub fn max_in_flight(&self) -> Duration {
        self.timings.duration.saturating_sub(self.timings.renew_deadline)
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
        "the cluster lock {lease} is held by the operator whose Lease is {holder}: another nfs-operator is installed in \
         this cluster, and one operator serves a cluster; uninstall one of them, or make both replicas of one \
         installation, with the same --lease-namespace and --lease-name and with --leader-elect"
    )]
    OtherInstallation {
        /// Namespace and name of the cluster lock.
        lease: String,
        /// Namespace and name of the other installation's Lease.
        holder: String,
    },
    /// The API server denies access.
    #[error(
        "cannot {action} the Lease {lease}: {}; upgrade the Helm release or apply config/rbac, or correct \
         --lease-namespace, --lease-name and --cluster-lock-namespace",
        api_error_text(cause)
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

/// Acquires the Leases for this process.
pub struct LeaderElector {
    lease: LeaseObject,
    watched_leases: Api<Lease>,
    cluster_lock: LeaseObject,
    election: Election,
    fence: WriteFence,
}

/// What earlier attempts observed.
#[derive(Default)]
struct Observers {
    lease: Observer,
    cluster_lock: Observer,
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
        let named = |namespace: &str, name: &str, holder| {
            LeaseObject::new(
                clients.lease.clone(),
                (namespace, name),
                holder,
                election.timings,
                fence.clock(),
            )
        };
        let lease = named(&namespace, &election.name, me);
        let installation = HolderIdentity::of_installation(&lease.qualified_name);
        Self {
            watched_leases: Api::namespaced(clients.watches.clone(), &namespace),
            cluster_lock: named(&election.cluster_lock_namespace, CLUSTER_LOCK, installation).installed(),
            lease,
            election,
            fence,
        }
    }

    /// Waits for the Leases and takes them. Reports the state to `readiness` meanwhile.
    pub async fn acquire(self, readiness: &Readiness) -> Result<LeaseRenewer, LeaseError> {
        let mut observers = Observers::default();
        let mut releases = pin!(self.releases());
        loop {
            // A call that hangs must not outlast the Lease. A call that was cut off may have taken the Lease: the next
            // attempt then finds this process's name in it.
            let patience = self.election.timings.renew_deadline;
            let pause = match timeout(patience, self.attempt(&mut observers, readiness)).await {
                Ok(Ok(Attempt::Taken(term))) => return Ok(*term),
                Ok(Ok(Attempt::Retry { after })) => after,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    tracing::warn!(
                        lease = self.lease.qualified_name,
                        "the API server does not answer; retrying"
                    );
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

    /// Reads the Leases once, and takes them if they are free.
    async fn attempt(&self, observers: &mut Observers, readiness: &Readiness) -> Result<Attempt, LeaseError> {
        let duration = self.election.timings.duration;
        let found = match self.lease.read().await {
            Ok(found) => found,
            Err(error) => return self.retry_or_fail("read", &self.lease, error),
        };
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        match observers
            .lease
            .observe(spec, &self.lease.holder, duration, self.fence.clock().since_boot())
        {
            LeaseStatus::Held { holder, alive, .. } if alive && !self.election.elect => {
                let lease = self.lease.qualified_name.clone();
                return Err(LeaseError::Taken { lease, holder });
            }
            LeaseStatus::Held {
                holder, runs_out_in, ..
            } => {
                self.stand_by(holder, readiness);
                return Ok(self.retry_within(runs_out_in));
            }
            LeaseStatus::Free | LeaseStatus::Ours => {}
        }
        let lock = match self.cluster_lock.read().await {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                wait(missing(&self.cluster_lock.qualified_name), readiness);
                return Ok(self.retry());
            }
            Err(error) => return self.retry_or_fail("read", &self.cluster_lock, error),
        };
        let installation = &self.cluster_lock.holder;
        match observers.cluster_lock.observe(
            lock.spec.as_ref(),
            installation,
            duration,
            self.fence.clock().since_boot(),
        ) {
            LeaseStatus::Held { holder, alive, .. } if alive => {
                let lease = self.cluster_lock.qualified_name.clone();
                return Err(LeaseError::OtherInstallation { lease, holder });
            }
            LeaseStatus::Held {
                holder, runs_out_in, ..
            } => {
                wait_for(&holder, &self.cluster_lock.qualified_name, readiness);
                return Ok(self.retry_within(runs_out_in));
            }
            LeaseStatus::Free | LeaseStatus::Ours => {}
        }
        self.take(found, lock).await
    }

    /// Takes both Leases, unless another process is faster. The cluster lock is second: only the leader of an installation
    /// writes it.
    async fn take(&self, lease: Option<Lease>, lock: Lease) -> Result<Attempt, LeaseError> {
        let sent = self.fence.clock().since_boot();
        let lease = match self.lease.take(lease).await {
            Ok(Some(lease)) => lease,
            Ok(None) => return Ok(self.retry()),
            Err(error) => return self.retry_or_fail("write", &self.lease, error),
        };
        match self.cluster_lock.take(Some(lock)).await {
            Ok(Some(lock)) => {
                let renewer = LeaseRenewer::new(&self.election, self.fence.clone(), (lease, lock), sent);
                Ok(Attempt::Taken(Box::new(renewer)))
            }
            Ok(None) => {
                lease.release().await;
                Ok(self.retry())
            }
            Err(error) => {
                lease.release().await;
                self.retry_or_fail("write", &self.cluster_lock, error)
            }
        }
    }

    /// Handles a Lease that another process holds.
    fn stand_by(&self, holder: String, readiness: &Readiness) {
        let lease = &self.lease.qualified_name;
        if !self.election.elect {
            return wait_for(&holder, lease, readiness);
        }
        if readiness.set_state(ReadinessState::Standby(holder.clone())) {
            tracing::info!(lease, leader = holder, "standing by");
        }
    }

    /// Fails if only a person can fix the cause; retries otherwise.
    fn retry_or_fail(
        &self,
        action: &'static str,
        lease: &LeaseObject,
        error: kube::Error,
    ) -> Result<Attempt, LeaseError> {
        // 404: the namespace does not exist.
        if matches!(http_status(&error), Some(403 | 404)) {
            return Err(LeaseError::Refused {
                lease: lease.qualified_name.clone(),
                action,
                cause: Box::new(error),
            });
        }
        tracing::warn!(
            lease = lease.qualified_name,
            "cannot {action} the Lease; retrying: {}",
            api_error_text(&error)
        );
        Ok(self.retry())
    }

    fn retry(&self) -> Attempt {
        Attempt::Retry { after: self.pause() }
    }

    /// Retries at the latest when the Lease that is waited for may have expired.
    fn retry_within(&self, limit: Duration) -> Attempt {
        let after = self.pause().min(limit);
        Attempt::Retry { after }
    }

    fn pause(&self) -> Duration {
        let retry_period = self.election.timings.retry_period;
        retry_period.mul_f64(rand::rng().random_range(1.0..JITTER))
    }
}

/// Reports that the Lease has to expire first.
fn wait_for(holder: &str, lease: &str, readiness: &Readiness) {
    let reason = format!("the Lease {lease} is held by {holder}, which may be dead: waiting for it to expire");
    wait(reason, readiness);
}

fn wait(reason: String, readiness: &Readiness) {
    if readiness.set_state(ReadinessState::Waiting(reason.clone())) {
        tracing::warn!("{reason}");
    }
}

fn is_free(lease: Option<&Lease>) -> bool {
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    holder.unwrap_or_default().is_empty()
}
