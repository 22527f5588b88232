//! The next step of a reclaim, based on the record's state and on what exists. Pure.

use crate::record::State;

/// What to do with the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimAction {
    Archive,
    Delete,
}

/// What exists under a name, compared by file ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Nothing,
    /// The volume's directory.
    Ours,
    /// Something else.
    Stranger,
}

/// What exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// At the volume's path.
    pub source: At,
    /// At the path in the record's state: the archive, the trash entry or the tombstone.
    pub moved: At,
    /// The directory is empty; unset until checked or tried.
    pub empty: Option<bool>,
    /// The server refused to move the directory into the trash.
    pub trash_refused: bool,
}

/// A state to record before the step that it announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    RemovingEmpty,
    /// With a name that is unused now.
    Archiving,
    Deleting,
    Tombstone,
}

/// Result of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Archived,
    EmptyRemoved,
    Deleted,
    AlreadyGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    LookInside,
    Record(Next),
    RemoveEmpty,
    /// Rename the directory to the path in the record's state.
    Move,
    /// The directory has the archive's name: restrict it to the operator, and record it as archived.
    Seal,
    Done(End),
    /// The directory is missing, which is a failure.
    Missing,
    /// Something else has the directory's name, and the directory is missing.
    Replaced,
    /// The directory was never completed, so no volume can have it.
    NotMade,
}

pub(crate) fn decide(state: &State, adopted: bool, wish: ReclaimAction, seen: &Seen) -> Step {
    let wish = if adopted { ReclaimAction::Archive } else { wish };
    let gone = match wish {
        ReclaimAction::Archive => Step::Missing,
        ReclaimAction::Delete => Step::Done(End::AlreadyGone),
    };
    match (state, seen.moved, seen.source) {
        (State::Creating | State::Copying(_), ..) => Step::NotMade,
        (State::Live, _, At::Ours) => begin(wish, seen),
        (State::Live, _, At::Nothing) => gone,
        (State::Live, _, At::Stranger) => Step::Replaced,

        (State::RemovingEmpty, _, At::Ours) if seen.empty == Some(false) => begin(wish, seen),
        (State::RemovingEmpty, _, At::Ours) => Step::RemoveEmpty,
        // The directory was empty when this state was recorded. Whatever removed it, there was nothing to keep.
        (State::RemovingEmpty, ..) => Step::Done(End::EmptyRemoved),

        (State::Archiving(_), At::Ours, _) => Step::Seal,
        (State::Archiving(_), _, At::Ours) if wish == ReclaimAction::Delete => Step::Record(Next::Deleting),
        (State::Archiving(_), At::Nothing, At::Ours) => Step::Move,
        (State::Archiving(_), At::Stranger, At::Ours) => Step::Record(Next::Archiving),
        (State::Archiving(_), ..) => gone,

        // The archive was moved back.
        (State::Archived(_), At::Nothing | At::Stranger, At::Ours) => begin(wish, seen),
        (State::Archived(_), ..) => Step::Done(End::Archived),
        // The archive is being purged or restored, which begins only without a volume.
        (State::Purging { .. } | State::Restoring { .. }, ..) => Step::NotMade,

        (State::Deleting { .. } | State::Tombstone { .. }, At::Ours, _) => Step::Done(End::Deleted),
        // The policy was changed before the rename.
        (State::Deleting { .. } | State::Tombstone { .. }, _, At::Ours) if wish == ReclaimAction::Archive => {
            begin(wish, seen)
        }
        (State::Deleting { .. }, _, At::Ours) if seen.trash_refused => Step::Record(Next::Tombstone),
        (State::Deleting { .. } | State::Tombstone { .. }, At::Nothing, At::Ours) => Step::Move,
        // A later time results in another name in the trash.
        (State::Deleting { .. }, At::Stranger, At::Ours) => Step::Record(Next::Deleting),
        // Something else has the tombstone's name.
        (State::Tombstone { .. }, At::Stranger, At::Ours) => Step::Replaced,
        // Renamed, and possibly purged since.
        (State::Deleting { .. } | State::Tombstone { .. }, ..) => Step::Done(End::Deleted),
    }
}

