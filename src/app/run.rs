//! Starts everything in the right order, and ends it cleanly.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::app::wiring::{Wiring, wire};
use crate::compat::nfs_subdir::backend::{DropInError, InheritedExport};
use crate::runtime::clients::{ClientError, Clients};
use crate::runtime::election::{Election, LeaderElector, LeaseError};
use crate::runtime::http::{self, ListenError};
use crate::runtime::lease::HolderIdentity;
use crate::runtime::lease_renewal::LeaseRenewer;
use crate::runtime::metrics::Metrics;
use crate::runtime::readiness::Readiness;
use crate::runtime::records_secret::{Records, RecordsSecret, SecretError};
use crate::runtime::retry::BackoffLimits;
use crate::runtime::stop::{Stop, stop_signal};
use crate::runtime::write_fence::WriteFence;
use crate::state::context::Context;

/// Pods get 30 s by default between SIGTERM and SIGKILL; what is not done by now is repaired by the next start.
const GRACE: Duration = Duration::from_secs(20);
/// The same where others stand by: most work ends within a call, and what does not, they go on with.
const HANDOVER: Duration = Duration::from_secs(1);

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Provisioner name.
    pub provisioner: String,
    /// Other provisioner names, each with its backend.
    pub aliases: BTreeMap<String, String>,
    /// In the place of an nfs-subdir-external-provisioner: its export, which becomes a backend.
    pub inherited: Option<InheritedExport>,
    /// Claims worked on at the same time, for each backend on its own.
    pub slots: usize,
    /// How long what failed waits.
    pub retries: BackoffLimits,
    /// Between two archives of a backend that are purged because their time is over.
    pub purge_pause: Duration,
    /// Address of the HTTP endpoints.
    pub http_addr: SocketAddr,
    /// How often each export is scanned for orphans; zero: only when somebody asks.
    pub scan_interval: Duration,
    /// How many names are counted in a second of each backend whose volumes are.
    pub count_rate: u32,
    /// Whether the metrics have a series for each volume that was counted.
    pub volume_metrics: bool,
    /// Kubernetes configuration.
    pub kubeconfig: Option<PathBuf>,
    /// The Secret with the key that records are signed with.
    pub records: RecordsSecret,
    /// The Lease.
    pub election: Election,
    /// What the administrator calls the place where this process runs: there is never more than one there.
    pub instance: Option<String>,
}

