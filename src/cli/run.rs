//! `nfs-operator run`.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use nfs_operator::api::names::{DEFAULT_PROVISIONER, RECORDS_SECRET};
use nfs_operator::app::run::{self, Options};
use nfs_operator::compat::nfs_subdir::backend as nfs_subdir_backend;
use nfs_operator::runtime::election::Election;
use nfs_operator::runtime::lease::LeaseTimings;
use nfs_operator::runtime::records_secret::RecordsSecret;
use nfs_operator::runtime::retry::BackoffLimits;
use tracing_subscriber::EnvFilter;

use super::duration::go_duration;
use super::nfs_subdir::Environment;

/// Arguments of `nfs-operator run`.
#[derive(Args)]
pub struct RunArguments {
    /// The provisioner name that StorageClasses use.
    #[arg(long, env = "NFS_OPERATOR_PROVISIONER_NAME", default_value = DEFAULT_PROVISIONER)]
    provisioner_name: String,
    /// Another provisioner name to serve, and the one backend that its classes reach. May be repeated.
    #[arg(long, env = "NFS_OPERATOR_PROVISIONER_ALIAS", value_name = "NAME=BACKEND", value_delimiter = ',', value_parser = alias)]
    provisioner_alias: Vec<(String, String)>,
    /// Claims worked on at the same time, for each backend on its own.
    #[arg(long, env = "NFS_OPERATOR_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// The pause after an object's first failure; it doubles with each further one. Go duration.
    #[arg(long, env = "NFS_OPERATOR_RETRY_MIN", default_value = "15s", value_parser = go_duration)]
    retry_min: Duration,
    /// The longest pause after a failure. Go duration.
    #[arg(long, env = "NFS_OPERATOR_RETRY_MAX", default_value = "1000s", value_parser = go_duration)]
    retry_max: Duration,
    /// Of each backend, one archive whose time is over is purged in this time. Go duration.
    #[arg(long, env = "NFS_OPERATOR_ARCHIVE_PURGE_PAUSE", default_value = "10s", value_parser = go_duration)]
    archive_purge_pause: Duration,
    /// How often each export is scanned for orphans, directories and volumes that have lost each other. Go duration; 0s:
    /// only when a backend's annotation asks for it.
    #[arg(long, env = "NFS_OPERATOR_SCAN_INTERVAL", default_value = "6h", value_parser = go_duration)]
    scan_interval: Duration,
    /// How many names are counted in a second where a backend has `spec.usage`, of each backend.
    #[arg(long, env = "NFS_OPERATOR_COUNT_RATE", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count_rate: u32,
    /// Also tell in the metrics what each volume holds that was counted: two series for each.
    #[arg(long, env = "NFS_OPERATOR_VOLUME_METRICS", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    volume_metrics: bool,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "NFS_OPERATOR_HTTP_ADDR", default_value = "0.0.0.0:8080")]
    http_addr: SocketAddr,
    /// Format of the log.
    #[arg(long, env = "NFS_OPERATOR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Kubernetes configuration; absent: KUBECONFIG, then the pod's service account.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Stand by while another operator leads, and let others stand by. Without it, an operator that meets another at
    /// work refuses to start.
    #[arg(long, env = "NFS_OPERATOR_LEADER_ELECT", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: bool,
    /// The namespace of the Lease; absent: that of the pod or of the kubeconfig's context.
    #[arg(long, env = "NFS_OPERATOR_LEASE_NAMESPACE")]
    lease_namespace: Option<String>,
    /// The name of the Lease: the same for all operators of a cluster.
    #[arg(long, env = "NFS_OPERATOR_LEASE_NAME", default_value = "nfs-operator")]
    lease_name: String,
    /// The namespace of the Secret with the key that records on exports are signed with; absent: as for the Lease.
    #[arg(long, env = "NFS_OPERATOR_RECORDS_NAMESPACE")]
    records_namespace: Option<String>,
    /// The name of that Secret. It is made if it is not there, and never written again: keep a copy outside the cluster.
    #[arg(long, env = "NFS_OPERATOR_RECORDS_SECRET", default_value = RECORDS_SECRET)]
    records_secret: String,
    /// A Lease that was not renewed for this long is anybody's. Go duration.
    #[arg(long, env = "NFS_OPERATOR_LEASE_DURATION", default_value = "15s", value_parser = go_duration)]
    lease_duration: Duration,
    /// With --leader-elect: a leader that could not renew for this long ends. Go duration.
    #[arg(long, env = "NFS_OPERATOR_RENEW_DEADLINE", default_value = "10s", value_parser = go_duration)]
    renew_deadline: Duration,
    /// How often the leader renews and a standby looks. Go duration.
    #[arg(long, env = "NFS_OPERATOR_RETRY_PERIOD", default_value = "2s", value_parser = go_duration)]
    retry_period: Duration,
    /// A name for the place where this process runs and never two at once, such as the pod's uid: a Lease that was
    /// taken under it by a process that died is taken over without waiting.
    #[arg(long, env = "NFS_OPERATOR_INSTANCE", value_parser = instance)]
    instance: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// For machines: one object a line.
    Json,
}

