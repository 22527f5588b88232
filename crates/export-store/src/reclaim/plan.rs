//! The next step of a reclaim, based on the record's state and on what exists. Pure.

use crate::record::State;

/// What to do with the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimAction {
    Archive,
    Delete,
}

/// What exists under a name, compared by fileid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameOccupant {
    Nothing,
    /// The volume's directory.
    Own,
    /// Something else.
    Other,
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
    /// In the trash of a full export, under a name that says what a record would.
    pub unrecorded: bool,
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
    /// The directory was deleted without a record of it: remove the volume's record.
    DoneUnrecorded,
    /// The directory is missing, and was to be deleted: remove the volume's record.
    AlreadyGone,
    /// The directory is missing, which is a failure.
    Missing,
    /// Something else has the directory's name, and the directory is missing.
    Replaced,
    /// The directory was never completed, so no volume can have it.
    NeverCompleted,
}

pub(crate) fn decide(state: &State, adopted: bool, action: ReclaimAction, observed: &ObservedPaths) -> ReclaimStep {
    let action = if adopted { ReclaimAction::Archive } else { action };
    let missing = match action {
        ReclaimAction::Archive => ReclaimStep::Missing,
        ReclaimAction::Delete => ReclaimStep::AlreadyGone,
    };
    match (state, observed.moved, observed.source) {
        (State::Creating | State::Copying(_), ..) => ReclaimStep::NeverCompleted,
        (_, _, NameOccupant::Nothing | NameOccupant::Other) if observed.unrecorded => ReclaimStep::DoneUnrecorded,
        (State::Live, _, NameOccupant::Own) => begin(action, observed),
        (State::Live, _, NameOccupant::Nothing) => missing,
        (State::Live, _, NameOccupant::Other) => ReclaimStep::Replaced,

        (State::RemovingEmpty, _, NameOccupant::Own) if observed.empty == Some(false) => begin(action, observed),
        (State::RemovingEmpty, _, NameOccupant::Own) => ReclaimStep::RemoveEmpty,
        // The directory was empty when this state was recorded. Whatever removed it, there was nothing to keep.
        (State::RemovingEmpty, ..) => ReclaimStep::Done(ReclaimResult::EmptyRemoved),

        (State::Archiving(_), NameOccupant::Own, _) => ReclaimStep::Restrict,
        (State::Archiving(_), _, NameOccupant::Own) if action == ReclaimAction::Delete => {
            ReclaimStep::Record(NextState::Deleting)
        }
        (State::Archiving(_), NameOccupant::Nothing, NameOccupant::Own) => ReclaimStep::Move,
        (State::Archiving(_), NameOccupant::Other, NameOccupant::Own) => ReclaimStep::Record(NextState::Archiving),
        (State::Archiving(_), NameOccupant::Other, _) | (State::Archiving(_), _, NameOccupant::Other)
            if action == ReclaimAction::Delete =>
        {
            ReclaimStep::Replaced
        }
        (State::Archiving(_), ..) => missing,

        // The archive was moved back.
        (State::Archived(_), NameOccupant::Nothing | NameOccupant::Other, NameOccupant::Own) => begin(action, observed),
        (State::Archived(_), ..) => ReclaimStep::Done(ReclaimResult::Archived),
        // The archive is being purged or restored, which begins only without a volume.
        (State::Purging { .. } | State::Restoring { .. }, ..) => ReclaimStep::NeverCompleted,

        (State::Deleting { .. } | State::Tombstone { .. }, NameOccupant::Own, _) => {
            ReclaimStep::Done(ReclaimResult::Deleted)
        }
        // The policy was changed before the rename.
        (State::Deleting { .. } | State::Tombstone { .. }, _, NameOccupant::Own)
            if action == ReclaimAction::Archive =>
        {
            begin(action, observed)
        }
        (State::Deleting { .. }, _, NameOccupant::Own) if observed.trash_refused => {
            ReclaimStep::Record(NextState::Tombstone)
        }
        (State::Deleting { .. } | State::Tombstone { .. }, NameOccupant::Nothing, NameOccupant::Own) => {
            ReclaimStep::Move
        }
        // A later time results in another name in the trash.
        (State::Deleting { .. }, NameOccupant::Other, NameOccupant::Own) => ReclaimStep::Record(NextState::Deleting),
        // Something else has the tombstone's name.
        (State::Tombstone { .. }, NameOccupant::Other, NameOccupant::Own) => ReclaimStep::Replaced,
        // Renamed, and possibly purged since.
        (State::Deleting { .. } | State::Tombstone { .. }, ..) => ReclaimStep::Done(ReclaimResult::Deleted),
    }
}

