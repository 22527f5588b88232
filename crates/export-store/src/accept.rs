//! Acceptance of the directory at the place of a record, which has another fileid than the record knows: somebody restored
//! or moved the export file by file, and an administrator confirms the result.
//!
//! The request confirms only that the directory is the recorded one: its place and conflicts are checked as usual
//! (data-safety rules 5, 8 and 22).

use crate::archives;
use crate::error::ExportError;
use crate::record::{Record, RecordedHandle, State};
use crate::recorded_place::{self, Confirmed};
use crate::records::{self, ReadRecord};
use crate::request::VolumeDirectory;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;

/// Result of accepting a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acceptance {
    /// The record knows the directory.
    Accepted(AcceptedDirectory),
    /// The backend with this name has to accept it.
    OtherBackend(String),
    /// Nothing was changed, for this reason.
    Refused(String),
}

/// A directory that its record knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedDirectory {
    /// UID of the claim in the record.
    pub claim_uid: String,
    /// Path of the archive or directory, relative to the export's path.
    pub directory: String,
    /// Fileid of the directory.
    pub file_id: u64,
    /// The record knew another fileid before.
    pub changed: bool,
    /// Attributes of an archive that could not be set, so that others may still enter it.
    pub warnings: Vec<String>,
}

/// Which directories an administrator accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptanceScope {
    /// That of a record that the administrator named.
    Named,
    /// Those of all records that were copied with the export. If a record was written to the present folder of records,
    /// somebody replaced its directory alone: it might be that of somebody else who had the path.
    All,
}

/// Accepts the directory at the place of the record of `volume`. `object` is what the volume's object says, if it exists, or
/// why it is not a volume of this backend.
pub(crate) async fn accept(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (volume, scope): (&str, AcceptanceScope),
    object: Result<Option<&VolumeDirectory>, &str>,
) -> Result<Acceptance, ExportError> {
    let refused = |why: &str| Ok(Acceptance::Refused(why.to_owned()));
    let record = match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => return refused("there is no record of it"),
        ReadRecord::Unreadable(why) => return Ok(Acceptance::Refused(format!("its record is unreadable: {why}"))),
        ReadRecord::Record(record, _) if record.backend != store.config.backend => {
            return Ok(Acceptance::OtherBackend(record.backend));
        }
        ReadRecord::Record(_, SignatureStatus::Unsigned | SignatureStatus::Forged) => {
            return refused("this cluster did not sign its record");
        }
        ReadRecord::Record(record, SignatureStatus::Signed) => *record,
    };
    match object {
        Err(why) => return refused(why),
        Ok(Some(object)) if !describes(&record, object) => {
            return refused("its record is of another claim or directory than its PersistentVolume");
        }
        Ok(_) => {}
    }
    if is_being_restored(store, verified, &record).await? {
        return refused("an archive is being restored to it");
    }
    let node = match recorded_place::find(store, verified, &record, Confirmed::Directory).await? {
        Ok(node) => node,
        Err(why) => return Ok(Acceptance::Refused(why)),
    };
    let file_id = node.attributes.fileid;
    let changed = record.file_id != Some(file_id);
    let handle = record.handle.as_ref();
    let was_copied = handle.is_some_and(|handle| handle.is_of_another_folder(verified));
    if changed && scope == AcceptanceScope::All && !was_copied {
        return refused("only its directory was replaced, not the export: name it, if the directory is the right one");
    }
    let warnings = match &record.state {
        // What copied it may have opened it to others.
        State::Archived(archive) => archives::restrict(store, verified, &node, &archive.target).await?,
        _ => Vec::new(),
    };
    if changed || handle.is_none_or(|handle| !handle.is_of(&node) || handle.is_outdated(verified)) {
        let record = Record {
            file_id: Some(file_id),
            handle: Some(RecordedHandle::new(verified, &node)),
            ..record.clone()
        };
        records::replace(store, verified, &record).await?;
        recorded_place::track(store, verified, &record);
    }
    Ok(Acceptance::Accepted(AcceptedDirectory {
        directory: recorded_place::path(&record),
        claim_uid: record.claim.uid,
        file_id,
        changed,
        warnings,
    }))
}

/// Reports whether a volume's object is about the claim and directory of a record. One that no claim has yet names none.
fn describes(record: &Record, object: &VolumeDirectory) -> bool {
    let is_same_claim = object.claim.uid.is_empty() || record.claim.uid == object.claim.uid;
    is_same_claim && record.directory == object.directory
}

/// Reports whether the record is of a volume that an archive is being restored to: both records have to agree.
async fn is_being_restored(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
    let Some(archive) = &record.restores else {
        return Ok(false);
    };
    let ReadRecord::Record(archive, _) = records::read(store, verified, archive).await? else {
        return Ok(false);
    };
    Ok(matches!(&archive.state, State::Restoring { to, .. } if to.volume == record.volume))
}
