//! What the operator keeps on an export: its identity, records, directories, archives and trash.
//!
//! Everything here can be cut off between any two calls, and every reply can be lost: a record is written before the
//! step that it announces, and what is found afterwards, told by fileid, says how far it came. Running the same
//! operation again is the repair, always.
//!
//! The rules are those of section 6 of the design; the modules say which of them they keep.

mod adopt;
mod archives;
mod copy;
mod count;
mod doubts;
mod error;
mod error_kind;
mod folders;
mod foreign;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod give_back;
mod ground;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile_names;
mod identity;
mod judge;
pub mod layout;
pub mod ledger;
mod look;
pub mod naming;
mod note;
mod probe;
mod provision;
mod purge;
mod readopt;
mod reclaim;
mod record;
mod records;
mod request;
mod settle;
mod signature;
mod survey;
pub mod text;
mod trash;
mod undo;
mod vouch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use self::copy::ArchivesCopied;
use self::foreign::OtherClusters;
use self::ground::{KeyedMutex, VerifiedRoot};
use self::ledger::FileKey;
pub use adopt::{Adopted, RecordName};
pub use archives::{ArchiveRef, RecordedArchive, Stage};
pub use copy::{
    ArchiveRequest, Asked, Budget, CopyError, CopySource, Discarded, SourceTree, StagedCopy, Staging, Tally,
    TallySnapshot, copy_to_archive, copy_volume,
};
pub use count::{Content, Place as TreePlace, RateLimiter};
pub use doubts::{OtherCluster, UnsignedRecord, UnsignedRecords};
pub use error::ExportError;
pub use error_kind::{ErrorHints, ErrorKind, classify, remedy_of};
pub use foreign::ForeignDirectory;
pub use ledger::{Conflict, Holder, PathReservations, Relation, ReservedPath};
pub use look::{Inspection, PathState};
pub use readopt::{RecordedVolume, Recoverability};
pub use record::{ArchiveState, CopyState, Record, RecordError, RestoreTarget, RetentionTerms, State, VolumeMetadata};
pub use records::Found;
pub use request::{
    ArchiveMetadata, ClaimRef, DirectoryRequest, Existing, ExpectedIdentity, Identity, ProvisionedDirectory,
    PurgeFailure, PurgeLimits, PurgeReport, ReclaimRequest, Reclaimed, RecoveryReport, RollbackOutcome, StoreConfig,
    TrashContent, WriteProbe,
};
pub use signature::{KEY_LENGTH, RecordsKey, Trust};
pub use survey::{ExportListing, ListedDirectory, Presence, Signature};

use crate::naming::DirectoryPath;
use nfs_client::{Client, FileRef};

/// Runs an operation on ground whose identity was confirmed on the present connection, and begins again on new ground
/// when the connection or what is there changed meanwhile: each operation is safe to repeat.
macro_rules! on_firm_ground {
    ($self:ident, $ground:ident => $operation:expr) => {{
        let mut attempts = 0;
        loop {
            let outcome = match $self.ground().await {
                Ok($ground) => $operation.await,
                Err(error) => Err(error),
            };
            if !$self.begin_again(&outcome, &mut attempts) {
                break $self.told(outcome).await;
            }
        }
    }};
}

/// An export with what the operator keeps on it, for one backend.
///
/// Operations on the same volume take turns; all others run side by side.
pub struct ExportStore {
    nfs: Client,
    keeper: StoreConfig,
    ledger: Arc<PathReservations>,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
    /// What was confirmed last.
    ground: Mutex<Option<Arc<VerifiedRoot>>>,
    /// Identity is read by one at a time.
    confirming: tokio::sync::Mutex<()>,
    turns: KeyedMutex,
    foreign: Mutex<Option<Arc<OtherClusters>>>,
    /// Volumes whose archives are this backend's.
    archives: Mutex<BTreeSet<String>>,
    /// Those of them that are being copied.
    copied: ArchivesCopied,
    /// Archives that are being made by copying a volume: the objects' names, and the uids of those that asked.
    copying: Mutex<BTreeMap<String, String>>,
    /// Records of tombstones that are to be purged, by volume.
    tombstones: Mutex<BTreeMap<String, Record>>,
    /// Records without a volume that this cluster did not sign, by volume.
    doubted: Mutex<BTreeMap<String, UnsignedRecord>>,
    /// What other clusters have here.
    others: Mutex<Vec<OtherCluster>>,
}

