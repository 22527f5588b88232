//! `kubectl nfs archives restore`: a claim with the data of an archive.

mod checks;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kube::Api;

use crate::api::NfsArchive;
use crate::cli::cluster::{ClusterArguments, CommandError, get};
use crate::cli::kubectl_nfs::completion::object_names;
use crate::cli::kubectl_nfs::names::parse_archive;
use crate::cli::kubectl_nfs::new_claim::{DataSource, NewClaimArguments};
use crate::cli::kubectl_nfs::served::ServedArguments;

/// Arguments of `kubectl nfs archives restore`.
#[derive(Args)]
pub struct RestoreArguments {
    /// Name of the archive.
    #[arg(value_parser = parse_archive, add = object_names::archives())]
    archive: String,
    #[command(flatten)]
    claim: NewClaimArguments,
    /// Namespace of the claim to create. If unset, the one that the archive came from.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Whether the archive becomes the volume, or is copied. If unset, archives of deleted claims are moved if possible, and
    /// backups are copied.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    #[command(flatten)]
    served: ServedArguments,
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

/// Creates the claim, and waits for its volume with `--wait`.
pub async fn run(arguments: RestoreArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let name = &arguments.archive;
    let archive = get(
        &Api::<NfsArchive>::all(client.clone()),
        name,
        &format!("NfsArchive {name}"),
    )
    .await?;
    if !archive.is_complete() {
        return Err(CommandError::Refused(format!(
            "NfsArchive {name} has no data yet: kubectl get nfsa {name} shows its state"
        )));
    }
    let namespace = arguments
        .namespace
        .as_ref()
        .unwrap_or(&archive.spec.claim_ref.namespace);
    let observed = archive.observed();
    let source = DataSource {
        kind: "NfsArchive",
        name,
        size: observed.requested_size.clone().map(|size| size.0),
        class: observed.storage_class_name.clone(),
        mode: arguments
            .mode
            .map(|mode| if mode == Mode::Move { "move" } else { "copy" }),
        effect: effect(&arguments, &archive, namespace),
    };
    checks::check_namespace(&client, &archive, namespace).await?;
    checks::check_class(&client, arguments.claim.class(&source)?, arguments.served).await?;
    arguments.claim.create(&client, namespace, &source).await
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
