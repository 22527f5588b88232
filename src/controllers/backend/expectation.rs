//! Which identity the export must have. Pure.

use std::collections::BTreeSet;

use crate::api::NfsBackend;
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::ACCEPT_IDENTITY;
use crate::export::{Expected, Identity};
use kube::ResourceExt;

/// What the identity must be, from the administrator's word, the status, what was `confirmed` by this process last, and the
/// volumes' annotations.
///
/// An identity may be made only where none is known: an unmounted disk must not get a new one. The status may be written and
/// not yet seen, or not be written yet.
pub fn expected(
    backend: &NfsBackend,
    confirmed: Option<&Identity>,
    volumes: &BTreeSet<String>,
) -> Result<Expected, Verdict> {
    if let Some(accepted) = backend.annotations().get(ACCEPT_IDENTITY) {
        return Ok(Expected {
            export_id: Some(accepted.clone()),
            root_file_id: None,
            may_create: false,
            accepted: true,
        });
    }
    let status = backend.status.clone().unwrap_or_default();
    if let Some(pinned) = &backend.spec.export_id {
        let same = status.export_id.as_ref() == Some(pinned);
        let root_file_id = if same { root_file_id(&status)? } else { None };
        return Ok(Expected {
            export_id: Some(pinned.clone()),
            root_file_id,
            may_create: false,
            accepted: false,
        });
    }
    if let Some(known) = &status.export_id {
        return Ok(Expected {
            export_id: Some(known.clone()),
            root_file_id: root_file_id(&status)?,
            may_create: false,
            accepted: false,
        });
    }
    if let Some(confirmed) = confirmed {
        return Ok(Expected {
            export_id: Some(confirmed.id.clone()),
            root_file_id: Some(confirmed.root_file_id),
            may_create: false,
            accepted: false,
        });
    }
    let mut known = volumes.iter();
    match (known.next(), known.next()) {
        (None, _) => Ok(Expected {
            export_id: None,
            root_file_id: None,
            may_create: true,
            accepted: false,
        }),
        (Some(id), None) => Ok(Expected {
            export_id: Some(id.clone()),
            root_file_id: None,
            may_create: false,
            accepted: false,
        }),
        (Some(one), Some(other)) => Err(Verdict::no(
            Reason::IdentityMismatch,
            format!("volumes of this backend are on exports {one} and {other}: pin one with spec.exportID"),
        )),
    }
}

fn root_file_id(status: &crate::api::NfsBackendStatus) -> Result<Option<u64>, Verdict> {
    status.root_file_id.as_deref().map(str::parse).transpose().map_err(|_| {
        Verdict::no(
            Reason::IdentityMismatch,
            "status.rootFileID is not a number: confirm with the annotation nfs-operator.io/accept-identity",
        )
    })
}

#[cfg(test)]
mod tests;
