//! What is to be done about an archive, and what its object says meanwhile. Pure.

use crate::api::conditions::{ArchiveCondition, Reason, Verdict};
use export_store::{CopyNote, Destination};

/// What is known of an archive.
#[derive(Debug, Clone)]
pub struct Situation {
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
    pub sight: Sight,
}

/// What is on the export.
#[derive(Debug, Clone)]
pub enum Sight {
    /// It can't be looked at now.
    Unseen(Verdict),
    /// The record can't be used, or is about something else.
    Unusable(Verdict),
    /// There is no record.
    Unrecorded,
    /// It is kept.
    Kept {
        /// The directory is where it should be.
        there: bool,
        /// What it is a copy of, if somebody asked for one.
        copy: Option<CopyNote>,
    },
    /// Its purge was announced; `there`: and not done.
    Purging { there: bool },
    /// It is being restored; `done`: the volume that gets it is there.
    Restoring { to: Destination, done: bool },
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing but to say so.
    Rest,
    /// Nothing can be done before something changes elsewhere.
    Wait,
    /// The object may go; the export stays as it is.
    LetGo,
    /// Into the trash with the data, and then the object may go.
    Purge,
    /// A purge that was announced is taken back.
    Spare,
    /// The volume has the data: record and object go.
    Finish,
}

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One word.
    pub state: &'static str,
    /// Whether the data are there and can be restored.
    pub available: Verdict,
    /// The other conditions that hold.
    pub others: Vec<(ArchiveCondition, Verdict)>,
}

/// Decides.
pub fn plan(situation: &Situation) -> (Step, Report) {
    let step = if situation.deleting {
        leaving(situation)
    } else {
        staying(situation)
    };
    (step, report(situation))
}

/// The object is being deleted.
fn leaving(situation: &Situation) -> Step {
    let Situation {
        kind_going,
        delete,
        held,
        copied,
        ..
    } = *situation;
    match &situation.sight {
        Sight::Purging { there: true } if kind_going || held => Step::Spare,
        Sight::Purging { there: false } => Step::Purge,
        Sight::Restoring { done: true, .. } => Step::Finish,
        _ if kind_going => Step::LetGo,
        // Whoever gets the copy is judged by this object until he has it.
        Sight::Kept { .. } if copied => Step::Wait,
        Sight::Unrecorded => Step::LetGo,
        // Announced before the object was deleted: by us, because its time was over.
        Sight::Purging { there: true } => Step::Purge,
        _ if !delete => Step::LetGo,
        Sight::Kept { .. } if !held => Step::Purge,
        Sight::Kept { .. } | Sight::Unseen(_) | Sight::Unusable(_) | Sight::Restoring { .. } => Step::Wait,
    }
}

fn staying(situation: &Situation) -> Step {
    let due = situation.due.is_some() && !situation.held;
    match &situation.sight {
        Sight::Unseen(_) | Sight::Restoring { done: false, .. } => Step::Wait,
        Sight::Restoring { done: true, .. } => Step::Finish,
        Sight::Purging { there: true } if !due => Step::Spare,
        Sight::Purging { .. } => Step::Purge,
        Sight::Kept { there: true, .. } if due && situation.copied => Step::Wait,
        // What is missing is for a person to look at, not for a clock.
        Sight::Kept { there: true, .. } if due => Step::Purge,
        Sight::Kept { .. } | Sight::Unusable(_) | Sight::Unrecorded => Step::Rest,
    }
}

fn report(situation: &Situation) -> Report {
    let mut others = Vec::new();
    if let Some(why) = &situation.due {
        others.push((
            ArchiveCondition::Expired,
            Verdict::yes(Reason::ArchiveExpired, why.clone()),
        ));
    }
    let (state, available) = match &situation.sight {
        Sight::Unseen(verdict) => (
            "Unknown",
            Verdict {
                status: None,
                ..verdict.clone()
            },
        ),
        Sight::Unusable(verdict) => ("Unknown", verdict.clone()),
        Sight::Unrecorded | Sight::Kept { there: false, .. } => {
            let verdict = missing(&situation.sight);
            others.push((
                ArchiveCondition::Missing,
                Verdict {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Missing", verdict)
        }
        Sight::Purging { .. } => {
            let verdict = Verdict::no(Reason::Purging, "it is on its way into the trash");
            others.push((
                ArchiveCondition::Purging,
                Verdict {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Purging", verdict)
        }
        Sight::Restoring { to, .. } => {
            let claim = format!("{}/{}", to.claim.namespace, to.claim.name);
            let verdict = Verdict::no(
                Reason::ArchiveRestoring,
                format!("claim {claim} gets it as volume {}", to.volume),
            );
            others.push((
                ArchiveCondition::Restoring,
                Verdict {
                    status: Some(true),
                    ..verdict.clone()
                },
            ));
            ("Restoring", verdict)
        }
        Sight::Kept { there: true, copy } => kept(situation, copy.as_ref()),
    };
    Report {
        state,
        available,
        others,
    }
}

fn missing(sight: &Sight) -> Verdict {
    let message = match sight {
        Sight::Unrecorded => {
            "the export has no record of it, so nothing is touched: restore .nfs-operator from a backup, or delete this \
             object"
        }
        _ => {
            "its directory is not where it should be: put it back, or set deletionPolicy to Delete and delete this object"
        }
    };
    Verdict::no(Reason::ArchiveMissing, message)
}

fn kept(situation: &Situation, copy: Option<&CopyNote>) -> (&'static str, Verdict) {
    let what = copy.map_or_else(String::new, in_words);
    if situation.held {
        let message = match situation.deleting {
            true => {
                "it is held, so its data stay and so does this object: set legalHold to false, or deletionPolicy to Retain"
            }
            false => "it is held: nobody purges it, and this object can't be deleted",
        };
        return ("Held", Verdict::yes(Reason::ArchiveHeld, format!("{message}{what}")));
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
    (state, Verdict::yes(Reason::Archived, format!("{message}{what}")))
}

/// What was copied, and what was not.
fn in_words(copy: &CopyNote) -> String {
    let outcome = copy.outcome.as_deref().unwrap_or("nothing is known of how much");
    format!("; a copy of volume {} ({outcome})", copy.volume)
}

#[cfg(test)]
mod tests;
