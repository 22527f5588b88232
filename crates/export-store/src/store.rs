//! [`ExportStore`]: all operations on what the operator keeps on one export.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::accept::{Acceptance, AcceptanceScope};
use crate::adopt::{Adopted, RecordName};
use crate::archives::{ArchiveRef, RecordedArchive, ReleasedArchive};
use crate::beacon::{Beacon, Beacons};
use crate::clock::{SystemClock, WallClock};
use crate::copy::{Bandwidth, CopyError, CopySource, DiscardOutcome, RequestedArchive, SourceTree, VerifyReport};
use crate::count::{RateLimiter, TreeUsage};
use crate::error::{ErrorContext as _, ExportError};
use crate::error_kind::RootPermissions;
use crate::inspection::Inspection;
use crate::limits::{AgentState, LimitOrder, LimitReport, NoOrder, Ordered, VolumeLimit};
use crate::listing::ExportListing;
use crate::naming::DirectoryPath;
use crate::occasional_check::OccasionalCheck;
use crate::other_clusters::{CHANGE_RESOLUTION, ForeignDirectory, OtherClusters};
use crate::path_reservations::{Holder, PathReservations, ReservedPath};
use crate::purge::PurgeQueue;
use crate::quota::Usage;
use crate::reclaim::ReclaimAction;
use crate::record::{Record, RestoreTarget, RetentionTerms, TermsRevision, VolumeMetadata};
use crate::recoverability::Recoverability;
use crate::request::{
    ClaimRef, DirectoryRequest, ExpectedIdentity, Identity, ProvisionedDirectory, PurgeLimits, PurgeReport,
    ReclaimDecision, Reclaimed, RecordTransfer, RecoveryReport, RollbackOutcome, StoreConfig, TrashContent,
    VolumeDirectory, WriteProbe,
};
use crate::server_comparison::{AssumeSame, ServerComparison};
use crate::signature::RecordsKey;
use crate::unsigned_records::{OtherCluster, UnsignedRecords, UnsignedVolumes};
use crate::verified_root::VerifiedRoot;
use crate::{
    CountTarget, accept, adopt, archives, beacon, copy, count, create_missing_record, identity, inspection, limits,
    listing, other_clusters, parents, paths, provision, purge, reclaim, recoverability, recovery, rollback, snapshots,
    trash, unsigned_records, volume_record, write_probe,
};
use nfs_client::{Client, Name, NfsError, Status};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;

/// Maximum number of attempts at an operation while the connection or the export changes. After that, the caller
/// retries with its own backoff.
const MAX_ATTEMPTS: u32 = 4;

/// An export and what the operator keeps on it, for one backend.
///
/// Operations on the same volume run one after the other, all others concurrently. Each operation can be interrupted
/// at any point and is safe to repeat.
pub struct ExportStore {
    pub(crate) nfs: Client,
    pub(crate) config: StoreConfig,
    pub(crate) reservations: Arc<PathReservations>,
    is_leader: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) servers: Arc<dyn ServerComparison>,
    pub(crate) beacons: Arc<Beacons>,
    clock: Box<dyn WallClock>,
    pub(crate) change_resolution: Duration,
    /// The limits of volumes are ordered: an order is removed with its record.
    orders_limits: AtomicBool,
    pub(crate) copy_bandwidth: Bandwidth,
    /// When to look for the spare file and the reserve.
    pub(crate) reserve: OccasionalCheck,
    /// Only one task verifies the identity at a time.
    verifying: tokio::sync::Mutex<()>,
    /// Only one task reads the records of other clusters at a time.
    pub(crate) reading_clusters: tokio::sync::Mutex<()>,
    state: Mutex<StoreState>,
}

/// What is remembered between operations. The lock is never held across an await.
#[derive(Default)]
pub(crate) struct StoreState {
    /// The root that was verified last. It may be outdated.
    pub verified: Option<Arc<VerifiedRoot>>,
    /// The beacon is verified with the root.
    pub checks_beacon: bool,
    /// The directories of other clusters, as read last.
    pub foreign: Option<Arc<OtherClusters>>,
    /// Volumes whose archives belong to this backend.
    pub archives: BTreeSet<String>,
    /// Those of them that are kept without an object, by name.
    pub released: BTreeMap<String, ReleasedArchive>,
    /// Archives that are being copied, by volume, and the number of copies.
    pub copied: HashMap<String, usize>,
    /// Archives that are being made by copying a volume: names of the objects, and UIDs of their requesters.
    pub copying: BTreeMap<String, String>,
    /// Snapshots that copies of this process created and have not removed yet.
    pub snapshots: BTreeSet<Name>,
    /// Snapshots for copies that have ended, which are to be removed.
    pub left_snapshots: BTreeSet<Name>,
    /// The server has created a snapshot.
    pub creates_snapshots: bool,
    /// Records of tombstones to purge, by volume.
    pub tombstones: BTreeMap<String, Record>,
    /// The order in which the trash is purged.
    pub purge_queue: PurgeQueue,
    /// Records without a volume that this cluster did not sign, by volume.
    pub unsigned: UnsignedVolumes,
    /// Other clusters that have records on the export.
    pub other_clusters: Vec<OtherCluster>,
    /// Files of the records of volumes whose reclaim this process has finished, by volume: their fileids. Such a record is
    /// removed without being read again.
    pub finished: HashMap<String, u64>,
}

