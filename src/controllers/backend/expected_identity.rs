//! The identity that the export must have. Pure.

use std::collections::BTreeSet;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ACCEPT_IDENTITY;
use crate::api::{NfsBackend, NfsBackendStatus};
use export_store::{ExpectedIdentity, Identity, OwnFileIds};
use kube::ResourceExt;

/// This cluster on exports, as the Secret with the key for records names it.
#[derive(Debug, Clone, Copy)]
pub struct OwnCluster<'a> {
    /// Name of its folder.
    pub id: &'a str,
    /// The backend has volumes or archives, which are recorded in the folder.
    pub has_data: bool,
}

/// Identities of exports that the objects of a backend record.
#[derive(Debug, Clone, Default)]
pub struct RecordedIds {
    /// In annotations of volumes.
    pub volumes: BTreeSet<String>,
    /// In the specs of archives. They count if there are no volumes: an archive may be on a former export of its backend.
    pub archives: BTreeSet<String>,
}

/// Returns the condition of a backend whose volumes and archives another cluster recorded.
pub fn secret_mismatch(recorded_by: &str, own: &str, export_id: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::RecordsSecretMismatch,
        format!(
            "the volumes and archives of this backend are recorded for cluster {recorded_by}, and the Secret with the key \
             for records is that of cluster {own}: stop the operator, restore the Secret of this cluster from its copy, and \
             start it again. Nothing is changed until then. If that Secret is lost, annotate the backend with \
             {ACCEPT_IDENTITY}: {export_id} to continue without these records"
        ),
    )
}

/// Returns the expected identity, from the administrator's annotation, the status, the identity that this process `confirmed`
/// last, and the volumes and archives of the backend.
///
/// An identity may be created only if none is known: an unmounted disk must not get a new one (data-safety rule 2). The status
/// in the cache may be older than the last confirmation.
pub fn expected_identity(
    backend: &NfsBackend,
    confirmed: Option<&Identity>,
    recorded: &RecordedIds,
    cluster: OwnCluster<'_>,
) -> Result<ExpectedIdentity, PlannedCondition> {
    if let Some(accepted) = backend.annotations().get(ACCEPT_IDENTITY) {
        return Ok(ExpectedIdentity {
            export_id: Some(accepted.clone()),
            accepted: true,
            ..ExpectedIdentity::default()
        });
    }
    let known = |id: &str| ExpectedIdentity {
        export_id: Some(id.to_owned()),
        ..ExpectedIdentity::default()
    };
    let known_by_status = |id: &str, status: &NfsBackendStatus| {
        let former = status.cluster_id.as_deref().filter(|former| *former != cluster.id);
        if let Some(former) = former.filter(|_| cluster.has_data) {
            return Err(secret_mismatch(former, cluster.id, id));
        }
        Ok(ExpectedIdentity {
            root_file_id: file_id(status.root_file_id.as_ref(), "rootFileID")?,
            // Those in the status are of the folder of the former cluster.
            own_file_ids: match former {
                Some(_) => None,
                None => own_file_ids(status)?,
            },
            ..known(id)
        })
    };
    let status = backend.status.clone().unwrap_or_default();
    if let Some(pinned) = &backend.spec.export_id {
        let same = status.export_id.as_ref() == Some(pinned);
        return if same {
            known_by_status(pinned, &status)
        } else {
            Ok(known(pinned))
        };
    }
    if let Some(id) = &status.export_id {
        return known_by_status(id, &status);
    }
    if let Some(confirmed) = confirmed {
        return Ok(ExpectedIdentity {
            root_file_id: Some(confirmed.root_file_id),
            own_file_ids: Some(confirmed.own_file_ids),
            ..known(&confirmed.id)
        });
    }
    let (what, ids) = match recorded.volumes.is_empty() {
        true => ("archives", &recorded.archives),
        false => ("volumes", &recorded.volumes),
    };
    let mut ids = ids.iter();
    match (ids.next(), ids.next()) {
        (None, _) => Ok(ExpectedIdentity {
            may_create: true,
            ..ExpectedIdentity::default()
        }),
        (Some(id), None) => Ok(known(id)),
        (Some(one), Some(other)) => Err(PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!("{what} of this backend are on exports {one} and {other}: pin one of them with spec.exportID"),
        )),
    }
}

/// Returns the fileids of the operator's own files, unless an earlier release wrote the status.
fn own_file_ids(status: &NfsBackendStatus) -> Result<Option<OwnFileIds>, PlannedCondition> {
    let identity = file_id(status.identity_file_id.as_ref(), "identityFileID")?;
    let cluster = file_id(status.cluster_folder_file_id.as_ref(), "clusterFolderFileID")?;
    Ok(identity
        .zip(cluster)
        .map(|(identity, cluster)| OwnFileIds { identity, cluster }))
}

fn file_id(text: Option<&String>, field: &str) -> Result<Option<u64>, PlannedCondition> {
    text.map(|text| text.parse()).transpose().map_err(|_| {
        PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!("status.{field} is not a number: confirm with the annotation {ACCEPT_IDENTITY}"),
        )
    })
}

#[cfg(test)]
mod tests;
