//! Whether something is alone, by all that was seen of it. Pure.

use crate::api::OrphanKind;
use export_store::{Found, Inspection, PathState, Record, State};

/// What the cluster has of a volume, seen from one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Volume {
    /// There is none of that name, or it is on another export.
    Gone,
    /// It is here.
    Here {
        /// The fileid of its directory, as it knows it.
        file_id: Option<u64>,
    },
    /// It is here, and nfs-subdir made it: it has no record before its reclaim, and knows no fileid.
    Inherited,
    /// It is another backend's of this export, not made by us, or being reclaimed: nothing is said of it here.
    Theirs,
}

/// In which way it is alone, if it is. `waited_for`: the claim that the record was made for is there, and has no lost
/// volume: one may yet come.
pub(crate) fn classify(look: &Inspection, volume: Volume, waited_for: bool) -> Option<OrphanKind> {
    match (volume, &look.record) {
        (Volume::Theirs, _) | (Volume::Gone, Found::Nothing) => None,
        (_, Found::Unreadable(_)) => Some(OrphanKind::RecordUnreadable),
        (Volume::Inherited, Found::Nothing) => with_volume(None, look.directory),
        (Volume::Here { file_id }, Found::Nothing) => {
            Some(with_volume(file_id, look.directory).unwrap_or(OrphanKind::VolumeWithoutRecord))
        }
        (Volume::Here { file_id }, Found::Record(record, _)) => with_volume(file_id.or(record.file_id), look.directory),
        (Volume::Inherited, Found::Record(record, _)) => with_volume(record.file_id, look.directory),
        (Volume::Gone, Found::Record(record, _)) if waited_for && record.state.is_open() => None,
        (Volume::Gone, Found::Record(record, _)) => alone(record, look),
    }
}

/// A volume that is there, and what is at its directory's path. Without a fileid, any directory will do.
fn with_volume(file_id: Option<u64>, directory: PathState) -> Option<OrphanKind> {
    match directory {
        PathState::Nothing => Some(OrphanKind::VolumeWithoutDirectory),
        PathState::Unknown => None,
        directory if is_it(file_id, directory) => None,
        PathState::Directory { .. } | PathState::Other => Some(OrphanKind::VolumeWithOtherDirectory),
    }
}

/// A record whose volume is gone.
fn alone(record: &Record, look: &Inspection) -> Option<OrphanKind> {
    // Its directory is the one that is copied, and the sweep asks whether somebody still wants the copy.
    if matches!(record.state, State::Copying(_)) {
        return None;
    }
    if is_it(record.file_id, look.directory) {
        // A volume of another name has the directory: somebody took the data into use again.
        return look.shared_with.is_none().then_some(OrphanKind::DirectoryWithoutVolume);
    }
    match record.state {
        State::Creating | State::Live => Some(OrphanKind::RecordWithoutDirectory),
        State::Archiving(_) | State::Archived(_) if is_it(record.file_id, look.archive) => None,
        State::Archiving(_) | State::Archived(_) => Some(OrphanKind::ArchiveWithoutDirectory),
        // On its way: the archive's own object says how far.
        State::Purging { .. } | State::Restoring { .. } | State::Copying(_) => None,
        // It has done its work: the next start removes it, the purge a tombstone's.
        State::RemovingEmpty | State::Deleting { .. } | State::Tombstone { .. } => None,
    }
}