/// Setup and identity.
impl ExportStore {
    /// Creates a store without sending anything. Reserves the backend's roots; the caller removes
    /// [`Holder::BackendRoot`] when the backend is deleted.
    pub fn new(nfs: Client, config: StoreConfig, reservations: Arc<PathReservations>) -> Self {
        reservations.insert(Holder::BackendRoot(config.backend.clone()), config.roots.clone(), None);
        Self {
            nfs,
            config,
            reservations,
            is_leader: Box::new(|| true),
            servers: Arc::new(AssumeSame),
            beacons: Arc::default(),
            clock: Box::new(SystemClock),
            change_resolution: CHANGE_RESOLUTION,
            orders_limits: AtomicBool::new(false),
            copy_bandwidth: Bandwidth::default(),
            reserve: OccasionalCheck::default(),
            verifying: tokio::sync::Mutex::default(),
            reading_clusters: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Refuses changes while `is_leader` returns false. It is called at the start of each operation and before each
    /// change.
    pub fn with_leadership_check(self, is_leader: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            is_leader: Box::new(is_leader),
            ..self
        }
    }

    /// Sets the comparison of servers that have different names. Without one, any two may be the same.
    pub fn with_server_comparison(self, servers: Arc<dyn ServerComparison>) -> Self {
        Self { servers, ..self }
    }

    /// Shares the beacons with the stores of other backends of this process.
    pub fn with_beacons(self, beacons: Arc<Beacons>) -> Self {
        Self { beacons, ..self }
    }

    /// Sets the clock. Without one, it is that of the operating system.
    pub fn with_clock(self, clock: impl WallClock + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            ..self
        }
    }

    /// Sets the time after which the server gives each change of a directory another change attribute. Without one, 2 s:
    /// until then, the operator's folder is listed again instead of being compared with its last change attribute.
    ///
    /// For tests, which would otherwise wait: with less than the server has, changes of other clusters are missed.
    #[doc(hidden)]
    pub fn with_change_resolution(self, resolution: Duration) -> Self {
        Self {
            change_resolution: resolution,
            ..self
        }
    }

    /// Returns the current time in seconds since 1970.
    pub(crate) fn unix_time(&self) -> i64 {
        self.clock.now().as_second()
    }

    /// Returns the name of the backend.
    pub fn backend(&self) -> &str {
        &self.config.backend
    }

    /// Returns the NFS client.
    pub fn nfs(&self) -> &Client {
        &self.nfs
    }

    /// Returns the paths to reserve for a directory of this backend.
    pub fn reserved_paths(&self, export_id: &str, directory: &DirectoryPath) -> Vec<ReservedPath> {
        paths::reserved_paths(self, export_id, &directory.to_string())
    }

    /// Reads the identity and changes nothing. Returns `None` if the export has no identity.
    pub async fn read_identity(&self) -> Result<Option<Identity>, ExportError> {
        self.with_hints(identity::read(self).await).await
    }

    /// Checks identity and beacon as [`confirm_identity`](Self::confirm_identity) does, and changes nothing. On a connection
    /// with an NFS client owner of its own, this leaves the session of a process that works on the export intact.
    pub async fn check_identity(&self, expected: &ExpectedIdentity) -> Result<(), ExportError> {
        self.with_hints(identity::check(self, expected).await).await
    }

    /// Reads the identity on the current connection, or creates it if that is allowed. Creates missing folders of the
    /// operator.
    ///
    /// Must succeed once before any other operation. After a reconnection, the store verifies the same identity again
    /// before the next change.
    pub async fn confirm_identity(&self, expected: ExpectedIdentity) -> Result<Identity, ExportError> {
        let _verifying = self.verifying.lock().await;
        self.check_leadership()?;
        self.state().checks_beacon = expected.beacons.is_some();
        let verified = self.with_hints(identity::confirm(self, &expected).await).await?;
        Ok(verified.identity.clone())
    }

    /// Returns the beacon of the export that was verified last, or `None` if there is none yet.
    pub async fn beacon(&self) -> Option<Beacon> {
        let verified = self.last_verified_root()?;
        beacon::current(self, &verified.identity.id).await
    }

    /// Returns true if this process has verified a beacon on an export.
    pub async fn has_verified_beacon(&self, export_id: &str) -> bool {
        beacon::current(self, export_id).await.is_some()
    }

    /// Returns true if the write of this beacon failed and may have been executed nevertheless.
    pub async fn may_have_beacon(&self, beacon: &Beacon) -> bool {
        match self.last_verified_root() {
            Some(verified) => beacon::is_pending(self, &verified.identity.id, beacon).await,
            None => false,
        }
    }

    /// Renews the beacon, with a `next` one that the status of the backend has already. Call it with each probe, at this
    /// `interval`.
    ///
    /// # Errors
    /// [`ExportError::BeaconMismatch`] if another process changed it: then nothing may be changed. Other errors of the write
    /// have no effect: the next call repeats it.
    pub async fn renew_beacon(&self, next: Option<&Beacon>, interval: Duration) -> Result<(), ExportError> {
        let renewed = self
            .with_verified(move |verified| async move { beacon::renew(self, &verified, next, interval).await })
            .await;
        if let (Err(ExportError::BeaconMismatch { .. }), Some(verified)) = (&renewed, self.last_verified_root()) {
            // The next change verifies the root, and with it the beacon.
            verified.mark_outdated();
        }
        renewed
    }

    /// Creates and removes a test file, and checks the owners of the operator's folders.
    pub async fn probe_write(&self) -> Result<WriteProbe, ExportError> {
        self.with_verified(move |verified| async move { write_probe::probe(self, &verified).await })
            .await
    }

