//! The identity that the export must have. Pure.

use std::collections::BTreeSet;

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ACCEPT_IDENTITY;
use export_store::{ExpectedIdentity, Identity};
use kube::ResourceExt;

/// Returns the expected identity, from the administrator's annotation, the status, the identity that this process `confirmed`
/// last, and the annotations of volumes.
///
/// An identity may be created only if none is known: an unmounted disk must not get a new one (data-safety rule 2). The status
/// in the cache may be older than the last confirmation.
pub fn expected_identity(
    backend: &NfsBackend,
    confirmed: Option<&Identity>,
    volumes: &BTreeSet<String>,
) -> Result<ExpectedIdentity, PlannedCondition> {
    if let Some(accepted) = backend.annotations().get(ACCEPT_IDENTITY) {
        return Ok(ExpectedIdentity {
            export_id: Some(accepted.clone()),
            accepted: true,
            ..ExpectedIdentity::default()
        });
    }
    let known = |id: &str, root_file_id| ExpectedIdentity {
        export_id: Some(id.to_owned()),
        root_file_id,
        ..ExpectedIdentity::default()
    };
    let status = backend.status.clone().unwrap_or_default();
    if let Some(pinned) = &backend.spec.export_id {
        let same = status.export_id.as_ref() == Some(pinned);
        let root_file_id = if same { root_file_id(&status)? } else { None };
        return Ok(known(pinned, root_file_id));
    }
    if let Some(id) = &status.export_id {
        return Ok(known(id, root_file_id(&status)?));
    }
    if let Some(confirmed) = confirmed {
        return Ok(known(&confirmed.id, Some(confirmed.root_file_id)));
    }
    let mut ids = volumes.iter();
    match (ids.next(), ids.next()) {
        (None, _) => Ok(ExpectedIdentity {
            may_create: true,
            ..ExpectedIdentity::default()
        }),
        (Some(id), None) => Ok(known(id, None)),
        (Some(one), Some(other)) => Err(PlannedCondition::fails(
            Reason::IdentityMismatch,
            format!("volumes of this backend are on exports {one} and {other}: pin one of them with spec.exportID"),
        )),
    }
}

fn root_file_id(status: &crate::api::NfsBackendStatus) -> Result<Option<u64>, PlannedCondition> {
    status.root_file_id.as_deref().map(str::parse).transpose().map_err(|_| {
        PlannedCondition::fails(
            Reason::IdentityMismatch,
            "status.rootFileID is not a number: confirm with the annotation nfs-operator.io/accept-identity",
        )
    })
}

#[cfg(test)]
mod tests;
