//! Classifies what a scan found of a volume. Pure.

use crate::api::OrphanKind;
use export_store::{Inspection, PathState, ReadRecord, Record, State};

/// Relation of a volume to one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeView {
    /// There is no such volume, or it is on another export and another backend.
    Absent,
    /// The volume is on this backend.
    Here {
        /// The fileid of its directory, as the volume records it.
        file_id: Option<u64>,
        /// True if its address is neither the backend's nor a former one.
        has_other_address: bool,
    },
    /// The volume is on this backend, whose export is another one than that of the volume.
    OnOtherExport,
    /// The volume is on this backend, and nfs-subdir created it: it has no record before its reclaim, and no fileid.
    Legacy,
    /// Another backend of this export, another provisioner or the reclaim is responsible for it.
    Foreign,
}

/// Returns the kind of orphan, if it is one. `claim_waits` is true if the claim of the record exists and has no lost
/// volume, so that its volume may still be created; `has_backend` is true if the backend that the record names exists.
pub(super) fn classify(
    inspection: &Inspection,
    volume: VolumeView,
    claim_waits: bool,
    has_backend: bool,
) -> Option<OrphanKind> {
    let directory = inspection.directory;
    match (volume, &inspection.record) {
        (VolumeView::Foreign, _) | (VolumeView::Absent, ReadRecord::Nothing) => None,
        (VolumeView::OnOtherExport, _) => Some(OrphanKind::VolumeOnOtherExport),
        (_, ReadRecord::Unreadable(_)) => Some(OrphanKind::RecordUnreadable),
        (VolumeView::Legacy, ReadRecord::Nothing) => classify_volume(None, directory),
        (VolumeView::Here { file_id, .. }, ReadRecord::Nothing) => {
            Some(classify_volume(file_id, directory).unwrap_or(OrphanKind::VolumeWithoutRecord))
        }
        (
            VolumeView::Here {
                file_id,
                has_other_address,
            },
            ReadRecord::Record(record, _),
        ) => {
            let found = classify_volume(file_id.or(record.file_id), directory);
            found.or(has_other_address.then_some(OrphanKind::VolumeAtOtherAddress))
        }
        (VolumeView::Legacy, ReadRecord::Record(record, _)) => classify_volume(record.file_id, directory),
        (VolumeView::Absent, ReadRecord::Record(record, _)) if claim_waits && record.state.belongs_to_volume() => None,
        // No backend recovers, resumes or purges it.
        (VolumeView::Absent, ReadRecord::Record(..)) if !has_backend => Some(OrphanKind::RecordWithoutBackend),
        (VolumeView::Absent, ReadRecord::Record(record, _)) => classify_record(record, inspection),
    }
}

/// Classifies a volume by what is at the path of its directory. Without a fileid, any directory matches.
fn classify_volume(file_id: Option<u64>, directory: PathState) -> Option<OrphanKind> {
    match directory {
        PathState::Nothing => Some(OrphanKind::VolumeWithoutDirectory),
        PathState::Unknown => None,
        directory if is_directory(file_id, directory) => None,
        PathState::Directory { .. } | PathState::Other => Some(OrphanKind::VolumeWithOtherDirectory),
    }
}

/// Classifies a record without a volume.
fn classify_record(record: &Record, inspection: &Inspection) -> Option<OrphanKind> {
    // Its directory is the source of the copy; garbage collection checks whether the copy is still needed.
    if matches!(record.state, State::Copying(_)) {
        return None;
    }
    if is_directory(record.file_id, inspection.directory) {
        // If a volume with another name has the directory, the data is in use again.
        return inspection.other_volume.is_none().then_some(match record.shared {
            true => OrphanKind::SharedDirectoryWithoutVolume,
            false => OrphanKind::DirectoryWithoutVolume,
        });
    }
    match record.state {
        State::Creating | State::Live => Some(match inspection.directory {
            PathState::Nothing | PathState::Unknown => OrphanKind::RecordWithoutDirectory,
            PathState::Directory { .. } | PathState::Other => OrphanKind::RecordWithOtherDirectory,
        }),
        State::Archiving(_) | State::Archived(_) if is_directory(record.file_id, inspection.archive) => None,
        State::Archiving(_) | State::Archived(_) => Some(match inspection.archive {
            PathState::Nothing | PathState::Unknown => OrphanKind::ArchiveWithoutDirectory,
            PathState::Directory { .. } | PathState::Other => OrphanKind::ArchiveWithOtherDirectory,
        }),
        // In progress: reported by the object of the archive.
        State::Purging { .. } | State::Restoring { .. } | State::Copying(_) => None,
        // Complete: the next start removes the record; a purge removes the record of a tombstone.
        State::RemovingEmpty | State::Deleting { .. } | State::Tombstone { .. } => None,
    }
}

