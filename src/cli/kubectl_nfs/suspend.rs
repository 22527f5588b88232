//! `kubectl nfs suspend` and `resume`: whether backends get new volumes.

use std::process::ExitCode;

use clap::Args;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::names::parse_backend;
use crate::api::NfsBackend;
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::cli::output::print;

/// Arguments of `kubectl nfs suspend` and `resume`.
#[derive(Args)]
pub struct SuspendArguments {
    /// Names of the backends.
    #[arg(required = true, value_name = "BACKEND", value_parser = parse_backend)]
    backends: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Sets `spec.suspend` of each backend.
pub async fn run(arguments: SuspendArguments, suspend: bool) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.cluster.client().await?);
    for name in &arguments.backends {
        let what = format!("NfsBackend {name}");
        let found = get(&api, name, &what).await?;
        if found.spec.suspend == suspend {
            print(&format!(
                "{name} {}",
                if suspend {
                    "is suspended already"
                } else {
                    "is not suspended"
                }
            ))?;
            continue;
        }
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        let patched = api.patch(name, &PatchParams::default(), &patch).await;
        patched.map_err(failed(format!("change {what}")))?;
        print(&match suspend {
            true => format!("{name} suspended: it gets no new volumes; existing ones, reclaims and restores continue"),
            false => format!("{name} resumed: it gets new volumes again"),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
