//! Next step for an archive, and the state that its object reports. Pure.

use crate::api::archive::ArchiveSummary;
use crate::api::conditions::{PlannedCondition, Reason};
use export_store::{CopyState, RestoreTarget};

/// Observed state of an archive.
#[derive(Debug, Clone)]
pub struct Observed {
    /// True if the object is being deleted.
    pub deleting: bool,
    /// True if the CustomResourceDefinition is being deleted: all objects are deleted with it, without the intent to
    /// delete their data.
    pub crd_deleting: bool,
    /// True if deleting the object deletes the data.
    pub delete_data: bool,
    /// True if the archive has a legal hold.
    pub held: bool,
    /// True if a claim is getting a copy of it.
    pub copied: bool,
    /// True if the archive has expired.
    pub expired: bool,
    /// The condition Retained.
    pub retained: PlannedCondition,
    /// State of the archive on the export.
    pub export: ExportState,
}

/// State of the archive on the export.
#[derive(Debug, Clone)]
pub enum ExportState {
    /// The export cannot be read now.
    Unreachable(PlannedCondition),
    /// The backend does not exist, or uses another export.
    Detached(PlannedCondition),
    /// The record cannot be used, or describes something else.
    RecordUnusable(PlannedCondition),
    /// There is no record.
    NoRecord,
    /// The archive is kept.
    Archived {
        /// True if the directory is at its path.
        present: bool,
        /// State of the copy, if it is a requested backup.
        copy: Option<CopyState>,
    },
    /// Its purge is announced; `present` is true if its directory is not in the trash yet.
    Purging { present: bool },
    /// It is being restored; `done` is true if the volume that gets it exists.
    Restoring { target: RestoreTarget, done: bool },
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveStep {
    /// Report only.
    NoOp,
    /// Wait until something changes elsewhere.
    Wait,
    /// Remove the finalizer, and leave the export unchanged.
    RemoveFinalizer,
    /// Record that the data are kept without an object, then remove the finalizer.
    Release,
    /// Move the data into the trash, then remove the finalizer.
    Purge,
    /// Cancel a purge that is announced.
    CancelPurge,
    /// The volume has the data: remove the record and the object.
    CompleteRestore,
}

/// State that the object reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Summary.
    pub state: ArchiveSummary,
    /// The condition Available: the data exists and can be restored.
    pub available: PlannedCondition,
    /// The condition Retained: no rule purges the data.
    pub retained: PlannedCondition,
}

/// Returns the next step and the state to report meanwhile.
pub fn plan(observed: &Observed) -> (ArchiveStep, Report) {
    let step = if observed.deleting {
        deletion_step(observed)
    } else {
        retention_step(observed)
    };
    (step, report(observed))
}

/// Returns the step for an object that is being deleted.
fn deletion_step(observed: &Observed) -> ArchiveStep {
    let Observed {
        crd_deleting,
        delete_data,
        held,
        copied,
        ..
    } = *observed;
    match &observed.export {
        ExportState::Purging { present: true } if crd_deleting || held => ArchiveStep::CancelPurge,
        ExportState::Purging { present: false } => ArchiveStep::Purge,
        ExportState::Restoring { done: true, .. } => ArchiveStep::CompleteRestore,
        _ if crd_deleting => ArchiveStep::RemoveFinalizer,
        // The claim that gets the copy is checked against this object until it has the data.
        ExportState::Archived { .. } if copied => ArchiveStep::Wait,
        ExportState::NoRecord => ArchiveStep::RemoveFinalizer,
        // The operator announced the purge before it deleted the object, because the archive had expired.
        ExportState::Purging { present: true } => ArchiveStep::Purge,
        // Their records cannot be changed, so an object is created again if such a record becomes usable.
        ExportState::Detached(_) | ExportState::RecordUnusable(_) if !delete_data => ArchiveStep::RemoveFinalizer,
        ExportState::Archived { .. } if !delete_data => ArchiveStep::Release,
        ExportState::Archived { .. } if !held => ArchiveStep::Purge,
        ExportState::Archived { .. }
        | ExportState::Unreachable(_)
        | ExportState::Detached(_)
        | ExportState::RecordUnusable(_)
        | ExportState::Restoring { .. } => ArchiveStep::Wait,
    }
}

