//! `kubectl nfs usage top`: the volumes that use most, as the operator last counted them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::completion::object_names;
use super::names::{age, parse_backend};
use crate::api::names::{
    MANAGED_BY, OPERATOR_NAME, VOLUME_BACKEND, VOLUME_COUNTED_AT, VOLUME_USED_BYTES, VOLUME_USED_FILES,
};
use crate::cli::cluster::{ClusterArguments, CommandError, each};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};
use crate::decide::quantity;
use export_store::text::{counted, format_amount, format_bytes_up};

/// Commands of `kubectl nfs usage`.
#[derive(Subcommand)]
pub enum UsageCommand {
    /// Show the volumes that use most, as last counted (spec.usage of their backends).
    Top(TopArguments),
}

/// Arguments of `kubectl nfs usage top`.
#[derive(Args)]
pub struct TopArguments {
    /// Only volumes of claims in this namespace.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Only volumes of this backend.
    #[arg(long, value_parser = parse_backend, add = object_names::backends())]
    backend: Option<String>,
    /// Maximum number of volumes.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// A counted volume. The first field decides the order.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
struct Counted {
    used_bytes: u128,
    volume: String,
    claim: String,
    backend: String,
    requested_bytes: Option<u128>,
    files: Option<u64>,
    counted_time: Option<String>,
}

#[derive(Default)]
struct Top {
    largest: BinaryHeap<Reverse<Counted>>,
    uncounted: u64,
}

/// Reads the volumes and prints the largest.
pub async fn run(command: UsageCommand) -> Result<ExitCode, CommandError> {
    let UsageCommand::Top(arguments) = command;
    let api: Api<PersistentVolume> = Api::all(arguments.cluster.client().await?);
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={OPERATOR_NAME}"));
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let mut top = Top::default();
    each(&api, "PersistentVolumes", ours, |volume| {
        if arguments.selects(&volume) {
            top.add(&volume, limit);
        }
    })
    .await?;
    let uncounted = top.uncounted;
    let largest: Vec<Counted> = top
        .largest
        .into_sorted_vec()
        .into_iter()
        .map(|Reverse(counted)| counted)
        .collect();
    match arguments.output {
        OutputFormat::Json => print_json(&serde_json::json!({"volumes": largest, "uncounted": uncounted}))?,
        OutputFormat::Table => print_table(&largest, uncounted)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl TopArguments {
    fn selects(&self, volume: &PersistentVolume) -> bool {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let namespace = claim.and_then(|claim| claim.namespace.as_ref());
        let is_in_namespace = self.namespace.is_none() || self.namespace.as_ref() == namespace;
        let is_on_backend = self.backend.is_none() || volume.annotations().get(VOLUME_BACKEND) == self.backend.as_ref();
        is_in_namespace && is_on_backend
    }
}

impl Top {
    /// Adds a volume, and drops the smallest beyond the limit.
    fn add(&mut self, volume: &PersistentVolume, limit: usize) {
        let annotation = |name: &str| volume.annotations().get(name).cloned();
        let Some(used_bytes) = annotation(VOLUME_USED_BYTES).and_then(|bytes| bytes.parse().ok()) else {
            self.uncounted += 1;
            return;
        };
        let spec = volume.spec.as_ref();
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        let name = |name: Option<&String>| name.cloned().unwrap_or_default();
        let capacity = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage"));
        self.largest.push(Reverse(Counted {
            used_bytes,
            volume: volume.name_any(),
            claim: claim
                .map(|claim| format!("{}/{}", name(claim.namespace.as_ref()), name(claim.name.as_ref())))
                .unwrap_or_default(),
            backend: annotation(VOLUME_BACKEND).unwrap_or_default(),
            requested_bytes: capacity.and_then(|capacity| quantity::bytes(&capacity.0)),
            files: annotation(VOLUME_USED_FILES).and_then(|files| files.parse().ok()),
            counted_time: annotation(VOLUME_COUNTED_AT),
        }));
        if self.largest.len() > limit {
            self.largest.pop();
        }
    }
}

fn print_table(largest: &[Counted], uncounted: u64) -> std::io::Result<()> {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        "CLAIM",
        "BACKEND",
        "USED",
        "REQUESTED",
        "PERCENT",
        "FILES",
        "COUNTED",
        "VOLUME",
    ]);
    for volume in largest {
        let requested = volume.requested_bytes.filter(|requested| *requested > 0);
        let percent = requested.map(|requested| volume.used_bytes.saturating_mul(100) / requested);
        let tone = match percent {
            Some(percent) if percent > 100 => Tone::Warning,
            _ => Tone::Plain,
        };
        let time = volume.counted_time.as_ref().and_then(|time| time.parse().ok());
        table.row(
            tone,
            [
                &volume.claim,
                &volume.backend,
                // Rounded as in the condition OverRequest.
                &format_bytes_up(volume.used_bytes),
                &requested.map(format_amount).unwrap_or_default(),
                &percent.map(|percent| format!("{percent}%")).unwrap_or_default(),
                &volume.files.map(|files| files.to_string()).unwrap_or_default(),
                &time
                    .map(|time| format!("{} ago", age(&Time(time), now)))
                    .unwrap_or_default(),
                &volume.volume,
            ],
        );
    }
    if !table.is_empty() {
        print_colored(&table.render())?;
    }
    match (uncounted, table.is_empty()) {
        (0, false) => Ok(()),
        (0, true) => print("there are no volumes"),
        (some, _) => print(&format!(
            "{} not counted: set spec.usage of the backend (docs/usage.md)",
            counted(some, "volume")
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_largest_volumes_are_kept_largest_first() {
        let mut top = Top::default();
        for (name, used) in [("a", "1"), ("b", "30"), ("c", "200"), ("d", "")] {
            let volume = json!({"metadata": {"name": name, "annotations": {VOLUME_USED_BYTES: used}}});
            top.add(&serde_json::from_value(volume).unwrap(), 2);
        }
        let kept = top.largest.into_sorted_vec();
        let names: Vec<&str> = kept.iter().map(|Reverse(counted)| counted.volume.as_str()).collect();
        assert_eq!((names, top.uncounted), (vec!["c", "b"], 1));
    }
}
