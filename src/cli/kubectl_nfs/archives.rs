//! `kubectl nfs archives`: lists, holds, expires and restores archives.

mod restore;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::backup::later;
use super::changes::{Change, ChangeState, print_changes};
use super::completion::object_names;
use super::missing;
use super::names::{age, parse_archive, parse_backend, until};
use crate::api::archive::ArchiveSummary;
use crate::api::{NfsArchive, NfsBackend};
use crate::cli::cluster::{ClusterArguments, CommandError, each, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::{ListFormat, OutputFormat, Table, Tone, print, print_colored, print_json};

/// Commands of `kubectl nfs archives`.
#[derive(Subcommand)]
pub enum ArchivesCommand {
    /// List archives.
    List(ListArguments),
    /// Protect archives: they are not purged, and cannot be deleted.
    Hold(NamesArguments),
    /// End the protection of archives.
    Release(NamesArguments),
    /// Set when archives may be purged.
    Expire(ExpireArguments),
    /// Create a claim with the data of an archive.
    Restore(restore::RestoreArguments),
}

/// Arguments of `kubectl nfs archives list`.
#[derive(Args)]
pub struct ListArguments {
    /// Only archives of claims in this namespace. If unset, of all namespaces.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Archives of all namespaces, which is the default.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Only archives of claims with this name.
    #[arg(long)]
    claim: Option<String>,
    /// Only archives on this backend.
    #[arg(long, value_parser = parse_backend, add = object_names::backends())]
    backend: Option<String>,
    /// Only archives that expire within this time (Go duration, or days).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    due_within: Option<Duration>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: ListFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Arguments of `kubectl nfs archives hold` and `release`.
#[derive(Args)]
pub struct NamesArguments {
    /// Names of the archives.
    #[arg(required = true, value_name = "ARCHIVE", value_parser = parse_archive, add = object_names::archives())]
    archives: Vec<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Arguments of `kubectl nfs archives expire`.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("when").required(true).args(["at", "after", "never"])))]
pub struct ExpireArguments {
    /// Names of the archives.
    #[arg(required = true, value_name = "ARCHIVE", value_parser = parse_archive, add = object_names::archives())]
    archives: Vec<String>,
    /// At this time (RFC 3339, such as 2027-01-31T00:00:00Z).
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<Timestamp>,
    /// After this time from now (Go duration, or days): 0s makes it due now.
    #[arg(long = "in", value_name = "DURATION", value_parser = parse_duration)]
    after: Option<Duration>,
    /// Never by this archive's own expiration time; `keepLast` of the backend still counts.
    #[arg(long)]
    never: bool,
    /// Only print what would happen.
    #[arg(long)]
    plan: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "expected a time such as 2027-01-31T00:00:00Z; --in sets a time from now".to_owned())
}

/// Runs a command on archives.
pub async fn run(command: ArchivesCommand) -> Result<ExitCode, CommandError> {
    match command {
        ArchivesCommand::List(arguments) => list(arguments).await,
        ArchivesCommand::Hold(arguments) => hold(arguments, true).await,
        ArchivesCommand::Release(arguments) => hold(arguments, false).await,
        ArchivesCommand::Expire(arguments) => expire(arguments).await,
        ArchivesCommand::Restore(arguments) => restore::run(arguments).await,
    }
}

impl ListArguments {
    /// Returns what the API server selects.
    fn filter(&self) -> ListParams {
        let fields = [
            ("spec.claimRef.namespace", &self.namespace),
            ("status.backendName", &self.backend),
        ];
        let fields = fields
            .iter()
            .filter_map(|(field, value)| Some(format!("{field}={}", value.as_ref()?)));
        match fields.collect::<Vec<_>>().join(",") {
            none if none.is_empty() => ListParams::default(),
            some => ListParams::default().fields(&some),
        }
    }

    fn selects(&self, archive: &NfsArchive, now: Timestamp) -> Result<bool, CommandError> {
        let expires = archive.spec.expiration_time.as_ref();
        let is_due = match self.due_within {
            Some(within) => {
                let latest = later(now, within)?;
                !archive.spec.legal_hold && expires.is_some_and(|time| time.0 <= latest.0)
            }
            None => true,
        };
        Ok(is_due
            && self
                .claim
                .as_ref()
                .is_none_or(|claim| *claim == archive.spec.claim_ref.name))
    }
}

