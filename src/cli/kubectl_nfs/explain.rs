//! `kubectl nfs explain`: where a claim is and why, or what each backend lacks to serve it.

mod observed;
mod problems;

use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use self::observed::Observed;
use self::problems::Problem;
use super::completion::object_names;
use super::names::parse_claim;
use super::operator;
use super::served::ServedArguments;
use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::names::{CLAIM_CONDITION, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_ON_DELETE, VOLUME_USED_BYTES};
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get, is_forbidden};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};
use crate::controllers::claim::class_name;
use crate::runtime::reads;
use export_store::text::{escape, format_bytes_up};

/// Arguments of `kubectl nfs explain`.
#[derive(Args)]
#[command(after_help = "\
The verdicts are those of the operator's own placement, computed from the last status of each backend. Groups of
directory.gidRange, and capacity that was reserved since that status, are known to the operator only: if the claim waits
for one of these, its condition says so.

Exit code:
  0  the claim has its volume, or will have it
  1  the claim waits for something that the output names, its directory is missing, its expansion failed, or the command
     failed
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
    /// Other conditions of the claim that are problems.
    problems: Vec<Problem>,
    volume: Option<Volume>,
    /// What the user has no permission to read.
    not_shown: Option<String>,
    /// Why no instance of the operator leads, if the claim waits and the user may read the Leases.
    no_leader: Option<String>,
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
        let has_volume = self.has_volume() && self.phase == "Bound";
        let gets_volume =
            self.no_leader.is_none() && self.obstacle.is_none() && self.backends.iter().any(|backend| backend.serves);
        (has_volume || gets_volume) && !self.problems.iter().any(|problem| problem.affects_data)
    }

    /// Returns true if the volume exists, whether the user may read it or not.
    fn has_volume(&self) -> bool {
        self.volume.is_some() || self.not_shown.is_some()
    }
}

/// Reads the claim and prints the explanation.
pub async fn run(arguments: ExplainArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let named = format!("{namespace}/{}", arguments.claim);
    let claim = get(&claims, &arguments.claim, &format!("PersistentVolumeClaim {named}")).await?;
    let explanation = explain(&client, &claim, named, arguments.served).await?;
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
    served: ServedArguments,
) -> Result<Explanation, CommandError> {
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.clone()).unwrap_or_default();
    let (volume, not_shown) = match volume(client, claim).await {
        Err(error) if is_forbidden(&error) && phase == "Bound" => (
            None,
            Some("the volume, its backend and its directory, because you may not read PersistentVolumes".to_owned()),
        ),
        found => (found?, None),
    };
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition.type_ == CLAIM_CONDITION);
    let mut explanation = Explanation {
        claim: named,
        phase,
        storage_class: class_name(claim).unwrap_or_default(),
        condition: condition.map(Reported::of),
        problems: problems::of_claim(claim),
        volume,
        not_shown,
        no_leader: None,
        obstacle: None,
        backends: Vec::new(),
    };
    if !explanation.has_volume() {
        explanation.no_leader = match operator::find_leader(client, &served.operator).await {
            // Most users may not read the Leases.
            Err(error) if is_forbidden(&error) => None,
            found => found?.fault(),
        };
        let served = served.read(client).await?;
        match Observed::read(client, claim, &served).await? {
            Ok(observed) => explanation.backends = observed.verdicts(),
            Err(obstacle) => explanation.obstacle = Some(obstacle),
        }
    }
    Ok(explanation)
}

impl Reported {
    fn of(condition: &PersistentVolumeClaimCondition) -> Self {
        Self {
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        }
    }
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
    let policy = policy(client, &backend).await?;
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
        used: used.map(format_bytes_up),
        on_delete: on_delete(reclaim, &annotation(VOLUME_ON_DELETE), policy),
        backend,
    }))
}

/// Returns the policy of a backend, or why it is unknown.
async fn policy(client: &Client, backend: &str) -> Result<Result<OnDelete, &'static str>, CommandError> {
    let backends: Api<NfsBackend> = Api::all(client.clone());
    let found = reads::get_opt(&backends, backend).await;
    match found.map_err(failed("read the backend of the volume")) {
        Err(error) if is_forbidden(&error) => Ok(Err("you may not read NfsBackends")),
        found => Ok(found?
            .map(|backend| backend.spec.archive_policy.on_delete)
            .ok_or("the backend does not exist")),
    }
}

/// Describes what happens to the data of a volume when its claim is deleted.
fn on_delete(reclaim: Option<&str>, recorded: &str, policy: Result<OnDelete, &str>) -> String {
    match (reclaim, recorded, policy) {
        (Some("Retain"), _, _) => "retain: the reclaim policy of the volume is Retain".to_owned(),
        (_, "", Ok(policy)) => format!("{}: archivePolicy.onDelete of the backend", policy.annotation_value()),
        (_, "", Err(why)) => format!("unknown: {why}"),
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
        if !self.problems.is_empty() {
            print("")?;
            print_colored(&problems::table(&self.problems).render())?;
        }
        if let Some(not_shown) = &self.not_shown {
            return print(&format!("\nNot shown: {not_shown}"));
        }
        if let Some(fault) = &self.no_leader {
            print(&format!(
                "\nNo operator leads, so no claim gets a volume: {}",
                escape(fault)
            ))?;
        }
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
