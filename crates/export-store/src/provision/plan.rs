//! The next step for a directory, based on its record and on what exists. Pure.

use crate::Existing;

/// State of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordProgress {
    /// There is no record.
    Nothing,
    /// The record is incomplete, because an earlier process stopped while it wrote the record, before it created anything; or
    /// nothing confirms its content.
    Replaceable,
    /// The directory is being created.
    Creating,
    /// The directory is being adopted.
    Adopting,
    /// The directory was created or adopted, and its attributes were checked.
    Live {
        /// Fileid of the directory.
        file_id: Option<u64>,
    },
}

/// What exists at the directory's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathOccupant {
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
pub(super) enum ProvisionStep {
    /// Check whether the directory is empty, then plan again.
    CheckEmpty,
    /// Write the record (create it, or replace the existing one), then create parents and directory.
    Make { write: RecordWrite },
    /// The directory was created by this operator: set mode and owner, and continue.
    Resume { write: RecordWrite },
    /// The directory existed before: write the record, and adopt the directory.
    Adopt { write: RecordWrite },
    /// The directory exists and is recorded.
    Done,
    /// The directory exists and does not belong to this operator.
    Refuse,
    /// The directory belongs to another holder.
    Held,
    /// The directory existed before, and its volumes share it: write the record, and leave the directory as it is.
    Share { write: RecordWrite },
    /// The directory to share does not exist.
    Absent,
    /// Something that is not a usable directory has the name.
    Unusable,
    /// The record does not have the directory's fileid.
    Mismatch,
}

/// How to write the record before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordWrite {
    /// Not needed: the record already has this state.
    Skip,
    /// Create it exclusively: there must be no record.
    Create,
    /// Replace the existing record.
    Replace,
}

