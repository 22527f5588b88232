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
pub(crate) enum NameOccupant {
    Nothing,
    /// The volume's directory.
    Ours,
    /// Something else.
    Stranger,
}

/// What exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObservedPaths {
    /// At the volume's path.
    pub source: NameOccupant,
    /// At the path in the record's state: the archive, the trash entry or the tombstone.
    pub moved: NameOccupant,
    /// The directory is empty; unset until checked or tried.
    pub empty: Option<bool>,
    /// The server refused to move the directory into the trash.
    pub trash_refused: bool,
}

/// A state to record before the step that it announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextState {
    RemovingEmpty,
    /// With a name that is unused now.
    Archiving,
    Deleting,
    Tombstone,
}

/// Result of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimResult {
    Archived,
    EmptyRemoved,
    Deleted,
    AlreadyGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimStep {
    CheckEmpty,
    Record(NextState),
    RemoveEmpty,
    /// Rename the directory to the path in the record's state.
    Move,
    /// The directory has the archive's name: restrict it to the operator, and record it as archived.
    Restrict,
    Done(ReclaimResult),
    /// The directory is missing, which is a failure.
    Missing,
    /// Something else has the directory's name, and the directory is missing.
    Replaced,
    /// The directory was never completed, so no volume can have it.
    NeverCompleted,
}

pub(crate) fn decide(state: &State, adopted: bool, action: ReclaimAction, seen: &ObservedPaths) -> ReclaimStep {
    let action = if adopted { ReclaimAction::Archive } else { action };
    let gone = match action {
        ReclaimAction::Archive => ReclaimStep::Missing,
        ReclaimAction::Delete => ReclaimStep::Done(ReclaimResult::AlreadyGone),
    };
    match (state, seen.moved, seen.source) {
        (State::Creating | State::Copying(_), ..) => ReclaimStep::NeverCompleted,
        (State::Live, _, NameOccupant::Ours) => begin(action, seen),
        (State::Live, _, NameOccupant::Nothing) => gone,
        (State::Live, _, NameOccupant::Stranger) => ReclaimStep::Replaced,

        (State::RemovingEmpty, _, NameOccupant::Ours) if seen.empty == Some(false) => begin(action, seen),
        (State::RemovingEmpty, _, NameOccupant::Ours) => ReclaimStep::RemoveEmpty,
        // The directory was empty when this state was recorded. Whatever removed it, there was nothing to keep.
        (State::RemovingEmpty, ..) => ReclaimStep::Done(ReclaimResult::EmptyRemoved),

        (State::Archiving(_), NameOccupant::Ours, _) => ReclaimStep::Restrict,
        (State::Archiving(_), _, NameOccupant::Ours) if action == ReclaimAction::Delete => {
            ReclaimStep::Record(NextState::Deleting)
        }
        (State::Archiving(_), NameOccupant::Nothing, NameOccupant::Ours) => ReclaimStep::Move,
        (State::Archiving(_), NameOccupant::Stranger, NameOccupant::Ours) => ReclaimStep::Record(NextState::Archiving),
        (State::Archiving(_), ..) => gone,

        // The archive was moved back.
        (State::Archived(_), NameOccupant::Nothing | NameOccupant::Stranger, NameOccupant::Ours) => begin(action, seen),
        (State::Archived(_), ..) => ReclaimStep::Done(ReclaimResult::Archived),
        // The archive is being purged or restored, which begins only without a volume.
        (State::Purging { .. } | State::Restoring { .. }, ..) => ReclaimStep::NeverCompleted,

        (State::Deleting { .. } | State::Tombstone { .. }, NameOccupant::Ours, _) => {
            ReclaimStep::Done(ReclaimResult::Deleted)
        }
        // The policy was changed before the rename.
        (State::Deleting { .. } | State::Tombstone { .. }, _, NameOccupant::Ours)
            if action == ReclaimAction::Archive =>
        {
            begin(action, seen)
        }
        (State::Deleting { .. }, _, NameOccupant::Ours) if seen.trash_refused => {
            ReclaimStep::Record(NextState::Tombstone)
        }
        (State::Deleting { .. } | State::Tombstone { .. }, NameOccupant::Nothing, NameOccupant::Ours) => {
            ReclaimStep::Move
        }
        // A later time results in another name in the trash.
        (State::Deleting { .. }, NameOccupant::Stranger, NameOccupant::Ours) => {
            ReclaimStep::Record(NextState::Deleting)
        }
        // Something else has the tombstone's name.
        (State::Tombstone { .. }, NameOccupant::Stranger, NameOccupant::Ours) => ReclaimStep::Replaced,
        // Renamed, and possibly purged since.
        (State::Deleting { .. } | State::Tombstone { .. }, ..) => ReclaimStep::Done(ReclaimResult::Deleted),
    }
}

