//! `kubectl nfs orphans`: what the last scans found.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::completion::object_names;
use super::names::{age, parse_backend};
use crate::api::NfsBackend;
use crate::cli::cluster::{ClusterArguments, CommandError, all, get};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};

/// Arguments of `kubectl nfs orphans`.
#[derive(Args)]
#[command(after_help = "\
Exit code:
  0  no orphans were found
  1  orphans were found, or a backend was not scanned yet
  2  invalid arguments, or no access to the cluster")]
pub struct OrphansArguments {
    /// Names of the backends. If unset, all.
    #[arg(value_name = "BACKEND", value_parser = parse_backend, add = object_names::backends())]
    backends: Vec<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Prints the orphans of each backend.
pub async fn run(arguments: OrphansArguments) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.cluster.client().await?);
    let mut backends = Vec::new();
    for name in &arguments.backends {
        backends.push(get(&api, name, &format!("NfsBackend {name}")).await?);
    }
    if arguments.backends.is_empty() {
        backends = all(&api, "NfsBackends").await?;
    }
    match arguments.output {
        OutputFormat::Json => print_json(&json!({"backends": backends.iter().map(as_json).collect::<Vec<_>>()}))?,
        OutputFormat::Table => print_table(&backends)?,
    }
    let is_fine = |backend: &NfsBackend| scanned(backend).is_some_and(|orphans| orphans.total == 0);
    Ok(match backends.iter().all(is_fine) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn scanned(backend: &NfsBackend) -> Option<&crate::api::OrphansStatus> {
    let orphans = backend.status.as_ref()?.orphans.as_ref()?;
    orphans.last_scan_time.is_some().then_some(orphans)
}

fn as_json(backend: &NfsBackend) -> Value {
    json!({"backend": backend.name_any(), "orphans": backend.status.as_ref().and_then(|status| status.orphans.as_ref())})
}

fn print_table(backends: &[NfsBackend]) -> std::io::Result<()> {
    let now = Timestamp::now();
    let mut table = Table::new(&["BACKEND", "KIND", "VOLUME", "DIRECTORY"]);
    let mut remedies = Vec::new();
    for backend in backends {
        let name = backend.name_any();
        let Some(orphans) = scanned(backend) else {
            table.row(Tone::Warning, [&name, "not scanned yet", "", ""]);
            continue;
        };
        for kind in &orphans.kinds {
            if !remedies.contains(&kind.kind) {
                remedies.push(kind.kind);
            }
            for orphan in &kind.examples {
                let directory = orphan.directory.as_deref().unwrap_or_default();
                table.row(Tone::Problem, [&name, kind.kind.name(), &orphan.volume, directory]);
            }
            let listed = i64::try_from(kind.examples.len()).unwrap_or(i64::MAX);
            if kind.count > listed {
                let more = format!("and {} more: see the log of the operator", kind.count - listed);
                table.row(Tone::Problem, [&name, kind.kind.name(), &more, ""]);
            }
        }
        if orphans.skipped > 0 {
            let skipped = format!("{} could not be checked", orphans.skipped);
            table.row(Tone::Warning, [&name, "", &skipped, ""]);
        }
    }
    if table.is_empty() {
        let oldest = backends
            .iter()
            .filter_map(|backend| scanned(backend)?.last_scan_time.clone());
        return match (backends.is_empty(), oldest.min_by_key(|time| time.0)) {
            (false, Some(oldest)) => print(&format!("no orphans; the oldest scan is {} old", age(&oldest, now))),
            _ => print("there are no backends"),
        };
    }
    print_colored(&table.render())?;
    for kind in remedies {
        print(&format!("\n{kind}: {}", kind.remedy()))?;
    }
    Ok(())
}
