//! The identity that the export must have. Pure.

use kube::ResourceExt;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ACCEPT_IDENTITY;
use crate::api::requests::{BackendRequest, ids};
use crate::api::{NfsBackend, NfsBackendStatus};
use crate::state::recorded_ids::RecordedIds;
use export_store::{ExpectedIdentity, Identity, NEW_IDENTITY, OwnFileIds};

/// This cluster on exports, as the Secret with the key for records names it.
#[derive(Clone, Copy)]
pub struct OwnCluster<'a> {
    /// Name of its folder.
    pub id: &'a str,
    /// Returns true if the backend has volumes or archives, which are recorded in the folder.
    pub has_data: &'a (dyn Fn() -> bool + Sync),
}

/// Why the identity of an export is not confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct Unconfirmed {
    /// The condition.
    pub planned: PlannedCondition,
    /// Value of the annotation `nfs-operator.io/accept-identity` that accepts the export as it is, if one does.
    pub acceptable: Option<String>,
}

impl From<PlannedCondition> for Unconfirmed {
    fn from(planned: PlannedCondition) -> Self {
        Self {
            planned,
            acceptable: None,
        }
    }
}

/// Returns the condition of a backend whose volumes and archives another cluster recorded.
pub fn secret_mismatch(recorded_by: &str, own: &str, export_id: &str) -> Unconfirmed {
    let planned = PlannedCondition::fails(
        Reason::RecordsSecretMismatch,
        format!(
            "the volumes and archives of this backend are recorded for cluster {recorded_by}, and the Secret with the key \
             for records is that of cluster {own}: stop the operator, restore the Secret of this cluster from its copy, and \
             start it again. Nothing is changed until then. If that Secret is lost, annotate the backend with \
             {ACCEPT_IDENTITY}: {export_id} to continue without these records"
        ),
    );
    Unconfirmed {
        planned,
        acceptable: Some(export_id.to_owned()),
    }
}

/// Returns the expected identity, from the identity that an administrator `accepted` and that was not accepted before, the
/// status, the identity that this process `confirmed` last, and the volumes and archives of the backend. Volumes and archives
/// are looked up only if nothing else is known: there may be very many.
///
/// An identity may be created only if none is known: an unmounted disk must not get a new one (data-safety rule 2). The status
/// in the cache may be older than the last confirmation.
pub fn expected_identity(
    backend: &NfsBackend,
    accepted: Option<&str>,
    confirmed: Option<&Identity>,
    recorded: impl FnOnce() -> RecordedIds,
    cluster: OwnCluster<'_>,
) -> Result<ExpectedIdentity, Unconfirmed> {
    if let Some(accepted) = accepted.and_then(|value| ids(value).next()) {
        return Ok(accepted_identity(backend, accepted)?);
    }
    let known = |id: &str| ExpectedIdentity {
        export_id: Some(id.to_owned()),
        ..ExpectedIdentity::default()
    };
    let known_by_status = |id: &str, status: &NfsBackendStatus| {
        let former = status
            .export
            .cluster_id
            .as_deref()
            .filter(|former| *former != cluster.id);
        if let Some(former) = former.filter(|_| (cluster.has_data)()) {
            return Err(secret_mismatch(former, cluster.id, id));
        }
        Ok(ExpectedIdentity {
            root_file_id: file_id(status.export.root_file_id.as_ref(), "rootFileID")?,
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
        let same = status.export.id.as_ref() == Some(pinned);
        return if same {
            known_by_status(pinned, &status)
        } else {
            Ok(known(pinned))
        };
    }
    if let Some(id) = &status.export.id {
        return known_by_status(id, &status);
    }
    if let Some(confirmed) = confirmed {
        return Ok(ExpectedIdentity {
            root_file_id: Some(confirmed.root_file_id),
            own_file_ids: Some(confirmed.own_file_ids),
            ..known(&confirmed.id)
        });
    }
    let recorded = recorded();
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
        )
        .into()),
    }
}

/// Returns the identity that an administrator accepted. A new one is created only on an export that has none.
fn accepted_identity(backend: &NfsBackend, accepted: &str) -> Result<ExpectedIdentity, PlannedCondition> {
    if accepted != NEW_IDENTITY {
        if let Some(pinned) = other_pinned(backend, accepted) {
            return Err(PlannedCondition::fails(
                Reason::IdentityMismatch,
                format!(
                    "{ACCEPT_IDENTITY} accepts {accepted}, and spec.exportID pins {pinned}: correct or remove spec.exportID"
                ),
            ));
        }
        return Ok(ExpectedIdentity {
            export_id: Some(accepted.to_owned()),
            accepted: true,
            ..ExpectedIdentity::default()
        });
    }
    if let Some(pinned) = &backend.spec.export_id {
        return Err(PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!(
                "{ACCEPT_IDENTITY}: {NEW_IDENTITY} requests a new identity, and spec.exportID pins {pinned}: remove one of them"
            ),
        ));
    }
    Ok(ExpectedIdentity {
        may_create: true,
        must_create: true,
        accepted: true,
        ..ExpectedIdentity::default()
    })
}

/// Returns the identity that `spec.exportID` pins, if it is another one.
fn other_pinned<'a>(backend: &'a NfsBackend, id: &str) -> Option<&'a str> {
    backend.spec.export_id.as_deref().filter(|pinned| *pinned != id)
}

/// Adds the command to the reason why an export is not confirmed, if an acceptance confirms it, and that the acceptance was
/// used already.
pub fn explain_acceptance(unconfirmed: Unconfirmed, backend: &NfsBackend, accepted: Option<&str>) -> Unconfirmed {
    let (Some(value), None) = (&unconfirmed.acceptable, accepted) else {
        return unconfirmed;
    };
    if let Some(pinned) = other_pinned(backend, value) {
        let planned = &unconfirmed.planned;
        let message = format!(
            "{}. spec.exportID pins {pinned}: correct or remove it first",
            planned.message
        );
        return Unconfirmed {
            planned: PlannedCondition::fails(planned.reason, message),
            acceptable: None,
        };
    }
    let (used, again) = match BackendRequest::AcceptIdentity.value(backend) {
        Some(present) => (
            format!(
                ". The present value of that annotation, {present}, was handled before, or is older than this report: append @ \
                 and any text to accept the export"
            ),
            "@$(date +%s)",
        ),
        None => (String::new(), ""),
    };
    let name = backend.name_any();
    let planned = &unconfirmed.planned;
    let explained = PlannedCondition::fails(
        planned.reason,
        format!(
            "{} (kubectl annotate --overwrite nfsb {name} {ACCEPT_IDENTITY}={value}{again}){used}",
            planned.message
        ),
    );
    Unconfirmed {
        planned: explained,
        ..unconfirmed
    }
}

/// Returns the fileids of the operator's own files, unless an earlier release wrote the status.
fn own_file_ids(status: &NfsBackendStatus) -> Result<Option<OwnFileIds>, PlannedCondition> {
    let identity = file_id(status.export.identity_file_id.as_ref(), "identityFileID")?;
    let cluster = file_id(status.export.cluster_folder_file_id.as_ref(), "clusterFolderFileID")?;
    Ok(identity
        .zip(cluster)
        .map(|(identity, cluster)| OwnFileIds { identity, cluster }))
}

fn file_id(text: Option<&String>, field: &str) -> Result<Option<u64>, PlannedCondition> {
    text.map(|text| text.parse()).transpose().map_err(|_| {
        PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!("status.export.{field} is not a number: confirm with the annotation {ACCEPT_IDENTITY}"),
        )
    })
}

#[cfg(test)]
mod tests;