impl ExportStore {
    /// Nothing is sent yet. The backend's roots are entered into the ledger; the caller removes
    /// [`Holder::BackendRoot`] when the backend is gone.
    pub fn new(nfs: Client, keeper: StoreConfig, ledger: Arc<PathReservations>) -> Self {
        ledger.insert(Holder::BackendRoot(keeper.backend.clone()), keeper.roots.clone(), None);
        Self {
            nfs,
            keeper,
            ledger,
            leads: Box::new(|| true),
            ground: Mutex::default(),
            confirming: tokio::sync::Mutex::default(),
            turns: KeyedMutex::default(),
            foreign: Mutex::default(),
            archives: Mutex::default(),
            copied: ArchivesCopied::default(),
            copying: Mutex::default(),
            tombstones: Mutex::default(),
            doubted: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// Changes something only while `leads` says so: it is asked at the start of each operation and before each change.
    pub fn with_leadership_check(self, leads: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            leads: Box::new(leads),
            ..self
        }
    }

    fn must_lead(&self) -> Result<(), ExportError> {
        if (self.leads)() {
            Ok(())
        } else {
            Err(ExportError::NotLeading)
        }
    }

    /// The connection.
    pub fn nfs(&self) -> &Client {
        &self.nfs
    }

    /// The places that a directory of this backend takes, to feed the ledger with volumes.
    pub fn reserved_paths(&self, export_id: &str, directory: &DirectoryPath) -> Vec<ReservedPath> {
        self.places_of(export_id, &directory.to_string())
    }

    /// Reads the identity and changes nothing; `None` where there is none yet.
    pub async fn read_identity(&self) -> Result<Option<Identity>, ExportError> {
        self.told(self.look_at_identity().await).await
    }

    /// Reads the identity on the present connection, and makes it where that is allowed; makes our own directories.
    ///
    /// Must have succeeded once before anything else. After a reconnection the identity confirmed last is read again by
    /// itself before the next change.
    pub async fn confirm_identity(&self, expected: ExpectedIdentity) -> Result<Identity, ExportError> {
        let _turn = self.confirming.lock().await;
        self.must_lead()?;
        let ground = self.told(self.confirm(&expected).await).await?;
        Ok(ground.identity.clone())
    }

    /// Makes and removes a file of ours, and looks whether our own directories are as we made them.
    pub async fn probe_write(&self) -> Result<WriteProbe, ExportError> {
        on_firm_ground!(self, ground => self.probe_write_on(&ground))
    }

    /// Once after each start, before changes: reads the records that have no volume, enters archives and open
    /// directories into the ledger, remembers tombstones, and completes what can be completed.
    pub async fn recover(
        &self,
        has_volume: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<RecoveryReport, ExportError> {
        on_firm_ground!(self, ground => self.settle_on(&ground, has_volume))
    }

    /// Looks whether a claim's directory is refused as things are, and changes nothing: whoever was refused before need not
    /// announce anew what will be refused again. Success promises nothing.
    pub async fn dry_run(&self, request: &DirectoryRequest) -> Result<(), ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.foresee_on(&ground, request))
    }