fn alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, backend)) if !name.is_empty() && !backend.is_empty() => Ok((name.to_owned(), backend.to_owned())),
        _ => Err("expected NAME=BACKEND".to_owned()),
    }
}

fn instance(text: &str) -> Result<String, String> {
    let usable = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if text.is_empty() || text.len() > 200 || !text.chars().all(usable) {
        return Err("expected 1 to 200 letters, digits, dashes, dots or underscores".to_owned());
    }
    Ok(text.to_owned())
}

impl RunArguments {
    fn retries(&self) -> Result<BackoffLimits, String> {
        let bounds = BackoffLimits {
            shortest: self.retry_min,
            longest: self.retry_max,
        };
        bounds.validated()
    }

    fn election(&self) -> Result<Election, String> {
        let timings = LeaseTimings {
            duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
        };
        Ok(Election {
            elect: self.leader_elect,
            namespace: self.lease_namespace.clone(),
            name: self.lease_name.clone(),
            timings: timings.validated()?,
        })
    }
}

/// Runs the operator until it is told to stop.
pub async fn run(arguments: RunArguments) -> ExitCode {
    start_log(arguments.log_format);
    let checked = distinct(&arguments).and_then(|()| {
        let environment = inherited(&arguments)?;
        Ok((arguments.election()?, arguments.retries()?, environment))
    });
    let (mut election, retries, environment) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            eprintln!("nfs-operator: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut aliases: BTreeMap<String, String> = arguments.provisioner_alias.into_iter().collect();
    if let Some(environment) = &environment {
        aliases.insert(environment.provisioner.clone(), nfs_subdir_backend::BACKEND.to_owned());
        election.elect |= environment.leader_election;
    }
    let options = Options {
        provisioner: arguments.provisioner_name,
        aliases,
        inherited: environment.map(|environment| environment.export),
        slots: usize::from(arguments.concurrency),
        retries,
        purge_pause: arguments.archive_purge_pause,
        scan_interval: arguments.scan_interval,
        count_rate: arguments.count_rate,
        volume_metrics: arguments.volume_metrics,
        http_addr: arguments.http_addr,
        kubeconfig: arguments.kubeconfig,
        election,
        records: RecordsSecret {
            namespace: arguments.records_namespace,
            name: arguments.records_secret,
        },
        instance: arguments.instance,
    };
    match run::run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("nfs-operator: {error}");
            // At once: a resolver that hangs in a thread must not keep a process alive that leads no more.
            std::process::exit(1)
        }
    }
}

/// What the environment says of an nfs-subdir whose place this operator takes. Its name must be nobody else's.
fn inherited(arguments: &RunArguments) -> Result<Option<Environment>, String> {
    let Some(environment) = Environment::read(|name| std::env::var(name).ok())? else {
        return Ok(None);
    };
    let name = &environment.provisioner;
    if *name == arguments.provisioner_name {
        return Err(format!(
            "PROVISIONER_NAME={name}: that is --provisioner-name too, whose classes reach all backends; give one of the two \
             another value"
        ));
    }
    let mut aliases = arguments.provisioner_alias.iter();
    if let Some((_, backend)) = aliases.find(|(alias, backend)| alias == name && backend != nfs_subdir_backend::BACKEND)
    {
        return Err(format!(
            "PROVISIONER_NAME={name}: --provisioner-alias says {backend} for it; remove the one or the other"
        ));
    }
    Ok(Some(environment))
}

/// Each name is served once: as the provisioner's own, or as one alias.
fn distinct(arguments: &RunArguments) -> Result<(), String> {
    let mut names = HashSet::from([&arguments.provisioner_name]);
    let repeated = arguments
        .provisioner_alias
        .iter()
        .map(|(name, _)| name)
        .find(|name| !names.insert(name));
    repeated.map_or(Ok(()), |name| {
        Err(format!(
            "--provisioner-alias {name}: this provisioner name is given twice"
        ))
    })
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
