//! `nfs-operator quota-agent`: enforces the sizes of volumes on the server that exports them.

use std::path::PathBuf;
use std::process::ExitCode;

use ::quota_agent::{ProjectRange, Settings};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::log::{self, LogFormat};

/// Arguments of `nfs-operator quota-agent`.
#[derive(Args)]
pub struct QuotaAgentArguments {
    /// Directory on this machine that is an export: the one with the folder `.nfs-operator`. Repeat it for each export.
    #[arg(
        long = "export",
        env = "NFS_OPERATOR_QUOTA_EXPORTS",
        value_name = "PATH",
        value_delimiter = ',',
        required = true
    )]
    exports: Vec<PathBuf>,

    /// File with a line `<cluster ID> <key>` for each cluster, as `kubectl nfs secret quota-key` prints it.
    #[arg(long, env = "NFS_OPERATOR_QUOTA_KEY_FILE", value_name = "FILE")]
    key_file: PathBuf,

    /// Project IDs that nothing else on the file systems uses.
    #[arg(
        long,
        env = "NFS_OPERATOR_QUOTA_PROJECT_IDS",
        value_name = "FIRST-LAST",
        default_value_t
    )]
    project_ids: ProjectRange,

    /// Number of existing files to assign to projects, per second, when a directory with data gets a limit.
    #[arg(
        long,
        env = "NFS_OPERATOR_QUOTA_FILES_PER_SECOND",
        value_name = "N",
        default_value_t = 1000
    )]
    files_per_second: usize,

    /// Log format.
    #[arg(long, env = "NFS_OPERATOR_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// Runs the agent until SIGTERM or SIGINT.
pub async fn run(arguments: QuotaAgentArguments) -> ExitCode {
    log::start(arguments.log_format);
    let stop = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let stop = stop.clone();
        match signal(kind) {
            Ok(mut signal) => drop(tokio::spawn(async move {
                signal.recv().await;
                stop.cancel();
            })),
            Err(error) => {
                log::fatal(&format!("failed to handle signals: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    let settings = Settings {
        exports: arguments.exports,
        key_file: arguments.key_file,
        projects: arguments.project_ids,
        files_per_second: arguments.files_per_second.max(1),
    };
    match ::quota_agent::run(settings, stop).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::fatal(&error);
            ExitCode::FAILURE
        }
    }
}
