//! Takes the Lease, keeps it, and gives it back ([`lease`](crate::runtime::lease) decides).
//!
//! Every process holds the Lease while it works, with `--leader-elect` or without: with it, others stand by; without it,
//! they refuse to start.

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

/// Which Lease, and on which terms.
#[derive(Debug, Clone)]
pub struct Election {
    /// Whether others stand by (`--leader-elect`).
    pub elect: bool,
    /// The Lease's namespace; absent: that of the Kubernetes configuration.
    pub namespace: Option<String>,
    /// The Lease's name.
    pub name: String,
    /// Its times.
    pub terms: LeaseTimings,
}

impl Election {
    /// How long what was sent in a term may still be on its way after it: another leads no sooner than this after the
    /// renew deadline. Absent where nobody stands by.
    pub fn linger(&self) -> Option<Duration> {
        let LeaseTimings {
            duration,
            renew_deadline,
            ..
        } = self.terms;
        self.elect.then(|| duration.saturating_sub(renew_deadline))
    }
}

/// Why this process does not lead, or leads no more.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another operator is at work, and nobody is to stand by.
    #[error(
        "the Lease {lease} is held by {holder}, which renews it: another operator is at work; stop it first, or start \
         both with --leader-elect"
    )]
    Taken {
        /// Namespace and name.
        lease: String,
        /// Who.
        holder: String,
    },
    /// Another installation is at work.
    #[error(
        "the Lease {lease} is held by {holder}: another nfs-operator is installed in this cluster, and one operator \
         serves a cluster; uninstall one of them, or give both the same --lease-namespace and --leader-elect"
    )]
    Rival {
        /// Namespace and name.
        lease: String,
        /// Who.
        holder: String,
    },
    /// The API server will not let us.
    #[error(
        "cannot {action} the Lease {lease}: {cause}; apply config/rbac, or correct --lease-namespace and --lease-name"
    )]
    Refused {
        /// Namespace and name.
        lease: String,
        /// What was tried.
        action: &'static str,
        /// The answer.
        #[source]
        cause: Box<kube::Error>,
    },
    /// The Lease is, or may soon be, another's.
    #[error("lost the Lease {lease}: {cause}")]
    Lost {
        /// Namespace and name.
        lease: String,
        /// How.
        cause: String,
    },
}

/// One that wants the Lease.
pub struct LeaderElector {
    pub(crate) leases: Api<Lease>,
    watched: Api<Lease>,
    rivals: OtherInstallations,
    pub(crate) election: Election,
    pub(crate) me: HolderIdentity,
    pub(crate) guard: WriteFence,
    /// Namespace and name.
    pub(crate) lease: String,
}

/// What an attempt came to.
enum Attempt {
    Taken(Box<LeaseRenewer>),
    Again { after: Duration },
}

impl LeaderElector {
    /// One that has not looked yet.
    pub fn new(clients: &Clients, election: Election, me: HolderIdentity, guard: WriteFence) -> Self {
        let own = || clients.lease.default_namespace().to_owned();
        let namespace = election.namespace.clone().unwrap_or_else(own);
        Self {
            leases: Api::namespaced(clients.lease.clone(), &namespace),
            watched: Api::namespaced(clients.watches.clone(), &namespace),
            rivals: OtherInstallations::new(clients.lease.clone(), &namespace, &election.name),
            lease: format!("{namespace}/{}", election.name),
            election,
            me,
            guard,
        }
    }

    /// Waits for the Lease and takes it; tells where it stands meanwhile.
    pub async fn acquire(mut self, readiness: &Readiness) -> Result<LeaseRenewer, LeaseError> {
        let mut observer = Observer::default();
        let mut releases = pin!(self.releases());
        loop {
            // A call that hangs must not outlast the Lease that it asks about. One that was cut off may have taken it:
            // the next look finds our name there.
            let patience = self.election.terms.renew_deadline;
            let pause = match timeout(patience, self.attempt(&mut observer, readiness)).await {
                Ok(Ok(Attempt::Taken(term))) => return Ok(*term),
                Ok(Ok(Attempt::Again { after })) => after,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    tracing::warn!(lease = self.lease, "the API server does not answer, trying again");
                    self.pause()
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                Some(()) = releases.next() => {}
            }
        }
    }

