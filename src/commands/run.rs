//! `nfs-operator run`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use nfs_operator::api::names::DEFAULT_PROVISIONER;
use nfs_operator::operator::run::{Options, operate};
use tracing_subscriber::EnvFilter;

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
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "NFS_OPERATOR_HTTP_ADDR", default_value = "0.0.0.0:8080")]
    http_addr: SocketAddr,
    /// Format of the log.
    #[arg(long, env = "NFS_OPERATOR_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Kubernetes configuration; absent: KUBECONFIG, then the pod's service account.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
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

/// Runs the operator until it is told to stop.
pub async fn run(arguments: RunArguments) -> ExitCode {
    start_log(arguments.log_format);
    if let Err(error) = distinct(&arguments) {
        eprintln!("nfs-operator: {error}");
        return ExitCode::FAILURE;
    }
    let options = Options {
        provisioner: arguments.provisioner_name,
        aliases: arguments.provisioner_alias.into_iter().collect(),
        slots: usize::from(arguments.concurrency),
        http_addr: arguments.http_addr,
        kubeconfig: arguments.kubeconfig,
    };
    match operate(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            super::fail(&error)
        }
    }
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
