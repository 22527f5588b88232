//! Acceptance of the directory at the place of a record, which has another fileid than the record knows: somebody restored
//! or moved the export file by file, and an administrator confirms the result.
//!
//! The request confirms only that the directory is the recorded one: its place and conflicts are checked as usual
//! (data-safety rules 5 and 8).

use crate::error::ExportError;
use crate::record::{Record, RecordedHandle, State};
use crate::recorded_place::{self, Search, Wanted};
use crate::records::{self, ReadRecord};
use crate::request::ReclaimRequest;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, recoverability};

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
    /// The record is of an archive.
    pub archive: bool,
    /// The record knew another fileid before.
    pub changed: bool,
}

/// Accepts the directory at the place of the record of `volume`. `object` is what the volume's object says, if it exists.
pub(crate) async fn accept(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    object: Option<&ReclaimRequest>,
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
    if object.is_some_and(|object| !describes(&record, object)) {
        return refused("its record is of another claim or directory than its PersistentVolume");
    }
    let search = Search {
        cluster: None,
        wanted: Wanted::Any,
    };
    let node = match recorded_place::find(store, verified, &record, &search).await {
        Ok(Ok(node)) => node,
        Ok(Err(why)) => return Ok(Acceptance::Refused(why)),
        Err(error) if recoverability::is_about_it(&error) => return Ok(Acceptance::Refused(error.to_string())),
        Err(error) => return Err(error),
    };
    let file_id = node.attributes.fileid;
    let changed = record.file_id != Some(file_id);
    if changed {
        if let State::Archived(archive) = &record.state {
            // What restored it may have opened it to others.
            archives::restrict(store, verified, &node, &archive.target).await?;
        }
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
        archive: record.state.archive().is_some(),
        claim_uid: record.claim.uid,
        file_id,
        changed,
    }))
}

fn describes(record: &Record, object: &ReclaimRequest) -> bool {
    record.claim.uid == object.claim.uid && record.directory == object.directory
}
