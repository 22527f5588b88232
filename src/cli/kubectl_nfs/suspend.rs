//! `kubectl nfs suspend` and `resume`: whether backends get new volumes.

use std::process::ExitCode;

use clap::Args;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::changes::{Change, ChangeState, print_changes};
use super::completion::object_names;
use super::names::parse_backend;
use crate::api::NfsBackend;
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::cli::output::OutputFormat;

/// Arguments of `kubectl nfs suspend` and `resume`.
#[derive(Args)]
pub struct SuspendArguments {
    /// Names of the backends.
    #[arg(required = true, value_name = "BACKEND", value_parser = parse_backend, add = object_names::backends())]
    backends: Vec<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Sets `spec.suspend` of each backend.
pub async fn run(arguments: SuspendArguments, suspend: bool) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.cluster.client().await?);
    print_changes(arguments.output, async |changes| {
        for name in &arguments.backends {
            changes.add(set(&api, name, suspend).await?)?;
        }
        Ok(())
    })
    .await
}

async fn set(api: &Api<NfsBackend>, name: &str, suspend: bool) -> Result<Change, CommandError> {
    let what = format!("NfsBackend {name}");
    let found = get(api, name, &what).await?;
    let (state, message) = match (found.spec.suspend == suspend, suspend) {
        (true, true) => (ChangeState::Unchanged, "is suspended already"),
        (true, false) => (ChangeState::Unchanged, "is not suspended"),
        (false, true) => (
            ChangeState::Done,
            "suspended: it gets no new volumes; existing ones, reclaims and restores continue",
        ),
        (false, false) => (ChangeState::Done, "resumed: it gets new volumes again"),
    };
    if state == ChangeState::Done {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        let patched = api.patch(name, &PatchParams::default(), &patch).await;
        patched.map_err(failed(format!("change {what}")))?;
    }
    Ok(Change {
        object: format!("nfsbackend/{name}"),
        namespace: None,
        request: "spec.suspend".to_owned(),
        value: json!(suspend),
        state,
        message: format!("{name} {message}"),
    })
}