/// Returns the step for an object that is not being deleted.
fn retention_step(observed: &Observed) -> ArchiveStep {
    let expired = observed.expired && !observed.held;
    match &observed.export {
        ExportState::Unreachable(_) | ExportState::Detached(_) | ExportState::Restoring { done: false, .. } => {
            ArchiveStep::Wait
        }
        ExportState::Restoring { done: true, .. } => ArchiveStep::CompleteRestore,
        ExportState::Purging { present: true } if !expired => ArchiveStep::CancelPurge,
        ExportState::Purging { .. } => ArchiveStep::Purge,
        ExportState::Archived { present: true, .. } if expired && observed.copied => ArchiveStep::Wait,
        // A missing directory requires an administrator; in that case, an expiry removes nothing.
        ExportState::Archived { present: true, .. } if expired => ArchiveStep::Purge,
        ExportState::Archived { .. } | ExportState::RecordUnusable(_) | ExportState::NoRecord => ArchiveStep::NoOp,
    }
}

fn report(observed: &Observed) -> Report {
    let (state, available) = match &observed.export {
        ExportState::Unreachable(cause) | ExportState::Detached(cause) => {
            let message = match observed.deleting {
                true => format!("{}; until then, this object is not deleted", cause.message),
                false => cause.message.clone(),
            };
            (
                ArchiveSummary::Unknown,
                PlannedCondition::unknown(cause.reason, message),
            )
        }
        ExportState::RecordUnusable(cause) => (ArchiveSummary::Unknown, cause.clone()),
        ExportState::NoRecord => (
            ArchiveSummary::Missing,
            PlannedCondition::fails(
                Reason::ArchiveMissing,
                "the export has no record of it, so nothing is changed: it was restored or purged since this object was saved in \
                 a backup of the cluster, or its record was removed. If it was restored or purged, delete this object; \
                 otherwise, restore its record from a backup of the export",
            ),
        ),
        ExportState::Archived { present: false, .. } => (
            ArchiveSummary::Missing,
            PlannedCondition::fails(
                Reason::ArchiveMissing,
                "its directory is not where it should be: move it back, which is noticed within an hour; if the export was \
                 restored or moved file by file, accept the directory by annotating the backend with \
                 nfs-operator.io/accept-directories=<archive>@$(date +%s); if it is lost for good, set deletionPolicy to Delete \
                 and delete this object",
            ),
        ),
        ExportState::Purging { .. } => (
            ArchiveSummary::Purging,
            PlannedCondition::fails(Reason::Purging, "its data is being moved into the trash"),
        ),
        ExportState::Restoring { target, .. } => {
            let claim = format!("{}/{}", target.claim.namespace, target.claim.name);
            let message = format!("it is being restored to claim {claim} as volume {}", target.volume);
            (
                ArchiveSummary::Restoring,
                PlannedCondition::fails(Reason::ArchiveRestoring, message),
            )
        }
        ExportState::Archived { present: true, copy } => report_kept(observed, copy.as_ref()),
    };
    Report {
        state,
        available,
        retained: observed.retained.clone(),
    }
}

fn report_kept(observed: &Observed, copy: Option<&CopyState>) -> (ArchiveSummary, PlannedCondition) {
    let state = state_of_kept(observed.held, observed.expired);
    let ends = observed.deleting || (observed.expired && !observed.held);
    let message = match observed.copied && ends {
        true => "the data exists; it is kept until copies in progress are complete",
        false => "the data exists",
    };
    (state, data_present(message, copy))
}

/// Returns the state of an archive whose data exists.
pub(super) fn state_of_kept(held: bool, expired: bool) -> ArchiveSummary {
    match (held, expired) {
        (true, _) => ArchiveSummary::Held,
        (false, true) => ArchiveSummary::Expired,
        (false, false) => ArchiveSummary::Available,
    }
}

/// Returns the condition Available of an archive whose data exists, with the result of its copy.
pub(super) fn data_present(message: &str, copy: Option<&CopyState>) -> PlannedCondition {
    let copy = copy.map_or_else(String::new, copy_summary);
    PlannedCondition::holds(Reason::DataPresent, format!("{message}{copy}"))
}

/// Describes what was copied and what was not.
fn copy_summary(copy: &CopyState) -> String {
    let outcome = copy.outcome.as_deref().unwrap_or("the number of files is unknown");
    format!("; a copy of volume {} ({outcome})", copy.volume)
}

#[cfg(test)]
mod tests;
