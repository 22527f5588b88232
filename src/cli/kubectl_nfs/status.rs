//! `kubectl nfs status`: whether everything works, on one screen.

mod released;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use self::released::ReleasedVolumes;
use super::names::{age, condition};
use super::operator::{self, OperatorArguments, RunningOperator};
use crate::api::archive::ArchiveSummary;
use crate::api::conditions::{BackendCondition, Reason};
use crate::api::names::{
    BETA_STORAGE_PROVISIONER, CLAIM_CONDITION, DIRECTORY_MISSING_CONDITION, OVER_REQUEST_CONDITION, STORAGE_PROVISIONER,
};
use crate::api::{NfsArchive, NfsBackend, NfsBackup};
use crate::cli::cluster::{ClusterArguments, CommandError, all, each, failed};
use crate::cli::duration::parse_duration;
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};
use crate::state::context::Provisioners;
use export_store::text::{abbreviate, counted, escape, format_bytes};

/// Arguments of `kubectl nfs status`.
#[derive(Args)]
#[command(after_help = "\
Exit code:
  0  everything works
  1  a backend is not ready or another condition of it needs attention, a claim has no volume or a backup is not ready
     (unless its data are being copied), a released volume is not reclaimed, no operator leads, or there is an orphan or
     a directory that cannot be purged
  2  invalid arguments, or no access to the cluster")]
