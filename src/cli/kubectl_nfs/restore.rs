//! `kubectl nfs restore`: a claim with the data of an NfsBackup, with the rights of a tenant.

use std::process::ExitCode;

use clap::Args;
use kube::Api;

use super::completion::object_names;
use super::names::parse_backup;
use super::new_claim::{DataSource, NewClaimArguments};
use crate::api::NfsBackup;
use crate::cli::cluster::{ClusterArguments, CommandError, failed, get};
use crate::runtime::reads;

/// Arguments of `kubectl nfs restore`.
#[derive(Args)]
pub struct RestoreArguments {
    /// NfsBackup to restore.
    #[arg(value_name = "nfsbackup/NAME", value_parser = parse_backup, add = object_names::backups())]
    backup: String,
    #[command(flatten)]
    claim: NewClaimArguments,
    /// Namespace of the backup and of the claim to create. If unset, that of the context.
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Creates the claim, and waits for its volume with `--wait`.
pub async fn run(arguments: RestoreArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let name = &arguments.backup;
    let backups: Api<NfsBackup> = Api::namespaced(client.clone(), namespace);
    let backup = get(&backups, name, &format!("NfsBackup {namespace}/{name}")).await?;
    let observed = backup.observed();
    if observed.completion_time.is_none() {
        return Err(CommandError::Refused(format!(
            "NfsBackup {namespace}/{name} has no data yet: kubectl get nfsbackup {name} -n {namespace} shows its state"
        )));
    }
    let claim = reads::get_claim(&client, namespace, observed.claim_name.as_deref().unwrap_or_default()).await;
    let claim = claim.map_err(failed("read the claim that was backed up"))?;
    let source = DataSource {
        kind: "NfsBackup",
        name,
        size: observed.requested_size.clone().map(|size| size.0),
        class: claim.and_then(|claim| claim.spec?.storage_class_name),
        mode: None,
        effect: "the data of the backup are copied, and it is kept",
    };
    arguments.claim.create(&client, namespace, &source).await
}