fn begin(action: ReclaimAction, seen: &ObservedPaths) -> ReclaimStep {
    match (action, seen.empty) {
        (ReclaimAction::Delete, _) => ReclaimStep::Record(NextState::Deleting),
        (ReclaimAction::Archive, None) => ReclaimStep::CheckEmpty,
        (ReclaimAction::Archive, Some(true)) => ReclaimStep::Record(NextState::RemovingEmpty),
        (ReclaimAction::Archive, Some(false)) => ReclaimStep::Record(NextState::Archiving),
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
        use NameOccupant::{Nothing, Ours, Stranger};
        use ReclaimAction::{Archive, Delete};
        let (live, empty) = (State::Live, State::RemovingEmpty);
        let (archiving, archived) = (State::Archiving(note()), State::Archived(note()));
        let deleting = State::Deleting { since: 1 };
        let tombstone = State::Tombstone { since: 1 };
        for (state, action, moved, source, holds, step) in [
            (
                &State::Creating,
                Delete,
                Nothing,
                Ours,
                None,
                ReclaimStep::NeverCompleted,
            ),
            // Not begun.
            (&live, Archive, Nothing, Ours, None, ReclaimStep::CheckEmpty),
            (
                &live,
                Archive,
                Nothing,
                Ours,
                Some(true),
                ReclaimStep::Record(NextState::RemovingEmpty),
            ),
            (
                &live,
                Archive,
                Nothing,
                Ours,
                Some(false),
                ReclaimStep::Record(NextState::Archiving),
            ),
            (&live, Archive, Nothing, Nothing, None, ReclaimStep::Missing),
            (&live, Archive, Nothing, Stranger, None, ReclaimStep::Replaced),
            (
                &live,
                Delete,
                Nothing,
                Ours,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (
                &live,
                Delete,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::AlreadyGone),
            ),
            (&live, Delete, Nothing, Stranger, None, ReclaimStep::Replaced),
            // Before and after the RMDIR of an empty directory.
            (&empty, Archive, Nothing, Ours, None, ReclaimStep::RemoveEmpty),
            (
                &empty,
                Archive,
                Nothing,
                Ours,
                Some(false),
                ReclaimStep::Record(NextState::Archiving),
            ),
            (
                &empty,
                Delete,
                Nothing,
                Ours,
                Some(false),
                ReclaimStep::Record(NextState::Deleting),
            ),
            (
                &empty,
                Archive,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::EmptyRemoved),
            ),
            (
                &empty,
                Archive,
                Nothing,
                Stranger,
                None,
                ReclaimStep::Done(ReclaimResult::EmptyRemoved),
            ),
            // Before and after the rename to an archive; with the archive's name taken; with the volume's path
            // recreated.
            (&archiving, Archive, Nothing, Ours, None, ReclaimStep::Move),
            (
                &archiving,
                Archive,
                Stranger,
                Ours,
                None,
                ReclaimStep::Record(NextState::Archiving),
            ),
            (&archiving, Archive, Ours, Nothing, None, ReclaimStep::Restrict),
            (&archiving, Archive, Ours, Stranger, None, ReclaimStep::Restrict),
            (&archiving, Delete, Ours, Nothing, None, ReclaimStep::Restrict),
            (
                &archiving,
                Delete,
                Nothing,
                Ours,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (&archiving, Archive, Nothing, Nothing, None, ReclaimStep::Missing),
            (&archiving, Archive, Stranger, Stranger, None, ReclaimStep::Missing),
            (&archiving, Archive, Nothing, Stranger, None, ReclaimStep::Missing),
            (
                &archiving,
                Delete,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::AlreadyGone),
            ),
            (
                &archived,
                Archive,
                Ours,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Archived),
            ),
            (
                &archived,
                Delete,
                Ours,
                Stranger,
                None,
                ReclaimStep::Done(ReclaimResult::Archived),
            ),
            (
                &archived,
                Archive,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Archived),
            ),
            (&archived, Archive, Nothing, Ours, None, ReclaimStep::CheckEmpty),
            // Before and after the rename into the trash; after the purge; with the volume's path recreated.
            (&deleting, Delete, Nothing, Ours, None, ReclaimStep::Move),
            (
                &deleting,
                Delete,
                Stranger,
                Ours,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (
                &deleting,
                Delete,
                Ours,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (
                &deleting,
                Delete,
                Ours,
                Stranger,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (
                &deleting,
                Delete,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (
                &deleting,
                Delete,
                Nothing,
                Stranger,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&deleting, Archive, Nothing, Ours, None, ReclaimStep::CheckEmpty),
            (
                &deleting,
                Archive,
                Ours,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&tombstone, Delete, Nothing, Ours, None, ReclaimStep::Move),
            (
                &tombstone,
                Delete,
                Ours,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&tombstone, Delete, Stranger, Ours, None, ReclaimStep::Replaced),
            (
                &tombstone,
                Delete,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
        ] {
            let seen = ObservedPaths {
                source,
                moved,
                empty: holds,
                trash_refused: false,
            };
            assert_eq!(
                decide(state, false, action, &seen),
                step,
                "{state:?} {action:?} {seen:?}"
            );
        }
    }

    #[test]
    fn what_was_adopted_is_archived_where_the_policy_says_delete() {
        let seen = ObservedPaths {
            source: NameOccupant::Ours,
            moved: NameOccupant::Nothing,
            empty: Some(false),
            trash_refused: false,
        };
        assert_eq!(
            decide(&State::Live, true, ReclaimAction::Delete, &seen),
            ReclaimStep::Record(NextState::Archiving)
        );
        let gone = ObservedPaths {
            source: NameOccupant::Nothing,
            ..seen
        };
        assert_eq!(
            decide(&State::Live, true, ReclaimAction::Delete, &gone),
            ReclaimStep::Missing
        );
    }

    #[test]
    fn what_the_trash_refuses_becomes_a_tombstone() {
        let seen = ObservedPaths {
            source: NameOccupant::Ours,
            moved: NameOccupant::Nothing,
            empty: None,
            trash_refused: true,
        };
        let deleting = State::Deleting { since: 1 };
        assert_eq!(
            decide(&deleting, false, ReclaimAction::Delete, &seen),
            ReclaimStep::Record(NextState::Tombstone)
        );
    }
}
