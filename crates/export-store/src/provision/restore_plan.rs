//! The next step of a restore, based on both records and on what exists. Pure.

/// State of the claim's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimRecord {
    Nothing,
    Creating,
    Live,
}

/// State of the archive's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArchiveRecord {
    /// The archive is available.
    Archived,
    /// The archive is being restored to this claim.
    Restoring,
    /// The archive is being purged, or restored to another claim.
    Unavailable,
    /// There is no record: the archive never existed, or was restored or purged.
    Nothing,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestoreStep {
    /// Write the claim's own record.
    Record,
    /// Write this claim as restore target into the archive's record.
    MarkRestoring,
    /// Create the parents, and rename the directory.
    Move,
    /// Restore mode and owner, and record the directory as live.
    Complete,
    Done,
    /// The directory is missing.
    Missing,
    /// The archive's record is missing.
    Unrecorded,
    /// Another claim has the archive, or it is being purged.
    Taken,
    /// Something else exists at the directory's path.
    Refuse,
    /// The record's state does not match what exists.
    Mismatch,
}

/// Returns the next step. `at_archive`: the directory exists under the archive's name. `home`: what exists at the
/// volume's path; `None` for nothing, true for the archive's directory.
pub(super) fn next(own: ClaimRecord, source: ArchiveRecord, at_archive: bool, home: Option<bool>) -> RestoreStep {
    match (own, source, at_archive, home) {
        (ClaimRecord::Live, _, _, Some(true)) => RestoreStep::Done,
        (ClaimRecord::Live, ..) => RestoreStep::Mismatch,
        (_, ArchiveRecord::Unavailable, ..) => RestoreStep::Taken,
        (_, ArchiveRecord::Nothing, ..) => RestoreStep::Unrecorded,
        (_, _, _, Some(false)) => RestoreStep::Refuse,
        (ClaimRecord::Nothing, ArchiveRecord::Restoring, _, Some(true)) | (ClaimRecord::Nothing, _, true, None) => {
            RestoreStep::Record
        }
        (ClaimRecord::Creating, ArchiveRecord::Restoring, _, Some(true)) => RestoreStep::Complete,
        (ClaimRecord::Creating, ArchiveRecord::Archived, true, None) => RestoreStep::MarkRestoring,
        (ClaimRecord::Creating, ArchiveRecord::Restoring, true, None) => RestoreStep::Move,
        (_, ArchiveRecord::Archived, _, Some(true)) => RestoreStep::Mismatch,
        (_, _, false, None) => RestoreStep::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_restore_has_its_next_step() {
        use ArchiveRecord::{Archived, Restoring, Unavailable};
        use ClaimRecord::{Creating, Live, Nothing};
        for (own, source, at_archive, home, step) in [
            // All steps in order, each interrupted afterwards.
            (Nothing, Archived, true, None, RestoreStep::Record),
            (Creating, Archived, true, None, RestoreStep::MarkRestoring),
            (Creating, Restoring, true, None, RestoreStep::Move),
            (Creating, Restoring, false, Some(true), RestoreStep::Complete),
            (Live, Restoring, false, Some(true), RestoreStep::Done),
            (Live, ArchiveRecord::Nothing, false, Some(true), RestoreStep::Done),
            // The claim's own record was lost.
            (Nothing, Restoring, true, None, RestoreStep::Record),
            (Nothing, Restoring, false, Some(true), RestoreStep::Record),
            // Another claim was faster, or other directories are in the way.
            (Nothing, Unavailable, false, None, RestoreStep::Taken),
            (Creating, Unavailable, false, None, RestoreStep::Taken),
            (Nothing, ArchiveRecord::Nothing, false, None, RestoreStep::Unrecorded),
            (Creating, ArchiveRecord::Nothing, false, None, RestoreStep::Unrecorded),
            (Nothing, Archived, false, None, RestoreStep::Missing),
            (Creating, Restoring, false, None, RestoreStep::Missing),
            (Nothing, Archived, true, Some(false), RestoreStep::Refuse),
            (Creating, Restoring, true, Some(false), RestoreStep::Refuse),
            (Creating, Archived, false, Some(true), RestoreStep::Mismatch),
            (Live, Restoring, true, None, RestoreStep::Mismatch),
            (Live, ArchiveRecord::Nothing, false, Some(false), RestoreStep::Mismatch),
        ] {
            assert_eq!(
                next(own, source, at_archive, home),
                step,
                "{own:?} {source:?} {at_archive} {home:?}"
            );
        }
    }
}