    /// Reads the records that have no volume: reserves the paths of archives and unfinished directories, remembers
    /// tombstones, and completes interrupted operations. Call it once after each start, before any changes.
    pub async fn recover(
        &self,
        has_volume: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<RecoveryReport, ExportError> {
        self.with_verified(move |verified| async move { recovery::recover(self, &verified, has_volume).await })
            .await
    }

    /// Reads the records of released volumes, and reserves the paths of those that are archives. Call it after
    /// [`recover`](Self::recover).
    pub async fn recover_archives(&self, released: &[String]) -> Result<(), ExportError> {
        self.with_verified(move |verified| async move { recovery::track_archives(self, &verified, released).await })
            .await
    }

    /// Lists the records of all clusters, and the archives without a record. Verifies signatures if a key is given.
    ///
    /// # Errors
    /// The export cannot be read at all. [`ExportListing::unseen`] names the parts that could not be read.
    pub async fn list(&self, key: Option<&RecordsKey>) -> Result<ExportListing, ExportError> {
        listing::list(self, key).await
    }
}

/// Directories of volumes.
impl ExportStore {
    /// Checks whether a claim's directory would be refused, and changes nothing. Success is no guarantee.
    pub async fn dry_run(&self, request: &DirectoryRequest) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&request.volume).await?;
        self.with_verified(move |verified| async move { provision::dry_run(self, &verified, request).await })
            .await
    }

    /// Creates a claim's directory, or finds that it exists.
    pub async fn provision(&self, request: &DirectoryRequest) -> Result<ProvisionedDirectory, ExportError> {
        let _lock = self.lock_volume(&request.volume).await?;
        self.with_verified(move |verified| async move { provision::provision(self, &verified, request).await })
            .await
    }

    /// Returns the directory of a copy that an earlier attempt finished, or `None` if it is not complete. The source may be
    /// gone.
    pub async fn find_copy(&self, request: &DirectoryRequest) -> Result<Option<ProvisionedDirectory>, ExportError> {
        let _lock = self.lock_volume(&request.volume).await?;
        self.with_verified(move |verified| async move { copy::find_finished(self, &verified, request).await })
            .await
    }

    /// Removes what was created for a claim that gets no volume. Uses only RMDIR, and never removes a directory that a
    /// volume uses.
    pub async fn rollback(&self, volume: &str, claim_uid: &str) -> Result<RollbackOutcome, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move {
            rollback::rollback(self, &verified, volume, claim_uid, false).await
        })
        .await
    }

    /// Like [`rollback`](Self::rollback), for a volume that exists with another directory because another provisioner
    /// created it. That volume must have a path reservation.
    pub async fn rollback_superseded(&self, volume: &str, claim_uid: &str) -> Result<RollbackOutcome, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(
            move |verified| async move { rollback::rollback(self, &verified, volume, claim_uid, true).await },
        )
        .await
    }

    /// Writes the record of a volume that has none, such as one of nfs-subdir-external-provisioner. Returns the
    /// directory's fileid. An `adopted` directory is archived instead of deleted.
    pub async fn create_missing_record(&self, expected: &VolumeDirectory, adopted: bool) -> Result<u64, ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(move |verified| async move {
            create_missing_record::create_missing_record(self, &verified, expected, adopted).await
        })
        .await
    }

    /// Saves the volume's metadata in its record, if the record matches the volume.
    pub async fn save_volume_metadata(
        &self,
        expected: &VolumeDirectory,
        metadata: &VolumeMetadata,
    ) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(move |verified| async move {
            volume_record::save_metadata(self, &verified, expected, metadata).await
        })
        .await
    }

    /// Transfers the record of a volume to the claim that it is bound to now, unless the directory was archived or
    /// deleted for an earlier claim. Repeating it changes nothing.
    pub async fn transfer_record(
        &self,
        expected: &VolumeDirectory,
        to: &ClaimRef,
        metadata: &VolumeMetadata,
    ) -> Result<RecordTransfer, ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(
            move |verified| async move { reclaim::transfer(self, &verified, expected, to, metadata).await },
        )
        .await
    }

    /// Signs the record of a volume in use, if this cluster did not sign it and the volume matches it.
    pub async fn sign_confirmed(&self, expected: &VolumeDirectory) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        let confirmed = self.with_verified(move |verified| async move {
            let (_, file_id) = volume_record::confirmed_source(self, &verified, expected).await?;
            Ok(file_id)
        });
        confirmed.await.map(drop)
    }

    /// Counts the tree of a directory. Calls `progress` after each page with the content so far, and stops when it
    /// returns false.
    ///
    /// Returns `None` if there is no such directory, if its fileid differs or it changes meanwhile, or if `progress`
    /// returned false.
    pub async fn count(
        &self,
        tree: (CountTarget<'_>, Option<u64>),
        pace: &mut RateLimiter,
        progress: impl FnMut(&TreeUsage) -> bool + Send,
    ) -> Result<Option<TreeUsage>, ExportError> {
        count::count(self, tree, pace, progress).await
    }
}

