//! `kubectl nfs explain`: where a claim is and why, or what each backend lacks to serve it.

mod observed;

use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use self::observed::Observed;
use super::completion::object_names;
use super::names::parse_claim;
use super::served::ServedArguments;
use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::names::{CLAIM_CONDITION, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_ON_DELETE, VOLUME_USED_BYTES};
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};
use crate::controllers::claim::class_name;
use crate::runtime::reads;
use crate::state::context::Provisioners;
use export_store::text::{escape, format_bytes};

/// Arguments of `kubectl nfs explain`.
#[derive(Args)]
#[command(after_help = "\
The verdicts are those of the operator's own placement, computed from the last status of each backend. Groups of
directory.gidRange, and capacity that was reserved since that status, are known to the operator only: if the claim waits
for one of these, its condition says so.

Exit code:
  0  the claim has its volume, or will have it
  1  the claim waits for something that the output names, or the command failed
  2  invalid arguments, or no access to the cluster")]
pub struct ExplainArguments {
    /// Claim to explain.
    #[arg(value_name = "pvc/NAME", value_parser = parse_claim, add = object_names::claims())]
    claim: String,
    /// Namespace of the claim. If unset, that of the context.
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(flatten)]
    served: ServedArguments,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What is known about the claim.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    claim: String,
    phase: String,
    storage_class: String,
    /// Reason and message of the operator's condition.
    condition: Option<Reported>,
    volume: Option<Volume>,
    /// Why no backend is considered at all.
    obstacle: Option<String>,
    /// Each backend, as placement would see it now; empty for a claim that has its volume.
    backends: Vec<Verdict>,
}

#[derive(Serialize)]
struct Reported {
    status: String,
    reason: String,
    message: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    backend: String,
    address: String,
    directory: String,
    used: Option<String>,
    /// What happens to the data when the claim is deleted, and what decides it.
    on_delete: String,
}

/// What placement says about a backend.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Name of the backend.
    pub backend: String,
    /// True if the backend could serve the claim now.
    pub serves: bool,
    /// Position in the order in which backends are tried, from 1.
    pub rank: Option<usize>,
    /// Reason of the refusal.
    pub reason: String,
    /// Cause and remedy.
    pub message: String,
}

impl Explanation {
    fn is_fine(&self) -> bool {
        let has_volume = self.volume.is_some() && self.phase == "Bound";
        has_volume || (self.obstacle.is_none() && self.backends.iter().any(|backend| backend.serves))
    }
}