pub struct StatusArguments {
    /// Archives that expire within this time are due (Go duration, or days).
    #[arg(long, default_value = "1d", value_parser = parse_duration)]
    due_within: Duration,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    operator: OperatorArguments,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What the screen shows.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    works: bool,
    operator: RunningOperator,
    versions: Versions,
    backends: Vec<BackendLine>,
    claims: Claims,
    released_volumes: ReleasedVolumes,
    archives: Archives,
    backups: Backups,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client: &'static str,
    kubernetes: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendLine {
    name: String,
    ready: String,
    reason: String,
    message: String,
    version: String,
    available: String,
    volumes: i64,
    archives: i64,
    trash: i64,
    trash_error: Option<String>,
    /// Unset until the export was scanned.
    orphans: Option<i64>,
    #[serde(skip)]
    probed: Option<Time>,
    suspended: bool,
    failed_conditions: Vec<FailedCondition>,
}

/// A condition besides Ready that is `False`, and whose message is not shown otherwise.
#[derive(Serialize)]
struct FailedCondition {
    #[serde(rename = "type")]
    type_: String,
    reason: String,
    message: String,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Claims {
    waiting: WaitingByReason,
    over_request: u64,
    directory_missing: u64,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Backups {
    total: u64,
    waiting: WaitingByReason,
}

/// Objects that wait, by reason.
#[derive(Serialize, Default)]
#[serde(transparent)]
struct WaitingByReason(BTreeMap<String, Waiting>);

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Waiting {
    count: u64,
    /// The first object with this reason.
    example: String,
    message: String,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Archives {
    total: u64,
    by_state: BTreeMap<String, u64>,
    due: u64,
}

/// Reads everything and prints it.
pub async fn run(arguments: StatusArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let backends: Vec<NfsBackend> = all(&Api::all(client.clone()), "NfsBackends").await?;
    let operator = operator::find(&client, &arguments.operator).await?;
    let claims = claims(&client, &operator.served).await?;
    let released_volumes = ReleasedVolumes::read(&client, &operator.served).await?;
    let archives = archives(&client, arguments.due_within).await?;
    let backups = backups(&client).await?;
    let kubernetes = client
        .apiserver_version()
        .await
        .map_err(failed("read the version of Kubernetes"))?;
    let backends: Vec<BackendLine> = backends.iter().map(BackendLine::of).collect();
    let status = Status {
        works: operator.leadership.is_alive
            && claims.waiting.is_only_copying()
            && backups.waiting.is_only_copying()
            && released_volumes.is_empty()
            && backends.iter().all(BackendLine::works),
        versions: Versions {
            client: env!("CARGO_PKG_VERSION"),
            kubernetes: kubernetes.git_version,
        },
        operator,
        backends,
        claims,
        released_volumes,
        archives,
        backups,
    };
    match arguments.output {
        OutputFormat::Json => print_json(&status)?,
        OutputFormat::Table => status.print()?,
    }
    Ok(match status.works {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl BackendLine {
    fn of(backend: &NfsBackend) -> Self {
        let none = crate::api::NfsBackendStatus::default();
        let status = backend.status.as_ref().unwrap_or(&none);
        let ready = condition(&status.conditions, "Ready");
        let text = |field: fn(&Condition) -> &String| ready.map(field).cloned().unwrap_or_default();
        let available = status
            .capacity
            .as_ref()
            .and_then(|capacity| capacity.available.as_ref());
        let available = available.and_then(|available| crate::decide::quantity::bytes(&available.0));
        Self {
            name: backend.name_any(),
            ready: ready.map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
            reason: text(|condition| &condition.reason),
            message: text(|condition| &condition.message),
            version: status.nfs_version.clone().unwrap_or_default(),
            available: available.map(format_bytes).unwrap_or_default(),
            volumes: status.volumes.unwrap_or_default(),
            archives: status.archives.unwrap_or_default(),
            trash: status.trash.as_ref().map_or(0, |trash| trash.entries),
            trash_error: status.trash.as_ref().and_then(|trash| trash.last_error.clone()),
            orphans: status.orphans.as_ref().map(|orphans| orphans.total),
            probed: status.last_probe_time.clone(),
            suspended: backend.spec.suspend,
            failed_conditions: FailedCondition::list(&status.conditions),
        }
    }

    /// A backend that an administrator suspended works as intended.
    fn is_ready(&self) -> bool {
        self.ready == "True" || (self.suspended && self.reason == "Suspended")
    }

    fn works(&self) -> bool {
        self.is_ready()
            && self.orphans.is_none_or(|orphans| orphans == 0)
            && self.trash_error.is_none()
            && !self.failed_conditions.iter().any(FailedCondition::is_problem)
    }
}

impl FailedCondition {
    /// Returns those of a backend. Ready repeats the message of the one that it fails with, and the trash has its own
    /// line.
    fn list(conditions: &[Condition]) -> Vec<Self> {
        let ready = condition(conditions, &BackendCondition::Ready.to_string());
        let is_shown = |condition: &Condition| {
            condition.type_ == BackendCondition::TrashPurgeable.to_string()
                || ready.is_some_and(|ready| ready.type_ == condition.type_ || ready.message == condition.message)
        };
        let failed = conditions.iter().filter(|condition| condition.status == "False");
        let failed = failed.filter(|condition| !is_shown(condition)).map(|condition| Self {
            type_: condition.type_.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        });
        failed.collect()
    }

    /// Returns true if somebody has to act. Ready decides about the conditions that it is made of, and a recovery or the
    /// removal of limits that is in progress ends by itself.
    fn is_problem(&self) -> bool {
        let of_ready = [
            BackendCondition::Reachable,
            BackendCondition::Writable,
            BackendCondition::CapacityAvailable,
            BackendCondition::IdentityConfirmed,
        ];
        let in_progress = [Reason::Readopting, Reason::QuotaBeingRemoved];
        !of_ready.iter().any(|type_| type_.to_string() == self.type_)
            && !in_progress.iter().any(|reason| reason.to_string() == self.reason)
    }
}

async fn claims(client: &Client, served: &Provisioners) -> Result<Claims, CommandError> {
    let api: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let mut claims = Claims::default();
    each(&api, "PersistentVolumeClaims", ListParams::default(), |claim| {
        claims.add(&claim, served);
    })
    .await?;
    Ok(claims)
}

impl Claims {
    fn add(&mut self, claim: &PersistentVolumeClaim, served: &Provisioners) {
        let status = claim.status.as_ref();
        let conditions = status
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let of = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
        let is_true = |type_: &str| of(type_).is_some_and(|condition| condition.status == "True");
        self.over_request += u64::from(is_true(OVER_REQUEST_CONDITION));
        self.directory_missing += u64::from(is_true(DIRECTORY_MISSING_CONDITION));
        if status.and_then(|status| status.phase.as_deref()) == Some("Bound") {
            return;
        }
        let (reason, message) = match of(CLAIM_CONDITION) {
            // Its volume exists, and the binder is about to bind it.
            Some(condition) if condition.status == "True" => return,
            Some(condition) => (
                condition.reason.as_deref().unwrap_or_default(),
                condition.message.as_deref().unwrap_or_default(),
            ),
            None if is_requested_of(served, claim) => (
                NOT_SEEN,
                "no operator has set a condition: check that one is running and serves its StorageClass",
            ),
            None => return,
        };
        self.waiting.add(claim, reason, message);
    }
}

impl WaitingByReason {
    fn add(&mut self, object: &impl ResourceExt, reason: &str, message: &str) {
        let waiting = self.0.entry(reason.to_owned()).or_default();
        waiting.count += 1;
        if waiting.count == 1 {
            waiting.example = crate::api::names::qualified_name(object);
            message.clone_into(&mut waiting.message);
        }
    }

    /// Returns true if nothing waits but for its own data, which are being copied.
    fn is_only_copying(&self) -> bool {
        self.0.keys().all(|reason| is_copying(reason))
    }

    /// Prints how many objects wait, and why.
    fn print(&self, kind: &str) -> std::io::Result<()> {
        let total: u64 = self.0.values().map(|waiting| waiting.count).sum();
        print(&match total {
            0 => format!("\n{kind}: none waits"),
            1 => format!("\n{kind}: 1 waits"),
            many => format!("\n{kind}: {many} wait"),
        })?;
        if self.0.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[&kind.to_uppercase(), "REASON", "FIRST", "MESSAGE"]);
        for (reason, waiting) in &self.0 {
            let message = abbreviate(&waiting.message, MAX_MESSAGE);
            table.row(
                tone_of(reason),
                [&waiting.count.to_string(), reason, &waiting.example, &message],
            );
        }
        print_colored(&table.render())
    }
}

/// Returns why no Deployment of the operator is shown. Those of other namespaces are not: anybody's can have its label.
fn no_deployments(operator: &RunningOperator) -> String {
    match &operator.namespace {
        Some(namespace) => format!("none in namespace {namespace}; --operator-namespace selects another one"),
        None => "not searched: set --operator-namespace".to_owned(),
    }
}

fn is_copying(reason: &str) -> bool {
    reason == Reason::Copying.to_string()
}

/// Returns how objects that wait for this reason are shown.
fn tone_of(reason: &str) -> Tone {
    match is_copying(reason) {
        true => Tone::Plain,
        false => Tone::Warning,
    }
}

fn is_requested_of(served: &Provisioners, claim: &PersistentVolumeClaim) -> bool {
    let names = [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER];
    let mut requested = names.iter().filter_map(|name| claim.annotations().get(*name));
    requested.any(|provisioner| served.serves(provisioner))
}

async fn archives(client: &Client, due_within: Duration) -> Result<Archives, CommandError> {
    let due = SignedDuration::try_from(due_within).unwrap_or(SignedDuration::MAX);
    let due = Timestamp::now().checked_add(due).unwrap_or(Timestamp::MAX);
    let mut archives = Archives::default();
    let api: Api<NfsArchive> = Api::all(client.clone());
    each(&api, "NfsArchives", ListParams::default(), |archive| {
        let state = archive.observed().state.unwrap_or(ArchiveSummary::Unknown);
        let expires = archive.spec.expiration_time.as_ref();
        archives.total += 1;
        *archives.by_state.entry(format!("{state:?}")).or_default() += 1;
        archives.due += u64::from(!archive.spec.legal_hold && expires.is_some_and(|time| time.0 <= due));
    })
    .await?;
    Ok(archives)
}

async fn backups(client: &Client) -> Result<Backups, CommandError> {
    let mut backups = Backups::default();
    let api: Api<NfsBackup> = Api::all(client.clone());
    each(&api, "NfsBackups", ListParams::default(), |backup| {
        backups.total += 1;
        match condition(&backup.observed().conditions, "Ready") {
            Some(ready) if ready.status == "True" => {}
            Some(ready) => backups.waiting.add(&backup, &ready.reason, &ready.message),
            None => backups.waiting.add(
                &backup,
                NOT_SEEN,
                "no operator has set a condition: check that one is running",
            ),
        }
    })
    .await?;
    Ok(backups)
}

impl Status {
    fn print(&self) -> std::io::Result<()> {
        self.print_operator()?;
        self.print_backends()?;
        self.print_claims()?;
        self.released_volumes.print(Timestamp::now())?;
        let states = self
            .archives
            .by_state
            .iter()
            .map(|(state, count)| format!("{count} {state}"));
        let states = states.collect::<Vec<_>>().join(", ");
        let archives = match self.archives.total {
            0 => "none".to_owned(),
            total => format!("{total} ({states}), {} due", self.archives.due),
        };
        print(&format!("\nArchives: {archives}"))?;
        // Without backups, nothing is said about them.
        match self.backups.total {
            0 => Ok(()),
            _ => self.backups.waiting.print("Backups"),
        }
    }

    fn print_operator(&self) -> std::io::Result<()> {
        let operator = &self.operator;
        let leadership = &operator.leadership;
        let leader = match leadership.fault() {
            Some(fault) => format!("NONE: {fault}"),
            None => format!(
                "{}, renewed {}s ago",
                leadership.leader.as_deref().unwrap_or_default(),
                leadership.seconds_since_renewal.unwrap_or_default()
            ),
        };
        let mut table = Table::new(&["OPERATOR", ""]);
        let tone = if leadership.is_alive {
            Tone::Plain
        } else {
            Tone::Problem
        };
        table.row(tone, ["leader", &leader]);
        table.row(Tone::Plain, ["lease", leadership.lease.as_deref().unwrap_or_default()]);
        if operator.deployments.is_empty() {
            table.row(Tone::Plain, ["deployments", &no_deployments(operator)]);
        }
        for deployment in &operator.deployments {
            let is_ready = deployment.ready >= deployment.replicas;
            let text = format!(
                "{}, {}/{} ready",
                deployment.image, deployment.ready, deployment.replicas
            );
            let tone = if is_ready { Tone::Plain } else { Tone::Warning };
            table.row(tone, [&format!("{}/{}", deployment.namespace, deployment.name), &text]);
        }
        let running = operator.deployments.iter().filter_map(|found| found.version.as_ref());
        let running = running.map(|version| format!("nfs-operator {version}, "));
        let versions = format!(
            "{}kubectl-nfs {}, Kubernetes {}",
            running.collect::<String>(),
            self.versions.client,
            self.versions.kubernetes
        );
        table.row(Tone::Plain, ["versions", &versions]);
        print_colored(&table.render())
    }

    fn print_backends(&self) -> std::io::Result<()> {
        if self.backends.is_empty() {
            return print("\nThere are no backends: create an NfsBackend with the server and path of an export");
        }
        let now = Timestamp::now();
        let headings = [
            "BACKEND",
            "READY",
            "REASON",
            "VERSION",
            "AVAILABLE",
            "VOLUMES",
            "ARCHIVES",
            "TRASH",
            "ORPHANS",
            "PROBED",
        ];
        let mut table = Table::new(&headings);
        for line in &self.backends {
            let tone = match (line.is_ready(), line.works() && !line.suspended) {
                (true, true) => Tone::Plain,
                (true, false) => Tone::Warning,
                (false, _) => Tone::Problem,
            };
            let probed = line.probed.as_ref().map(|time| age(time, now)).unwrap_or_default();
            table.row(
                tone,
                [
                    &line.name,
                    &line.ready,
                    &line.reason,
                    &line.version,
                    &line.available,
                    &line.volumes.to_string(),
                    &line.archives.to_string(),
                    &line.trash.to_string(),
                    &line.orphans.map(|orphans| orphans.to_string()).unwrap_or_default(),
                    &probed,
                ],
            );
        }
        print("")?;
        print_colored(&table.render())?;
        for line in self.backends.iter().filter(|line| !line.is_ready()) {
            print(&escape(&format!("{}: {}", line.name, line.message)))?;
        }
        for (line, error) in self
            .backends
            .iter()
            .filter_map(|line| Some((line, line.trash_error.as_ref()?)))
        {
            print(&escape(&format!("{}: trash: {error}", line.name)))?;
        }
        for line in &self.backends {
            for FailedCondition { type_, reason, message } in &line.failed_conditions {
                print(&escape(&format!("{}: {type_}: {reason}: {message}", line.name)))?;
            }
        }
        Ok(())
    }

    fn print_claims(&self) -> std::io::Result<()> {
        let claims = &self.claims;
        claims.waiting.print("Claims")?;
        for (count, what) in [
            (
                claims.over_request,
                "with more data than requested (kubectl nfs usage top)",
            ),
            (claims.directory_missing, "without its directory (kubectl nfs orphans)"),
        ] {
            if count > 0 {
                print(&format!("{} {what}", counted(count, "claim")))?;
            }
        }
        Ok(())
    }
}

/// Reason of an object without a condition.
const NOT_SEEN: &str = "NotSeen";
/// Maximum length of a message in the table, in bytes. `explain` shows all of it.
const MAX_MESSAGE: usize = 160;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_whose_data_are_being_copied_is_no_problem() {
        let claims = |reasons: &[&str]| {
            let mut claims = Claims::default();
            let served = Provisioners {
                names: Vec::new(),
                aliases: BTreeMap::new(),
            };
            for reason in reasons {
                let condition = json!({"type": CLAIM_CONDITION, "status": "False", "reason": reason, "message": ""});
                let claim = json!({
                    "metadata": {"name": reason, "namespace": "team"},
                    "status": {"phase": "Pending", "conditions": [condition]},
                });
                claims.add(&serde_json::from_value(claim).unwrap(), &served);
            }
            claims.waiting
        };
        assert!(claims(&[]).is_only_copying());
        let copying = claims(&["Copying"]);
        assert!(copying.is_only_copying());
        assert_eq!(
            copying.0.get("Copying").map(|waiting| waiting.count),
            Some(1),
            "it is shown"
        );
        assert!(!claims(&["Copying", "NoSpace"]).is_only_copying());
        assert!(!claims(&["CopySourceNotReady"]).is_only_copying());
    }

    #[test]
    fn a_failed_condition_besides_ready_is_shown_once_and_counts_unless_it_ends_by_itself() {
        let backend = |conditions: &[(&str, &str, &str, &str)]| {
            let condition = |(type_, status, reason, message): &(&str, &str, &str, &str)| {
                json!({"type": type_, "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            let conditions: Vec<_> = conditions.iter().map(condition).collect();
            let backend = json!({"metadata": {"name": "main"}, "spec": {"server": "s", "path": "/"},
                "status": {"conditions": conditions}});
            BackendLine::of(&serde_json::from_value(backend).unwrap())
        };
        let ready = ("Ready", "True", "AllChecksPassed", "fine");
        let shown = |line: &BackendLine| -> Vec<String> {
            let types = line.failed_conditions.iter().map(|failed| failed.type_.clone());
            types.collect()
        };
        let unsigned = backend(&[ready, ("RecordsTrusted", "False", "RecordsUnsigned", "1 record")]);
        assert!(shown(&unsigned) == ["RecordsTrusted"] && !unsigned.works());
        let recovers = backend(&[ready, ("Readopted", "False", "Readopting", "1 of 2")]);
        assert!(shown(&recovers) == ["Readopted"] && recovers.works());
        let unknown = backend(&[ready, ("Consistent", "Unknown", "NotScanned", "")]);
        assert!(shown(&unknown).is_empty() && unknown.works());
        let refused = ("Ready", "False", "AccessDenied", "the server denies access");
        let down = backend(&[
            refused,
            ("Reachable", "False", "AccessDenied", "the server denies access"),
        ]);
        assert!(shown(&down).is_empty() && !down.works());
    }
}
