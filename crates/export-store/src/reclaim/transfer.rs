//! Transfer of a volume's record to the claim that the volume is bound to now.
//!
//! A reclaim for an earlier claim may have begun. Whose the record is depends on where the directory is: at the
//! volume's path, it is what an administrator gave to the claim; otherwise it is the archive of the earlier claim, or
//! deleted.

use crate::error::ExportError;
use crate::reclaim::plan::{NameOccupant, ObservedPaths};
use crate::reclaim::retain::{complete_archive, observe_record};
use crate::record::{Record, State, VolumeMetadata};
use crate::records::ReadRecord;
use crate::request::{ClaimRef, RecordTransfer, VolumeDirectory};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::volume_record::{self, Recorded};
use crate::{archives, records};

/// Next step for the record of a volume that was bound to another claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferStep {
    /// Make it the record of that claim.
    Transfer,
    /// Leave it to the claim for which the directory was archived or deleted.
    Keep,
    /// Something else has to end first.
    Wait,
}

fn decide(state: &State, observed: &ObservedPaths) -> TransferStep {
    let at_its_path = observed.source == NameOccupant::Own && observed.moved != NameOccupant::Own;
    match state {
        State::Live => TransferStep::Transfer,
        State::Creating | State::Copying(_) | State::Purging { .. } | State::Restoring { .. } => TransferStep::Wait,
        // Moved back by hand. No claim's policy respects the hold.
        State::Archived(archive) if at_its_path && archive.terms.held => TransferStep::Wait,
        // The reclaim has changed nothing yet, and pods of the claim may have written to the directory: as an archive
        // of the earlier claim, it would show their data to another tenant.
        State::RemovingEmpty
        | State::Archiving(_)
        | State::Archived(_)
        | State::Deleting { .. }
        | State::Tombstone { .. }
            if at_its_path =>
        {
            TransferStep::Transfer
        }
        State::RemovingEmpty
        | State::Archiving(_)
        | State::Archived(_)
        | State::Deleting { .. }
        | State::Tombstone { .. } => TransferStep::Keep,
    }
}

pub(crate) async fn transfer(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    to: &ClaimRef,
    metadata: &VolumeMetadata,
) -> Result<RecordTransfer, ExportError> {
    let expected = match records::read(store, verified, &expected.volume).await? {
        // An earlier process may have transferred it, to this claim or to one that existed before. The directory and
        // the fileid are compared below.
        ReadRecord::Record(record, SignatureStatus::Signed) => VolumeDirectory {
            claim: record.claim,
            ..expected.clone()
        },
        ReadRecord::Record(record, _) if record.claim.uid == to.uid => VolumeDirectory {
            claim: to.clone(),
            ..expected.clone()
        },
        _ => expected.clone(),
    };
    let (recorded, trust) = volume_record::compare(store, verified, &expected).await?;
    let record = match recorded {
        Recorded::Agreed(record, _) => *record,
        Recorded::Nothing(NameOccupant::Nothing) => return Err(volume_record::missing(&expected)),
        Recorded::Nothing(_) => return Err(volume_record::unrecorded(&expected)),
    };
    if record.state != State::Live {
        // The volume confirms the UID of an earlier claim, and not its namespace, which decides who may restore the
        // data.
        if trust != SignatureStatus::Signed {
            return Err(ExportError::RecordUnsigned { volume: record.volume });
        }
        // A reclaim for the claim itself.
        if record.claim.uid == to.uid {
            return Ok(RecordTransfer::Transferred);
        }
    }
    match next_step(store, verified, &record).await? {
        TransferStep::Transfer => {
            volume_record::ensure_signed(store, verified, &record, trust).await?;
            hand_over(store, verified, &record, to, metadata).await?;
            Ok(RecordTransfer::Transferred)
        }
        TransferStep::Keep => {
            // While the volume exists, nothing else does that: a start leaves the record to the volume.
            if !complete_archive(store, verified, &record).await? {
                archives::track(store, verified, &record);
            }
            Ok(RecordTransfer::Reclaimed(record.claim))
        }
        TransferStep::Wait => Err(archives::busy(&record, "transferring its record")),
    }
}