async fn list(arguments: ListArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let api: Api<NfsArchive> = Api::all(client.clone());
    let now = Timestamp::now();
    let mut table = Table::new(&["NAME", "CLAIM", "BACKEND", "STATE", "SIZE", "EXPIRES", "AGE"]);
    let (mut objects, mut names, mut invalid) = (Vec::new(), Vec::new(), None);
    each(&api, "NfsArchives", arguments.filter(), |archive| {
        match arguments.selects(&archive, now) {
            Err(error) => invalid = Some(error),
            Ok(false) => {}
            Ok(true) => match arguments.output {
                ListFormat::Json => objects.push(as_json(&archive)),
                ListFormat::Name => names.push(format!("nfsarchive/{}", archive.name_any())),
                ListFormat::Table => add_row(&mut table, &archive, now),
            },
        }
    })
    .await?;
    if let Some(error) = invalid {
        return Err(error);
    }
    match arguments.output {
        ListFormat::Json => print_json(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?,
        ListFormat::Name if names.is_empty() => {}
        ListFormat::Name => print(&names.join("\n"))?,
        ListFormat::Table if table.is_empty() => {
            print(&format!("no archives{}", note_missing(&client, &arguments).await?))?
        }
        ListFormat::Table => print_colored(&table.render())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns which of the backend and the namespace of the arguments does not exist, for the end of a sentence.
async fn note_missing(client: &Client, arguments: &ListArguments) -> Result<String, CommandError> {
    let mut note = String::new();
    if let Some(backend) = &arguments.backend {
        note += &missing::note::<NfsBackend>(&Api::all(client.clone()), backend, "NfsBackend").await?;
    }
    if let Some(namespace) = &arguments.namespace {
        note += &missing::note_namespace(client, namespace).await?;
    }
    Ok(note)
}

/// Returns an archive without what only the API server needs.
fn as_json(archive: &NfsArchive) -> Value {
    let mut archive = archive.clone();
    archive.metadata.managed_fields = None;
    json!(archive)
}

fn add_row(table: &mut Table, archive: &NfsArchive, now: Timestamp) {
    let observed = archive.observed();
    let state = observed.state.unwrap_or(ArchiveSummary::Unknown);
    let tone = match state {
        ArchiveSummary::Missing | ArchiveSummary::Unknown => Tone::Problem,
        ArchiveSummary::Expired | ArchiveSummary::Pending => Tone::Warning,
        _ => Tone::Plain,
    };
    let expires = match (&archive.spec.expiration_time, &observed.printed) {
        (Some(time), _) => until(time, now),
        (None, Some(printed)) => printed.expires.clone(),
        (None, None) => String::new(),
    };
    table.row(
        tone,
        [
            &archive.name_any(),
            &format!("{}/{}", archive.spec.claim_ref.namespace, archive.spec.claim_ref.name),
            &observed.backend_name,
            &format!("{state:?}"),
            observed.requested_size.as_ref().map_or("", |size| &size.0),
            &expires,
            &observed
                .archive_time
                .as_ref()
                .map(|time| age(time, now))
                .unwrap_or_default(),
        ],
    );
}

async fn change(api: &Api<NfsArchive>, archive: &NfsArchive, spec: Value) -> Result<(), CommandError> {
    let name = archive.name_any();
    let patch = json!({"metadata": {"uid": archive.uid()}, "spec": spec});
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(failed(format!("change NfsArchive {name}")))?;
    Ok(())
}

async fn hold(arguments: NamesArguments, held: bool) -> Result<ExitCode, CommandError> {
    let api: Api<NfsArchive> = Api::all(arguments.cluster.client().await?);
    print_changes(arguments.output, async |changes| {
        for name in &arguments.archives {
            let archive = get(&api, name, &format!("NfsArchive {name}")).await?;
            change(&api, &archive, json!({"legalHold": held})).await?;
            changes.add(Change {
                object: format!("nfsarchive/{name}"),
                namespace: None,
                request: "spec.legalHold".to_owned(),
                value: json!(held),
                state: ChangeState::Done,
                message: match held {
                    true => format!("{name} held: it is not purged, and cannot be deleted"),
                    false => format!("{name} released: {}", purged_when(&archive)),
                },
            })?;
        }
        Ok(())
    })
    .await
}

/// Says when the rules purge an archive.
fn purged_when(archive: &NfsArchive) -> String {
    match &archive.spec.expiration_time {
        Some(time) => format!("it may be purged after {}", time.0),
        None => "it has no expiration time".to_owned(),
    }
}

async fn expire(arguments: ExpireArguments) -> Result<ExitCode, CommandError> {
    let now = Timestamp::now();
    let time = match (arguments.at, arguments.after) {
        (Some(at), _) => Some(Time(at)),
        (None, Some(after)) => Some(later(now, after)?),
        (None, None) => None,
    };
    let api: Api<NfsArchive> = Api::all(arguments.cluster.client().await?);
    print_changes(arguments.output, async |changes| {
        for name in &arguments.archives {
            let mut archive = get(&api, name, &format!("NfsArchive {name}")).await?;
            archive.spec.expiration_time.clone_from(&time);
            let held = if archive.spec.legal_hold {
                ", but it is held"
            } else {
                ""
            };
            let effect = format!("{}{held}", purged_when(&archive));
            let (state, message) = match arguments.plan {
                true => (ChangeState::Planned, format!("{name} would change: {effect}")),
                false => {
                    change(&api, &archive, json!({"expirationTime": time})).await?;
                    (ChangeState::Done, format!("{name} changed: {effect}"))
                }
            };
            changes.add(Change {
                object: format!("nfsarchive/{name}"),
                namespace: None,
                request: "spec.expirationTime".to_owned(),
                value: json!(time),
                state,
                message,
            })?;
        }
        Ok(())
    })
    .await
}