pub(super) fn decide(written: RecordProgress, occupant: PathOccupant, existing: Existing) -> ProvisionStep {
    let first = match written {
        RecordProgress::Nothing => RecordWrite::Create,
        _ => RecordWrite::Replace,
    };
    match (written, occupant) {
        (_, PathOccupant::Other) => ProvisionStep::Unusable,
        (RecordProgress::Live { file_id }, PathOccupant::Directory { file_id: found, .. }) => {
            if file_id == Some(found) {
                ProvisionStep::Done
            } else {
                ProvisionStep::Mismatch
            }
        }
        // It is never created.
        (_, PathOccupant::Nothing) if existing == Existing::Share => ProvisionStep::Absent,
        // No volume has the directory yet, so nobody has used it: create it again.
        (RecordProgress::Creating, PathOccupant::Nothing) => ProvisionStep::Make {
            write: RecordWrite::Skip,
        },
        (_, PathOccupant::Nothing) => ProvisionStep::Make { write: first },
        (_, PathOccupant::Directory { held: true, .. }) => ProvisionStep::Held,
        // The operator may have created an empty one. To share it, that does not matter.
        (RecordProgress::Creating | RecordProgress::Replaceable, PathOccupant::Directory { empty: None, .. })
            if existing != Existing::Share =>
        {
            ProvisionStep::CheckEmpty
        }
        (RecordProgress::Creating, PathOccupant::Directory { empty: Some(true), .. }) => ProvisionStep::Resume {
            write: RecordWrite::Skip,
        },
        (RecordProgress::Replaceable, PathOccupant::Directory { empty: Some(true), .. }) => ProvisionStep::Resume {
            write: RecordWrite::Replace,
        },
        (_, PathOccupant::Directory { .. }) => match existing {
            Existing::Adopt => ProvisionStep::Adopt { write: first },
            Existing::Share => ProvisionStep::Share { write: first },
            Existing::Refuse => ProvisionStep::Refuse,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: PathOccupant = PathOccupant::Directory {
        file_id: 7,
        held: false,
        empty: None,
    };

    fn with(empty: bool) -> PathOccupant {
        PathOccupant::Directory {
            file_id: 7,
            held: false,
            empty: Some(empty),
        }
    }

    #[test]
    fn every_state_of_record_and_directory_has_its_next_step() {
        use Existing::{Adopt, Refuse};
        let live = RecordProgress::Live { file_id: Some(7) };
        let held = PathOccupant::Directory {
            file_id: 7,
            held: true,
            empty: None,
        };
        let (not, new, over) = (RecordWrite::Skip, RecordWrite::Create, RecordWrite::Replace);
        for (written, occupant, existing, step) in [
            // No record: the directory was absent before the record was written. An existing directory belongs to
            // someone else.
            (
                RecordProgress::Nothing,
                PathOccupant::Nothing,
                Refuse,
                ProvisionStep::Make { write: new },
            ),
            (
                RecordProgress::Nothing,
                PathOccupant::Nothing,
                Adopt,
                ProvisionStep::Make { write: new },
            ),
            (RecordProgress::Nothing, FREE, Refuse, ProvisionStep::Refuse),
            (RecordProgress::Nothing, with(true), Refuse, ProvisionStep::Refuse),
            (
                RecordProgress::Nothing,
                FREE,
                Adopt,
                ProvisionStep::Adopt { write: new },
            ),
            (RecordProgress::Nothing, held, Adopt, ProvisionStep::Held),
            (
                RecordProgress::Nothing,
                PathOccupant::Other,
                Adopt,
                ProvisionStep::Unusable,
            ),
            // Interrupted while the record was written.
            (
                RecordProgress::Replaceable,
                PathOccupant::Nothing,
                Refuse,
                ProvisionStep::Make { write: over },
            ),
            (RecordProgress::Replaceable, FREE, Refuse, ProvisionStep::CheckEmpty),
            (
                RecordProgress::Replaceable,
                with(true),
                Refuse,
                ProvisionStep::Resume { write: over },
            ),
            (RecordProgress::Replaceable, with(false), Refuse, ProvisionStep::Refuse),
            (
                RecordProgress::Replaceable,
                with(false),
                Adopt,
                ProvisionStep::Adopt { write: over },
            ),
            (RecordProgress::Replaceable, held, Refuse, ProvisionStep::Held),
            // Interrupted between the record and the fileid, or the reply to MKDIR was lost.
            (
                RecordProgress::Creating,
                PathOccupant::Nothing,
                Refuse,
                ProvisionStep::Make { write: not },
            ),
            (RecordProgress::Creating, FREE, Refuse, ProvisionStep::CheckEmpty),
            (
                RecordProgress::Creating,
                with(true),
                Refuse,
                ProvisionStep::Resume { write: not },
            ),
            (RecordProgress::Creating, with(false), Refuse, ProvisionStep::Refuse),
            (
                RecordProgress::Creating,
                with(false),
                Adopt,
                ProvisionStep::Adopt { write: over },
            ),
            (RecordProgress::Creating, held, Adopt, ProvisionStep::Held),
            (
                RecordProgress::Creating,
                PathOccupant::Other,
                Refuse,
                ProvisionStep::Unusable,
            ),
            // Interrupted during an adoption.
            (
                RecordProgress::Adopting,
                PathOccupant::Nothing,
                Adopt,
                ProvisionStep::Make { write: over },
            ),
            (
                RecordProgress::Adopting,
                FREE,
                Adopt,
                ProvisionStep::Adopt { write: over },
            ),
            (RecordProgress::Adopting, FREE, Refuse, ProvisionStep::Refuse),
            (RecordProgress::Adopting, held, Adopt, ProvisionStep::Held),
            // Interrupted before the volume was saved.
            (live, FREE, Refuse, ProvisionStep::Done),
            (live, held, Refuse, ProvisionStep::Done),
            (live, PathOccupant::Nothing, Refuse, ProvisionStep::Make { write: over }),
            (live, PathOccupant::Other, Refuse, ProvisionStep::Unusable),
            (
                RecordProgress::Live { file_id: Some(8) },
                FREE,
                Adopt,
                ProvisionStep::Mismatch,
            ),
            (
                RecordProgress::Live { file_id: None },
                FREE,
                Adopt,
                ProvisionStep::Mismatch,
            ),
        ] {
            assert_eq!(
                decide(written, occupant, existing),
                step,
                "{written:?} {occupant:?} {existing:?}"
            );
        }
    }

    #[test]
    fn a_directory_to_share_is_never_created_and_its_content_does_not_matter() {
        let held = PathOccupant::Directory {
            file_id: 7,
            held: true,
            empty: None,
        };
        let live = RecordProgress::Live { file_id: Some(7) };
        let (new, over) = (RecordWrite::Create, RecordWrite::Replace);
        for (written, occupant, step) in [
            (RecordProgress::Nothing, PathOccupant::Nothing, ProvisionStep::Absent),
            (
                RecordProgress::Replaceable,
                PathOccupant::Nothing,
                ProvisionStep::Absent,
            ),
            (RecordProgress::Creating, PathOccupant::Nothing, ProvisionStep::Absent),
            (RecordProgress::Adopting, PathOccupant::Nothing, ProvisionStep::Absent),
            (live, PathOccupant::Nothing, ProvisionStep::Absent),
            (RecordProgress::Nothing, PathOccupant::Other, ProvisionStep::Unusable),
            (RecordProgress::Nothing, held, ProvisionStep::Held),
            (RecordProgress::Nothing, FREE, ProvisionStep::Share { write: new }),
            (RecordProgress::Replaceable, FREE, ProvisionStep::Share { write: over }),
            (RecordProgress::Creating, FREE, ProvisionStep::Share { write: over }),
            (RecordProgress::Adopting, FREE, ProvisionStep::Share { write: over }),
            (live, FREE, ProvisionStep::Done),
            (RecordProgress::Live { file_id: Some(8) }, FREE, ProvisionStep::Mismatch),
        ] {
            assert_eq!(
                decide(written, occupant, Existing::Share),
                step,
                "{written:?} {occupant:?}"
            );
        }
    }
}
