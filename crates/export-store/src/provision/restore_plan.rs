//! The next step of a restore, based on both records and on what exists. Pure.

/// State of the claim's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    Nothing,
    Creating,
    Live,
}

/// State of the archive's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
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
pub(super) enum Step {
    /// Write the claim's own record.
    Record,
    /// Write this claim as restore target into the archive's record.
    Take,
    /// Create the parents, and rename the directory.
    Move,
    /// Restore mode and owner, and record the directory as live.
    Settle,
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
pub(super) fn next(own: Own, source: Source, at_archive: bool, home: Option<bool>) -> Step {
    match (own, source, at_archive, home) {
        (Own::Live, _, _, Some(true)) => Step::Done,
        (Own::Live, ..) => Step::Disagree,
        (_, Source::Others, ..) => Step::Taken,
        (_, Source::Gone, ..) => Step::Gone,
        (_, _, _, Some(false)) => Step::Refuse,
        (Own::Nothing, Source::Mine, _, Some(true)) | (Own::Nothing, _, true, None) => Step::Record,
        (Own::Creating, Source::Mine, _, Some(true)) => Step::Settle,
        (Own::Creating, Source::Kept, true, None) => Step::Take,
        (Own::Creating, Source::Mine, true, None) => Step::Move,
        (_, Source::Kept, _, Some(true)) => Step::Disagree,
        (_, _, false, None) => Step::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_restore_has_its_next_step() {
        use Own::{Creating, Live, Nothing};
        use Source::{Gone, Kept, Mine, Others};
        for (own, source, at_archive, home, step) in [
            // All steps in order, each interrupted afterwards.
            (Nothing, Kept, true, None, Step::Record),
            (Creating, Kept, true, None, Step::Take),
            (Creating, Mine, true, None, Step::Move),
            (Creating, Mine, false, Some(true), Step::Settle),
            (Live, Mine, false, Some(true), Step::Done),
            (Live, Gone, false, Some(true), Step::Done),
            // The claim's own record was lost.
            (Nothing, Mine, true, None, Step::Record),
            (Nothing, Mine, false, Some(true), Step::Record),
            // Another claim was faster, or other directories are in the way.
            (Nothing, Others, false, None, Step::Taken),
            (Creating, Others, false, None, Step::Taken),
            (Nothing, Gone, false, None, Step::Gone),
            (Creating, Gone, false, None, Step::Gone),
            (Nothing, Kept, false, None, Step::Missing),
            (Creating, Mine, false, None, Step::Missing),
            (Nothing, Kept, true, Some(false), Step::Refuse),
            (Creating, Mine, true, Some(false), Step::Refuse),
            (Creating, Kept, false, Some(true), Step::Disagree),
            (Live, Mine, true, None, Step::Disagree),
            (Live, Gone, false, Some(false), Step::Disagree),
        ] {
            assert_eq!(
                next(own, source, at_archive, home),
                step,
                "{own:?} {source:?} {at_archive} {home:?}"
            );
        }
    }
}
