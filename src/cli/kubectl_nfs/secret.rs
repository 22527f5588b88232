//! `kubectl nfs secret`: a copy of the Secret with the key that signs records on exports.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::operator::{self, ClusterLockArguments};
use crate::api::NfsBackend;
use crate::api::names::RECORDS_SECRET;
use crate::cli::cluster::{ClusterArguments, CommandError, all, get};
use crate::cli::output::{OutputFormat, print_as};
use crate::runtime::records_secret::{RecordsSecretData, parse};
use export_store::quota::KeyFile;

/// Maximum size of a copy, in bytes. A Secret has at most 1 MiB.
const MAX_FILE: u64 = 4 << 20;

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

fn read_file(path: &Path) -> Result<Secret, CommandError> {
    let fault = |fault: String| CommandError::Refused(format!("{}: {fault}", path.display()));
    let file = File::open(path).map_err(|error| fault(error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(|error| fault(error.to_string()))?;
    // The error of the parser may show a part of the key.
    serde_norway::from_str(&text).map_err(|_| fault("it is not a Secret in YAML or JSON".to_owned()))
}

async fn verify(arguments: VerifyArguments) -> Result<ExitCode, CommandError> {
    let saved = read_file(&arguments.file)?;
    let what = arguments.file.display().to_string();
    let saved_id = cluster_id(&saved, &what)?;
    let client = arguments.source.cluster.client().await?;
    let current = read(&arguments.source, &client).await?;
    let current_id = cluster_id(&current, "the Secret in the cluster")?;
    if saved_id != current_id {
        return Err(CommandError::Refused(format!(
            "{what} is of cluster {saved_id}, and this cluster is {current_id}: save its Secret with kubectl nfs secret backup"
        )));
    }
    if saved.data != current.data {
        return Err(CommandError::Refused(format!(
            "{what} has another key than the Secret in the cluster, which was changed since: save it again"
        )));
    }
    let backends: Vec<NfsBackend> = all(&Api::all(client), "NfsBackends").await?;
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
