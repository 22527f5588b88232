//! What the operator keeps on an export: its identity, records, directories, archives and trash.
//!
//! Everything here can be cut off between any two calls, and every reply can be lost: a record is written before the
//! step that it announces, and what is found afterwards, told by fileid, says how far it came. Running the same
//! operation again is the repair, always.
//!
//! The rules are those of section 6 of the design; the modules say which of them they keep.
#![allow(clippy::unimplemented, unused_variables, dead_code)]

mod error;
mod layout;
pub mod ledger;
mod reason;
mod record;
mod request;

use std::sync::Arc;

pub use error::ExportError;
pub use ledger::{Conflict, Holder, Ledger, Place, Relation};
pub use reason::{Circumstances, reason_of, remedy_of};
pub use record::{ArchiveNote, Record, RecordError, State};
pub use request::{
    ClaimRef, DirectoryRequest, Expected, Identity, Keeper, ProvisionedDirectory, PurgeFailure, PurgeLimits,
    PurgeReport, ReclaimRequest, Reclaimed, Settled, TrashContent, UndoOutcome, WriteProbe,
};

use crate::naming::DirectoryPath;
use crate::nfs::Export;

/// An export with what the operator keeps on it, for one backend.
///
/// Operations on the same volume take turns; all others run side by side.
pub struct ManagedExport {
    nfs: Export,
    keeper: Keeper,
    ledger: Arc<Ledger>,
}

impl ManagedExport {
    /// Nothing is sent yet. The backend's roots are entered into the ledger; the caller removes
    /// [`Holder::BackendRoot`] when the backend is gone.
    pub fn new(nfs: Export, keeper: Keeper, ledger: Arc<Ledger>) -> Self {
        unimplemented!()
    }

    /// The connection.
    pub fn nfs(&self) -> &Export {
        &self.nfs
    }

    /// The places that a directory of this backend takes, to feed the ledger with volumes.
    pub fn places(&self, export_id: &str, directory: &DirectoryPath) -> Vec<Place> {
        unimplemented!()
    }

    /// Reads the identity and changes nothing; `None` where there is none yet.
    pub async fn read_identity(&self) -> Result<Option<Identity>, ExportError> {
        unimplemented!()
    }

    /// Reads the identity on the present connection, and makes it where that is allowed; makes our own directories.
    ///
    /// Must have succeeded once before anything else. After a reconnection the identity confirmed last is read again by
    /// itself before the next change.
    pub async fn confirm_identity(&self, expected: Expected) -> Result<Identity, ExportError> {
        unimplemented!()
    }

    /// Makes and removes a file of ours, and looks whether our own directories are as we made them.
    pub async fn probe_write(&self) -> Result<WriteProbe, ExportError> {
        unimplemented!()
    }

    /// Once after each start, before changes: reads the records that have no volume, enters archives and open
    /// directories into the ledger, remembers tombstones, and completes what can be completed.
    pub async fn settle(&self, has_volume: &(dyn Fn(&str) -> bool + Send + Sync)) -> Result<Settled, ExportError> {
        unimplemented!()
    }

    /// Makes a claim's directory, or finds that it is made.
    pub async fn provision(&self, request: &DirectoryRequest) -> Result<ProvisionedDirectory, ExportError> {
        unimplemented!()
    }

    /// Removes what was made for a claim that will have no volume: by rmdir only, and never what a volume names.
    pub async fn undo(&self, volume: &str, claim_uid: &str) -> Result<UndoOutcome, ExportError> {
        unimplemented!()
    }

    /// Writes the record of a volume that has none (made by nfs-subdir-external-provisioner): what is found is
    /// recorded before anything is touched. Answers the directory's fileid. `adopted` = never to be deleted.
    pub async fn register(&self, request: &ReclaimRequest, adopted: bool) -> Result<u64, ExportError> {
        unimplemented!()
    }

    /// Renames a volume's directory to an archive, or removes it if it is empty.
    pub async fn archive(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        unimplemented!()
    }

    /// Moves a volume's directory into the trash. An adopted one is archived instead.
    pub async fn delete(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        unimplemented!()
    }

    /// Gives up a volume's directory: the record goes, the directory stays as it is.
    pub async fn retain(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        unimplemented!()
    }

    /// After the volume object is gone: removes a record that has done its work. Archives' and tombstones' stay.
    /// If this is never called, the next [`settle`](Self::settle) does it.
    pub async fn forget(&self, volume: &str) -> Result<(), ExportError> {
        unimplemented!()
    }

    /// Removes for good what is in the trash, tombstones included. Can be dropped and called again at any point.
    pub async fn purge_trash(&self, limits: PurgeLimits) -> Result<PurgeReport, ExportError> {
        unimplemented!()
    }

    /// What is in the trash, for the backend's status.
    pub async fn trash(&self) -> Result<TrashContent, ExportError> {
        unimplemented!()
    }

    /// How many archives this backend has: those found by [`settle`](Self::settle) and made since.
    pub fn count_archives(&self) -> usize {
        unimplemented!()
    }
}
