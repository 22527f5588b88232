//! Starts everything in the right order, and stops it cleanly.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::wiring::{Tasks, Wiring, wire};
use crate::compat::nfs_subdir::backend::{NfsSubdirBackendError, NfsSubdirExport};
use crate::runtime::clients::{ApiService, ClientError, Clients};
use crate::runtime::clock::Clock;
use crate::runtime::election::{Election, LeaderElector, LeaseError};
use crate::runtime::http::{self, HttpOptions, ListenError, Probed};
use crate::runtime::lease::HolderIdentity;
use crate::runtime::lease_renewal::LeaseRenewer;
use crate::runtime::metrics::Metrics;
use crate::runtime::process_metrics::ProcessMetrics;
use crate::runtime::readiness::Readiness;
use crate::runtime::records_secret::{RecordsSecret, RecordsSecretData, SecretError};
use crate::runtime::retry::BackoffLimits;
use crate::runtime::shutdown::shutdown_signal;
use crate::runtime::watchdog::Watchdog;
use crate::runtime::write_fence::WriteFence;
use crate::state::context::Context;
use crate::state::copy_jobs::CopyJobs;
use crate::state::usage::UsageStore;
use nfs_client::{Tcp, Transport};

/// Grace period for work in progress after SIGTERM. The default of pods is 30 s. The next start recovers unfinished
/// work.
const GRACE: Duration = Duration::from_secs(20);
/// Grace period with standbys: most work ends within one call, and the next leader resumes the rest.
const HANDOVER: Duration = Duration::from_secs(1);
/// Maximum time to end the sessions on the NFS servers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Namespace in which the operator refuses to run.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// Name of the task that renews the Lease.
const RENEWAL: &str = "the renewal of the Lease";

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Provisioner names whose classes use all backends, at least one. The first is the controller of events.
    pub provisioners: Vec<String>,
    /// Provisioner names whose classes use one backend, each with that backend.
    pub aliases: BTreeMap<String, String>,
    /// The export of an nfs-subdir-external-provisioner that this operator replaces; it becomes a backend.
    pub nfs_subdir_export: Option<NfsSubdirExport>,
    /// Maximum number of claims in progress per backend.
    pub slots: usize,
    /// Limits of the backoff after failures.
    pub retries: BackoffLimits,
    /// Minimum interval between purges of expired archives on one backend.
    pub purge_pause: Duration,
    /// The HTTP endpoints. If unset, none are served.
    pub http: Option<HttpOptions>,
    /// Interval between orphan scans of an export. If zero, exports are scanned only on request.
    pub scan_interval: Duration,
    /// Maximum number of names that a usage scan reads per second and backend.
    pub count_rate: u32,
    /// Export metrics per volume and per claim.
    pub volume_metrics: bool,
    /// The Secret with the key that signs records.
    pub records: RecordsSecret,
    /// The Lease.
    pub election: Election,
    /// Name of this instance. At most one process with that name may run at a time.
    pub instance: Option<String>,
}

/// What the operator uses of the world outside of its process.
pub struct Environment {
    /// Access to the API server.
    pub api: ApiAccess,
    /// Connects to NFS servers.
    pub transport: Arc<dyn Transport>,
    /// The clock of this machine.
    pub clock: Clock,
    /// Name of this machine.
    pub host: String,
}

/// Access to the API server.
pub enum ApiAccess {
    /// Connections to the server of a Kubernetes configuration. If unset, the configuration is inferred.
    Kubeconfig(Option<PathBuf>),
    /// A service within this process.
    Service {
        /// Answers requests.
        service: ApiService,
        /// Namespace of the operator.
        namespace: String,
    },
}

impl Environment {
    /// Returns the environment of a process of the operating system.
    pub fn of_process(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            api: ApiAccess::Kubeconfig(kubeconfig),
            transport: Arc::new(Tcp),
            clock: Clock::default(),
            host: std::env::var("HOSTNAME").unwrap_or_else(|_| "nfs-operator".to_owned()),
        }
    }
}

/// Reason why the operator ended without a shutdown signal.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No access to Kubernetes.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The HTTP endpoints cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Records on exports cannot be signed.
    #[error(transparent)]
    Records(#[from] SecretError),
    /// This process does not lead, or no longer leads.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The backend for nfs-subdir's export has another address, or cannot be created.
    #[error(transparent)]
    NfsSubdirBackend(#[from] NfsSubdirBackendError),
    /// The operator's namespace must not be `kube-system`.
    #[error(
        "refusing to run in the namespace {SYSTEM_NAMESPACE}: the operator may create Secrets and Leases in its own \
         namespace, and those of {SYSTEM_NAMESPACE} control the cluster; install it in a namespace of its own, such as \
         nfs-operator-system, and move the Secret with the key for records there"
    )]
    SystemNamespace,
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] std::io::Error),
    /// A task ended that must run until the shutdown.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// Runs the operator until SIGTERM or SIGINT, or until it no longer leads.
