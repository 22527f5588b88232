//! Deletes the complete backups of a schedule beyond the number that it keeps.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::api::NfsArchive;
use crate::api::backup::NfsBackup;
use crate::api::names::qualified_name;
use crate::api::schedule::NfsBackupSchedule;
use crate::decide::schedule::is_of_schedule;
use crate::decide::self_service::is_archive_of;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::is_intact;
use crate::state::confirmed_export::ConfirmedExport;
use crate::state::context::Context;

/// A backup whose data exist.
#[derive(Debug, Clone)]
struct GoodBackup {
    backup: Arc<NfsBackup>,
    /// UID of the claim: one that was recreated does not replace the backups of its predecessor.
    claim_uid: String,
    is_held: bool,
}

/// Maximum number of backups of a claim whose data are searched before older ones are deleted. That the others exist is known
/// from the last check of their archives.
const MAX_CONFIRMED: usize = 10;

/// Backups of one claim.
#[derive(Debug)]
struct Surplus {
    /// The newest ones, which stay.
    kept: Vec<Arc<NfsBackup>>,
    /// Those to delete.
    delete: Vec<Arc<NfsBackup>>,
}

/// Deletes the oldest backups of each claim, as long as the schedule keeps enough newer ones whose data exist.
pub(super) async fn prune(ctx: &Context, schedule: &NfsBackupSchedule) -> Result<(), WriteError> {
    let Some(keep) = schedule.spec.keep_last.and_then(|keep| usize::try_from(keep).ok()) else {
        return Ok(());
    };
    let namespace = schedule.namespace().unwrap_or_default();
    let Some(namespace_uid) = ctx.namespace(&namespace).and_then(|found| found.uid()) else {
        return Ok(());
    };
    let api: Api<NfsBackup> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    let backups = ctx.stores.backups.state();
    let of_schedule = backups.iter().filter(|backup| is_of_schedule(backup, schedule));
    let good = of_schedule.filter_map(|backup| {
        let archive = ctx.stores.archives.get(&ObjectRef::new(&backup.archive_name()))?;
        good_backup(backup, &archive, &namespace_uid)
    });
    'claims: for surplus in surplus(good, keep) {
        for kept in surplus.kept.iter().take(MAX_CONFIRMED) {
            if !exists(ctx, kept, &namespace_uid).await? {
                continue 'claims;
            }
        }
        for backup in surplus.delete {
            match writes::delete_as_read(&api, &*backup, "delete a backup beyond keepLast").await {
                Ok(_) => tracing::info!(
                    backup = backup.name_any(),
                    namespace,
                    "deleted a backup beyond keepLast"
                ),
                // It changed, which requeues the schedule.
                Err(WriteError::Conflict | WriteError::Replaced) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reports whether the data of a backup exist now: the cache may be old. If this cannot be read, they count as lost.
async fn exists(ctx: &Context, backup: &Arc<NfsBackup>, namespace_uid: &str) -> Result<bool, WriteError> {
    let archives: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let archive = reads::get_opt(&archives, &backup.archive_name()).await;
    let archive = archive.map_err(WriteError::action("read the archive of a newer backup"))?;
    let Some(archive) = archive.filter(|archive| good_backup(backup, archive, namespace_uid).is_some()) else {
        return Ok(false);
    };
    let observed = archive.observed();
    let Ok(ConfirmedExport { backend, export }) =
        ConfirmedExport::find(ctx, &observed.backend_name, &observed.export_id)
    else {
        return Ok(false);
    };
    let _slot = backend.archives.acquire(&archive.spec.claim_ref.namespace).await;
    match is_intact(&archive, (&backend.name, &export)).await {
        Ok(is_intact) => Ok(is_intact),
        Err(error) => {
            tracing::warn!(
                backup = qualified_name(backup.as_ref()),
                "cannot look for its data: {error}"
            );
            Ok(false)
        }
    }
}

/// Returns the backup if its data exist. Its own status is not used: tenants may be able to write it.
fn good_backup(backup: &Arc<NfsBackup>, archive: &NfsArchive, namespace_uid: &str) -> Option<GoodBackup> {
    let observed = archive.observed();
    let is_good = archive.is_good()
        && backup.metadata.deletion_timestamp.is_none()
        && !observed.claim_uid.is_empty()
        && is_archive_of(backup, archive, namespace_uid);
    is_good.then(|| GoodBackup {
        backup: Arc::clone(backup),
        claim_uid: observed.claim_uid.clone(),
        is_held: archive.spec.legal_hold,
    })
}

/// Returns the backups of each claim beyond the newest ones, without those that are held. The age is that of the object, by the
/// clock of the API server.
fn surplus(good: impl Iterator<Item = GoodBackup>, keep: usize) -> Vec<Surplus> {
    let mut of_claims: BTreeMap<String, Vec<GoodBackup>> = BTreeMap::new();
    for backup in good {
        of_claims.entry(backup.claim_uid.clone()).or_default().push(backup);
    }
    let surplus = of_claims.into_values().filter_map(|mut backups| {
        backups.sort_by_key(|good| {
            let created = good.backup.metadata.creation_timestamp.as_ref().map(|time| time.0);
            Reverse((created, good.backup.name_any()))
        });
        // Whatever the object contains, one is kept.
        let older = backups.split_off(keep.max(1).min(backups.len()));
        let older = older.into_iter().filter(|good| !good.is_held);
        let delete: Vec<_> = older.map(|good| good.backup).collect();
        let kept = backups.into_iter().map(|good| good.backup).collect();
        (!delete.is_empty()).then_some(Surplus { kept, delete })
    });
    surplus.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn good(name: &str, claim: &str, hour: u32) -> GoodBackup {
        let created = format!("2026-01-01T{hour:02}:00:00Z");
        let metadata = json!({"name": name, "creationTimestamp": created});
        let spec = json!({"source": {"claimName": "data"}});
        GoodBackup {
            backup: Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()),
            claim_uid: claim.to_owned(),
            is_held: false,
        }
    }

    fn names(all: &[GoodBackup], keep: usize) -> Vec<String> {
        let surplus = surplus(all.iter().cloned(), keep);
        let deleted = surplus.iter().flat_map(|surplus| &surplus.delete);
        deleted.map(|backup| backup.name_any()).collect()
    }

    #[test]
    fn the_newest_backups_of_each_claim_are_kept() {
        let all = [
            good("a2", "a", 2),
            good("b1", "b", 1),
            good("a3", "a", 3),
            good("a1", "a", 1),
        ];
        assert_eq!(names(&all, 1), ["a2", "a1"]);
        assert_eq!(names(&all, 2), ["a1"]);
        assert_eq!(names(&all, 3), Vec::<String>::new());
        assert_eq!(names(&all, 0), ["a2", "a1"], "the schema refuses 0");
    }

    #[test]
    fn a_held_backup_is_kept_in_addition() {
        let mut all = [good("a3", "a", 3), good("a2", "a", 2), good("a1", "a", 1)];
        if let Some(second) = all.get_mut(1) {
            second.is_held = true;
        }
        assert_eq!(names(&all, 1), ["a1"]);
    }

    #[test]
    fn only_a_backup_whose_data_exist_counts() {
        let backup: NfsBackup = serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": "team", "uid": "u"}, "spec": {"source": {"claimName": "data"}},
        }))
        .unwrap();
        let archive = json!({
            "metadata": {"name": "nfsbackup-u"},
            "spec": {"claimRef": {"namespace": "team", "name": "data"}, "backupRef": {"name": "b", "uid": "u"}},
            "status": {"state": "Available", "fileID": "7", "claimUID": "c", "namespaceUID": "n"},
        });
        let counts = |pointer: &str, value: Value| {
            let mut archive = archive.clone();
            if let Some(field) = archive.pointer_mut(pointer) {
                *field = value;
            }
            let archive = serde_json::from_value(archive).unwrap();
            good_backup(&Arc::new(backup.clone()), &archive, "n").is_some()
        };
        assert!(counts("", archive.clone()));
        assert!(counts("/status/state", json!("Held")));
        for state in ["Copying", "Expired", "Purging", "Restoring", "Missing", "Unknown"] {
            assert!(!counts("/status/state", json!(state)), "{state}");
        }
        assert!(!counts("/status/fileID", Value::Null));
        assert!(!counts("/status/claimUID", json!("")));
        assert!(!counts("/status/namespaceUID", json!("recreated")));
        assert!(!counts("/spec/backupRef/uid", json!("other")));
        assert!(!counts(
            "/metadata",
            json!({"name": "nfsbackup-u", "deletionTimestamp": "2026-01-01T00:00:00Z"})
        ));
    }
}
