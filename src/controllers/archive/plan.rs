//! What is to be done about an archive, and what its object says meanwhile. Pure.

use crate::api::conditions::{ArchiveCondition, PlannedCondition, Reason};
use export_store::{CopyState, RestoreTarget};

/// What is known of an archive.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The object is being deleted.
    pub deleting: bool,
    /// The kind itself is being deleted: all its objects go, and nobody meant their data.
    pub kind_going: bool,
    /// Deleting the object deletes the data.
    pub delete: bool,
    /// It is held.
    pub held: bool,
    /// A claim is getting a copy of it.
    pub copied: bool,
    /// Why it may be purged although nobody deletes it.
    pub due: Option<String>,
    /// What is on the export.
    pub sight: ExportState,
}

/// What is on the export.
#[derive(Debug, Clone)]
pub enum ExportState {
    /// It can't be looked at now.
    Unseen(PlannedCondition),
    /// The record can't be used, or is about something else.
    Unusable(PlannedCondition),
    /// There is no record.
    Unrecorded,
    /// It is kept.
    Kept {
        /// The directory is where it should be.
        there: bool,
        /// What it is a copy of, if somebody asked for one.
        copy: Option<CopyState>,
    },
    /// Its purge was announced; `there`: and not done.
    Purging { there: bool },
    /// It is being restored; `done`: the volume that gets it is there.
    Restoring { to: RestoreTarget, done: bool },
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing but to say so.
    NoOp,
    /// Nothing can be done before something changes elsewhere.
    Wait,
    /// The object may go; the export stays as it is.
    RemoveFinalizer,
    /// Into the trash with the data, and then the object may go.
    Purge,
    /// A purge that was announced is taken back.
    CancelPurge,
    /// The volume has the data: record and object go.
    CompleteRestore,
}

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One word.
    pub state: &'static str,
    /// Whether the data are there and can be restored.
    pub available: PlannedCondition,
    /// The other conditions that hold.
    pub others: Vec<(ArchiveCondition, PlannedCondition)>,
}

/// Decides.
pub fn plan(situation: &Observed) -> (Step, Report) {
    let step = if situation.deleting {
        leaving(situation)
    } else {
        staying(situation)
    };
    (step, report(situation))
}

/// The object is being deleted.
fn leaving(situation: &Observed) -> Step {
    let Observed {
        kind_going,
        delete,
        held,
        copied,
        ..
    } = *situation;
    match &situation.sight {
        ExportState::Purging { there: true } if kind_going || held => Step::CancelPurge,
        ExportState::Purging { there: false } => Step::Purge,
        ExportState::Restoring { done: true, .. } => Step::CompleteRestore,
        _ if kind_going => Step::RemoveFinalizer,
        // Whoever gets the copy is judged by this object until he has it.
        ExportState::Kept { .. } if copied => Step::Wait,
        ExportState::Unrecorded => Step::RemoveFinalizer,
        // Announced before the object was deleted: by us, because its time was over.
        ExportState::Purging { there: true } => Step::Purge,
        _ if !delete => Step::RemoveFinalizer,
        ExportState::Kept { .. } if !held => Step::Purge,
        ExportState::Kept { .. }
        | ExportState::Unseen(_)
        | ExportState::Unusable(_)
        | ExportState::Restoring { .. } => Step::Wait,
    }
}

fn staying(situation: &Observed) -> Step {
    let due = situation.due.is_some() && !situation.held;
    match &situation.sight {
        ExportState::Unseen(_) | ExportState::Restoring { done: false, .. } => Step::Wait,
        ExportState::Restoring { done: true, .. } => Step::CompleteRestore,
        ExportState::Purging { there: true } if !due => Step::CancelPurge,
        ExportState::Purging { .. } => Step::Purge,
        ExportState::Kept { there: true, .. } if due && situation.copied => Step::Wait,
        // What is missing is for a person to look at, not for a clock.
        ExportState::Kept { there: true, .. } if due => Step::Purge,
        ExportState::Kept { .. } | ExportState::Unusable(_) | ExportState::Unrecorded => Step::NoOp,
    }
}

fn report(situation: &Observed) -> Report {
    let mut others = Vec::new();
    if let Some(why) = &situation.due {
        others.push((
            ArchiveCondition::Expired,
            PlannedCondition::holds(Reason::ArchiveExpired, why.clone()),
        ));
    }
    let (state, available) = match &situation.sight {
        ExportState::Unseen(verdict) => (
            "Unknown",
            PlannedCondition {
                status: None,
                ..verdict.clone()
            },
        ),
        ExportState::Unusable(verdict) => ("Unknown", verdict.clone()),
        ExportState::Unrecorded | ExportState::Kept { there: false, .. } => {
            let verdict = missing(&situation.sight);
            others.push((
                ArchiveCondition::Missing,
                PlannedCondition {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Missing", verdict)
        }
        ExportState::Purging { .. } => {
            let verdict = PlannedCondition::fails(Reason::Purging, "it is on its way into the trash");
            others.push((
                ArchiveCondition::Purging,
                PlannedCondition {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Purging", verdict)
        }
        ExportState::Restoring { to, .. } => {
            let claim = format!("{}/{}", to.claim.namespace, to.claim.name);
            let verdict = PlannedCondition::fails(
                Reason::ArchiveRestoring,
                format!("claim {claim} gets it as volume {}", to.volume),
            );
            others.push((
                ArchiveCondition::Restoring,
                PlannedCondition {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Restoring", verdict)
        }
        ExportState::Kept { there: true, copy } => kept(situation, copy.as_ref()),
    };
    Report {
        state,
        available,
        others,
    }
}

fn missing(sight: &ExportState) -> PlannedCondition {
    let message = match sight {
        ExportState::Unrecorded => {
            "the export has no record of it, so nothing is touched: restore .nfs-operator from a backup, or delete this \
             object"
        }
        _ => {
            "its directory is not where it should be: put it back, or set deletionPolicy to Delete and delete this object"
        }
    };
    PlannedCondition::fails(Reason::ArchiveMissing, message)
}

fn kept(situation: &Observed, copy: Option<&CopyState>) -> (&'static str, PlannedCondition) {
    let what = copy.map_or_else(String::new, in_words);
    if situation.held {
        let message = match situation.deleting {
            true => {
                "it is held, so its data stay and so does this object: set legalHold to false, or deletionPolicy to Retain"
            }
            false => "it is held: nobody purges it, and this object can't be deleted",
        };
        return (
            "Held",
            PlannedCondition::holds(Reason::ArchiveHeld, format!("{message}{what}")),
        );
    }
    let state = if situation.due.is_some() {
        "Expired"
    } else {
        "Available"
    };
    let message = match situation.copied && (situation.deleting || situation.due.is_some()) {
        true => "the data are there, and stay until the claims that are getting a copy of them have it",
        false => "the data are there",
    };
    (
        state,
        PlannedCondition::holds(Reason::Archived, format!("{message}{what}")),
    )
}

/// What was copied, and what was not.
fn in_words(copy: &CopyState) -> String {
    let outcome = copy.outcome.as_deref().unwrap_or("nothing is known of how much");
    format!("; a copy of volume {} ({outcome})", copy.volume)
}

#[cfg(test)]
mod tests;
