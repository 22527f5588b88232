//! `kubectl nfs secret`: a copy of the Secret with the key that signs records on exports.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::names::condition;
use super::operator::{self, ClusterLockArguments};
use crate::api::NfsBackend;
use crate::api::conditions::BackendCondition;
use crate::api::names::RECORDS_SECRET;
use crate::cli::cluster::{ClusterArguments, CommandError, all, get};
use crate::cli::output::{OutputFormat, print_as, shell_word};
use crate::runtime::records_secret::{RecordsSecretData, parse};
use export_store::quota::KeyFile;

/// Maximum size of a copy, in bytes. A Secret has at most 1 MiB.
const MAX_FILE: u64 = 4 << 20;
/// Field of the Secret with the key that signs records.
const KEY: &str = "key";
/// Field of the Secret with the key before it was replaced, whose signatures are valid too.
const PREVIOUS_KEY: &str = "previous-key";

/// Commands of `kubectl nfs secret`.
#[derive(Subcommand)]
pub enum SecretCommand {
    /// Write the Secret to a file that only you can read, for `kubectl apply` in a rebuilt cluster.
    Backup(BackupArguments),
    /// Check that a file has the Secret of this cluster, and that its backends use it.
    Verify(VerifyArguments),
    /// Print the line for the key file of the quota agent. It is secret: whoever has it and access to an export can forge
    /// orders and reports about sizes there.
    QuotaKey(SecretSource),
}

/// Arguments of `kubectl nfs secret backup`.
#[derive(Args)]
pub struct BackupArguments {
    /// File to write. An existing one is not overwritten.
    file: PathBuf,
    #[command(flatten)]
    source: SecretSource,
}

/// Arguments of `kubectl nfs secret verify`.
#[derive(Args)]
pub struct VerifyArguments {
    /// File to check.
    file: PathBuf,
    #[command(flatten)]
    source: SecretSource,
}