fn is_directory(file_id: Option<u64>, found: PathState) -> bool {
    matches!(found, PathState::Directory { file_id: found } if file_id.is_none_or(|known| known == found))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use OrphanKind::{
        ArchiveWithOtherDirectory, ArchiveWithoutDirectory, DirectoryWithoutVolume, RecordUnreadable,
        RecordWithOtherDirectory, RecordWithoutDirectory, VolumeAtOtherAddress, VolumeOnOtherExport,
        VolumeWithOtherDirectory, VolumeWithoutDirectory, VolumeWithoutRecord,
    };

    use super::*;
    use export_store::naming::DirectoryPath;
    use export_store::{ArchiveState, ClaimRef, RecordError, SignatureStatus};

    const OURS: PathState = PathState::Directory { file_id: 7 };
    const OTHER: PathState = PathState::Directory { file_id: 8 };
    const HERE: VolumeView = here(Some(7));

    const fn here(file_id: Option<u64>) -> VolumeView {
        VolumeView::Here {
            file_id,
            has_other_address: false,
        }
    }

    fn record(state: State, file_id: Option<u64>) -> ReadRecord {
        let record = Record {
            volume: "pvc-1".into(),
            backend: "main".into(),
            claim: ClaimRef::default(),
            directory: DirectoryPath::parse("a/b").unwrap(),
            file_id,
            handle: None,
            adopted: false,
            shared: false,
            restores: None,
            group: None,
            metadata: None,
            state,
        };
        ReadRecord::Record(Box::new(record), SignatureStatus::Signed)
    }

    fn archive_state() -> ArchiveState {
        ArchiveState {
            target: "archived-b".into(),
            mode: 0o777,
            uid: None,
            gid: None,
            since: None,
            size: None,
            class: None,
            volume_created: None,
            retention: None,
            terms: export_store::RetentionTerms::default(),
            revision: None,
            copy: None,
            released: false,
        }
    }

    fn seen(record: ReadRecord, directory: PathState, archive: PathState) -> Inspection {
        Inspection {
            record,
            directory,
            archive,
            other_volume: None,
        }
    }

    #[test]
    fn a_volume_without_its_directory_or_record_is_an_orphan() {
        let live = || record(State::Live, Some(7));
        for (found, directory, volume, expected) in [
            (live(), OURS, HERE, None),
            (live(), PathState::Nothing, HERE, Some(VolumeWithoutDirectory)),
            (live(), OTHER, HERE, Some(VolumeWithOtherDirectory)),
            (live(), PathState::Other, HERE, Some(VolumeWithOtherDirectory)),
            // The fileid in the volume takes precedence over the one in the record.
            (live(), OTHER, here(Some(8)), None),
            (live(), OTHER, here(None), Some(VolumeWithOtherDirectory)),
            // A volume that was recreated for an archive that was moved back.
            (record(State::Archived(archive_state()), Some(7)), OURS, HERE, None),
            (
                record(State::Archived(archive_state()), Some(7)),
                PathState::Nothing,
                HERE,
                Some(VolumeWithoutDirectory),
            ),
            (ReadRecord::Nothing, OURS, HERE, Some(VolumeWithoutRecord)),
            (ReadRecord::Nothing, OTHER, HERE, Some(VolumeWithOtherDirectory)),
            (
                ReadRecord::Nothing,
                PathState::Nothing,
                HERE,
                Some(VolumeWithoutDirectory),
            ),
            (ReadRecord::Nothing, PathState::Unknown, HERE, Some(VolumeWithoutRecord)),
            (
                ReadRecord::Unreadable(RecordError::Truncated),
                OURS,
                HERE,
                Some(RecordUnreadable),
            ),
            // Volumes of nfs-subdir have no record before their reclaim.
            (ReadRecord::Nothing, OURS, VolumeView::Legacy, None),
            (
                ReadRecord::Nothing,
                PathState::Nothing,
                VolumeView::Legacy,
                Some(VolumeWithoutDirectory),
            ),
            (ReadRecord::Nothing, PathState::Unknown, VolumeView::Legacy, None),
            (live(), OTHER, VolumeView::Legacy, Some(VolumeWithOtherDirectory)),
            // Another backend, another provisioner or the reclaim is responsible for the volume.
            (ReadRecord::Nothing, PathState::Nothing, VolumeView::Foreign, None),
            (live(), OTHER, VolumeView::Foreign, None),
            (
                ReadRecord::Unreadable(RecordError::Truncated),
                OURS,
                VolumeView::Foreign,
                None,
            ),
        ] {
            let look = seen(found, directory, PathState::Nothing);
            assert_eq!(classify(&look, volume, false, true), expected, "{look:?} {volume:?}");
            assert_eq!(
                classify(&look, volume, true, true),
                expected,
                "its claim exists: {look:?} {volume:?}"
            );
        }
    }

    #[test]
    fn a_volume_that_disagrees_with_its_backend_is_an_orphan_whatever_its_record_is() {
        let live = || record(State::Live, Some(7));
        let moved = VolumeView::Here {
            file_id: Some(7),
            has_other_address: true,
        };
        let on_other_export = VolumeView::OnOtherExport;
        for (found, directory, volume, expected) in [
            (live(), OURS, moved, VolumeAtOtherAddress),
            // That is worse.
            (live(), PathState::Nothing, moved, VolumeWithoutDirectory),
            (ReadRecord::Nothing, OURS, moved, VolumeWithoutRecord),
            (
                ReadRecord::Nothing,
                PathState::Nothing,
                on_other_export,
                VolumeOnOtherExport,
            ),
            (live(), OTHER, on_other_export, VolumeOnOtherExport),
            // Only the identity of the export was lost.
            (live(), OURS, on_other_export, VolumeOnOtherExport),
        ] {
            let look = seen(found, directory, PathState::Nothing);
            assert_eq!(
                classify(&look, volume, false, true),
                Some(expected),
                "{look:?} {volume:?}"
            );
        }
    }

    #[test]
    fn a_directory_or_record_without_a_volume_and_a_waiting_claim_is_an_orphan() {
        let deleting = || State::Deleting { since: 1 };
        let tombstone = || State::Tombstone { since: 1 };
        let (archiving, archived) = (
            || State::Archiving(archive_state()),
            || State::Archived(archive_state()),
        );
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
                Some(RecordWithOtherDirectory),
            ),
            (
                State::Live,
                Some(7),
                PathState::Other,
                PathState::Nothing,
                Some(RecordWithOtherDirectory),
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
            // A reclaim that nothing resumes, because its volume no longer exists.
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
                Some(ArchiveWithOtherDirectory),
            ),
            // The directory at its path is the source of the copy.
            (State::Copying(archive_state()), None, OURS, PathState::Nothing, None),
            // An archive that was moved back, without a volume for it.
            (
                archived(),
                Some(7),
                OURS,
                PathState::Nothing,
                Some(DirectoryWithoutVolume),
            ),
        ] {
            let open = state.belongs_to_volume();
            let look = seen(record(state, file_id), directory, archive);
            assert_eq!(classify(&look, VolumeView::Absent, false, true), expected, "{look:?}");
            let waited_for = expected.filter(|_| !open);
            assert_eq!(
                classify(&look, VolumeView::Absent, true, true),
                waited_for,
                "its claim exists: {look:?}"
            );
        }
        let absent = seen(ReadRecord::Nothing, PathState::Nothing, PathState::Nothing);
        assert_eq!(classify(&absent, VolumeView::Absent, false, true), None);
        let broken = seen(
            ReadRecord::Unreadable(RecordError::Truncated),
            PathState::Nothing,
            PathState::Nothing,
        );
        assert_eq!(
            classify(&broken, VolumeView::Absent, false, true),
            Some(RecordUnreadable)
        );
    }

    #[test]
    fn any_record_of_a_backend_that_does_not_exist_is_an_orphan() {
        for state in [
            State::Creating,
            State::Live,
            State::Deleting { since: 1 },
            State::Tombstone { since: 1 },
            State::Archived(archive_state()),
            State::Copying(archive_state()),
        ] {
            let open = state.belongs_to_volume();
            let look = seen(record(state, Some(7)), PathState::Nothing, OURS);
            let expected = Some(OrphanKind::RecordWithoutBackend);
            assert_eq!(classify(&look, VolumeView::Absent, false, false), expected, "{look:?}");
            // Another backend on the export resumes it for the claim.
            let waiting = classify(&look, VolumeView::Absent, true, false);
            assert_eq!(waiting, expected.filter(|_| !open), "{look:?}");
            assert_eq!(classify(&look, VolumeView::Foreign, false, false), None);
        }
    }

    #[test]
    fn a_directory_that_another_volume_uses_is_not_an_orphan() {
        let look = Inspection {
            other_volume: Some("by-hand".into()),
            ..seen(record(State::Live, Some(7)), OURS, PathState::Nothing)
        };
        assert_eq!(classify(&look, VolumeView::Absent, false, true), None);
    }

    #[test]
    fn a_record_of_a_shared_directory_without_a_volume_is_an_orphan_that_says_so() {
        let shared = match record(State::Live, Some(7)) {
            ReadRecord::Record(record, trust) => {
                let shared = Record {
                    shared: true,
                    ..*record
                };
                ReadRecord::Record(Box::new(shared), trust)
            }
            other => other,
        };
        let look = seen(shared, OURS, PathState::Nothing);
        assert_eq!(
            classify(&look, VolumeView::Absent, false, true),
            Some(OrphanKind::SharedDirectoryWithoutVolume)
        );
        assert_eq!(classify(&look, HERE, false, true), None);
    }
}