    /// Makes a claim's directory, or finds that it is made.
    pub async fn provision(&self, request: &DirectoryRequest) -> Result<ProvisionedDirectory, ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.provision_on(&ground, request))
    }

    /// Removes what was made for a claim that will have no volume: by rmdir only, and never what a volume names.
    pub async fn rollback(&self, volume: &str, claim_uid: &str) -> Result<RollbackOutcome, ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.undo_on(&ground, volume, claim_uid, false))
    }

    /// The same where the volume is there and names another directory: another provisioner made it. It has to be in the
    /// ledger.
    pub async fn rollback_superseded(&self, volume: &str, claim_uid: &str) -> Result<RollbackOutcome, ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.undo_on(&ground, volume, claim_uid, true))
    }

    /// Writes the record of a volume that has none (made by nfs-subdir-external-provisioner): what is found is
    /// recorded before anything is touched. Answers the directory's fileid. `adopted` = never to be deleted.
    pub async fn register(&self, request: &ReclaimRequest, adopted: bool) -> Result<u64, ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.register_on(&ground, request, adopted))
    }

    /// Writes down what a volume is by now, if its record agrees with what is asked.
    pub async fn save_volume_metadata(
        &self,
        request: &ReclaimRequest,
        note: &VolumeMetadata,
    ) -> Result<(), ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.keep_note_on(&ground, request, note))
    }

    /// Gives the record of a volume that was made again to the claim that has it by now. Repeated, it changes nothing.
    pub async fn transfer_record(
        &self,
        request: &ReclaimRequest,
        to: &ClaimRef,
        note: &VolumeMetadata,
    ) -> Result<(), ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.hand_over_on(&ground, request, to, note))
    }

    /// Renames a volume's directory to an archive, or removes it if it is empty.
    pub async fn archive(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.archive_on(&ground, request))
    }

    /// Moves a volume's directory into the trash. An adopted one is archived instead.
    pub async fn delete(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.delete_on(&ground, request))
    }

    /// Gives up a volume's directory: the record goes, the directory stays as it is.
    pub async fn retain(&self, request: &ReclaimRequest) -> Result<Reclaimed, ExportError> {
        let _turn = self.turns.of(&request.volume).await;
        on_firm_ground!(self, ground => self.retain_on(&ground, request))
    }

    /// After the volume object is gone: removes a record that has done its work. Archives' and tombstones' stay.
    /// If this is never called, the next [`settle`](Self::settle) does it.
    pub async fn forget_volume(&self, volume: &str) -> Result<(), ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.forget_on(&ground, volume))
    }

    /// Removes for good what is in the trash, tombstones included. Can be dropped and called again at any point.
    pub async fn purge_trash(&self, limits: PurgeLimits) -> Result<PurgeReport, ExportError> {
        on_firm_ground!(self, ground => self.purge_on(&ground, limits))
    }

    /// What is in the trash, for the backend's status.
    pub async fn trash(&self) -> Result<TrashContent, ExportError> {
        on_firm_ground!(self, ground => self.trash_on(&ground))
    }

    /// The archive that is kept of a volume, if it is one of this backend's.
    pub async fn find_archive(&self, volume: &str) -> Result<Option<RecordedArchive>, ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.archive_kept_on(&ground, volume))
    }

    /// Writes down on the export what shall become of an archive, for the day when its object is lost.
    pub async fn save_retention(&self, which: &ArchiveRef, terms: &RetentionTerms) -> Result<(), ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.keep_terms_on(&ground, which, terms))
    }

    /// Signs the record of an archive, if this cluster did not and the archive's object, as the caller says, agrees with it.
    pub async fn sign_confirmed_archive(&self, which: &ArchiveRef, terms: &RetentionTerms) -> Result<(), ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.vouch_for_archive_on(&ground, which, terms))
    }

    /// Announces that an archive will be purged: from now on it is not restored. One that is held is not.
    pub async fn begin_purge(&self, which: &ArchiveRef) -> Result<(), ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.begin_purge_on(&ground, which))
    }

    /// Moves an archive whose purge was announced into the trash and forgets it. One that is not where it was counts
    /// as moved.
    pub async fn end_purge(&self, which: &ArchiveRef) -> Result<(), ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.end_purge_on(&ground, which))
    }

    /// Takes back the announcement of a purge. False: it is in the trash already.
    pub async fn cancel_purge(&self, which: &ArchiveRef) -> Result<bool, ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.spare_on(&ground, which))
    }

    /// Forgets an archive whose directory is a volume's by now.
    pub async fn finish_restore(&self, which: &ArchiveRef, to: &RestoreTarget) -> Result<(), ExportError> {
        let _turn = self.turns.of(&which.volume).await;
        on_firm_ground!(self, ground => self.finish_restore_on(&ground, which, to))
    }

    /// Takes a record that this cluster did not sign for its own, as an administrator said: signed, and moved out of another
    /// cluster's folder. Has to be [settled](Self::settle) before, so that it is known what is in the way. What belongs to
    /// another backend that is there is that one's to adopt.
    pub async fn adopt(
        &self,
        name: &RecordName,
        is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Adopted, ExportError> {
        let _turn = self.turns.of(&name.volume).await;
        on_firm_ground!(self, ground => self.adopt_on(&ground, name, is_backend))
    }

    /// Signs the record of a volume in use, if this cluster did not and the volume agrees with it.
    pub async fn sign_confirmed(&self, said: &ReclaimRequest) -> Result<(), ExportError> {
        let _turn = self.turns.of(&said.volume).await;
        let agreed = on_firm_ground!(self, ground => self.agreed(&ground, said));
        agreed.map(drop)
    }

    /// Whether the archive of a volume is being copied: until that is over, it is neither purged nor moved.
    pub fn is_being_copied(&self, volume: &str) -> bool {
        self.copied.has(volume)
    }

    /// The volumes whose archives this backend has, as far as [`settle`](Self::settle) found them or they were made since.
    pub fn archives(&self) -> Vec<String> {
        let archives = self.archives.lock().unwrap_or_else(PoisonError::into_inner);
        archives.iter().cloned().collect()
    }

    /// The volumes of which this cluster has a record on the export, in order; those that `leave_out` names are not kept.
    /// Files among the records by which no volume can be called are left out too.
    pub async fn recorded_volumes(
        &self,
        leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Vec<String>, ExportError> {
        on_firm_ground!(self, ground => self.recorded_volumes_on(&ground, leave_out))
    }

    /// Looks for a volume's record and directory, and changes nothing. `elsewhere` is where to look if there is no record.
    ///
    /// Waits for an operation on that volume to end.
    pub async fn inspect(&self, volume: &str, elsewhere: Option<&DirectoryPath>) -> Result<Inspection, ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.kept_of_on(&ground, volume, elsewhere))
    }

    /// The claim that a live volume of this backend was for, by its record, whether that is signed or not. None: there is no
    /// such record, or the volume's claim was gone already.
    pub async fn recorded_claim(&self, volume: &str) -> Result<Option<ClaimRef>, ExportError> {
        on_firm_ground!(self, ground => self.recorded_claim_on(&ground, volume))
    }

    /// What is left of a volume whose object is gone; an error only where it could not be looked.
    pub async fn recoverability(&self, volume: &str) -> Result<Recoverability, ExportError> {
        let _turn = self.turns.of(volume).await;
        on_firm_ground!(self, ground => self.remains_of_on(&ground, volume))
    }

    /// The volumes in use that other clusters' records know on a backend of this name.
    pub async fn foreign_directories(&self) -> Result<Vec<ForeignDirectory>, ExportError> {
        on_firm_ground!(self, ground => self.volumes_of_others_on(&ground))
    }

    async fn tree_at(&self, place: TreePlace<'_>, file_id: Option<u64>) -> Result<Option<FileRef>, ExportError> {
        on_firm_ground!(self, ground => self.tree_at_on(&ground, place, file_id))
    }

    /// How many archives this backend has: those found by [`settle`](Self::settle) and made since.
    pub fn count_archives(&self) -> usize {
        self.archives.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