/// Reclaim and trash.
impl ExportStore {
    /// Renames a volume's directory to an archive, or removes it if it is empty.
    pub async fn archive(
        &self,
        expected: &VolumeDirectory,
        decision: &dyn ReclaimDecision,
    ) -> Result<Reclaimed, ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(move |verified| async move {
            reclaim::reclaim(self, &verified, expected, (ReclaimAction::Archive, decision)).await
        })
        .await
    }

    /// Moves a volume's directory into the trash. Archives an adopted directory instead.
    pub async fn delete(
        &self,
        expected: &VolumeDirectory,
        decision: &dyn ReclaimDecision,
    ) -> Result<Reclaimed, ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(move |verified| async move {
            reclaim::reclaim(self, &verified, expected, (ReclaimAction::Delete, decision)).await
        })
        .await
    }

    /// Removes the record of a volume and leaves its directory unchanged.
    pub async fn retain(
        &self,
        expected: &VolumeDirectory,
        decision: &dyn ReclaimDecision,
    ) -> Result<Reclaimed, ExportError> {
        let _lock = self.lock_volume(&expected.volume).await?;
        self.with_verified(move |verified| async move { reclaim::retain(self, &verified, expected, decision).await })
            .await
    }

    /// Removes a record that is no longer needed after its volume object is gone. Keeps records of archives and
    /// tombstones. [`recover`](Self::recover) does the same if this is never called.
    pub async fn forget_volume(&self, volume: &str) -> Result<(), ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move { reclaim::forget_volume(self, &verified, volume).await })
            .await
    }

    /// Permanently removes what is in the trash, including tombstones. Can be dropped and called again at any point.
    pub async fn purge_trash(&self, limits: PurgeLimits) -> Result<PurgeReport, ExportError> {
        self.with_verified(move |verified| async move { purge::purge(self, &verified, limits).await })
            .await
    }

    /// Returns the names of the records of parent directories, for
    /// [`remove_parent_if_empty`](Self::remove_parent_if_empty).
    pub async fn recorded_parents(&self) -> Result<Vec<Name>, ExportError> {
        self.with_verified(move |verified| async move { parents::list(self, &verified).await })
            .await
    }

    /// Removes a recorded parent directory, and those above it, if they are empty. The reclaim of a volume does this, too,
    /// unless somebody else's files were in the way.
    pub async fn remove_parent_if_empty(&self, name: &Name) -> Result<(), ExportError> {
        self.with_verified(move |verified| async move { parents::remove_recorded(self, &verified, name).await })
            .await
    }

    /// Returns what is in the trash, for the backend's status.
    pub async fn trash(&self) -> Result<TrashContent, ExportError> {
        self.with_verified(move |verified| async move { trash::content(self, &verified, true).await })
            .await
    }
}

/// Archives.
impl ExportStore {
    /// Compares a backup with its manifest: names, sizes and checksums. `cluster` is the ID of the cluster that has the record
    /// `name`, which must be signed with the key, if one is given. Returns `None` if the record is not that of a backup with
    /// a manifest. Needs no verified identity, and changes nothing.
    pub async fn verify_backup(
        &self,
        (cluster, name): (&str, &str),
        key: Option<&RecordsKey>,
    ) -> Result<Option<VerifyReport>, ExportError> {
        let verified = copy::verify_backup(self, (cluster, name), key).await;
        self.with_hints(verified).await
    }