/// Reads the claim and prints the explanation.
pub async fn run(arguments: ExplainArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let named = format!("{namespace}/{}", arguments.claim);
    let claim = get(&claims, &arguments.claim, &format!("PersistentVolumeClaim {named}")).await?;
    let served = arguments.served.read(&client).await?;
    let explanation = explain(&client, &claim, named, &served).await?;
    match arguments.output {
        OutputFormat::Json => print_json(&explanation)?,
        OutputFormat::Table => explanation.print()?,
    }
    Ok(match explanation.is_fine() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn explain(
    client: &Client,
    claim: &PersistentVolumeClaim,
    named: String,
    served: &Provisioners,
) -> Result<Explanation, CommandError> {
    let status = claim.status.as_ref();
    let volume = volume(client, claim).await?;
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition.type_ == CLAIM_CONDITION);
    let mut explanation = Explanation {
        claim: named,
        phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        storage_class: class_name(claim).unwrap_or_default(),
        condition: condition.map(|condition| Reported {
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        }),
        volume,
        obstacle: None,
        backends: Vec::new(),
    };
    if explanation.volume.is_none() {
        match Observed::read(client, claim, served).await? {
            Ok(observed) => explanation.backends = observed.verdicts(),
            Err(obstacle) => explanation.obstacle = Some(obstacle),
        }
    }
    Ok(explanation)
}

/// Returns the claim's volume, if it exists.
async fn volume(client: &Client, claim: &PersistentVolumeClaim) -> Result<Option<Volume>, CommandError> {
    let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) else {
        return Ok(None);
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let found = reads::get_opt(&volumes, name)
        .await
        .map_err(failed("read the volume of the claim"))?;
    let Some(found) = found else {
        return Ok(None);
    };
    let annotation = |name: &str| found.annotations().get(name).cloned().unwrap_or_default();
    let backend = annotation(VOLUME_BACKEND);
    let backends: Api<NfsBackend> = Api::all(client.clone());
    let policy = match reads::get_opt(&backends, &backend)
        .await
        .map_err(failed("read the backend of the volume"))?
    {
        Some(backend) => Some(backend.spec.archive_policy.on_delete),
        None => None,
    };
    let spec = found.spec.as_ref();
    let nfs = spec.and_then(|spec| spec.nfs.as_ref());
    let reclaim = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let used = annotation(VOLUME_USED_BYTES).parse::<u128>().ok();
    Ok(Some(Volume {
        name: found.name_any(),
        address: nfs
            .map(|nfs| format!("{}:{}", nfs.server, nfs.path))
            .unwrap_or_default(),
        directory: annotation(VOLUME_DIRECTORY),
        used: used.map(format_bytes),
        on_delete: on_delete(reclaim, &annotation(VOLUME_ON_DELETE), policy),
        backend,
    }))
}

/// Describes what happens to the data of a volume when its claim is deleted.
fn on_delete(reclaim: Option<&str>, recorded: &str, policy: Option<OnDelete>) -> String {
    match (reclaim, recorded, policy) {
        (Some("Retain"), _, _) => "retain: the reclaim policy of the volume is Retain".to_owned(),
        (_, "", Some(policy)) => format!("{}: archivePolicy.onDelete of the backend", policy.annotation_value()),
        (_, "", None) => "unknown: the backend does not exist".to_owned(),
        (_, recorded, _) => format!("{recorded}: requested by the class or the claim"),
    }
}

impl Explanation {
    fn print(&self) -> std::io::Result<()> {
        let mut table = Table::new(&["CLAIM", &self.claim]);
        table.row(Tone::Plain, ["phase", &self.phase]);
        table.row(Tone::Plain, ["class", &self.storage_class]);
        if let Some(condition) = &self.condition {
            let tone = if condition.status == "True" {
                Tone::Plain
            } else {
                Tone::Warning
            };
            table.row(tone, ["reason", &condition.reason]);
            table.row(tone, ["message", &condition.message]);
        }
        if let Some(volume) = &self.volume {
            table.row(Tone::Plain, ["volume", &volume.name]);
            table.row(Tone::Plain, ["backend", &volume.backend]);
            table.row(Tone::Plain, ["address", &volume.address]);
            table.row(Tone::Plain, ["directory", &volume.directory]);
            table.row(Tone::Plain, ["used", volume.used.as_deref().unwrap_or("not counted")]);
            table.row(Tone::Plain, ["on delete", &volume.on_delete]);
        }
        print_colored(&table.render())?;
        if let Some(obstacle) = &self.obstacle {
            return print(&format!("\nNo backend is considered: {}", escape(obstacle)));
        }
        if self.volume.is_some() {
            return Ok(());
        }
        let mut table = Table::new(&["BACKEND", "SERVES", "REASON", "MESSAGE"]);
        for verdict in &self.backends {
            let (tone, serves) = match verdict.rank {
                Some(rank) => (Tone::Plain, format!("yes, {}", ordinal(rank))),
                None if verdict.serves => (Tone::Plain, "yes".to_owned()),
                None => (Tone::Warning, "no".to_owned()),
            };
            table.row(tone, [&verdict.backend, &serves, &verdict.reason, &verdict.message]);
        }
        print("")?;
        match table.is_empty() {
            true => print("There are no backends: create an NfsBackend with the server and path of an export"),
            false => print_colored(&table.render()),
        }
    }
}

/// Returns the position of a backend in the order, such as `first`.
fn ordinal(rank: usize) -> String {
    match rank {
        1 => "first".to_owned(),
        rank => format!("number {rank}"),
    }
}