/// The Secret of a cluster.
#[derive(Args)]
pub struct SecretSource {
    /// Namespace of the Secret. If unset, that of the operator's Lease.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Name of the Secret.
    #[arg(long, default_value = RECORDS_SECRET)]
    name: String,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    lock: ClusterLockArguments,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Saves or checks the Secret.
pub async fn run(command: SecretCommand) -> Result<ExitCode, CommandError> {
    match command {
        SecretCommand::Backup(arguments) => backup(arguments).await,
        SecretCommand::Verify(arguments) => verify(arguments).await,
        SecretCommand::QuotaKey(source) => quota_key(&source).await,
    }
}

async fn read(arguments: &SecretSource, client: &Client) -> Result<Secret, CommandError> {
    let namespace = match &arguments.namespace {
        Some(namespace) => namespace.clone(),
        None => {
            let found = operator::find_lease_namespace(client, &arguments.lock).await?;
            found
                .map_err(|unknown| CommandError::Usage(format!("{unknown}: set that of the Secret with --namespace")))?
        }
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    get(
        &secrets,
        &arguments.name,
        &format!("Secret {namespace}/{}", arguments.name),
    )
    .await
}

/// Returns the content of a Secret.
fn content(secret: &Secret, what: &str) -> Result<RecordsSecretData, CommandError> {
    parse(secret).map_err(|(field, fault)| CommandError::Refused(format!("{what} is invalid: data.{field} {fault}")))
}

/// Returns the cluster ID in a Secret.
fn cluster_id(secret: &Secret, what: &str) -> Result<String, CommandError> {
    content(secret, what).map(|data| data.cluster_id)
}

/// Prints the key of the quota agent as lines of its key file. The hint is a comment there.
async fn quota_key(source: &SecretSource) -> Result<ExitCode, CommandError> {
    let client = source.cluster.client().await?;
    let secret = read(source, &client).await?;
    let RecordsSecretData { cluster_id, key } = content(&secret, "the Secret")?;
    let lines = KeyFile::lines(&cluster_id, &key);
    let text = format!(
        "# Key of nfs-operator quota-agent for cluster {cluster_id}. Secret: readable only by root on the NFS server.\n{}",
        lines.trim_end()
    );
    print_as(
        source.output,
        &text,
        &json!({"clusterID": cluster_id, "keyFile": lines}),
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn backup(arguments: BackupArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.source.cluster.client().await?;
    let secret = read(&arguments.source, &client).await?;
    let cluster = cluster_id(&secret, "the Secret")?;
    let copy = Secret {
        metadata: ObjectMeta {
            name: secret.metadata.name.clone(),
            namespace: secret.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        ..secret
    };
    let text = serde_norway::to_string(&copy).map_err(|error| CommandError::Format(error.to_string()))?;
    write_new(&arguments.file, &text)?;
    let file = arguments.file.display();
    let text = format!("wrote the Secret of cluster {cluster} to {file}: keep it outside the cluster, and secret");
    let value = json!({"file": arguments.file, "clusterID": cluster});
    print_as(arguments.source.output, &text, &value)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a file that did not exist, for its owner alone.
fn write_new(path: &Path, text: &str) -> Result<(), CommandError> {
    let named = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => CommandError::Usage(format!(
            "{} exists: it may be the only copy of another key; choose another name",
            path.display()
        )),
        _ => CommandError::Refused(format!("cannot write {}: {error}", path.display())),
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(named)?;
    file.write_all(text.as_bytes()).map_err(named)?;
    file.sync_all().map_err(named)
}

/// A copy of the Secret.
struct SavedSecret {
    secret: Secret,
    /// Time when the file was last written.
    written: Timestamp,
}

fn read_file(path: &Path) -> Result<SavedSecret, CommandError> {
    let fault = |fault: String| CommandError::Refused(format!("{}: {fault}", path.display()));
    let file = File::open(path).map_err(|error| fault(error.to_string()))?;
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    let modified = modified.map_err(|error| fault(error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(|error| fault(error.to_string()))?;
    Ok(SavedSecret {
        // The error of the parser may show a part of the key.
        secret: serde_norway::from_str(&text).map_err(|_| fault("it is not a Secret in YAML or JSON".to_owned()))?,
        written: Timestamp::try_from(modified).map_err(|error| fault(error.to_string()))?,
    })
}

/// Describes a copy that differs from the Secret in the cluster, and what to do about it. It may be the only copy of the
/// key.
fn describe_difference(file: &str, saved: &SavedSecret, current: &Secret, backends: &[NfsBackend]) -> String {
    let field = |secret: &Secret, name: &str| secret.data.as_ref().and_then(|data| data.get(name).cloned());
    let key = field(&saved.secret, KEY);
    let elsewhere = "save the Secret in the cluster to another file with kubectl nfs secret backup";
    if key == field(current, KEY) {
        return format!("{file} has the key of the Secret in the cluster, and other fields differ: {elsewhere}");
    }
    let is_former = key == field(current, PREVIOUS_KEY);
    match lost_key_evidence(saved, current, backends).filter(|_| !is_former) {
        Some(evidence) => format!(
            "{file} has another key than the Secret in the cluster. Do not overwrite or delete the file: it is probably \
             the only copy of the key that signed the records, because {evidence}. To restore that key, {elsewhere}, \
             stop the operator with all its replicas, replace the Secret (kubectl -n {} delete secret {}; kubectl \
             create -f {}), and start the operator; see docs/disaster-recovery.md",
            current.namespace().unwrap_or_default(),
            current.name_any(),
            shell_word(file),
        ),
        None => format!(
            "{file} has another key than the Secret in the cluster, which was changed since: {elsewhere}, and keep \
             {file} until no backend reports RecordsTrusted=False"
        ),
    }
}

/// Returns why the key of a copy is probably the one that signed the records on the exports, if something shows that.
fn lost_key_evidence(saved: &SavedSecret, current: &Secret, backends: &[NfsBackend]) -> Option<String> {
    let trusted = BackendCondition::RecordsTrusted.to_string();
    let doubted = backends.iter().filter(|backend| {
        let conditions = backend.status.as_ref().map(|status| status.conditions.as_slice());
        condition(conditions.unwrap_or_default(), &trusted).is_some_and(|condition| condition.status == "False")
    });
    let doubted: Vec<String> = doubted.map(ResourceExt::name_any).collect();
    if !doubted.is_empty() {
        return Some(format!("these backends report {trusted}=False: {}", doubted.join(", ")));
    }
    let created = current.metadata.creation_timestamp.as_ref()?.0;
    (created > saved.written).then(|| format!("the Secret in the cluster was created later, at {created}"))
}

async fn verify(arguments: VerifyArguments) -> Result<ExitCode, CommandError> {
    let saved = read_file(&arguments.file)?;
    let what = arguments.file.display().to_string();
    let saved_id = cluster_id(&saved.secret, &what)?;
    let client = arguments.source.cluster.client().await?;
    let current = read(&arguments.source, &client).await?;
    let current_id = cluster_id(&current, "the Secret in the cluster")?;
    if saved_id != current_id {
        return Err(CommandError::Refused(format!(
            "{what} is of cluster {saved_id}, and this cluster is {current_id}: save its Secret to another file with \
             kubectl nfs secret backup, and keep {what} while an export has records of cluster {saved_id}"
        )));
    }
    let backends: Vec<NfsBackend> = all(&Api::all(client), "NfsBackends").await?;
    if saved.secret.data != current.data {
        return Err(CommandError::Refused(describe_difference(
            &what, &saved, &current, &backends,
        )));
    }
    let others = backends.iter().filter(|backend| {
        let id = backend
            .status
            .as_ref()
            .and_then(|status| status.export.cluster_id.as_deref());
        id.is_some_and(|id| id != current_id)
    });
    let others: Vec<String> = others.map(ResourceExt::name_any).collect();
    if !others.is_empty() {
        return Err(CommandError::Refused(format!(
            "{what} is the Secret of this cluster, but these backends use another: {}; see RecordsSecretMismatch in \
             docs/troubleshooting.md",
            others.join(", ")
        )));
    }
    let text = format!("{what} is the Secret of this cluster ({current_id}), which all of its backends use");
    let value = json!({"file": what, "clusterID": current_id, "matches": true});
    print_as(arguments.source.output, &text, &value)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::runtime::writes::merge;

    const CREATED: &str = "2026-01-02T00:00:00Z";

    fn secret(key: &str, previous: Option<&str>) -> Secret {
        let mut data = json!({KEY: key});
        if let Some(previous) = previous {
            merge(&mut data, json!({PREVIOUS_KEY: previous}));
        }
        let metadata = json!({"name": "nfs-operator-records", "namespace": "storage", "creationTimestamp": CREATED});
        serde_json::from_value(json!({"metadata": metadata, "data": data})).unwrap()
    }

    fn backend(trusted: &str) -> NfsBackend {
        let condition = json!({"type": "RecordsTrusted", "status": trusted, "reason": "r", "message": "m",
            "lastTransitionTime": CREATED});
        let backend = json!({"metadata": {"name": "main"}, "spec": {"server": "s", "path": "/"},
            "status": {"conditions": [condition]}});
        serde_json::from_value(backend).unwrap()
    }

    #[test]
    fn a_copy_that_may_be_the_only_one_of_the_key_is_never_to_be_overwritten() {
        let (before, after) = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z");
        let difference = |written: &str, current: &Secret, trusted: &str| {
            let saved = SavedSecret {
                secret: secret("b2xk", None),
                written: written.parse().unwrap(),
            };
            describe_difference("copy.yaml", &saved, current, &[backend(trusted)])
        };
        let other = secret("bmV3", None);
        let unsigned = difference(after, &other, "False");
        for part in [
            "Do not overwrite",
            "RecordsTrusted=False: main",
            "kubectl -n storage delete secret nfs-operator-records; kubectl create -f copy.yaml",
        ] {
            assert!(unsigned.contains(part), "{part}: {unsigned}");
        }
        let younger = difference(before, &other, "True");
        assert!(
            younger.contains("Do not overwrite") && younger.contains(CREATED),
            "{younger}"
        );
        let unclear = difference(after, &other, "True");
        assert!(unclear.contains("keep copy.yaml until no backend"), "{unclear}");
        let replaced = difference(before, &secret("bmV3", Some("b2xk")), "False");
        assert!(replaced.contains("keep copy.yaml until no backend"), "{replaced}");
        let same_key = difference(before, &secret("b2xk", Some("bmV3")), "True");
        assert!(same_key.contains("other fields differ"), "{same_key}");
    }
}
