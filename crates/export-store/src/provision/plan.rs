//! The next step for a directory, based on its record and on what exists. Pure.

use crate::Existing;

/// State of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// There is no record.
    Nothing,
    /// The record is incomplete: an earlier process stopped while it wrote the record, before it created anything.
    Short,
    /// The directory is being created.
    Creating,
    /// The directory is being adopted.
    Adopting,
    /// The directory was created or adopted, and its attributes were checked.
    Live {
        /// File ID of the directory.
        file_id: Option<u64>,
    },
}

/// What exists at the directory's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    Nothing,
    /// A directory on the export's file system.
    Directory {
        file_id: u64,
        /// Another holder has the directory: a volume, an archive or a backend.
        held: bool,
        /// The directory is empty; unset if not checked yet.
        empty: Option<bool>,
    },
    /// A file, a symbolic link, or the root of another file system.
    Other,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Check whether the directory is empty, then plan again.
    LookInside,
    /// Write the record (create it, or replace the existing one), then create parents and directory.
    Make { write: Write },
    /// The directory was created by this operator: set mode and owner, and continue.
    TakeUp { write: Write },
    /// The directory existed before: write the record, and adopt the directory.
    Adopt { write: Write },
    /// The directory exists and is recorded.
    Done,
    /// The directory exists and does not belong to this operator.
    Refuse,
    /// The directory belongs to another holder.
    Held,
    /// Something that is not a usable directory has the name.
    Unusable,
    /// The record does not have the directory's file ID.
    Disagree,
}

/// How to write the record before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// Not needed: the record already has this state.
    Not,
    /// Create it exclusively: there must be no record.
    New,
    /// Replace the existing record.
    Over,
}

pub(super) fn decide(written: Written, there: There, existing: Existing) -> Step {
    let first = match written {
        Written::Nothing => Write::New,
        _ => Write::Over,
    };
    match (written, there) {
        (_, There::Other) => Step::Unusable,
        (Written::Live { file_id }, There::Directory { file_id: found, .. }) => {
            if file_id == Some(found) {
                Step::Done
            } else {
                Step::Disagree
            }
        }
        // No volume has the directory yet, so nobody has used it: create it again.
        (Written::Creating, There::Nothing) => Step::Make { write: Write::Not },
        (_, There::Nothing) => Step::Make { write: first },
        (_, There::Directory { held: true, .. }) => Step::Held,
        (Written::Creating | Written::Short, There::Directory { empty: None, .. }) => Step::LookInside,
        (Written::Creating, There::Directory { empty: Some(true), .. }) => Step::TakeUp { write: Write::Not },
        (Written::Short, There::Directory { empty: Some(true), .. }) => Step::TakeUp { write: Write::Over },
        (_, There::Directory { .. }) => match existing {
            Existing::Adopt => Step::Adopt { write: first },
            Existing::Refuse => Step::Refuse,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: There = There::Directory {
        file_id: 7,
        held: false,
        empty: None,
    };

    fn with(empty: bool) -> There {
        There::Directory {
            file_id: 7,
            held: false,
            empty: Some(empty),
        }
    }

    #[test]
    fn every_state_of_record_and_directory_has_its_next_step() {
        use Existing::{Adopt, Refuse};
        let live = Written::Live { file_id: Some(7) };
        let held = There::Directory {
            file_id: 7,
            held: true,
            empty: None,
        };
        let (not, new, over) = (Write::Not, Write::New, Write::Over);
        for (written, there, existing, step) in [
            // No record: the directory was absent before the record was written. An existing directory belongs to
            // someone else.
            (Written::Nothing, There::Nothing, Refuse, Step::Make { write: new }),
            (Written::Nothing, There::Nothing, Adopt, Step::Make { write: new }),
            (Written::Nothing, FREE, Refuse, Step::Refuse),
            (Written::Nothing, with(true), Refuse, Step::Refuse),
            (Written::Nothing, FREE, Adopt, Step::Adopt { write: new }),
            (Written::Nothing, held, Adopt, Step::Held),
            (Written::Nothing, There::Other, Adopt, Step::Unusable),
            // Interrupted while the record was written.
            (Written::Short, There::Nothing, Refuse, Step::Make { write: over }),
            (Written::Short, FREE, Refuse, Step::LookInside),
            (Written::Short, with(true), Refuse, Step::TakeUp { write: over }),
            (Written::Short, with(false), Refuse, Step::Refuse),
            (Written::Short, with(false), Adopt, Step::Adopt { write: over }),
            (Written::Short, held, Refuse, Step::Held),
            // Interrupted between the record and the file ID, or the reply to MKDIR was lost.
            (Written::Creating, There::Nothing, Refuse, Step::Make { write: not }),
            (Written::Creating, FREE, Refuse, Step::LookInside),
            (Written::Creating, with(true), Refuse, Step::TakeUp { write: not }),
            (Written::Creating, with(false), Refuse, Step::Refuse),
            (Written::Creating, with(false), Adopt, Step::Adopt { write: over }),
            (Written::Creating, held, Adopt, Step::Held),
            (Written::Creating, There::Other, Refuse, Step::Unusable),
            // Interrupted during an adoption.
            (Written::Adopting, There::Nothing, Adopt, Step::Make { write: over }),
            (Written::Adopting, FREE, Adopt, Step::Adopt { write: over }),
            (Written::Adopting, FREE, Refuse, Step::Refuse),
            (Written::Adopting, held, Adopt, Step::Held),
            // Interrupted before the volume was saved.
            (live, FREE, Refuse, Step::Done),
            (live, held, Refuse, Step::Done),
            (live, There::Nothing, Refuse, Step::Make { write: over }),
            (live, There::Other, Refuse, Step::Unusable),
            (Written::Live { file_id: Some(8) }, FREE, Adopt, Step::Disagree),
            (Written::Live { file_id: None }, FREE, Adopt, Step::Disagree),
        ] {
            assert_eq!(
                decide(written, there, existing),
                step,
                "{written:?} {there:?} {existing:?}"
            );
        }
    }
}
