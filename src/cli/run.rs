//! `nfs-operator run`: runs the operator.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::api::names::{DEFAULT_PROVISIONER, RECORDS_SECRET};
use crate::app::run::{self, Options};
use crate::compat::nfs_subdir::backend as nfs_subdir_backend;
use crate::runtime::election::Election;
use crate::runtime::http::HttpOptions;
use crate::runtime::lease::LeaseTimings;
use crate::runtime::records_secret::RecordsSecret;
use crate::runtime::retry::BackoffLimits;
use clap::{ArgAction, Args};

use super::duration::parse_duration;
use super::log::{self, LogFormat};
use crate::compat::nfs_subdir::environment::Environment;

/// Arguments of `nfs-operator run`.
#[derive(Args)]
pub struct RunArguments {
    /// Provisioner name of StorageClasses. May be repeated: the names have the same meaning. For classes of a name that is also a
    /// valid CSI driver name, such as nfs.nfs-operator.io, the operator publishes CSIStorageCapacity objects.
    #[arg(long, env = "NFS_OPERATOR_PROVISIONER_NAME", value_name = "NAME", value_delimiter = ',', default_value = DEFAULT_PROVISIONER, value_parser = parse_provisioner)]
    provisioner_name: Vec<String>,
    /// Additional provisioner name, and the only backend that its StorageClasses use. May be repeated.
    #[arg(long, env = "NFS_OPERATOR_PROVISIONER_ALIAS", value_name = "NAME=BACKEND", value_delimiter = ',', value_parser = parse_alias)]
    provisioner_alias: Vec<(String, String)>,
    /// Maximum number of claims that are processed concurrently, per backend.
    #[arg(long, env = "NFS_OPERATOR_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Delay before the first retry of an object, doubled after each further failure (Go duration).
    #[arg(long, env = "NFS_OPERATOR_RETRY_MIN", default_value = "15s", value_parser = parse_duration)]
    retry_min: Duration,
    /// Maximum delay before a retry (Go duration).
    #[arg(long, env = "NFS_OPERATOR_RETRY_MAX", default_value = "1000s", value_parser = parse_duration)]
    retry_max: Duration,
    /// Minimum interval between purges of expired archives on one backend (Go duration).
    #[arg(long, env = "NFS_OPERATOR_ARCHIVE_PURGE_PAUSE", default_value = "10s", value_parser = parse_duration)]
    archive_purge_pause: Duration,
    /// Interval between scans of each export for orphans: directories without a volume, and volumes or records without a
    /// directory (Go duration). With 0s, an export is scanned only when requested by an annotation of its backend.
    #[arg(long, env = "NFS_OPERATOR_SCAN_INTERVAL", default_value = "6h", value_parser = parse_duration)]
    scan_interval: Duration,
    /// Maximum number of files counted per second on each backend that has `spec.usage`.
    #[arg(long, env = "NFS_OPERATOR_COUNT_RATE", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count_rate: u32,
    /// Export metrics per volume: two series for each volume whose usage was measured, one for each claim with a backup, and one
    /// for each claim with scheduled backups.
    #[arg(long, env = "NFS_OPERATOR_VOLUME_METRICS", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    volume_metrics: bool,
    /// Address of /metrics. It serves /healthz and /readyz, too.
    #[arg(long, env = "NFS_OPERATOR_HTTP_ADDR", default_value = "0.0.0.0:8080")]
    http_addr: SocketAddr,
    /// Address of /healthz and /readyz for the probes of the kubelet, so that clients of /metrics cannot delay them.
    #[arg(long, env = "NFS_OPERATOR_PROBE_ADDR", default_value = "0.0.0.0:8081")]
    probe_addr: SocketAddr,
    /// File with the bearer token that clients of /metrics have to send. It is read for each request. If unset, /metrics
    /// requires no token.
    #[arg(long, env = "NFS_OPERATOR_METRICS_TOKEN_FILE")]
    metrics_token_file: Option<PathBuf>,
    /// Log format.
    #[arg(long, env = "NFS_OPERATOR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Path of a kubeconfig. If unset, KUBECONFIG or the service account of the pod is used.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Elect a leader among several instances; the others stand by. Without this option, the operator refuses to start
    /// while another instance is running.
    #[arg(long, env = "NFS_OPERATOR_LEADER_ELECT", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: bool,
    /// Namespace of the Lease. If unset, that of the pod or of the kubeconfig's context is used.
    #[arg(long, env = "NFS_OPERATOR_LEASE_NAMESPACE")]
    lease_namespace: Option<String>,
    /// Name of the Lease; must be the same for all replicas of an installation.
    #[arg(long, env = "NFS_OPERATOR_LEASE_NAME", default_value = "nfs-operator")]
    lease_name: String,
    /// Namespace of the Lease nfs-operator-cluster-lock, which keeps other installations from running in this cluster. It
    /// must be the same for all installations, and tenants must not have permissions in it.
    #[arg(long, env = "NFS_OPERATOR_CLUSTER_LOCK_NAMESPACE", default_value = "kube-system")]
    cluster_lock_namespace: String,
    /// Namespace of the Secret with the key that signs records on exports. If unset, the namespace of the Lease is used.
    #[arg(long, env = "NFS_OPERATOR_RECORDS_NAMESPACE")]
    records_namespace: Option<String>,
    /// Name of the Secret with the key that signs records. It is created if it does not exist, and never changed. Keep a
    /// copy outside the cluster.
    #[arg(long, env = "NFS_OPERATOR_RECORDS_SECRET", default_value = RECORDS_SECRET)]
    records_secret: String,
    /// Duration after which another instance may take over a Lease that was not renewed (Go duration).
    #[arg(long, env = "NFS_OPERATOR_LEASE_DURATION", default_value = "15s", value_parser = parse_duration)]
    lease_duration: Duration,
    /// Duration after which an operator that could not renew the Lease stops writing: with --leader-elect, it exits; without,
    /// it continues once the Lease is renewed (Go duration).
    #[arg(long, env = "NFS_OPERATOR_RENEW_DEADLINE", default_value = "10s", value_parser = parse_duration)]
    renew_deadline: Duration,
    /// Interval at which the leader renews the Lease and standbys check it (Go duration).
    #[arg(long, env = "NFS_OPERATOR_RETRY_PERIOD", default_value = "2s", value_parser = parse_duration)]
    retry_period: Duration,
    /// Unique name of this instance, such as the UID of the pod. Two processes must never run with the same name at the same
    /// time: a process takes over the Lease of a terminated one with the same name without waiting.
    #[arg(long, env = "NFS_OPERATOR_INSTANCE", value_parser = parse_instance)]
    instance: Option<String>,
}