fn begin(wish: ReclaimAction, seen: &Seen) -> Step {
    match (wish, seen.empty) {
        (ReclaimAction::Delete, _) => Step::Record(Next::Deleting),
        (ReclaimAction::Archive, None) => Step::LookInside,
        (ReclaimAction::Archive, Some(true)) => Step::Record(Next::RemovingEmpty),
        (ReclaimAction::Archive, Some(false)) => Step::Record(Next::Archiving),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ArchiveState;

    fn note() -> ArchiveState {
        ArchiveState {
            target: "archived-x".into(),
            mode: 0o777,
            uid: None,
            gid: None,
            since: None,
            size: None,
            class: None,
            terms: crate::record::RetentionTerms::default(),
            copy: None,
        }
    }

    #[test]
    fn every_state_of_record_source_and_target_has_its_next_step() {
        use At::{Nothing, Ours, Stranger};
        use ReclaimAction::{Archive, Delete};
        let (live, empty) = (State::Live, State::RemovingEmpty);
        let (archiving, archived) = (State::Archiving(note()), State::Archived(note()));
        let deleting = State::Deleting { since: 1 };
        let tombstone = State::Tombstone { since: 1 };
        for (state, wish, moved, source, holds, step) in [
            (&State::Creating, Delete, Nothing, Ours, None, Step::NotMade),
            // Not begun.
            (&live, Archive, Nothing, Ours, None, Step::LookInside),
            (
                &live,
                Archive,
                Nothing,
                Ours,
                Some(true),
                Step::Record(Next::RemovingEmpty),
            ),
            (
                &live,
                Archive,
                Nothing,
                Ours,
                Some(false),
                Step::Record(Next::Archiving),
            ),
            (&live, Archive, Nothing, Nothing, None, Step::Missing),
            (&live, Archive, Nothing, Stranger, None, Step::Replaced),
            (&live, Delete, Nothing, Ours, None, Step::Record(Next::Deleting)),
            (&live, Delete, Nothing, Nothing, None, Step::Done(End::AlreadyGone)),
            (&live, Delete, Nothing, Stranger, None, Step::Replaced),
            // Before and after the RMDIR of an empty directory.
            (&empty, Archive, Nothing, Ours, None, Step::RemoveEmpty),
            (
                &empty,
                Archive,
                Nothing,
                Ours,
                Some(false),
                Step::Record(Next::Archiving),
            ),
            (&empty, Delete, Nothing, Ours, Some(false), Step::Record(Next::Deleting)),
            (&empty, Archive, Nothing, Nothing, None, Step::Done(End::EmptyRemoved)),
            (&empty, Archive, Nothing, Stranger, None, Step::Done(End::EmptyRemoved)),
            // Before and after the rename to an archive; with the archive's name taken; with the volume's path
            // recreated.
            (&archiving, Archive, Nothing, Ours, None, Step::Move),
            (&archiving, Archive, Stranger, Ours, None, Step::Record(Next::Archiving)),
            (&archiving, Archive, Ours, Nothing, None, Step::Seal),
            (&archiving, Archive, Ours, Stranger, None, Step::Seal),
            (&archiving, Delete, Ours, Nothing, None, Step::Seal),
            (&archiving, Delete, Nothing, Ours, None, Step::Record(Next::Deleting)),
            (&archiving, Archive, Nothing, Nothing, None, Step::Missing),
            (&archiving, Archive, Stranger, Stranger, None, Step::Missing),
            (&archiving, Archive, Nothing, Stranger, None, Step::Missing),
            (&archiving, Delete, Nothing, Nothing, None, Step::Done(End::AlreadyGone)),
            (&archived, Archive, Ours, Nothing, None, Step::Done(End::Archived)),
            (&archived, Delete, Ours, Stranger, None, Step::Done(End::Archived)),
            (&archived, Archive, Nothing, Nothing, None, Step::Done(End::Archived)),
            (&archived, Archive, Nothing, Ours, None, Step::LookInside),
            // Before and after the rename into the trash; after the purge; with the volume's path recreated.
            (&deleting, Delete, Nothing, Ours, None, Step::Move),
            (&deleting, Delete, Stranger, Ours, None, Step::Record(Next::Deleting)),
            (&deleting, Delete, Ours, Nothing, None, Step::Done(End::Deleted)),
            (&deleting, Delete, Ours, Stranger, None, Step::Done(End::Deleted)),
            (&deleting, Delete, Nothing, Nothing, None, Step::Done(End::Deleted)),
            (&deleting, Delete, Nothing, Stranger, None, Step::Done(End::Deleted)),
            (&deleting, Archive, Nothing, Ours, None, Step::LookInside),
            (&deleting, Archive, Ours, Nothing, None, Step::Done(End::Deleted)),
            (&tombstone, Delete, Nothing, Ours, None, Step::Move),
            (&tombstone, Delete, Ours, Nothing, None, Step::Done(End::Deleted)),
            (&tombstone, Delete, Stranger, Ours, None, Step::Replaced),
            (&tombstone, Delete, Nothing, Nothing, None, Step::Done(End::Deleted)),
        ] {
            let seen = Seen {
                source,
                moved,
                empty: holds,
                trash_refused: false,
            };
            assert_eq!(decide(state, false, wish, &seen), step, "{state:?} {wish:?} {seen:?}");
        }
    }

    #[test]
    fn what_was_adopted_is_archived_where_the_policy_says_delete() {
        let seen = Seen {
            source: At::Ours,
            moved: At::Nothing,
            empty: Some(false),
            trash_refused: false,
        };
        assert_eq!(
            decide(&State::Live, true, ReclaimAction::Delete, &seen),
            Step::Record(Next::Archiving)
        );
        let gone = Seen {
            source: At::Nothing,
            ..seen
        };
        assert_eq!(decide(&State::Live, true, ReclaimAction::Delete, &gone), Step::Missing);
    }

    #[test]
    fn what_the_trash_refuses_becomes_a_tombstone() {
        let seen = Seen {
            source: At::Ours,
            moved: At::Nothing,
            empty: None,
            trash_refused: true,
        };
        let deleting = State::Deleting { since: 1 };
        assert_eq!(
            decide(&deleting, false, ReclaimAction::Delete, &seen),
            Step::Record(Next::Tombstone)
        );
    }
}
