//! What to do next for a directory that gets an archive's data, by what both records say and what is where. Pure.

/// What the claim's own record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    Nothing,
    Creating,
    Live,
}

/// What the archive's record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// It is kept.
    Kept,
    /// It becomes this claim's.
    Mine,
    /// It is being purged, or becomes another claim's.
    Others,
    /// There is none: never was, was restored, or was purged.
    Gone,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Write the claim's own record.
    Record,
    /// Write into the archive's record whose it becomes.
    Take,
    /// Make the parents, and rename.
    Move,
    /// Put mode and owner back, and record that all is well.
    Settle,
    Done,
    /// It is nowhere.
    Missing,
    /// There is no record of it any more.
    Gone,
    /// Somebody else has it.
    Taken,
    /// Something has the name that the directory is to have.
    Refuse,
    /// The record says that all is well, and it isn't.
    Disagree,
}

/// Decides. `at_archive`: the directory is where the archive is kept. `home`: what has the name that it is to have; absent:
/// nothing, true: the directory.
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
            // In order, cut off after each step.
            (Nothing, Kept, true, None, Step::Record),
            (Creating, Kept, true, None, Step::Take),
            (Creating, Mine, true, None, Step::Move),
            (Creating, Mine, false, Some(true), Step::Settle),
            (Live, Mine, false, Some(true), Step::Done),
            (Live, Gone, false, Some(true), Step::Done),
            // The own record was lost on the way.
            (Nothing, Mine, true, None, Step::Record),
            (Nothing, Mine, false, Some(true), Step::Record),
            // Somebody was faster, or somebody else's things are there.
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