fn parse_provisioner(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected a provisioner name".to_owned()),
        name => Ok(name.to_owned()),
    }
}

pub(super) fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, backend)) if !name.is_empty() && !backend.is_empty() => Ok((name.to_owned(), backend.to_owned())),
        _ => Err("expected NAME=BACKEND".to_owned()),
    }
}

fn parse_instance(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_allowed) {
        return Err("expected 1 to 200 letters, digits, dashes, dots or underscores".to_owned());
    }
    Ok(text.to_owned())
}

impl RunArguments {
    fn retry_limits(&self) -> Result<BackoffLimits, String> {
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
            cluster_lock_namespace: self.cluster_lock_namespace.clone(),
            timings: timings.validated()?,
        })
    }
}

/// Runs the operator until it is stopped.
pub async fn run(arguments: RunArguments) -> ExitCode {
    log::start(arguments.log_format);
    let checked = check_names(&arguments).and_then(|()| {
        let environment = read_environment(&arguments)?;
        Ok((arguments.election()?, arguments.retry_limits()?, environment))
    });
    let (mut election, retries, environment) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            log::fatal(&error);
            return ExitCode::FAILURE;
        }
    };
    let mut aliases: BTreeMap<String, String> = arguments.provisioner_alias.into_iter().collect();
    if let Some(environment) = &environment {
        aliases.insert(environment.provisioner.clone(), nfs_subdir_backend::BACKEND.to_owned());
        election.elect |= environment.leader_election;
    }
    let options = Options {
        provisioners: arguments.provisioner_name,
        aliases,
        nfs_subdir_export: environment.map(|environment| environment.export),
        slots: usize::from(arguments.concurrency),
        retries,
        purge_pause: arguments.archive_purge_pause,
        scan_interval: arguments.scan_interval,
        count_rate: arguments.count_rate,
        volume_metrics: arguments.volume_metrics,
        http: Some(HttpOptions {
            http_addr: arguments.http_addr,
            probe_addr: arguments.probe_addr,
            metrics_token_file: arguments.metrics_token_file,
        }),
        election,
        records: RecordsSecret {
            namespace: arguments.records_namespace,
            name: arguments.records_secret,
        },
        instance: arguments.instance,
    };
    match run::run(options, run::Environment::of_process(arguments.kubeconfig)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::fatal(&error);
            // Exit at once: a thread that is blocked in the resolver must not keep the process of a former leader alive.
            std::process::exit(1)
        }
    }
}