    /// Returns the archive of a volume, if it belongs to this backend.
    pub async fn find_archive(&self, volume: &str) -> Result<Option<RecordedArchive>, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        let find = move |verified: Arc<VerifiedRoot>| async move { archives::find(self, &verified, volume).await };
        self.with_verified(find)
            .await
            .inspect(|found| self.track_found(volume, found.as_ref()))
    }

    /// Returns the archive of a volume like [`find_archive`](Self::find_archive), but without a request if this process made
    /// it within ten seconds and nothing has changed its record since. For reports: whatever changes or removes an archive
    /// is decided by what is on the export.
    pub async fn find_archive_for_report(&self, volume: &str) -> Result<Option<RecordedArchive>, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        let find =
            move |verified: Arc<VerifiedRoot>| async move { archives::find_for_report(self, &verified, volume).await };
        self.with_verified(find)
            .await
            .inspect(|found| self.track_found(volume, found.as_ref()))
    }

    fn track_found(&self, volume: &str, found: Option<&RecordedArchive>) {
        let is_tracked = self.state().archives.contains(volume);
        if found.is_none() && is_tracked {
            // Its record was removed by a call whose reply was lost.
            archives::untrack(self, volume);
        }
    }

    /// Returns the volumes whose archives this backend has: those that [`recover`](Self::recover) found and those
    /// made since.
    pub fn archives(&self) -> Vec<String> {
        self.state().archives.iter().cloned().collect()
    }

    /// Reports whether this backend has an archive of this name.
    pub fn has_archive(&self, volume: &str) -> bool {
        self.state().archives.contains(volume)
    }

    /// Returns those of [`archives`](Self::archives) that are kept without an object.
    pub fn released_archives(&self) -> Vec<ReleasedArchive> {
        self.state().released.values().cloned().collect()
    }

    /// Reports whether an archive is kept without an object.
    pub fn is_released(&self, volume: &str) -> bool {
        self.state().released.contains_key(volume)
    }

    /// Records that an archive is kept without an object: none is created until the archive gets the terms of one.
    ///
    /// # Errors
    /// The archive is being purged or restored, or its record cannot be written.
    pub async fn release_archive(&self, which: &ArchiveRef) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move { archives::release(self, &verified, which).await })
            .await
    }

    /// Returns the number of [`archives`](Self::archives) whose volumes are deleted. The others are not offered to anybody
    /// yet, and a volume that keeps its archive, because it was given away, does not count twice.
    pub fn count_archives(&self) -> usize {
        let archives = self.archives();
        let has_volume = |archive: &String| self.reservations.knows(&Holder::Volume(archive.clone()));
        archives.iter().filter(|archive| !has_volume(archive)).count()
    }

    /// Saves the retention terms of an archive's object in its record, so that a lost object can be recreated with them.
    pub async fn save_retention(
        &self,
        which: &ArchiveRef,
        terms: &RetentionTerms,
        revision: &TermsRevision,
    ) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move {
            archives::save_retention(self, &verified, which, terms, revision).await
        })
        .await
    }

    /// Signs the record of an archive, if this cluster did not sign it and the archive's object matches it.
    pub async fn sign_confirmed_archive(
        &self,
        which: &ArchiveRef,
        terms: &RetentionTerms,
        revision: &TermsRevision,
    ) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move {
            archives::sign_confirmed(self, &verified, which, terms, revision).await
        })
        .await
    }

    /// Records that the retention terms of a new archive are those of its new object, so that the terms of another object
    /// of that name are not taken for an edit.
    pub async fn bind_archive_object(
        &self,
        which: &ArchiveRef,
        terms: &RetentionTerms,
        object: &TermsRevision,
    ) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(
            move |verified| async move { archives::bind_object(self, &verified, which, terms, object).await },
        )
        .await
    }

    /// Records that an archive will be purged, as its object requires. From then on it cannot be restored. Fails for an
    /// archive on legal hold. Returns false, and purges nothing, if the record has the terms of another object or of a
    /// newer revision, or other terms: the object must be compared with the record first.
    pub async fn begin_purge(
        &self,
        which: &ArchiveRef,
        terms: &RetentionTerms,
        object: &TermsRevision,
    ) -> Result<bool, ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(
            move |verified| async move { archives::begin_purge(self, &verified, which, terms, object).await },
        )
        .await
    }

    /// Moves an archive into the trash and removes its record, for a full export on which [`Self::begin_purge`] cannot record
    /// the purge. The caller deletes the object first. Returns false, and purges nothing, for the same reasons.
    pub async fn purge_unrecorded(
        &self,
        which: &ArchiveRef,
        terms: &RetentionTerms,
        object: &TermsRevision,
    ) -> Result<bool, ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move {
            archives::purge_unrecorded(self, &verified, which, terms, object).await
        })
        .await
    }

    /// Moves an archive with a recorded purge into the trash and removes its record. An archive whose directory is
    /// missing counts as moved.
    pub async fn end_purge(&self, which: &ArchiveRef) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move { archives::end_purge(self, &verified, which).await })
            .await
    }

    /// Cancels a recorded purge. Returns false if the archive is in the trash already.
    pub async fn cancel_purge(&self, which: &ArchiveRef) -> Result<bool, ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move { archives::cancel_purge(self, &verified, which).await })
            .await
    }

    /// Removes the record of an archive whose directory was restored to a volume.
    pub async fn finish_restore(&self, which: &ArchiveRef, to: &RestoreTarget) -> Result<(), ExportError> {
        let _lock = self.lock_volume(&which.volume).await?;
        self.with_verified(move |verified| async move { archives::finish_restore(self, &verified, which, to).await })
            .await
    }

    /// Reports whether the archive of a volume is being copied. Until the copy ends, it is neither purged nor moved.
    pub fn is_being_copied(&self, volume: &str) -> bool {
        self.state().copied.contains_key(volume)
    }

    /// Opens the directory of a volume or an archive for a copy. An archive is neither purged nor moved until the result
    /// is dropped.
    pub async fn open_source(self: &Arc<Self>, source: &CopySource) -> Result<SourceTree, CopyError> {
        copy::open(self, source).await
    }

    /// Returns the directory, relative to the root, in which the server exposes snapshots of the export; `None` if it does not.
    pub async fn snapshot_directory(&self) -> Result<Option<&'static str>, ExportError> {
        let root = self.nfs.root().await.context(|| "looking up the root".to_owned())?;
        snapshots::find_directory(self, &root).await
    }

    /// Checks that the server creates snapshots for the copies that require one (see [`SnapshotUse`](crate::SnapshotUse)):
    /// creates one and removes it, once. Removes those that earlier copies left, and returns the number of those that the
    /// server does not remove yet. Call it with each probe.
    ///
    /// # Errors
    /// [`ExportError::SnapshotUnavailable`] if the server creates none.
    pub async fn maintain_snapshots(&self) -> Result<usize, ExportError> {
        self.with_verified(move |verified| async move { snapshots::maintain(self, &verified).await })
            .await
    }

    /// Limits the content of all copies from and to this backend together, in bytes per second; unlimited if unset.
    pub fn limit_copies(&self, bytes_per_second: Option<u64>) {
        self.copy_bandwidth.limit(bytes_per_second);
    }

    /// Returns the archive that an object requests by copying a volume. Moves what an earlier process left beside a
    /// complete archive into the trash.
    pub async fn requested_archive(&self, name: &str, requested_by: &str) -> Result<RequestedArchive, ExportError> {
        copy::find_requested(self, name, requested_by).await
    }

    /// Moves an unfinished copy that its requester no longer wants into the trash. Keeps a complete copy.
    pub async fn discard_requested_archive(
        &self,
        name: &str,
        requested_by: &str,
    ) -> Result<DiscardOutcome, ExportError> {
        copy::discard_requested(self, name, requested_by).await
    }

    /// Returns the unfinished copies: names of the objects that requested them, and their UIDs.
    pub fn unfinished_archives(&self) -> Vec<(String, String)> {
        let state = self.state();
        state
            .copying
            .iter()
            .map(|(name, by)| (name.clone(), by.clone()))
            .collect()
    }
}