///
/// # Errors
/// The operator cannot start, loses the Lease, or one of its tasks ends.
pub async fn run(options: Options, environment: Environment) -> Result<(), OperatorError> {
    let shutdown = shutdown_signal().map_err(OperatorError::Signals)?;
    run_until_cancelled(options, environment, shutdown).await
}

/// Runs the operator until `shutdown` is cancelled, or until it no longer leads.
///
/// # Errors
/// Those of [`run`].
pub async fn run_until_cancelled(
    options: Options,
    environment: Environment,
    shutdown: CancellationToken,
) -> Result<(), OperatorError> {
    let endpoints = Endpoints::open(options.http.clone(), options.volume_metrics, &environment.clock).await?;
    let waiting = endpoints.wait_for_lease(&options, &environment);
    let waiting = endpoints.watchdog.watch("waiting for the Lease", waiting);
    let elected = shutdown.run_until_cancelled(waiting).await;
    let Some(elected) = elected else {
        return Ok(());
    };
    let (access, lease) = elected?;
    endpoints.set_leading();
    let task = LeaderTask::new(&options);
    let (wiring, ctx) = wire(options, environment, endpoints, access, lease.leadership(), shutdown);
    lead(lease, &ctx.watchdog, task.run(wiring, &ctx), close_sessions(&ctx)).await
}

/// HTTP endpoints and the state behind them, which exist in the leader and in standbys.
pub(super) struct Endpoints {
    pub(super) metrics: Arc<Metrics>,
    pub(super) copy_jobs: CopyJobs,
    pub(super) usage: UsageStore,
    pub(super) readiness: Readiness,
    pub(super) write_fence: WriteFence,
    pub(super) watchdog: Watchdog,
}

/// Access to the cluster: API clients, and the identity and key for records.
pub(super) struct ClusterAccess {
    pub(super) clients: Clients,
    pub(super) records: RecordsSecretData,
}

impl Endpoints {
    /// Serves the HTTP endpoints.
    async fn open(http: Option<HttpOptions>, volume_metrics: bool, clock: &Clock) -> Result<Self, ListenError> {
        let copy_jobs = CopyJobs::default();
        let usage = UsageStore::new(volume_metrics);
        let metrics = Metrics::with_collectors(vec![
            Box::new(copy_jobs.clone()),
            Box::new(usage.clone()),
            Box::new(ProcessMetrics),
        ]);
        let endpoints = Self {
            metrics: Arc::new(metrics),
            copy_jobs,
            usage,
            readiness: Readiness::default(),
            write_fence: WriteFence::new(clock.clone()),
            watchdog: Watchdog::default(),
        };
        if let Some(http) = http {
            let probed = Probed {
                watchdog: endpoints.watchdog.clone(),
                readiness: endpoints.readiness.clone(),
                write_fence: endpoints.write_fence.clone(),
            };
            http::serve(http, probed, Arc::clone(&endpoints.metrics)).await?;
            endpoints.watchdog.start().map_err(ListenError::Watchdog)?;
        }
        Ok(endpoints)
    }

    /// Connects to the cluster, and waits until this process holds the Lease.
    async fn wait_for_lease(
        &self,
        options: &Options,
        environment: &Environment,
    ) -> Result<(ClusterAccess, LeaseRenewer), OperatorError> {
        let me = HolderIdentity::new(options.instance.as_deref(), &environment.host, rand::rng().random());
        let clients = match &environment.api {
            ApiAccess::Kubeconfig(kubeconfig) => {
                let max_in_flight = Some(options.election.max_in_flight());
                let requests = &self.metrics.api_requests;
                Clients::new(
                    kubeconfig.as_deref(),
                    &me.name,
                    &self.write_fence,
                    max_in_flight,
                    requests,
                )
                .await?
            }
            ApiAccess::Service { service, namespace } => Clients::over(service.clone(), namespace, &self.write_fence),
        };
        check_namespace(clients.lease.default_namespace())?;
        // Checked before the Lease is acquired: a process that cannot sign must not replace one that can.
        options.records.check(&clients.lease).await?;
        if let Some(export) = &options.nfs_subdir_export {
            export.check(&clients).await?;
        }
        let elector = LeaderElector::new(&clients, options.election.clone(), me, self.write_fence.clone());
        let lease = elector.acquire(&self.readiness).await?;
        // Only the holder of the Lease creates the Secret. It may also have been restored since the check.
        let records = options.records.ensure(&clients.lease).await?;
        Ok((ClusterAccess { clients, records }, lease))
    }

