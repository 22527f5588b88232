//! Simulated processes of the operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nfs_client::Transport;
use nfs_operator::api::names;
use nfs_operator::app::run::{self, ApiAccess, Environment, Options};
use nfs_operator::runtime::clients::ApiService;
use nfs_operator::runtime::clock::Clock;
use nfs_operator::runtime::election::Election;
use nfs_operator::runtime::lease::LeaseTimings;
use nfs_operator::runtime::records_secret::RecordsSecret;
use nfs_operator::runtime::retry::BackoffLimits;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::SimulatedClock;
use crate::life::Life;
use crate::trace::Trace;

/// Namespace of the operator.
pub const NAMESPACE: &str = "nfs-operator-system";

/// Number of claims that a backend works on at the same time.
pub const SLOTS: usize = 64;

/// What a process is started with.
pub struct Machine {
    /// Name of the process in the trace, and of its machine.
    pub name: String,
    /// The API server.
    pub api: ApiService,
    /// The NFS servers.
    pub transport: Arc<dyn Transport>,
    /// The clock of the machine.
    pub clock: SimulatedClock,
    /// Whether the process runs: nothing passes in either direction while it does not.
    pub life: Life,
    /// Others may stand by.
    pub elects: bool,
}

/// A process of the operator.
#[derive(Debug)]
pub struct Process {
    name: String,
    life: Life,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    trace: Trace,
}

impl Process {
    /// Starts the operator.
    pub fn start(machine: Machine, trace: &Trace) -> Self {
        let environment = Environment {
            api: ApiAccess::Service {
                service: machine.api,
                namespace: NAMESPACE.to_owned(),
            },
            transport: machine.transport,
            clock: Clock::new(machine.clock),
            host: machine.name.clone(),
        };
        let shutdown = CancellationToken::new();
        let (token, log, name) = (shutdown.clone(), trace.clone(), machine.name.clone());
        trace.record(&machine.name, "starts");
        let mut options = options();
        options.election.elect = machine.elects;
        let task = tokio::spawn(async move {
            match run::run_until_cancelled(options, environment, token).await {
                Ok(()) => log.record(&name, "stopped"),
                Err(error) => log.record(&name, format_args!("ended: {error}")),
            }
        });
        Self {
            name: machine.name,
            life: machine.life,
            shutdown,
            task,
            trace: trace.clone(),
        }
    }

    /// Ends the process at once, wherever it is.
    ///
    /// Its tasks are aborted or, if nothing can reach them, cut off: a process of which nothing arrives and that nothing
    /// reaches cannot be told from one that does not exist.
    pub fn kill(self) {
        self.trace.record(&self.name, "is killed");
        self.life.kill();
        self.task.abort();
        // Ends the background tasks, which reach nothing any more.
        self.shutdown.cancel();
    }

    /// Asks the process to stop, as SIGTERM does: it hands over, and then nothing is left of it.
    pub fn stop(self) {
        self.trace.record(&self.name, "is asked to stop");
        self.shutdown.cancel();
        let Self { life, task, .. } = self;
        tokio::spawn(async move {
            // How it ended is in the trace.
            let _ended = task.await;
            life.kill();
        });
    }

    /// Returns true if the process ended by itself.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// Returns the settings of all processes.
pub fn options() -> Options {
    Options {
        provisioners: vec![names::DEFAULT_PROVISIONER.to_owned()],
        aliases: BTreeMap::new(),
        nfs_subdir_export: None,
        slots: SLOTS,
        retries: BackoffLimits {
            shortest: Duration::from_secs(2),
            longest: Duration::from_secs(60),
        },
        purge_pause: Duration::from_secs(10),
        http: None,
        scan_interval: Duration::from_secs(300),
        count_rate: 1000,
        volume_metrics: false,
        records: RecordsSecret {
            namespace: None,
            name: names::RECORDS_SECRET.to_owned(),
        },
        election: Election {
            elect: true,
            namespace: None,
            name: "nfs-operator".to_owned(),
            cluster_lock_namespace: "kube-system".to_owned(),
            timings: LeaseTimings {
                duration: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                retry_period: Duration::from_secs(2),
            },
        },
        instance: None,
    }
}
