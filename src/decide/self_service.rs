//! Backups that tenants may create, and the archives that these have. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::backend::SelfServiceBackups;
use crate::api::backup::NfsBackup;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::{NfsArchive, NfsBackend};
use crate::decide::placement::is_namespace_allowed;
use crate::decide::quantity;
use export_store::text::format_amount;

/// Backups on a backend that tenants requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackupUsage {
    /// Number of those of the namespace.
    pub count: u64,
    /// Sum of the requests of their claims, in bytes.
    pub bytes: u128,
    /// The same for all namespaces.
    pub all_bytes: u128,
}

/// Returns the settings of a backend if a namespace with this name and these labels may create backups there.
///
/// # Errors
/// The condition that names the field to set.
pub fn allowed<'a>(
    backend: &'a NfsBackend,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<&'a SelfServiceBackups, PlannedCondition> {
    let name = backend.name_any();
    let settings = backend
        .spec
        .backups
        .as_ref()
        .and_then(|backups| backups.self_service.as_ref());
    let Some(settings) = settings else {
        return Err(PlannedCondition::fails(
            Reason::SelfServiceNotAllowed,
            format!(
                "tenants may not create backups on backend {name}: ask an administrator to set spec.backups.selfService of \
                 NfsBackend {name}"
            ),
        ));
    };
    let selected = settings.allowed_namespaces.as_ref();
    if selected.is_none_or(|allowed| is_namespace_allowed(allowed, namespace, labels)) {
        return Ok(settings);
    }
    Err(PlannedCondition::fails(
        Reason::SelfServiceNotAllowed,
        format!(
            "namespace {namespace} may not create backups on backend {name}: ask an administrator to add it to \
             spec.backups.selfService.allowedNamespaces of NfsBackend {name}"
        ),
    ))
}

/// Checks that another backup of a claim that requests this many bytes stays within the limits. A limit that cannot be parsed,
/// which the schema refuses, is reached.
pub fn check_quota(
    backend: &str,
    namespace: &str,
    settings: &SelfServiceBackups,
    used: &BackupUsage,
    bytes: u128,
) -> Result<(), PlannedCondition> {
    let limit = |amount: &str| quantity::bytes(amount).unwrap_or_default();
    let reached = |what: String, field: &str| {
        let message = format!(
            "{what}: delete backups with ORIGIN Claim that are no longer needed, or ask an administrator to raise \
             spec.backups.selfService.{field} of NfsBackend {backend}; the backup is then made automatically"
        );
        Err(PlannedCondition::fails(Reason::BackupQuotaExceeded, message))
    };
    if i64::try_from(used.count).unwrap_or(i64::MAX) >= i64::from(settings.max_per_namespace) {
        let what = format!(
            "namespace {namespace} has the maximum number of backups on backend {backend}, {}",
            settings.max_per_namespace
        );
        return reached(what, "maxPerNamespace");
    }
    let of_namespace = limit(&settings.max_bytes_per_namespace);
    if used.bytes.saturating_add(bytes) > of_namespace {
        let what = format!(
            "with another {}, the backups of namespace {namespace} on backend {backend} would exceed {}",
            format_amount(bytes),
            format_amount(of_namespace)
        );
        return reached(what, "maxBytesPerNamespace");
    }
    match settings.max_bytes.as_deref().map(limit) {
        Some(of_all) if used.all_bytes.saturating_add(bytes) > of_all => {
            let what = format!(
                "with another {}, the backups of all namespaces on backend {backend} would exceed {}",
                format_amount(bytes),
                format_amount(of_all)
            );
            reached(what, "maxBytes")
        }
        _ => Ok(()),
    }
}

/// Returns true if an archive has the data of a backup. The UIDs decide: of the backup, in the name of an archive that was
/// created for it, and of the namespace, which a recreated namespace does not have.
pub fn is_archive_of(backup: &NfsBackup, archive: &NfsArchive, namespace_uid: &str) -> bool {
    let (claim, recorded_uid) = (&archive.spec.claim_ref, &archive.observed().namespace_uid);
    if archive.name_any() != backup.archive_name() || Some(&claim.namespace) != backup.namespace().as_ref() {
        return false;
    }
    match backup.claim_name() {
        Some(name) => {
            let reference = archive.spec.backup_ref.as_ref();
            name == claim.name
                // An archive that was recreated from its record has no reference.
                && reference.is_none_or(|reference| Some(&reference.uid) == backup.metadata.uid.as_ref())
                // Unknown until the copy starts.
                && (recorded_uid.is_empty() || recorded_uid == namespace_uid)
        }
        None => archive.is_complete() && !recorded_uid.is_empty() && recorded_uid == namespace_uid,
    }
}