async fn next_step(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<TransferStep, ExportError> {
    // Its directory does not matter.
    if record.state == State::Live {
        return Ok(TransferStep::Transfer);
    }
    let observed = observe_record(store, verified, record).await?;
    Ok(observed.map_or(TransferStep::Wait, |reclaim| decide(&record.state, &reclaim.observed)))
}

/// Records that the directory is in use by the claim.
async fn hand_over(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    to: &ClaimRef,
    metadata: &VolumeMetadata,
) -> Result<(), ExportError> {
    let handed = Record {
        claim: to.clone(),
        metadata: Some(metadata.clone()),
        ..record.in_state(State::Live)
    };
    if let State::Archived(archive) = &record.state {
        let (mode, uid, gid) = (format!("{:04o}", archive.mode), archive.uid, archive.gid);
        let volume = &record.volume;
        tracing::warn!(
            volume,
            mode,
            ?uid,
            ?gid,
            "an archive was moved back by hand: set its former mode and owner"
        );
    }
    if handed != *record {
        // The reclaim of the volume waits for it.
        records::replace_to_free_space(store, verified, &handed).await?;
    }
    // It is neither an archive nor a tombstone now. An earlier attempt may have replaced the record without knowing it.
    archives::untrack(store, &record.volume);
    store.state().tombstones.remove(&record.volume);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ArchiveState, RestoreTarget, RetentionTerms};
    use crate::request::ArchiveMetadata;

    fn archive(held: bool) -> ArchiveState {
        let terms = RetentionTerms {
            held,
            ..RetentionTerms::default()
        };
        ArchiveMetadata::default()
            .archive_state("archived-x".into(), None)
            .with_terms(&terms, None)
    }

    #[test]
    fn a_record_is_transferred_unless_the_directory_was_moved_for_the_earlier_claim() {
        use NameOccupant::{Nothing, Other, Own};
        use TransferStep::{Keep, Transfer, Wait};
        let to = RestoreTarget {
            volume: "pvc-2".into(),
            claim: ClaimRef::default(),
            directory: "b".into(),
        };
        let restoring = State::Restoring {
            archive: archive(false),
            to,
        };
        let purging = State::Purging {
            archive: archive(false),
            since: 1,
        };
        // What the record says, and what is done if the directory is at its path (and the archive's name is free, or
        // something else has it), at the archive's name or in the trash, and nowhere.
        for (state, at_its_path, moved, gone) in [
            (State::Creating, Wait, Wait, Wait),
            (State::Copying(archive(false)), Wait, Wait, Wait),
            // Its reclaim reports a missing directory.
            (State::Live, Transfer, Transfer, Transfer),
            (State::RemovingEmpty, Transfer, Keep, Keep),
            (State::Archiving(archive(false)), Transfer, Keep, Keep),
            (State::Archived(archive(false)), Transfer, Keep, Keep),
            (State::Archived(archive(true)), Wait, Keep, Keep),
            (State::Deleting { since: 1 }, Transfer, Keep, Keep),
            (State::Tombstone { since: 1 }, Transfer, Keep, Keep),
            (purging, Wait, Wait, Wait),
            (restoring, Wait, Wait, Wait),
        ] {
            for (source, target, expected) in [
                (Own, Nothing, at_its_path),
                (Own, Other, at_its_path),
                (Nothing, Own, moved),
                (Other, Own, moved),
                (Nothing, Nothing, gone),
                (Other, Nothing, gone),
                (Nothing, Other, gone),
            ] {
                let observed = ObservedPaths {
                    source,
                    moved: target,
                    empty: None,
                    trash_refused: false,
                    unrecorded: false,
                };
                assert_eq!(decide(&state, &observed), expected, "{state:?} {observed:?}");
            }
        }
    }
}