/// Limits of volumes, and the quota agent.
impl ExportStore {
    /// Sets whether limits are ordered on this export. If not, nothing about limits is read or written.
    pub fn set_orders_limits(&self, orders: bool) {
        self.orders_limits.store(orders, Ordering::Relaxed);
    }

    /// Reports whether limits are ordered on this export.
    pub(crate) fn orders_limits(&self) -> bool {
        self.orders_limits.load(Ordering::Relaxed)
    }

    /// Reads the heartbeat of the quota agent. Creates the folders for it if they are missing.
    pub async fn quota_agent(&self) -> Result<AgentState, ExportError> {
        self.with_verified(move |verified| async move { limits::agent(self, &verified).await })
            .await
    }

    /// Reads the usage that the quota agent wrote. Returns `None` if there is none that can be believed. Compare its
    /// instance and sequence with the heartbeat: an old file says nothing about now.
    pub async fn quota_usage(&self) -> Result<Option<Usage>, ExportError> {
        self.with_verified(move |verified| async move { limits::usage(self, &verified).await })
            .await
    }

    /// Orders the limit of a volume or an archive of this backend, as its record describes it. Writes nothing if that order
    /// is on the export already.
    pub async fn order_limit(&self, volume: &str, limit: VolumeLimit) -> Result<Ordered, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move { limits::order(self, &verified, volume, limit).await })
            .await
    }

    /// Looks whether a new volume has no order yet, as [`order_provisioned`](Self::order_provisioned) would do first. Both can
    /// be done at the same time as [`provision`](Self::provision). Returns `None` if it has one.
    pub async fn find_no_order(&self, volume: &str) -> Result<Option<NoOrder>, ExportError> {
        self.with_verified(move |verified| async move { limits::find_no_order(self, &verified, volume).await })
            .await
    }

    /// Like [`order_limit`](Self::order_limit), for the result of [`provision`](Self::provision). Nothing else may change the
    /// volume in between, nor order its limit since [`find_no_order`](Self::find_no_order) found none.
    pub async fn order_provisioned(
        &self,
        request: &DirectoryRequest,
        provisioned: &ProvisionedDirectory,
        limit: (VolumeLimit, Option<NoOrder>),
    ) -> Result<Ordered, ExportError> {
        let _lock = self.lock_volume(&request.volume).await?;
        self.with_verified(move |verified| async move {
            limits::order_provisioned(self, &verified, request, provisioned, limit).await
        })
        .await
    }

    /// Returns what the quota agent reports about an order.
    pub async fn limit_report(&self, volume: &str, order: &LimitOrder) -> Result<LimitReport, ExportError> {
        self.with_verified(move |verified| async move { limits::report(self, &verified, volume, order).await })
            .await
    }

    /// Returns the volumes with an order that `leave_out` does not match, sorted.
    pub async fn ordered_volumes(
        &self,
        leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Vec<String>, ExportError> {
        self.with_verified(move |verified| async move { limits::ordered_volumes(self, &verified, leave_out).await })
            .await
    }

    /// Removes an order that has no record. With `withdraw`, removes that of any volume or archive of this backend, too.
    /// Returns true if it was removed.
    pub async fn remove_stale_order(&self, volume: &str, withdraw: bool) -> Result<bool, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move { limits::remove_stale(self, &verified, volume, withdraw).await })
            .await
    }
}

/// Records without a volume, and records of other clusters.
impl ExportStore {
    /// Adopts a record that this cluster did not sign, as an administrator requested: signs it, and moves it out of
    /// another cluster's folder. Needs [`recover`](Self::recover) first, so that conflicts are known. A record of
    /// another existing backend must be adopted by that backend.
    pub async fn adopt(
        &self,
        name: &RecordName,
        is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Adopted, ExportError> {
        let _lock = self.lock_volume(&name.volume).await?;
        self.with_verified(move |verified| async move { adopt::adopt(self, &verified, name, is_backend).await })
            .await
    }

    /// Accepts the directory at the place of a volume's record, whose fileid is another one than the recorded, as an
    /// administrator requested: somebody restored or moved the export file by file. `object` is what the volume's object
    /// says, if it exists, or why it is not a volume of this backend. Needs [`recover`](Self::recover) first, so that conflicts are known.
    pub async fn accept_directory(
        &self,
        volume: &str,
        scope: AcceptanceScope,
        object: Result<Option<&VolumeDirectory>, &str>,
    ) -> Result<Acceptance, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        let which = (volume, scope);
        self.with_verified(move |verified| async move { accept::accept(self, &verified, which, object).await })
            .await
    }

    /// Returns the records without a valid signature that [`recover`](Self::recover) found.
    pub fn unsigned_records(&self) -> UnsignedRecords {
        unsigned_records::list(self)
    }

    /// Reports whether a volume's record has no valid signature, so that nothing may be created from it.
    pub fn is_unsigned(&self, volume: &str) -> bool {
        self.state().unsigned.contains(volume)
    }