    /// Rings when the Lease is given back: a standby then takes it without waiting for its next look.
    fn releases(&self) -> impl Stream<Item = ()> + use<> {
        let changes = watcher::watch_object(self.watched.clone(), &self.election.name).default_backoff();
        // What goes wrong with this watch, the looks at the Lease meet too, and say.
        changes.filter_map(|change| ready(change.ok().filter(|lease| is_free(lease.as_ref())).map(drop)))
    }

    /// Looks once, and takes the Lease if it is to be had.
    async fn attempt(&mut self, observer: &mut Observer, readiness: &Readiness) -> Result<Attempt, LeaseError> {
        let found = match self.leases.get_opt(&self.election.name).await {
            Ok(found) => found,
            Err(error) => return self.put_off("read", error),
        };
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        match observer.judge(spec, &self.me, self.election.terms.duration, since_boot()) {
            LeaseStatus::Held { holder, alive, .. } if alive && !self.election.elect => {
                let lease = self.lease.clone();
                return Err(LeaseError::Taken { lease, holder });
            }
            LeaseStatus::Held {
                holder, runs_out_in, ..
            } => {
                self.stand_by(holder, readiness);
                let after = self.pause().min(runs_out_in);
                return Ok(Attempt::Again { after });
            }
            LeaseStatus::Free | LeaseStatus::Ours => {}
        }
        match self.rivals.look(&self.me, self.election.terms.duration).await {
            Ok(None) => {}
            Ok(Some(rival)) if rival.alive => return Err(rival.refusal()),
            Ok(Some(rival)) => {
                self.wait_for(&rival.holder, &rival.lease, readiness);
                return Ok(self.again());
            }
            Err(error) => return self.put_off("list", error),
        }
        match self.take(found).await {
            Ok(Some(term)) => self.unrivalled(term).await,
            Ok(None) => Ok(self.again()),
            Err(error) => self.put_off("write", error),
        }
    }

    /// Writes our name into the Lease; nothing when another was faster.
    async fn take(&self, found: Option<Lease>) -> Result<Option<LeaseRenewer>, kube::Error> {
        let sent = since_boot();
        let former = found.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = lease::taken(former, &self.me, &self.election.terms, Timestamp::now());
        let params = PostParams::default();
        let written = match found {
            // With the version that was read: the API server refuses if anybody wrote since.
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

    /// Two installations may have taken their Leases at the same time: each looks once more, and so one at least sees
    /// the other.
    async fn unrivalled(&mut self, term: LeaseRenewer) -> Result<Attempt, LeaseError> {
        match self.rivals.look(&self.me, self.election.terms.duration).await {
            Ok(None) => Ok(Attempt::Taken(Box::new(term))),
            Ok(Some(rival)) => {
                term.give_back().await;
                Err(rival.refusal())
            }
            Err(error) => {
                term.give_back().await;
                self.put_off("list", error)
            }
        }
    }

    /// Another holds the Lease.
    fn stand_by(&self, holder: String, readiness: &Readiness) {
        if !self.election.elect {
            return self.wait_for(&holder, &self.lease, readiness);
        }
        if readiness.stands(ReadinessState::Standby(holder.clone())) {
            tracing::info!(lease = self.lease, leader = holder, "standing by");
        }
    }

    fn wait_for(&self, holder: &str, lease: &str, readiness: &Readiness) {
        let reason = format!("the Lease {lease} is held by {holder}, which may be dead: waiting for it to run out");
        if readiness.stands(ReadinessState::Waiting(reason.clone())) {
            tracing::info!("{reason}");
        }
    }

    /// A refusal that only a person can cure ends the process; anything else may pass.
    fn put_off(&self, action: &'static str, error: kube::Error) -> Result<Attempt, LeaseError> {
        // 404: the namespace is not there.
        if matches!(http_status(&error), Some(403 | 404)) {
            return Err(LeaseError::Refused {
                lease: self.lease.clone(),
                action,
                cause: Box::new(error),
            });
        }
        tracing::warn!(lease = self.lease, "cannot {action} the Lease, trying again: {error}");
        Ok(self.again())
    }

    fn again(&self) -> Attempt {
        Attempt::Again { after: self.pause() }
    }

    fn pause(&self) -> Duration {
        let retry_period = self.election.terms.retry_period;
        retry_period.mul_f64(rand::rng().random_range(1.0..JITTER))
    }
}

fn is_free(lease: Option<&Lease>) -> bool {
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    holder.unwrap_or_default().is_empty()
}