/// Reads the environment variables of nfs-subdir. The provisioner name must not be in use otherwise.
fn read_environment(arguments: &RunArguments) -> Result<Option<Environment>, String> {
    let Some(environment) = Environment::read(|name| std::env::var(name).ok())? else {
        return Ok(None);
    };
    let name = &environment.provisioner;
    if arguments.provisioner_name.contains(name) {
        return Err(format!(
            "PROVISIONER_NAME={name}: must differ from --provisioner-name, whose StorageClasses use all backends"
        ));
    }
    let mut aliases = arguments.provisioner_alias.iter();
    if let Some((_, backend)) = aliases.find(|(alias, backend)| alias == name && backend != nfs_subdir_backend::BACKEND)
    {
        return Err(format!(
            "PROVISIONER_NAME={name}: --provisioner-alias assigns it to {backend}; remove one of the two"
        ));
    }
    Ok(Some(environment))
}

/// Checks that the provisioner names are distinct.
fn check_names(arguments: &RunArguments) -> Result<(), String> {
    let names = arguments
        .provisioner_name
        .iter()
        .map(|name| ("--provisioner-name", name));
    let aliases = arguments.provisioner_alias.iter();
    let aliases = aliases.map(|(name, _)| ("--provisioner-alias", name));
    let mut distinct = HashSet::new();
    match names.chain(aliases).find(|(_, name)| !distinct.insert(*name)) {
        Some((flag, name)) => Err(format!("{flag} {name}: this provisioner name is used twice")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: RunArguments,
    }

    fn parse(arguments: &[&str]) -> Result<RunArguments, String> {
        let parsed = Program::try_parse_from(["nfs-operator"].iter().chain(arguments));
        let arguments = parsed.map_err(|error| error.to_string())?.arguments;
        check_names(&arguments)?;
        Ok(arguments)
    }

    #[test]
    fn several_provisioner_names_replace_the_default() {
        assert_eq!(parse(&[]).unwrap().provisioner_name, [DEFAULT_PROVISIONER]);
        let repeated = parse(&["--provisioner-name", "a/b", "--provisioner-name=c.d"]);
        assert_eq!(repeated.unwrap().provisioner_name, ["a/b", "c.d"]);
        // As in the environment.
        let list = parse(&["--provisioner-name", "a/b,c.d"]);
        assert_eq!(list.unwrap().provisioner_name, ["a/b", "c.d"]);
    }

    #[test]
    fn a_provisioner_name_that_is_empty_or_used_twice_is_refused() {
        for (arguments, expected) in [
            (&["--provisioner-name", "a/b,"][..], "expected a provisioner name"),
            (&["--provisioner-name", "a/b,a/b"], "--provisioner-name a/b: this"),
            (
                &["--provisioner-name", "a/b,c.d", "--provisioner-alias", "c.d=main"],
                "--provisioner-alias c.d: this",
            ),
        ] {
            let refused = parse(arguments).err().unwrap();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
