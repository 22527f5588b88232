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
    /// The records that were read contain none of this name.
    None(RecordsRead),
    /// The record cannot be read now.
    Unreadable(PlannedCondition),
    /// The object cannot have the archive of its name: the reason.
    Refused(PlannedCondition),
}

/// Backends whose records were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordsRead {
    /// All backends.
    All,
    /// All but those that cannot be used at present.
    Reachable,
    /// Some backends were not probed yet.
    NotYet,
}

/// Searches the record that has the name of an object. Reads only a record that is known to exist, or that a reserved name
/// suggests: the archive of a volume that had a claim when the records were read is not known.
pub(super) async fn find_record(ctx: &Context, object: &NfsArchive) -> FoundRecord {
    let name = object.name_any();
    let mut read = RecordsRead::All;
    let mut found: Option<(Box<RecordedArchive>, String)> = None;
    for known in ctx.stores.backends.state() {
        let Some((backend, export)) = recovered_export(ctx, &known.name_any()) else {
            read = match (read, is_probed(ctx, &known.name_any())) {
                (RecordsRead::NotYet, _) | (_, false) => RecordsRead::NotYet,
                (_, true) => RecordsRead::Reachable,
            };
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
        None => FoundRecord::None(read),
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

/// Returns the condition of an object that has no record, and may be neither a backup nor an archive whose record was not
/// read. Returns `None` if it is a requested backup.
pub(super) fn without_record(object: &NfsArchive, read: RecordsRead) -> Option<PlannedCondition> {
    let name = object.name_any();
    match (object.has_reserved_name(), read) {
        (true, RecordsRead::All) => Some(PlannedCondition::fails(
            Reason::ArchiveNameReserved,
            format!(
                "names that begin with `pvc-` are reserved for archives of deleted volumes, and no backend has a record of \
                 {name}: to request a backup, create an object with another name; if the archive was restored or purged, \
                 delete this object"
            ),
        )),
        (true, RecordsRead::Reachable | RecordsRead::NotYet) | (false, RecordsRead::NotYet) => {
            Some(PlannedCondition::unknown(
                Reason::NotProbed,
                format!("waits until the records of all backends were read, one of which may have a record of {name}"),
            ))
        }
        (false, RecordsRead::All | RecordsRead::Reachable) => None,
    }
}
