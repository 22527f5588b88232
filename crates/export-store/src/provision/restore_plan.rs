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
    /// The archive is kept.
    Kept,
    /// The archive is being restored to this claim.
    Mine,
    /// The archive is being purged, or restored to another claim.
    Others,
    /// There is no record: the archive never existed, or was restored or purged.
    Gone,
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
    Gone,
    /// Another claim has the archive, or it is being purged.
    Taken,
    /// Something else exists at the directory's path.
    Refuse,
    /// The record's state does not match what exists.
    Disagree,
}

/// Returns the next step. `at_archive`: the directory exists under the archive's name. `home`: what exists at the
/// volume's path; `None` for nothing, true for the archive's directory.
pub(super) fn next(own: ClaimRecord, source: ArchiveRecord, at_archive: bool, home: Option<bool>) -> RestoreStep {
    match (own, source, at_archive, home) {
        (ClaimRecord::Live, _, _, Some(true)) => RestoreStep::Done,
        (ClaimRecord::Live, ..) => RestoreStep::Disagree,
        (_, ArchiveRecord::Others, ..) => RestoreStep::Taken,
        (_, ArchiveRecord::Gone, ..) => RestoreStep::Gone,
        (_, _, _, Some(false)) => RestoreStep::Refuse,
        (ClaimRecord::Nothing, ArchiveRecord::Mine, _, Some(true)) | (ClaimRecord::Nothing, _, true, None) => {
            RestoreStep::Record
        }
        (ClaimRecord::Creating, ArchiveRecord::Mine, _, Some(true)) => RestoreStep::Complete,
        (ClaimRecord::Creating, ArchiveRecord::Kept, true, None) => RestoreStep::MarkRestoring,
        (ClaimRecord::Creating, ArchiveRecord::Mine, true, None) => RestoreStep::Move,
        (_, ArchiveRecord::Kept, _, Some(true)) => RestoreStep::Disagree,
        (_, _, false, None) => RestoreStep::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_restore_has_its_next_step() {
        use ArchiveRecord::{Gone, Kept, Mine, Others};
        use ClaimRecord::{Creating, Live, Nothing};
        for (own, source, at_archive, home, step) in [
            // All steps in order, each interrupted afterwards.
            (Nothing, Kept, true, None, RestoreStep::Record),
            (Creating, Kept, true, None, RestoreStep::MarkRestoring),
            (Creating, Mine, true, None, RestoreStep::Move),
            (Creating, Mine, false, Some(true), RestoreStep::Complete),
            (Live, Mine, false, Some(true), RestoreStep::Done),
            (Live, Gone, false, Some(true), RestoreStep::Done),
            // The claim's own record was lost.
            (Nothing, Mine, true, None, RestoreStep::Record),
            (Nothing, Mine, false, Some(true), RestoreStep::Record),
            // Another claim was faster, or other directories are in the way.
            (Nothing, Others, false, None, RestoreStep::Taken),
            (Creating, Others, false, None, RestoreStep::Taken),
            (Nothing, Gone, false, None, RestoreStep::Gone),
            (Creating, Gone, false, None, RestoreStep::Gone),
            (Nothing, Kept, false, None, RestoreStep::Missing),
            (Creating, Mine, false, None, RestoreStep::Missing),
            (Nothing, Kept, true, Some(false), RestoreStep::Refuse),
            (Creating, Mine, true, Some(false), RestoreStep::Refuse),
            (Creating, Kept, false, Some(true), RestoreStep::Disagree),
            (Live, Mine, true, None, RestoreStep::Disagree),
            (Live, Gone, false, Some(false), RestoreStep::Disagree),
        ] {
            assert_eq!(
                next(own, source, at_archive, home),
                step,
                "{own:?} {source:?} {at_archive} {home:?}"
            );
        }
    }
}
