//! `kubectl nfs archives restore`: a claim with the data of an archive.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::api::NfsArchive;
use crate::api::names::{CLAIM_CONDITION, GROUP, RESTORE};
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::kubectl_nfs::names::{parse_archive, parse_claim};
use crate::cli::kubectl_nfs::progress::{self, Progress};
use crate::cli::output::print;
use crate::decide::quantity;
use crate::runtime::writes::merge;

/// Arguments of `kubectl nfs archives restore`.
#[derive(Args)]
pub struct RestoreArguments {
    /// Name of the archive.
    #[arg(value_parser = parse_archive)]
    archive: String,
    /// Name of the claim to create.
    #[arg(long = "to", value_name = "pvc/NAME", value_parser = parse_claim)]
    claim: String,
    /// Namespace of the claim to create. If unset, the one that the archive came from.
    #[arg(long, short)]
    namespace: Option<String>,
    /// StorageClass of the claim. If unset, that of the archived claim.
    #[arg(long)]
    storage_class: Option<String>,
    /// Size to request. If unset, that of the archived claim.
    #[arg(long, value_parser = parse_size)]
    size: Option<String>,
    /// Access mode of the claim.
    #[arg(long, default_value = "ReadWriteMany")]
    access_mode: String,
    /// Whether the archive becomes the volume, or is copied. If unset, archives of deleted claims are moved if possible, and
    /// backups are copied.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Only print what would happen, and the claim that would be created.
    #[arg(long)]
    plan: bool,
    /// Wait until the claim is bound.
    #[arg(long, conflicts_with = "plan")]
    wait: bool,
    /// Maximum duration of --wait (Go duration).
    #[arg(long, default_value = "24h", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The directory of the archive becomes that of the volume; the archive is then gone.
    Move,
    /// The archive is kept.
    Copy,
}

fn parse_size(text: &str) -> Result<String, String> {
    match quantity::bytes(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected an amount of storage, such as 10Gi".to_owned()),
    }
}

/// Creates the claim, and waits for its volume with `--wait`.
pub async fn run(arguments: RestoreArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let archives: Api<NfsArchive> = Api::all(client.clone());
    let archive = get(
        &archives,
        &arguments.archive,
        &format!("NfsArchive {}", arguments.archive),
    )
    .await?;
    if !archive.is_complete() {
        return Err(CommandError::Refused(format!(
            "NfsArchive {} has no data yet: kubectl get nfsa {} shows its state",
            arguments.archive, arguments.archive
        )));
    }
    let namespace = arguments
        .namespace
        .as_ref()
        .unwrap_or(&archive.spec.claim_ref.namespace);
    let manifest = claim(&arguments, &archive, namespace)?;
    let named = format!("{namespace}/{}", arguments.claim);
    if arguments.plan {
        print(&format!(
            "# creates claim {named}: {}",
            effect(&arguments, &archive, namespace)
        ))?;
        let yaml = serde_norway::to_string(&manifest).map_err(|error| CommandError::Format(error.to_string()))?;
        print(yaml.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
    let manifest = serde_json::from_value(manifest).map_err(|error| CommandError::Format(error.to_string()))?;
    let created = claims.create(&PostParams::default(), &manifest).await;
    created.map_err(failed(format!("create PersistentVolumeClaim {named}")))?;
    if !arguments.wait {
        print(&format!(
            "claim {named} created; kubectl nfs explain pvc/{} -n {namespace} shows its state",
            arguments.claim
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    wait_bound(&claims, &arguments.claim, &named, arguments.timeout).await?;
    print(&format!(
        "claim {named} is bound and has the data of {}",
        arguments.archive
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Says what happens to the archive.
fn effect(arguments: &RestoreArguments, archive: &NfsArchive, namespace: &str) -> &'static str {
    let is_own = archive.spec.claim_ref.namespace == *namespace;
    match arguments.mode {
        Some(Mode::Copy) => "the data are copied, and the archive is kept",
        None if archive.is_on_demand() => "the data of the backup are copied, and it is kept",
        _ if archive.spec.legal_hold => "the data are copied, because the archive is held",
        _ if !is_own => {
            "the data are copied, because the namespace is another one; spec.allowedNamespaces of the archive must admit it"
        }
        _ => {
            "the directory of the archive becomes that of the volume, and the archive is gone; it is copied instead if the \
             class does not permit its backend, or the namespace was recreated"
        }
    }
}

fn claim(arguments: &RestoreArguments, archive: &NfsArchive, namespace: &str) -> Result<Value, CommandError> {
    let observed = archive.observed();
    let size = arguments
        .size
        .clone()
        .or_else(|| observed.requested_size.clone().map(|size| size.0));
    let size =
        size.ok_or_else(|| CommandError::Usage("the size of the archived claim is unknown: set --size".to_owned()))?;
    let class = arguments
        .storage_class
        .as_ref()
        .or(observed.storage_class_name.as_ref());
    let class = class.ok_or_else(|| {
        CommandError::Usage("the class of the archived claim is unknown: set --storage-class".to_owned())
    })?;
    let mode = arguments
        .mode
        .map(|mode| if mode == Mode::Move { "move" } else { "copy" });
    let mut metadata = json!({"name": arguments.claim, "namespace": namespace});
    if let Some(mode) = mode {
        merge(&mut metadata, json!({"annotations": {RESTORE: mode}}));
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "storageClassName": class,
            "accessModes": [arguments.access_mode],
            "resources": {"requests": {"storage": size}},
            "dataSourceRef": {"apiGroup": GROUP, "kind": "NfsArchive", "name": arguments.archive},
        },
    }))
}

async fn wait_bound(
    claims: &Api<PersistentVolumeClaim>,
    name: &str,
    named: &str,
    timeout: Duration,
) -> Result<(), CommandError> {
    let what = format!("PersistentVolumeClaim {named}");
    progress::wait(&what, timeout, async || {
        let claim = get(claims, name, &what).await?;
        let status = claim.status.unwrap_or_default();
        if status.phase.as_deref() == Some("Bound") {
            return Ok(Progress::Done(()));
        }
        let condition = status.conditions.unwrap_or_default();
        let condition = condition
            .into_iter()
            .find(|condition| condition.type_ == CLAIM_CONDITION);
        Ok(Progress::Waits(match condition {
            Some(condition) => {
                let (reason, message) = (
                    condition.reason.unwrap_or_default(),
                    condition.message.unwrap_or_default(),
                );
                format!("{reason}: {message}")
            }
            None => "the operator has not seen it yet".to_owned(),
        }))
    })
    .await
}