/// Why the operator ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No access to Kubernetes.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The HTTP endpoints can't be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Records on exports can't be signed.
    #[error(transparent)]
    Records(#[from] SecretError),
    /// This process does not lead, or leads no more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The backend of an nfs-subdir's export is another one, or can't be made.
    #[error(transparent)]
    DropIn(#[from] DropInError),
    /// Signals can't be caught.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] std::io::Error),
    /// A watch cache was never filled.
    #[error("the watch of {0} ended before it was complete")]
    Watch(&'static str),
    /// A part that must run for ever ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

const PARTS: [&str; 7] = [
    "namespaces",
    "storage classes",
    "nodes",
    "volumes",
    "backends",
    "claims",
    "archives",
];

/// Runs the operator until SIGTERM or SIGINT, or until it leads no more.
pub async fn operate(options: Options) -> Result<(), OperatorError> {
    let stop = stop_signal().map_err(OperatorError::Signals)?;
    let front = Endpoints::open(options.http_addr).await?;
    let Some(elected) = stop.or(front.elected(&options)).await else {
        return Ok(());
    };
    let Elected { here, term } = elected?;
    front.leads();
    let work = LeaderTask::of(&options);
    let (parts, ctx) = wire(options, front, here, term.leadership(), stop);
    lead(term, work.until_end(parts, &ctx), close(&ctx)).await
}

/// What there is whether this process leads or stands by.
#[derive(Default)]
pub(crate) struct Endpoints {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    pub(crate) guard: WriteFence,
}

/// What was found out before the Lease was taken.
pub(crate) struct ClusterAccess {
    pub(crate) clients: Clients,
    pub(crate) records: Records,
}

/// The Lease is ours.
struct Elected {
    here: ClusterAccess,
    term: LeaseRenewer,
}

impl Endpoints {
    /// Serves the HTTP endpoints.
    async fn open(address: SocketAddr) -> Result<Self, ListenError> {
        let front = Self::default();
        http::serve(address, front.readiness.clone(), Arc::clone(&front.metrics)).await?;
        Ok(front)
    }

    /// Finds out where it is, and waits until the Lease is its own.
    async fn elected(&self, options: &Options) -> Result<Elected, OperatorError> {
        let me = identity(options.instance.as_deref());
        let linger = options.election.linger();
        let clients = Clients::new(options.kubeconfig.as_deref(), &me.name, &self.guard, linger).await?;
        // Before the Lease: one that can't sign must not take the place of one that can.
        options.records.ensure(&clients.lease).await?;
        if let Some(export) = &options.inherited {
            export.check(&clients).await?;
        }
        let candidate = LeaderElector::new(&clients, options.election.clone(), me, self.guard.clone());
        let term = candidate.acquire(&self.readiness).await?;
        // The Secret may have been restored while this process stood by.
        let records = options.records.ensure(&clients.lease).await?;
        let here = ClusterAccess { clients, records };
        Ok(Elected { here, term })
    }

    fn leads(&self) {
        self.metrics.leads();
        self.readiness.leads(&PARTS);
    }
}

/// What is done while it leads.
struct LeaderTask {
    inherited: Option<InheritedExport>,
    /// What is under way when it is told to stop has this long.
    grace: Duration,
}

impl LeaderTask {
    fn of(options: &Options) -> Self {
        Self {
            inherited: options.inherited.clone(),
            grace: if options.election.elect { HANDOVER } else { GRACE },
        }
    }

    /// Works until it is told to stop, or a part of it ends by itself.
    async fn until_end(self, parts: Wiring, ctx: &Arc<Context>) -> Result<(), OperatorError> {
        let (cluster, provisioner) = (&ctx.cluster_id, &ctx.settings.provisioner);
        tracing::info!(cluster, provisioner, "starting");
        if let Some(export) = &self.inherited {
            let Some(ensured) = ctx.stop.or(export.ensure(&ctx.clients)).await else {
                return Ok(());
            };
            ensured?;
        }
        until_end(parts.start(ctx), ctx.stop.clone(), self.grace).await
    }
}

/// A name that no other process has.
fn identity(instance: Option<&str>) -> HolderIdentity {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "nfs-operator".to_owned());
    HolderIdentity::new(instance, &host, rand::rng().random())
}

/// Works until it is told to stop, then gives the Lease back and says goodbye to the servers. Ends at once, without
/// any of that, when the Lease is lost: nothing here is ours any more.
async fn lead(
    term: LeaseRenewer,
    working: impl Future<Output = Result<(), OperatorError>>,
    closing: impl Future<Output = ()>,
) -> Result<(), OperatorError> {
    let (release, released) = oneshot::channel();
    let mut keeping = tokio::spawn(term.keep(released));
    let ended = tokio::select! {
        ended = working => ended,
        kept = &mut keeping => {
            return Err(kept.map_or(OperatorError::Ended("the Lease's keeper"), |kept| match kept {
                Ok(()) => OperatorError::Ended("the Lease's keeper"),
                Err(lost) => lost.into(),
            }));
        }
    };
    // The keeper is there, or has ended by itself: then there is nothing to give back.
    let _ = release.send(());
    let _ = keeping.await;
    closing.await;
    tracing::info!("stopped");
    ended
}

/// Waits until the operator is told to stop and its work in progress is done, or a part of it ends by itself.
async fn until_end(mut running: JoinSet<&'static str>, stop: Stop, grace: Duration) -> Result<(), OperatorError> {
    let part = tokio::select! {
        () = stop.clone().wait() => None,
        part = running.join_next() => Some(part.and_then(Result::ok).unwrap_or("a part of the operator")),
    };
    match part {
        Some(part) if !stop.asked() => return Err(OperatorError::Ended(part)),
        _ => tracing::info!("stopping: work in progress has {} s to finish", grace.as_secs()),
    }
    // The followers run for ever: only the controllers end by themselves.
    let mut controllers = 4 - usize::from(part.is_some());
    let finished = tokio::time::timeout(grace, async {
        while controllers > 0 && running.join_next().await.is_some() {
            controllers -= 1;
        }
    });
    if finished.await.is_err() {
        tracing::warn!("work in progress did not finish in time: the next one goes on with it");
    }
    Ok(())
}

/// Ends the sessions on the servers, so that nothing waits for their leases.
async fn close(ctx: &Context) {
    let links = ctx.backends.all().into_iter().filter_map(|backend| backend.link());
    let closing = futures::future::join_all(links.map(|link| async move { link.export.nfs().clone().close().await }));
    if tokio::time::timeout(Duration::from_secs(3), closing).await.is_err() {
        tracing::warn!("some NFS servers did not answer the goodbye");
    }
}
