//! Deletion of a backup: what happens to its archive. Pure, except for the reads and writes of [`clean_up`].

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt, Resource, ResourceExt};

use crate::api::NfsArchive;
use crate::api::backup::NfsBackup;
use crate::api::conditions::Reason;
use crate::api::names::BACKUP_FINALIZER;
use crate::decide::self_service::is_archive_of;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;

/// What is deleted besides the backup itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deletion {
    /// The definition of the kind is being deleted, and with it all backups.
    of_kind: bool,
    /// The namespace is being deleted, and with it all its objects.
    of_namespace: bool,
}

/// What happens to the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is deleted, as its deletion policy and retention allow.
    Delete,
    /// It stays, because it is held.
    StaysHeld,
    /// It stays, because the deletion was not of this backup alone.
    Stays,
}

/// Decides what happens to the archive of a deleted backup. The data of a complete backup are deleted only with that backup:
/// whoever deletes a namespace or a kind may not think of its backups.
fn fate(archive: &NfsArchive, deletion: Deletion) -> Fate {
    match archive.is_complete() {
        _ if archive.spec.legal_hold => Fate::StaysHeld,
        true if deletion.of_kind || deletion.of_namespace => Fate::Stays,
        _ => Fate::Delete,
    }
}

/// Deletes the archive of a backup that is being deleted, if nothing speaks against it, and lets the backup go.
pub(super) async fn clean_up(ctx: &Context, backup: &NfsBackup) -> Result<(), WriteError> {
    if writes::with_finalizer(&backup.metadata, BACKUP_FINALIZER, false).is_none() {
        return Ok(());
    }
    let namespace = backup.namespace().unwrap_or_default();
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let live = reads::get_metadata_opt(&namespaces, &namespace).await;
    let live = live.map_err(WriteError::action("read the namespace of the backup"))?;
    let namespace_uid = live.as_ref().and_then(|live| live.uid()).unwrap_or_default();
    let archives: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let archive = reads::get_opt(&archives, &backup.archive_name()).await;
    let archive = archive.map_err(WriteError::action("read the archive of a deleted backup"))?;
    let own = archive.filter(|archive| backup.claim_name().is_some() && is_archive_of(backup, archive, &namespace_uid));
    if let Some(archive) = own {
        let deletion = Deletion {
            of_kind: is_kind_deleting(ctx).await?,
            of_namespace: live.is_none_or(|live| live.metadata.deletion_timestamp.is_some()),
        };
        match fate(&archive, deletion) {
            Fate::Delete if archive.metadata.deletion_timestamp.is_none() => {
                writes::delete_as_read(&archives, &archive, "delete the archive of a backup").await?;
            }
            Fate::Delete | Fate::Stays => {}
            Fate::StaysHeld => {
                let note = format!(
                    "NfsArchive {} has a legal hold, and stays: an administrator decides about it",
                    archive.name_any()
                );
                let regarding = backup.object_ref(&());
                ctx.events
                    .publish(regarding, Severity::Warning, Reason::ArchiveHeld, "Delete", &note);
            }
        }
    }
    let api: Api<NfsBackup> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    writes::drop_finalizer(&api, backup, BACKUP_FINALIZER).await
}

/// Returns true if the definition of the kind is being deleted or does not exist.
async fn is_kind_deleting(ctx: &Context) -> Result<bool, WriteError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(ctx.clients.calls.clone());
    let definition = reads::get_metadata_opt(&definitions, NfsBackup::crd_name())
        .await
        .map_err(WriteError::action("read the definition of NfsBackup"))?;
    Ok(definition.is_none_or(|definition| definition.metadata.deletion_timestamp.is_some()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_deletion_of_the_backup_itself_deletes_complete_data_and_a_hold_prevents_it() {
        let archive = |complete: bool, held: bool| -> NfsArchive {
            let spec = json!({"claimRef": {"namespace": "n", "name": "c"}, "legalHold": held});
            let status = if complete { json!({"fileID": "7"}) } else { json!({}) };
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": status})).unwrap()
        };
        for (complete, held, of_kind, of_namespace, expected) in [
            (true, false, false, false, Fate::Delete),
            (true, false, true, false, Fate::Stays),
            (true, false, false, true, Fate::Stays),
            (false, false, false, true, Fate::Delete),
            (false, false, true, false, Fate::Delete),
            (true, true, false, false, Fate::StaysHeld),
            (false, true, false, true, Fate::StaysHeld),
        ] {
            let deletion = Deletion { of_kind, of_namespace };
            assert_eq!(
                fate(&archive(complete, held), deletion),
                expected,
                "{complete} {held} {deletion:?}"
            );
        }
    }
}