    /// Returns the sorted names of volumes that have a record of this cluster, except those that `leave_out` matches
    /// and file names that no volume can have.
    pub async fn recorded_volumes(
        &self,
        leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Vec<String>, ExportError> {
        self.with_verified(
            move |verified| async move { inspection::recorded_volumes(self, &verified, leave_out).await },
        )
        .await
    }

    /// Inspects a volume's record and directory, and changes nothing. `fallback` is the directory to inspect if there
    /// is no record.
    ///
    /// Waits for an operation on that volume to end.
    pub async fn inspect(&self, volume: &str, fallback: Option<&DirectoryPath>) -> Result<Inspection, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move { inspection::inspect(self, &verified, volume, fallback).await })
            .await
    }

    /// Returns the claim of a live volume of this backend from its record, signed or not. Returns `None` if there is no
    /// such record, or if the volume was released.
    pub async fn recorded_claim(&self, volume: &str) -> Result<Option<ClaimRef>, ExportError> {
        self.with_verified(move |verified| async move { recoverability::recorded_claim(self, &verified, volume).await })
            .await
    }

    /// Returns the claim of a volume in use from its signed record, whatever the name of its backend. Returns `None` if
    /// there is no such record, or if the volume was released.
    pub async fn claim_in_use(&self, volume: &str) -> Result<Option<ClaimRef>, ExportError> {
        self.with_verified(move |verified| async move { recoverability::claim_in_use(self, &verified, volume).await })
            .await
    }

    /// Assesses whether a volume whose object is gone can be recreated. Fails only if the export cannot be read.
    pub async fn recoverability(&self, volume: &str) -> Result<Recoverability, ExportError> {
        let _lock = self.lock_volume(volume).await?;
        self.with_verified(move |verified| async move { recoverability::assess(self, &verified, volume).await })
            .await
    }

    /// Returns the ID of another cluster that has records of these volumes, if this cluster has a record of none of them:
    /// this process may work with the Secret of another cluster.
    pub async fn cluster_with_records_of(&self, volumes: &[String]) -> Result<Option<String>, ExportError> {
        self.with_verified(move |verified| async move {
            other_clusters::cluster_with_records_of(self, &verified, volumes).await
        })
        .await
    }

    /// Returns the volumes in use that records of other clusters name on a backend of this name.
    pub async fn foreign_directories(&self) -> Result<Vec<ForeignDirectory>, ExportError> {
        self.with_verified(move |verified| async move { recoverability::foreign_directories(self, &verified).await })
            .await
    }
}

/// What the modules use.
impl ExportStore {
    /// Runs an operation on a verified root, and again on a newly verified one if the connection or the export changed
    /// meanwhile. The outcome is that of the verified export, even if nothing was changed.
    ///
    /// The closure returns a future instead of being an async closure: the compiler cannot yet prove that the future
    /// of an async closure that borrows is `Send`.
    pub(crate) async fn with_verified<T, F>(&self, operation: impl Fn(Arc<VerifiedRoot>) -> F) -> Result<T, ExportError>
    where
        F: Future<Output = Result<T, ExportError>>,
    {
        let mut attempts = 1;
        loop {
            let outcome = match self.verified_root().await {
                Ok(verified) => {
                    let outcome = operation(Arc::clone(&verified)).await;
                    self.confirm_outcome(&verified, outcome).await
                }
                // What was tried before may have been executed, so this is no refusal of the operation.
                Err(error) if attempts > 1 && error.definite_refusal() => Err(ExportError::IdentityNotConfirmed),
                Err(error) => Err(error),
            };
            // First, because it marks stale handles for the next operation, too.
            let may_retry = self.may_retry(&outcome);
            if !may_retry || attempts >= MAX_ATTEMPTS {
                return self.with_hints(outcome).await;
            }
            attempts += 1;
        }
    }

    /// Returns the outcome of an operation, unless it may be that of another export.
    async fn confirm_outcome<T>(
        &self,
        verified: &VerifiedRoot,
        outcome: Result<T, ExportError>,
    ) -> Result<T, ExportError> {
        // Without an answer, nothing was found out, and the caller has to know that the outcome is open.
        let is_open = |error: &ExportError| error.outcome_unknown() || error.is_transport();
        if !outcome.as_ref().is_err_and(is_open) {
            let confirmed = self.confirm_answers(verified).await;
            // The operation itself was not refused.
            confirmed.map_err(|error| match error.definite_refusal() {
                true => ExportError::IdentityNotConfirmed,
                false => error,
            })?;
        }
        outcome
    }

    /// Fails if answers since `verified` may be those of another export. The client repeats a read on a new connection,
    /// where only the next change would verify the root. By then, what is missing there may be taken for deleted: the
    /// handles of an export are valid on a former state of it, too.
    pub(crate) async fn confirm_answers(&self, verified: &VerifiedRoot) -> Result<(), ExportError> {
        if self.is_current(verified) {
            return Ok(());
        }
        let now = self.verified_root().await?;
        // No root was verified on a connection between the two.
        let is_next = now.generation <= verified.generation + 1;
        match is_next && !now.differs_from(verified) {
            true => Ok(()),
            false => Err(ExportError::IdentityNotConfirmed),
        }
    }

    /// Reports whether an operation with this outcome may succeed at once on a newly verified root. Marks the current
    /// root as outdated if its handles are stale.
    fn may_retry<T>(&self, outcome: &Result<T, ExportError>) -> bool {
        let Err(error) = outcome else { return false };
        let stale = error.status() == Some(Status::Stale);
        let last = self.last_verified_root();
        if stale && let Some(verified) = &last {
            verified.mark_outdated();
        }
        let changed = matches!(
            error,
            ExportError::IdentityNotConfirmed | ExportError::ConcurrentlyModified { .. }
        );
        (changed || stale) && last.is_some()
    }

