//! What the operator would refuse or ignore, checked before the claim is created. What the user may not read is not
//! checked.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use crate::api::{NfsArchive, NfsBackend};
use crate::cli::cluster::{CommandError, failed, is_forbidden};
use crate::cli::kubectl_nfs::served::ServedArguments;
use crate::decide::restore_permission::{is_from, is_listed, is_namesake};
use crate::runtime::reads;
use export_store::text::escape;

/// Whether a namespace may have the data of an archive.
#[derive(Debug, PartialEq, Eq)]
enum Permission {
    /// The archive came from the namespace, or allows it.
    Granted,
    /// The namespace has the name of the one that the archive came from, and another UID: its backend decides.
    ByName,
    /// Nothing allows it.
    Denied,
}

impl Permission {
    fn of(archive: &NfsArchive, namespace: &PartialObjectMeta<Namespace>) -> Self {
        if is_from(namespace, archive) || is_listed(namespace, archive) {
            Self::Granted
        } else if is_namesake(namespace, archive) {
            Self::ByName
        } else {
            Self::Denied
        }
    }
}

/// Refuses a namespace that does not exist, or that may not have the data of the archive.
pub async fn check_namespace(client: &Client, archive: &NfsArchive, namespace: &str) -> Result<(), CommandError> {
    let what = format!("Namespace {namespace}");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = reads::get_metadata_opt(&namespaces, namespace).await;
    let Some(found) = if_readable(&what, found)? else {
        return Ok(());
    };
    let found =
        found.ok_or_else(|| CommandError::Usage(format!("{what} does not exist: create it, or set --namespace")))?;
    let (archive_name, backend) = (archive.name_any(), archive.backend_name());
    let list_it = "add the namespace to spec.allowedNamespaces of the archive";
    match Permission::of(archive, &found) {
        Permission::Granted => Ok(()),
        Permission::ByName if restores_by_name(client, backend).await? => Ok(()),
        Permission::ByName => Err(CommandError::Refused(format!(
            "NfsArchive {archive_name} came from another namespace {namespace}, by its UID: {list_it}, or set \
             archivePolicy.restoreByName of backend {backend} while claims are restored"
        ))),
        Permission::Denied => Err(CommandError::Refused(format!(
            "NfsArchive {archive_name} may not be restored in namespace {namespace}: {list_it}"
        ))),
    }
}

/// Returns true if the backend allows restores by the name of the namespace, or if the user may not read it.
async fn restores_by_name(client: &Client, name: &str) -> Result<bool, CommandError> {
    let found = reads::get_opt(&Api::<NfsBackend>::all(client.clone()), name).await;
    let found = if_readable(&format!("NfsBackend {name}"), found)?;
    Ok(found.is_none_or(|found| found.is_some_and(|backend| backend.spec.archive_policy.restore_by_name)))
}

/// Refuses a class that does not exist, or that is one of another provisioner.
pub async fn check_class(client: &Client, class: &str, served: ServedArguments) -> Result<(), CommandError> {
    let what = format!("StorageClass {class}");
    let found = reads::get_opt(&Api::<StorageClass>::all(client.clone()), class).await;
    let Some(found) = if_readable(&what, found)? else {
        return Ok(());
    };
    let found = found.ok_or_else(|| {
        CommandError::Usage(format!(
            "{what} does not exist: set --storage-class to one of nfs-operator"
        ))
    })?;
    match served.read(client).await?.serves(&found.provisioner) {
        true => Ok(()),
        false => Err(CommandError::Usage(format!(
            "{what} is one of the provisioner {}: set --storage-class to one of nfs-operator; if that is a name of \
             nfs-operator, set --provisioner-name or --provisioner-alias as the operator has them, or \
             --operator-namespace",
            found.provisioner
        ))),
    }
}

/// Returns what was read, or `None` with a remark if the user may not read it.
fn if_readable<T>(what: &str, read: kube::Result<T>) -> Result<Option<T>, CommandError> {
    match read.map_err(failed(format!("read {what}"))) {
        Err(error) if is_forbidden(&error) => {
            eprintln!("not checked, because you may not read it: {}", escape(what));
            Ok(None)
        }
        read => read.map(Some),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_archive_is_for_its_own_namespace_and_those_that_it_allows() {
        let permission = |recorded_uid: &str, name: &str, uid: &str, team: &str| {
            let archive = json!({"metadata": {"name": "a"}, "spec": {
                "claimRef": {"namespace": "shop", "name": "data"},
                "allowedNamespaces": {"matchNames": ["test"], "selector": {"matchLabels": {"team": "shop"}}},
            }, "status": {"namespaceUID": recorded_uid}});
            let archive: NfsArchive = serde_json::from_value(archive).unwrap();
            let namespace = json!({"metadata": {"name": name, "uid": uid, "labels": {"team": team}}});
            Permission::of(&archive, &serde_json::from_value(namespace).unwrap())
        };
        assert_eq!(permission("1", "shop", "1", ""), Permission::Granted);
        assert_eq!(permission("1", "test", "2", ""), Permission::Granted);
        assert_eq!(permission("1", "other", "2", "shop"), Permission::Granted);
        assert_eq!(permission("1", "shop", "2", ""), Permission::ByName);
        assert_eq!(permission("", "shop", "", ""), Permission::ByName);
        assert_eq!(permission("1", "other", "1", ""), Permission::Denied);
    }
}