fn is_it(file_id: Option<u64>, there: PathState) -> bool {
    matches!(there, PathState::Directory { file_id: found } if file_id.is_none_or(|known| known == found))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use OrphanKind::{
        ArchiveWithoutDirectory, DirectoryWithoutVolume, RecordUnreadable, RecordWithoutDirectory,
        VolumeWithOtherDirectory, VolumeWithoutDirectory, VolumeWithoutRecord,
    };

    use super::*;
    use export_store::naming::DirectoryPath;
    use export_store::{ArchiveState, ClaimRef, RecordError, Trust};

    const OURS: PathState = PathState::Directory { file_id: 7 };
    const OTHER: PathState = PathState::Directory { file_id: 8 };
    const HERE: Volume = Volume::Here { file_id: Some(7) };

    fn record(state: State, file_id: Option<u64>) -> Found {
        let record = Record {
            volume: "pvc-1".into(),
            backend: "main".into(),
            claim: ClaimRef::default(),
            directory: DirectoryPath::parse("a/b").unwrap(),
            file_id,
            handle: None,
            adopted: false,
            restores: None,
            note: None,
            state,
        };
        Found::Record(Box::new(record), Trust::Signed)
    }

    fn note() -> ArchiveState {
        ArchiveState {
            target: "archived-b".into(),
            mode: 0o777,
            uid: None,
            gid: None,
            since: None,
            size: None,
            class: None,
            terms: export_store::RetentionTerms::default(),
            copy: None,
        }
    }

    fn seen(record: Found, directory: PathState, archive: PathState) -> Inspection {
        Inspection {
            record,
            directory,
            archive,
            shared_with: None,
        }
    }

    #[test]
    fn a_volume_is_alone_without_its_own_directory_or_its_record() {
        let live = || record(State::Live, Some(7));
        for (found, directory, volume, expected) in [
            (live(), OURS, HERE, None),
            (live(), PathState::Nothing, HERE, Some(VolumeWithoutDirectory)),
            (live(), OTHER, HERE, Some(VolumeWithOtherDirectory)),
            (live(), PathState::Other, HERE, Some(VolumeWithOtherDirectory)),
            // What the volume says goes before what the record says.
            (live(), OTHER, Volume::Here { file_id: Some(8) }, None),
            (
                live(),
                OTHER,
                Volume::Here { file_id: None },
                Some(VolumeWithOtherDirectory),
            ),
            // A volume that was made again for an archive that was moved back.
            (record(State::Archived(note()), Some(7)), OURS, HERE, None),
            (
                record(State::Archived(note()), Some(7)),
                PathState::Nothing,
                HERE,
                Some(VolumeWithoutDirectory),
            ),
            (Found::Nothing, OURS, HERE, Some(VolumeWithoutRecord)),
            (Found::Nothing, OTHER, HERE, Some(VolumeWithOtherDirectory)),
            (Found::Nothing, PathState::Nothing, HERE, Some(VolumeWithoutDirectory)),
            (Found::Nothing, PathState::Unknown, HERE, Some(VolumeWithoutRecord)),
            (
                Found::Unreadable(RecordError::Short),
                OURS,
                HERE,
                Some(RecordUnreadable),
            ),
            // nfs-subdir's have no record before their reclaim.
            (Found::Nothing, OURS, Volume::Inherited, None),
            (
                Found::Nothing,
                PathState::Nothing,
                Volume::Inherited,
                Some(VolumeWithoutDirectory),
            ),
            (Found::Nothing, PathState::Unknown, Volume::Inherited, None),
            (live(), OTHER, Volume::Inherited, Some(VolumeWithOtherDirectory)),
            // What is another backend's, or nobody's that we know, is for others to tell.
            (Found::Nothing, PathState::Nothing, Volume::Theirs, None),
            (live(), OTHER, Volume::Theirs, None),
            (Found::Unreadable(RecordError::Short), OURS, Volume::Theirs, None),
        ] {
            let look = seen(found, directory, PathState::Nothing);
            assert_eq!(classify(&look, volume, false), expected, "{look:?} {volume:?}");
            assert_eq!(
                classify(&look, volume, true),
                expected,
                "its claim is there: {look:?} {volume:?}"
            );
        }
    }

    #[test]
    fn a_directory_or_record_is_alone_when_neither_volume_nor_a_waiting_claim_is_there() {
        let deleting = || State::Deleting { since: 1 };
        let tombstone = || State::Tombstone { since: 1 };
        let (archiving, archived) = (|| State::Archiving(note()), || State::Archived(note()));
        for (state, file_id, directory, archive, expected) in [
            (
                State::Live,
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (
                State::Live,
                Some(7),
                PathState::Nothing,
                PathState::Nothing,
                Some(RecordWithoutDirectory),
            ),
            (
                State::Live,
                Some(7),
                OTHER,
                PathState::Nothing,
                Some(RecordWithoutDirectory),
            ),
            (
                State::Live,
                Some(7),
                PathState::Other,
                PathState::Nothing,
                Some(RecordWithoutDirectory),
            ),
            (
                State::Creating,
                None,
                OTHER,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (
                State::Creating,
                None,
                PathState::Nothing,
                PathState::Nothing,
                Some(RecordWithoutDirectory),
            ),
            // A reclaim that nobody goes on with, because its volume is gone.
            (
                archiving(),
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (archiving(), Some(7), PathState::Nothing, OURS, None),
            (
                archiving(),
                Some(7),
                PathState::Nothing,
                PathState::Nothing,
                Some(ArchiveWithoutDirectory),
            ),
            (
                deleting(),
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (deleting(), Some(7), PathState::Nothing, PathState::Nothing, None),
            (
                State::RemovingEmpty,
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (State::RemovingEmpty, Some(7), OTHER, PathState::Nothing, None),
            (
                tombstone(),
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
            (tombstone(), Some(7), PathState::Nothing, PathState::Nothing, None),
            (archived(), Some(7), PathState::Nothing, OURS, None),
            (archived(), Some(7), OTHER, OURS, None),
            (
                archived(),
                Some(7),
                PathState::Nothing,
                PathState::Nothing,
                Some(ArchiveWithoutDirectory),
            ),
            (
                archived(),
                Some(7),
                PathState::Nothing,
                OTHER,
                Some(ArchiveWithoutDirectory),
            ),
            // What has its path is the directory that is copied.
            (State::Copying(note()), None, OURS, PathState::Nothing, None),
            // Moved back, and no volume made for it.
            (
                archived(),
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
        ] {
            let open = state.is_open();
            let look = seen(record(state, file_id), directory, archive);
            assert_eq!(classify(&look, Volume::Gone, false), expected, "{look:?}");
            let waited_for = expected.filter(|_| !open);
            assert_eq!(
                classify(&look, Volume::Gone, true),
                waited_for,
                "its claim is there: {look:?}"
            );
        }
        let gone = seen(Found::Nothing, PathState::Nothing, PathState::Nothing);
        assert_eq!(classify(&gone, Volume::Gone, false), None);
        let broken = seen(
            Found::Unreadable(RecordError::Short),
            PathState::Nothing,
            PathState::Nothing,
        );
        assert_eq!(classify(&broken, Volume::Gone, false), Some(RecordUnreadable));
    }

    #[test]
    fn a_directory_that_a_volume_of_another_name_has_is_not_alone() {
        let look = Inspection {
            shared_with: Some("by-hand".into()),
            ..seen(record(State::Live, Some(7)), OURS, PathState::Nothing)
        };
        assert_eq!(classify(&look, Volume::Gone, false), None);
    }
}
