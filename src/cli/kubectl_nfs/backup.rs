//! `kubectl nfs backup`: an archive of a claim in use, or for users without rights on archives, an NfsBackup.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use export_store::text::truncate;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::completion::object_names;
use super::names::{condition, parse_archive, parse_claim};
use super::progress::{self, Progress, wait_or_refuse};
use crate::api::archive::{ArchivedClaim, DeletionPolicy};
use crate::api::backend::Duration as Retention;
use crate::api::backup::{BackupSource, NfsBackupSpec};
use crate::api::consistency::Consistency;
use crate::api::{NfsArchive, NfsArchiveSpec, NfsBackup};
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::{ListFormat, print, print_json};
use crate::runtime::writes::http_status;

/// Maximum length of an archive's name.
const MAX_NAME: usize = 110;

/// Arguments of `kubectl nfs backup`.
#[derive(Args)]
pub struct BackupArguments {
    /// Claim to copy. If you may not create NfsArchives, an NfsBackup is created in its namespace.
    #[arg(value_name = "pvc/NAME", value_parser = parse_claim, add = object_names::claims())]
    claim: String,
    /// Namespace of the claim. If unset, that of the context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Name of the archive. If unset, it is made of the claim and the time.
    #[arg(long, value_parser = parse_archive)]
    name: Option<String>,
    /// Time after which the backup may be purged (Go duration, or days). If unset, it is kept until somebody deletes it.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    expires_in: Option<Duration>,
    /// Whether the backup shows the claim at one moment, which only a snapshot of the server does: `Required`, or `Preferred` to
    /// copy the data in use if there is none. If unset, the data in use are copied.
    #[arg(long, value_parser = parse_consistency)]
    consistency: Option<Consistency>,
    /// Purge the data when the archive is deleted. If unset, they stay on the export. The data of an NfsBackup are always
    /// deleted with it.
    #[arg(long)]
    delete_data: bool,
    /// Wait until the copy is complete.
    #[arg(long)]
    wait: bool,
    /// Maximum duration of --wait (Go duration).
    #[arg(long, default_value = "24h", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: ListFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Creates the archive, and waits for the copy with `--wait`.
pub async fn run(arguments: BackupArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    // A backup of a claim that does not exist would wait for it.
    get(
        &claims,
        &arguments.claim,
        &format!("PersistentVolumeClaim {namespace}/{}", arguments.claim),
    )
    .await?;
    let now = Timestamp::now();
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => default_name(namespace, &arguments.claim, now),
    };
    let archives: Api<NfsArchive> = Api::all(client.clone());
    let request = NfsArchive {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: NfsArchiveSpec {
            claim_ref: ArchivedClaim {
                namespace: namespace.to_owned(),
                name: arguments.claim.clone(),
            },
            expiration_time: arguments.expires_in.map(|after| later(now, after)).transpose()?,
            legal_hold: false,
            deletion_policy: match arguments.delete_data {
                true => DeletionPolicy::Delete,
                false => DeletionPolicy::Retain,
            },
            allowed_namespaces: None,
            destination: None,
            consistency: arguments.consistency,
            max_snapshot_age: None,
            backup_ref: None,
        },
        status: None,
    };
    let created = archives.create(&PostParams::default(), &request).await;
    if created.as_ref().is_err_and(|error| http_status(error) == Some(403)) {
        return as_tenant(&arguments, &Api::namespaced(client.clone(), namespace), &name).await;
    }
    let mut archive = created.map_err(failed(format!("create NfsArchive {name}")))?;
    if arguments.wait {
        archive = wait_available(&archives, &name, arguments.timeout).await?;
    }
    match arguments.output {
        ListFormat::Json => print_json(&archive)?,
        ListFormat::Name => print(&format!("nfsarchive/{name}"))?,
        ListFormat::Table if arguments.wait => print(&format!("backup {name} is complete"))?,
        ListFormat::Table => print(&format!(
            "backup {name} requested; kubectl get nfsa {name} shows its state"
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates an NfsBackup, which an administrator allows with `spec.backups.selfService` of the backend.
async fn as_tenant(arguments: &BackupArguments, api: &Api<NfsBackup>, name: &str) -> Result<ExitCode, CommandError> {
    let request = NfsBackup {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: NfsBackupSpec {
            source: BackupSource {
                claim_name: Some(arguments.claim.clone()),
                archive_name: None,
            },
            retention: arguments
                .expires_in
                .map(|after| Retention(format!("{}s", after.as_secs()))),
            consistency: arguments.consistency,
            max_snapshot_age: None,
            schedule_ref: None,
        },
        status: None,
    };
    let what = format!("NfsBackup {name}");
    let created = api.create(&PostParams::default(), &request).await;
    let mut backup = created.map_err(failed(format!("create {what}")))?;
    if arguments.wait {
        backup = progress::wait(&what, arguments.timeout, async || {
            let backup = get(api, name, &what).await?;
            match condition(&backup.observed().conditions, "Ready") {
                Some(ready) if ready.status == "True" => Ok(Progress::Done(backup)),
                ready => explained(&what, ready),
            }
        })
        .await?;
    }
    match arguments.output {
        ListFormat::Json => print_json(&backup)?,
        ListFormat::Name => print(&format!("nfsbackup/{name}"))?,
        ListFormat::Table if arguments.wait => print(&format!("backup {name} is complete"))?,
        ListFormat::Table => print(&format!(
            "backup {name} requested; kubectl get nfsbackup {name} shows its state"
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_consistency(text: &str) -> Result<Consistency, String> {
    match text {
        "Required" => Ok(Consistency::Required),
        "Preferred" => Ok(Consistency::Preferred),
        _ => Err("expected Required or Preferred".to_owned()),
    }
}

fn explained<T>(what: &str, condition: Option<&Condition>) -> Result<Progress<T>, CommandError> {
    match condition {
        Some(condition) => wait_or_refuse(what, &condition.reason, &condition.message),
        None => Ok(Progress::Waits("the operator has not seen it yet".to_owned())),
    }
}

/// Returns a point in time after `now`.
pub fn later(now: Timestamp, after: Duration) -> Result<Time, CommandError> {
    let after = jiff::SignedDuration::try_from(after).ok();
    let time = after.and_then(|after| now.checked_add(after).ok());
    time.map(Time).ok_or_else(|| {
        CommandError::Usage("the duration is too long: the latest expiration time is in the year 9999".to_owned())
    })
}

/// Returns a name of namespace, claim and time, which no archive of a deleted volume can have.
fn default_name(namespace: &str, claim: &str, now: Timestamp) -> String {
    let time = now.strftime("%Y%m%d-%H%M%S").to_string();
    let prefix = format!("backup-{namespace}-{claim}");
    // An object's name must not end a part with a dash or dot.
    let prefix = truncate(&prefix, MAX_NAME - time.len() - 1).trim_end_matches(['-', '.']);
    format!("{prefix}-{time}")
}

async fn wait_available(archives: &Api<NfsArchive>, name: &str, timeout: Duration) -> Result<NfsArchive, CommandError> {
    let what = format!("NfsArchive {name}");
    progress::wait(&what, timeout, async || {
        let archive = get(archives, name, &what).await?;
        let available = condition(&archive.observed().conditions, "Available");
        let is_available = available.is_some_and(|available| available.status == "True");
        if is_available && archive.is_complete() {
            return Ok(Progress::Done(archive));
        }
        explained(&what, available)
    })
    .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_is_valid_however_long_the_claim_is() {
        let now: Timestamp = "2026-11-23T12:00:00Z".parse().unwrap();
        assert_eq!(default_name("shop", "db", now), "backup-shop-db-20261123-120000");
        let long = default_name("shop", &format!("{}-{}", "a".repeat(81), "b".repeat(160)), now);
        assert_eq!(long.len(), MAX_NAME - 1, "the dash at the cut is dropped: {long}");
        assert!(crate::decide::object_name::is_object_name(&long) && !long.contains("--"));
    }
}