    fn set_leading(&self) {
        self.metrics.set_leading();
        self.readiness.set_leading();
    }
}

/// The work of the leader.
struct LeaderTask {
    nfs_subdir_export: Option<NfsSubdirExport>,
    /// Time for work in progress after the shutdown signal.
    grace: Duration,
}

impl LeaderTask {
    fn new(options: &Options) -> Self {
        Self {
            nfs_subdir_export: options.nfs_subdir_export.clone(),
            grace: if options.election.elect { HANDOVER } else { GRACE },
        }
    }

    /// Runs the controllers until the shutdown signal, or until one of them ends.
    async fn run(self, wiring: Wiring, ctx: &Arc<Context>) -> Result<(), OperatorError> {
        let (cluster, provisioners) = (&ctx.cluster_id, ctx.settings.provisioners().join(","));
        tracing::info!(cluster, provisioners, "starting");
        if let Some(export) = &self.nfs_subdir_export {
            let Some(ensured) = ctx.shutdown.run_until_cancelled(export.ensure(&ctx.clients)).await else {
                return Ok(());
            };
            ensured?;
        }
        wait_for_end(wiring.start(ctx), &ctx.shutdown, self.grace).await
    }
}

/// Checks that the operator does not run in `kube-system`.
fn check_namespace(own: &str) -> Result<(), OperatorError> {
    match own {
        SYSTEM_NAMESPACE => Err(OperatorError::SystemNamespace),
        _ => Ok(()),
    }
}

/// Renews the Lease while `work` runs, then releases it and runs `close`. Ends immediately, without either, if the
/// Lease is lost: another process may lead already.
async fn lead(
    lease: LeaseRenewer,
    watchdog: &Watchdog,
    work: impl Future<Output = Result<(), OperatorError>>,
    close: impl Future<Output = ()>,
) -> Result<(), OperatorError> {
    let (release, released) = oneshot::channel();
    let mut renewal = tokio::spawn(watchdog.watch(RENEWAL, lease.run(released)));
    let ended = tokio::select! {
        ended = work => ended,
        renewed = &mut renewal => {
            return Err(match renewed {
                Ok(Err(lost)) => lost.into(),
                Ok(Ok(())) | Err(_) => OperatorError::Ended(RENEWAL),
            });
        }
    };
    // If the renewal has ended by now, there is no Lease to release.
    let _ = release.send(());
    let _ = renewal.await;
    close.await;
    tracing::info!("stopped");
    ended
}

/// Waits for the shutdown signal and then for work in progress, or until a task ends unexpectedly.
async fn wait_for_end(mut tasks: Tasks, shutdown: &CancellationToken, grace: Duration) -> Result<(), OperatorError> {
    let ended = tokio::select! {
        () = shutdown.cancelled() => None,
        ended = tasks.controllers.join_next() => Some(ended),
        ended = tasks.watches.join_next() => Some(ended),
    };
    match ended {
        Some(task) if !shutdown.is_cancelled() => {
            let task = task.and_then(Result::ok).unwrap_or("a task of the operator");
            return Err(OperatorError::Ended(task));
        }
        _ => tracing::info!("stopping: work in progress has {} s to finish", grace.as_secs()),
    }
    let finished = async { while tasks.controllers.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        tracing::warn!("work in progress did not finish in time; the next leader resumes it");
    }
    Ok(())
}

/// Ends the sessions on the NFS servers, so that no one has to wait for their leases to expire.
async fn close_sessions(ctx: &Context) {
    let connections = ctx
        .backends
        .all()
        .into_iter()
        .filter_map(|backend| backend.connection());
    let closing = connections.map(|connection| async move { connection.store.nfs().clone().close().await });
    if tokio::time::timeout(CLOSE_TIMEOUT, futures::future::join_all(closing))
        .await
        .is_err()
    {
        tracing::warn!("some NFS servers did not answer the end of their sessions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_refuses_to_run_in_kube_system() {
        assert!(check_namespace("nfs-operator-system").is_ok());
        let refused = check_namespace("kube-system").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|message| message.contains("install it in a namespace of its own")));
    }
}