fn begin(action: ReclaimAction, observed: &ObservedPaths) -> ReclaimStep {
    match (action, observed.empty) {
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
    use crate::request::ArchiveMetadata;

    fn archive_state() -> ArchiveState {
        ArchiveMetadata::default().archive_state("archived-x".into(), None)
    }

    #[test]
    fn every_state_of_record_source_and_target_has_its_next_step() {
        use NameOccupant::{Nothing, Other, Own};
        use ReclaimAction::{Archive, Delete};
        let (live, empty) = (State::Live, State::RemovingEmpty);
        let (archiving, archived) = (State::Archiving(archive_state()), State::Archived(archive_state()));
        let deleting = State::Deleting { since: 1 };
        let tombstone = State::Tombstone { since: 1 };
        for (state, action, moved, source, holds, step) in [
            (
                &State::Creating,
                Delete,
                Nothing,
                Own,
                None,
                ReclaimStep::NeverCompleted,
            ),
            // Not begun.
            (&live, Archive, Nothing, Own, None, ReclaimStep::CheckEmpty),
            (
                &live,
                Archive,
                Nothing,
                Own,
                Some(true),
                ReclaimStep::Record(NextState::RemovingEmpty),
            ),
            (
                &live,
                Archive,
                Nothing,
                Own,
                Some(false),
                ReclaimStep::Record(NextState::Archiving),
            ),
            (&live, Archive, Nothing, Nothing, None, ReclaimStep::Missing),
            (&live, Archive, Nothing, Other, None, ReclaimStep::Replaced),
            (
                &live,
                Delete,
                Nothing,
                Own,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (&live, Delete, Nothing, Nothing, None, ReclaimStep::AlreadyGone),
            (&live, Delete, Nothing, Other, None, ReclaimStep::Replaced),
            // Before and after the RMDIR of an empty directory.
            (&empty, Archive, Nothing, Own, None, ReclaimStep::RemoveEmpty),
            (
                &empty,
                Archive,
                Nothing,
                Own,
                Some(false),
                ReclaimStep::Record(NextState::Archiving),
            ),
            (
                &empty,
                Delete,
                Nothing,
                Own,
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
                Other,
                None,
                ReclaimStep::Done(ReclaimResult::EmptyRemoved),
            ),
            // Before and after the rename to an archive; with the archive's name taken; with the volume's path
            // recreated.
            (&archiving, Archive, Nothing, Own, None, ReclaimStep::Move),
            (
                &archiving,
                Archive,
                Other,
                Own,
                None,
                ReclaimStep::Record(NextState::Archiving),
            ),
            (&archiving, Archive, Own, Nothing, None, ReclaimStep::Restrict),
            (&archiving, Archive, Own, Other, None, ReclaimStep::Restrict),
            (&archiving, Delete, Own, Nothing, None, ReclaimStep::Restrict),
            (
                &archiving,
                Delete,
                Nothing,
                Own,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (&archiving, Archive, Nothing, Nothing, None, ReclaimStep::Missing),
            (&archiving, Archive, Other, Other, None, ReclaimStep::Missing),
            (&archiving, Archive, Nothing, Other, None, ReclaimStep::Missing),
            (&archiving, Delete, Nothing, Nothing, None, ReclaimStep::AlreadyGone),
            (&archiving, Delete, Other, Nothing, None, ReclaimStep::Replaced),
            (&archiving, Delete, Nothing, Other, None, ReclaimStep::Replaced),
            (
                &archived,
                Archive,
                Own,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Archived),
            ),
            (
                &archived,
                Delete,
                Own,
                Other,
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
            (&archived, Archive, Nothing, Own, None, ReclaimStep::CheckEmpty),
            // Before and after the rename into the trash; after the purge; with the volume's path recreated.
            (&deleting, Delete, Nothing, Own, None, ReclaimStep::Move),
            (
                &deleting,
                Delete,
                Other,
                Own,
                None,
                ReclaimStep::Record(NextState::Deleting),
            ),
            (
                &deleting,
                Delete,
                Own,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (
                &deleting,
                Delete,
                Own,
                Other,
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
                Other,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&deleting, Archive, Nothing, Own, None, ReclaimStep::CheckEmpty),
            (
                &deleting,
                Archive,
                Own,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&tombstone, Delete, Nothing, Own, None, ReclaimStep::Move),
            (
                &tombstone,
                Delete,
                Own,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
            (&tombstone, Delete, Other, Own, None, ReclaimStep::Replaced),
            (
                &tombstone,
                Delete,
                Nothing,
                Nothing,
                None,
                ReclaimStep::Done(ReclaimResult::Deleted),
            ),
        ] {
            let observed = ObservedPaths {
                source,
                moved,
                empty: holds,
                trash_refused: false,
                unrecorded: false,
            };
            assert_eq!(
                decide(state, false, action, &observed),
                step,
                "{state:?} {action:?} {observed:?}"
            );
        }
    }

    #[test]
    fn what_was_adopted_is_archived_where_the_policy_says_delete() {
        let observed = ObservedPaths {
            source: NameOccupant::Own,
            moved: NameOccupant::Nothing,
            empty: Some(false),
            trash_refused: false,
            unrecorded: false,
        };
        assert_eq!(
            decide(&State::Live, true, ReclaimAction::Delete, &observed),
            ReclaimStep::Record(NextState::Archiving)
        );
        let missing = ObservedPaths {
            source: NameOccupant::Nothing,
            ..observed
        };
        assert_eq!(
            decide(&State::Live, true, ReclaimAction::Delete, &missing),
            ReclaimStep::Missing
        );
    }

    #[test]
    fn what_was_deleted_without_a_record_is_done_whatever_has_its_name_now() {
        for (source, step) in [
            (NameOccupant::Nothing, ReclaimStep::DoneUnrecorded),
            (NameOccupant::Other, ReclaimStep::DoneUnrecorded),
            (NameOccupant::Own, ReclaimStep::Record(NextState::Deleting)),
        ] {
            let observed = ObservedPaths {
                source,
                moved: NameOccupant::Nothing,
                empty: None,
                trash_refused: false,
                unrecorded: true,
            };
            assert_eq!(
                decide(&State::Live, false, ReclaimAction::Delete, &observed),
                step,
                "{source:?}"
            );
        }
    }

    #[test]
    fn what_the_trash_refuses_becomes_a_tombstone() {
        let observed = ObservedPaths {
            source: NameOccupant::Own,
            moved: NameOccupant::Nothing,
            empty: None,
            trash_refused: true,
            unrecorded: false,
        };
        let deleting = State::Deleting { since: 1 };
        assert_eq!(
            decide(&deleting, false, ReclaimAction::Delete, &observed),
            ReclaimStep::Record(NextState::Tombstone)
        );
    }
}