    /// Returns a verified root. Reads the identity again after a reconnection.
    pub(crate) async fn verified_root(&self) -> Result<Arc<VerifiedRoot>, ExportError> {
        self.wait_for_unanswered_changes().await;
        self.check_leadership()?;
        if let Some(verified) = self.current_root()? {
            return Ok(verified);
        }
        let _verifying = self.verifying.lock().await;
        if let Some(verified) = self.current_root()? {
            return Ok(verified);
        }
        let last = self.last_verified_root().ok_or(ExportError::IdentityNotConfirmed)?;
        let expected = ExpectedIdentity {
            export_id: Some(last.identity.id.clone()),
            root_file_id: Some(last.identity.root_file_id),
            own_file_ids: Some(last.identity.own_file_ids),
            // The beacon that this process verified.
            beacons: self.state().checks_beacon.then(Vec::new),
            ..ExpectedIdentity::default()
        };
        identity::confirm(self, &expected).await
    }

    /// Returns the root that was verified last if it is still valid. Fails if none was ever verified.
    fn current_root(&self) -> Result<Option<Arc<VerifiedRoot>>, ExportError> {
        let verified = self.last_verified_root().ok_or(ExportError::IdentityNotConfirmed)?;
        let is_current = self.is_current(&verified);
        Ok(is_current.then_some(verified))
    }

    fn is_current(&self, verified: &VerifiedRoot) -> bool {
        verified.generation == self.nfs.generation() && !verified.is_outdated()
    }

    /// Waits until the server executes no change on the export any more that has ended, of this backend or another one
    /// (data-safety rule 11). Called before an operation looks anything up: a late change would make what it finds untrue.
    pub(crate) async fn wait_for_unanswered_changes(&self) {
        match self.last_verified_root() {
            Some(verified) => self.reservations.unanswered_changes.wait(&verified.identity.id).await,
            None => self.nfs.unanswered_changes().wait().await,
        }
    }

    /// Waits for the lock of this name, which the backends on the export share. Its former holder may have given up a change.
    pub(crate) async fn lock(&self, export_id: &str, name: &str) -> OwnedMutexGuard<()> {
        let lock = self.reservations.volume_locks.lock(export_id.to_owned(), name).await;
        self.wait_for_unanswered_changes().await;
        lock
    }

    /// Waits for the operations on a volume to end, including those of other backends on the same export: they share
    /// the folder of records.
    pub(crate) async fn lock_volume(&self, volume: &str) -> Result<OwnedMutexGuard<()>, ExportError> {
        let verified = self.last_verified_root().ok_or(ExportError::IdentityNotConfirmed)?;
        Ok(self.lock(&verified.identity.id, volume).await)
    }

    /// Returns the root that was verified last, which may be outdated.
    pub(crate) fn last_verified_root(&self) -> Option<Arc<VerifiedRoot>> {
        self.state().verified.clone()
    }

    /// Returns the client for a change, which sends it only on the connection on which the identity was read. Fails
    /// after a reconnection since then, and on a process that is not the leader.
    pub(crate) fn for_write<'a>(&self, verified: &'a VerifiedRoot) -> Result<&'a Client, ExportError> {
        self.check_leadership()?;
        if self.is_current(verified) {
            Ok(&verified.nfs)
        } else {
            Err(ExportError::IdentityNotConfirmed)
        }
    }

    fn check_leadership(&self) -> Result<(), ExportError> {
        if (self.is_leader)() {
            Ok(())
        } else {
            Err(ExportError::NotLeader)
        }
    }

    /// Adds hints to an error that only the server or the connection can give.
    pub(crate) async fn with_hints<T>(&self, outcome: Result<T, ExportError>) -> Result<T, ExportError> {
        let Err(mut error) = outcome else { return outcome };
        self.add_hints(&mut error).await;
        Err(error)
    }

    async fn add_hints(&self, error: &mut ExportError) {
        let error = match error {
            ExportError::CleanupFailed { source, .. } => source.as_mut(),
            other => other,
        };
        let ExportError::Nfs { source, hints, .. } = error else {
            return;
        };
        match source.as_ref() {
            NfsError::AccessDenied {
                local, reserved_port, ..
            } => {
                hints.local = Some(*local);
                hints.reserved_port = Some(*reserved_port);
            }
            NfsError::Status {
                status: Status::Access | Status::NotPermitted,
                ..
            } => {
                let negotiated = self.nfs.negotiated();
                hints.local = Some(negotiated.local);
                hints.squashed = self.is_squashed();
                // A server that granted access before accepts this port. The port can be the cause only if not even
                // the root could be looked up.
                if self.last_verified_root().is_none() {
                    hints.reserved_port = Some(negotiated.reserved_port);
                }
                // An administrator may have changed them.
                let root = self.nfs.root().await.ok();
                hints.root = root.map(|root| RootPermissions::from(&root.attributes));
            }
            NfsError::Status {
                status: Status::NoSpace,
                ..
            } => {
                if let Ok(statistics) = self.nfs.statistics().await {
                    hints.out_of_inodes = statistics.inodes > 0 && statistics.inodes_free == 0;
                }
            }
            _ => {}
        }
    }

    /// Reports whether the server maps the operator's user to another one, judging by the owner of its own folder.
    fn is_squashed(&self) -> bool {
        self.last_verified_root().is_some_and(|verified| {
            let owner = verified.reserved.attributes.uid;
            owner.is_some_and(|uid| uid != self.config.credential.uid)
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, StoreState> {
        // A panic leaves no partial change: each holder makes a single insertion, removal or replacement.
        self.state.lock()
    }
}