/// Returns true if an archive is shown in its namespace, which has this UID: it is complete, and of a deleted claim.
pub fn is_shown(archive: &NfsArchive, namespace_uid: &str) -> bool {
    let recorded_uid = &archive.observed().namespace_uid;
    archive.is_complete()
        && !archive.is_on_demand()
        && archive.metadata.deletion_timestamp.is_none()
        && !recorded_uid.is_empty()
        && recorded_uid == namespace_uid
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backend(self_service: &Value) -> NfsBackend {
        let spec = json!({"server": "s", "path": "/p", "backups": {"selfService": self_service}});
        serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": spec})).unwrap()
    }

    fn labels(value: &str) -> BTreeMap<String, String> {
        [("tier".to_owned(), value.to_owned())].into()
    }

    #[test]
    fn tenants_create_backups_only_where_an_administrator_allows_it_and_the_refusal_names_the_field() {
        let refused = |backend: &NfsBackend| allowed(backend, "team", &labels("a")).unwrap_err();
        let off: NfsBackend =
            serde_json::from_value(json!({"metadata": {}, "spec": {"server": "s", "path": "/p"}})).unwrap();
        for (backend, field) in [
            (off, "spec.backups.selfService of"),
            (
                backend(&json!({"maxBytesPerNamespace": "1Gi", "allowedNamespaces": {"matchNames": ["other"]}})),
                "spec.backups.selfService.allowedNamespaces of",
            ),
        ] {
            let condition = refused(&backend);
            assert_eq!(condition.reason, Reason::SelfServiceNotAllowed);
            assert!(condition.message.contains(field), "{}", condition.message);
        }
        let everyone = backend(&json!({"maxBytesPerNamespace": "1Gi"}));
        assert_eq!(allowed(&everyone, "team", &labels("a")).unwrap().max_per_namespace, 30);
        let selector = json!({"selector": {"matchLabels": {"tier": "a"}}});
        let selected = backend(&json!({"maxBytesPerNamespace": "1Gi", "allowedNamespaces": selector}));
        assert!(allowed(&selected, "team", &labels("a")).is_ok());
        assert!(allowed(&selected, "team", &labels("b")).is_err());
    }

    #[test]
    fn each_limit_is_kept_and_its_refusal_names_it() {
        let settings = json!({"maxPerNamespace": 2, "maxBytesPerNamespace": "3Gi", "maxBytes": "4Gi"});
        let settings: SelfServiceBackups = serde_json::from_value(settings).unwrap();
        let gi = |n: u128| n << 30;
        let result = |count, bytes, all_bytes| {
            let used = BackupUsage {
                count,
                bytes: gi(bytes),
                all_bytes: gi(all_bytes),
            };
            check_quota("main", "team", &settings, &used, gi(1)).map_err(|condition| {
                assert_eq!(condition.reason, Reason::BackupQuotaExceeded);
                let message = condition.message;
                let (_, field) = message.split_once("selfService.").unwrap();
                field.split(' ').next().unwrap().to_owned()
            })
        };
        assert_eq!(result(1, 2, 3), Ok(()));
        assert_eq!(result(2, 0, 0), Err("maxPerNamespace".to_owned()));
        assert_eq!(result(1, 3, 3), Err("maxBytesPerNamespace".to_owned()));
        assert_eq!(result(0, 0, 4), Err("maxBytes".to_owned()));
    }

    fn backup(source: &Value) -> NfsBackup {
        let metadata = json!({"name": "b", "namespace": "team", "uid": "u"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"source": source}})).unwrap()
    }

    fn archive(name: &str, change: (&str, Value)) -> NfsArchive {
        let mut object = json!({
            "metadata": {"name": name},
            "spec": {"claimRef": {"namespace": "team", "name": "data"}, "backupRef": {"name": "b", "uid": "u"}},
            "status": {"namespaceUID": "ns", "fileID": "7", "volumeName": "pvc-1", "directory": "archived-x"},
        });
        if let Some(field) = object.pointer_mut(change.0) {
            *field = change.1;
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_backup_has_only_the_archive_that_was_created_for_it_in_this_namespace() {
        let backup = backup(&json!({"claimName": "data"}));
        let result = |name, change| is_archive_of(&backup, &archive(name, change), "ns");
        assert!(result("nfsbackup-u", ("/none", json!(0))));
        assert!(
            result("nfsbackup-u", ("/status/namespaceUID", json!(""))),
            "not described yet"
        );
        assert!(
            result("nfsbackup-u", ("/spec/backupRef", json!(null))),
            "recreated from its record"
        );
        assert!(!result("nfsbackup-v", ("/none", json!(0))));
        for (field, value) in [
            ("/spec/backupRef/uid", "v"),
            ("/spec/claimRef/namespace", "other"),
            ("/spec/claimRef/name", "other"),
            ("/status/namespaceUID", "former"),
        ] {
            assert!(!result("nfsbackup-u", (field, json!(value))), "{field}");
        }
    }

    #[test]
    fn an_existing_archive_is_shown_only_in_the_namespace_that_it_came_from() {
        let backup = backup(&json!({"archiveName": "pvc-1"}));
        let result = |change| is_archive_of(&backup, &archive("pvc-1", change), "ns");
        assert!(result(("/none", json!(0))));
        for (field, value) in [
            ("/spec/claimRef/namespace", json!("other")),
            ("/status/namespaceUID", json!("former")),
            ("/status/namespaceUID", json!("")),
            ("/status/fileID", json!(null)),
        ] {
            assert!(!result((field, value)), "{field}");
        }
    }

    #[test]
    fn only_archives_of_deleted_claims_are_shown_unasked() {
        assert!(is_shown(&archive("pvc-1", ("/none", json!(0))), "ns"));
        assert!(!is_shown(&archive("pvc-1", ("/none", json!(0))), "recreated"));
        assert!(!is_shown(&archive("nightly", ("/none", json!(0))), "ns"));
        assert!(!is_shown(&archive("pvc-1", ("/status/fileID", json!(null))), "ns"));
    }
}
