//! The record of an object whose status does not describe an archive yet: the operator created the object and was stopped
//! before it wrote the status, the status was lost, or a user imports an archive.

use std::sync::Arc;

use kube::ResourceExt;

use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::archive_object::is_of_claim;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportStore, RecordedArchive, SignatureStatus};

/// Result of the search for the record of an object.
pub(super) enum FoundRecord {
    /// The archive, and the name of its backend.
    Archive(Box<RecordedArchive>, String),
    /// There is none: the object requests a backup.
    None,
    /// The record cannot be read now, if there is one.
    Unreadable(PlannedCondition),
    /// The object cannot have the archive of its name: the reason.
    Refused(PlannedCondition),
}

/// A backend whose records were not read.
#[derive(Debug)]
struct UnreadBackend {
    name: String,
    /// It was probed, and cannot be used at present.
    is_probed: bool,
}

/// Searches the record that has the name of an object. Reads only a record that is known to exist, or that a reserved name
/// suggests: the archive of a volume that had a claim when the records were read is not known.
pub(super) async fn find_record(ctx: &Context, object: &NfsArchive) -> FoundRecord {
    let name = object.name_any();
    let mut unread: Option<UnreadBackend> = None;
    let mut found: Option<(Box<RecordedArchive>, String)> = None;
    for known in ctx.stores.backends.state() {
        let Some((backend, export)) = recovered_export(ctx, &known.name_any()) else {
            let name = known.name_any();
            let is_probed = is_probed(ctx, &name);
            // Rather one that was not probed yet: a backup waits for it, too.
            if unread.as_ref().is_none_or(|unread| unread.is_probed) {
                unread = Some(UnreadBackend { name, is_probed });
            }
            continue;
        };
        if !export.has_archive(&name) && !object.has_reserved_name() {
            continue;
        }
        // Limited for each backend: one that does not respond delays only its own archives.
        let _slot = backend.archives.acquire(&object.spec.claim_ref.namespace).await;
        let recorded = match export.find_archive_for_report(&name).await {
            Ok(Some(recorded)) => recorded,
            Ok(None) => continue,
            Err(error) => {
                let (reason, message) = (Reason::from(error.kind()), format!("backend {}: {error}", backend.name));
                return FoundRecord::Unreadable(PlannedCondition::unknown(reason, message));
            }
        };
        if let Some((_, other)) = found {
            return FoundRecord::Refused(ambiguous(&name, &other, &backend.name));
        }
        found = Some((Box::new(recorded), backend.name.clone()));
    }
    match found {
        None => without_record(object, unread),
        Some((recorded, backend)) => match check(object, &recorded, &backend) {
            Ok(()) => FoundRecord::Archive(recorded, backend),
            Err(condition) => FoundRecord::Refused(condition),
        },
    }
}

/// Returns a backend and its export, if its records were read.
pub(super) fn recovered_export(ctx: &Context, name: &str) -> Option<(Arc<Backend>, Arc<ExportStore>)> {
    let backend = ctx.backends.get(name)?;
    let export = backend.last_probe().store.clone()?;
    backend.is_recovered_on(&export).then_some((backend, export))
}

fn is_probed(ctx: &Context, name: &str) -> bool {
    let backend = ctx.backends.get(name);
    backend.is_some_and(|backend| backend.last_probe().ready.reason != Reason::NotProbed)
}

/// Checks that an object may have a recorded archive.
fn check(object: &NfsArchive, recorded: &RecordedArchive, backend: &str) -> Result<(), PlannedCondition> {
    if !is_of_claim(object, recorded) {
        return Err(name_taken(&object.name_any(), recorded, backend));
    }
    if recorded.trust != SignatureStatus::Signed {
        return Err(PlannedCondition::fails(
            Reason::RecordUnusable,
            format!(
                "this cluster did not sign the record of this archive on backend {backend}, so nothing is changed; see the \
                 backend's condition RecordsTrusted"
            ),
        ));
    }
    Ok(())
}

fn name_taken(name: &str, recorded: &RecordedArchive, backend: &str) -> PlannedCondition {
    let claim = &recorded.claim;
    PlannedCondition::fails(
        Reason::ArchiveNameTaken,
        format!(
            "backend {backend} has an archive {name} of claim {}/{}, which is not the claim in spec.claimRef: delete this \
             object, and create one with another name, or with that claim to import the archive",
            claim.namespace, claim.name
        ),
    )
}

fn ambiguous(name: &str, one: &str, other: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::ArchiveNameTaken,
        format!(
            "the backends {one} and {other} both have an archive {name}, and the name does not show which of them this object \
             is, so nothing is changed: compare them with `nfs-operator archives`, and remove the record of the one that is \
             not needed"
        ),
    )
}

/// Returns the result of a search that found no record: as long as records were not read, an object with a reserved name may
/// be an archive, whose legal hold and whose deletion must not be lost.
fn without_record(object: &NfsArchive, unread: Option<UnreadBackend>) -> FoundRecord {
    let name = object.name_any();
    match unread {
        Some(unread) if object.has_reserved_name() || !unread.is_probed => {
            FoundRecord::Unreadable(PlannedCondition::unknown(
                Reason::NotProbed,
                format!(
                    "waits until the records of all backends were read: backend {} may have a record of {name}, see its conditions",
                    unread.name
                ),
            ))
        }
        None if object.has_reserved_name() => FoundRecord::Refused(PlannedCondition::fails(
            Reason::ArchiveNameReserved,
            format!(
                "names that begin with `pvc-` are reserved for archives of deleted volumes, and no backend has a record of \
                 {name}: to request a backup, create an object with another name; if the archive was restored or purged, \
                 delete this object"
            ),
        )),
        Some(_) | None => FoundRecord::None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_that_may_be_an_archive_waits_until_all_records_were_read() {
        let is = |name: &str, unread: Option<bool>| {
            let claim = json!({"namespace": "team", "name": "data"});
            let object = json!({"metadata": {"name": name}, "spec": {"claimRef": claim}});
            let unread = unread.map(|is_probed| UnreadBackend {
                name: "main".to_owned(),
                is_probed,
            });
            match without_record(&serde_json::from_value(object).unwrap(), unread) {
                FoundRecord::Unreadable(condition) => {
                    assert!(condition.message.contains("backend main"), "{}", condition.message);
                    "unknown"
                }
                FoundRecord::Refused(_) => "refused",
                FoundRecord::None => "backup",
                FoundRecord::Archive(..) => "archive",
            }
        };
        for (name, unread, expected) in [
            ("pvc-1", None, "refused"),
            ("pvc-1", Some(true), "unknown"),
            ("pvc-1", Some(false), "unknown"),
            ("backup", None, "backup"),
            ("backup", Some(true), "backup"),
            ("backup", Some(false), "unknown"),
        ] {
            assert_eq!(is(name, unread), expected, "{name} {unread:?}");
        }
    }
}
