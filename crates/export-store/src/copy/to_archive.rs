//! Archives on demand: copies of volumes in use.
//!
//! The record is written first. Its name is that of the requesting object, and it contains that object's UID. Then the
//! copy is made in the staging folder and is renamed to an archive's name once it is complete. If the process dies
//! before the RENAME, the copy is made again, with the files up to the last checkpoint of the interrupted one; after it, the
//! recorded fileid identifies the complete copy.

use std::sync::Arc;

use crate::archives::RecordedArchive;
use crate::copy::backup_source::BackupSource;
use crate::copy::checkpoint::Checkpoints;
use crate::copy::interrupted::InterruptedCopy;
use crate::copy::manifest::{self, BaseKind};
use crate::copy::publish::Named;
use crate::copy::{
    BackupParts, CopyError, CopyLimits, CopyProgress, Outcome, SourceTree, Staging, copy_tree, interrupted, publish,
    staged_limit, staging,
};
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::MAX_NAME_LEN;
use crate::path_reservations::{Holder, Reservation, Sharing};
use crate::record::{
    ArchiveState, Checkpoint, CopiedAmount, CopiedSnapshot, CopyState, ManifestRef, Record, RecordedHandle,
    RetentionTerms, State, TermsRevision,
};
use crate::records::{Created, ReadRecord};
use crate::request::{ClaimRef, VolumeDirectory};
use crate::signature::SignatureStatus;
use crate::snapshots::SnapshotSelector;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, layout, records};
use nfs_client::{FileRef, SetAttributes};

/// Request to archive a volume in use by copying it, to its own export or to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRequest {
    /// Name of the requesting object, and of the record.
    pub name: String,
    /// UID of the requesting object.
    pub requested_by: String,
    /// The claim whose data it is.
    pub claim: ClaimRef,
    /// The volume, as described by its object.
    pub of: VolumeDirectory,
    /// Retention terms of the archive.
    pub terms: RetentionTerms,
    /// Revision of the requesting object.
    pub revision: TermsRevision,
    /// Names of earlier archives of the same volume, the newest first: the first that is complete becomes the base.
    pub bases: Vec<String>,
    /// Copy a snapshot of the server, and not the data in use.
    pub snapshot: Option<SnapshotUse>,
}

impl ArchiveRequest {
    /// Reports whether a copy is one of the same volume and claim.
    pub(super) fn is_of_same_volume(&self, record: &Record) -> bool {
        let copy = record.state.archive_info().and_then(|archive| archive.copy.as_ref());
        let (claim, wanted) = (&record.claim, &self.claim);
        copy.is_some_and(|copy| copy.volume == self.of.volume)
            && (&claim.uid, &claim.namespace_uid) == (&wanted.uid, &wanted.namespace_uid)
    }
}

/// Use of the server's snapshots for an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotUse {
    /// The snapshot to copy.
    pub selector: SnapshotSelector,
    /// Fail without one. Otherwise, the data in use are then copied.
    pub required: bool,
    /// Let the server create one, and copy what `selector` selects only if it does not.
    pub create: bool,
}

/// State of a requested archive.
#[derive(Debug)]
pub enum RequestedArchive {
    /// There is no complete copy.
    Unfinished,
    /// The archive exists.
    Done(Box<RecordedArchive>),
    /// The name is used by something else, as described.
    Taken(&'static str),
}

/// Result of discarding a copy that is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardOutcome {
    /// Nothing is left of it outside the trash.
    Gone,
    /// The copy was complete and is an archive.
    Complete,
}

/// The record with the name of a requesting object.
enum Begun {
    Nothing,
    /// A record of the requesting object.
    Own(Box<Record>),
    /// A record of the requesting object whose copy is complete: an archive in any state.
    Archive(Box<Record>, SignatureStatus),
    /// A record of something else, in this state.
    Foreign(&'static str),
}

/// Copies a volume's directory on `origin` to an archive on `export`. The archive does not exist under its name before it is complete. If
/// interrupted or dropped at any point and run again, it results in one complete archive.
///
/// # Errors
/// The first failure. The partial copy stays until [`ExportStore::discard_requested_archive`] or the next attempt.
pub async fn copy_to_archive(
    origin: &Arc<ExportStore>,
    (export, request): (&Arc<ExportStore>, &ArchiveRequest),
    limits: &CopyLimits,
    progress: &Arc<CopyProgress>,
) -> Result<(), CopyError> {
    let source = BackupSource::open(origin, request).await?;
    let copied = copy_source(&source, (export, request), limits, progress).await;
    source.close(request).await;
    copied
}

async fn copy_source(
    BackupSource {
        tree: source,
        no_snapshot,
        ..
    }: &BackupSource,
    (export, request): (&Arc<ExportStore>, &ArchiveRequest),
    limits: &CopyLimits,
    progress: &Arc<CopyProgress>,
) -> Result<(), CopyError> {
    // What was interrupted counts toward the limit of the directory in which it was made.
    let may_resume = limits.staged_limit.is_none();
    let Some((staging, interrupted)) = stage_archive(export, request, source, may_resume).await? else {
        return Ok(());
    };
    staged_limit::order(export, &request.name, &staging, limits).await?;
    let ends = (source, &staging);
    let bases = manifest::find_bases(export, request, ends, interrupted.as_ref(), &limits.indexes).await;
    let is_resumed = bases.iter().any(|base| base.kind() == BaseKind::Interrupted);
    let recorded = interrupted.as_ref().filter(|_| is_resumed);
    let parts = BackupParts {
        manifest: manifest::create(export, &staging).await?,
        settled_before: manifest::settled_before(source, limits.settle_margin).await,
        bases,
        checkpoints: Checkpoints {
            store: export,
            request,
            staging: &staging,
            interval: limits.checkpoint_interval,
            saving: recorded.map_or(0, |interrupted| interrupted.checkpoint.saving),
        },
    };
    let file = parts.manifest.clone();
    let written = copy_tree(source, (export, &staging, Some(parts)), limits, progress).await?;
    let copied = progress.snapshot();
    let snapshot = source.snapshot().cloned();
    if let Some(snapshot) = snapshot.as_ref().filter(|_| !copied.is_of_one_moment())
        && request.snapshot.as_ref().is_some_and(|using| using.required)
    {
        let name = snapshot.name.clone();
        return Err(CopyError::SnapshotChanged { name });
    }
    let outcome = match (&snapshot, no_snapshot) {
        (Some(snapshot), _) => format!("{copied}; from snapshot {}", snapshot.name),
        (None, Some(why)) => format!("{copied}; of the data in use, because there is no snapshot: {why}"),
        (None, None) => copied.to_string(),
    };
    let finished = FinishedCopy {
        outcome,
        snapshot,
        amount: CopiedAmount {
            files: copied.files,
            bytes: copied.bytes,
            reused_files: copied.reused_files,
            reused_bytes: copied.reused_bytes,
        },
        manifest: written.map(|reference| (file, reference)),
    };
    publish_archive(export, request, (source, &staging), &finished).await
}

/// What the record says of a complete copy.
struct FinishedCopy {
    outcome: String,
    snapshot: Option<CopiedSnapshot>,
    amount: CopiedAmount,
    manifest: Option<(FileRef, ManifestRef)>,
}

fn taken(name: &str, state: &'static str) -> ExportError {
    ExportError::RecordBusy {
        volume: name.to_owned(),
        state,
        operation: "archiving under that name",
    }
}

fn unsettled(record: &Record) -> ExportError {
    ExportError::ConcurrentlyModified {
        doing: format!("giving the archive {} its name", record.volume),
    }
}

/// Returns the archive that an object requested. Moves what a previous process left beside a complete one into the
/// trash.
pub(crate) async fn find_requested(
    store: &ExportStore,
    name: &str,
    requested_by: &str,
) -> Result<RequestedArchive, ExportError> {
    let _lock = store.lock_volume(name).await?;
    store
        .with_verified(move |verified| async move { find_requested_at(store, &verified, name, requested_by).await })
        .await
}

async fn find_requested_at(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &str,
    requested_by: &str,
) -> Result<RequestedArchive, ExportError> {
    match find_attempt(store, verified, name, requested_by).await? {
        Begun::Nothing => return Ok(RequestedArchive::Unfinished),
        Begun::Foreign(state) => return Ok(RequestedArchive::Taken(state)),
        Begun::Own(record) if !complete(store, verified, &record).await? => return Ok(RequestedArchive::Unfinished),
        Begun::Archive(_, trust) if trust != SignatureStatus::Signed => {
            return Ok(RequestedArchive::Taken(
                "an archive whose record this cluster did not sign",
            ));
        }
        Begun::Own(record) | Begun::Archive(record, _) => {
            publish::discard_staged(store, verified, (&record.claim, name)).await?;
        }
    }
    let found = archives::find(store, verified, name).await?;
    Ok(found.map_or(RequestedArchive::Unfinished, |archive| {
        RequestedArchive::Done(Box::new(archive))
    }))
}

/// Moves an unfinished copy that its requester no longer wants into the trash. Keeps a complete copy.
pub(crate) async fn discard_requested(
    store: &ExportStore,
    name: &str,
    requested_by: &str,
) -> Result<DiscardOutcome, ExportError> {
    let _lock = store.lock_volume(name).await?;
    let discarded = store
        .with_verified(move |verified| async move { discard_requested_at(store, &verified, name, requested_by).await })
        .await?;
    if discarded == DiscardOutcome::Gone {
        untrack_request(store, name, requested_by);
    }
    Ok(discarded)
}

async fn discard_requested_at(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &str,
    requested_by: &str,
) -> Result<DiscardOutcome, ExportError> {
    match find_attempt(store, verified, name, requested_by).await? {
        Begun::Archive(..) => return Ok(DiscardOutcome::Complete),
        Begun::Own(record) if complete(store, verified, &record).await? => return Ok(DiscardOutcome::Complete),
        Begun::Own(record) => {
            publish::discard_staged(store, verified, (&record.claim, name)).await?;
            manifest::remove(store, verified, name).await?;
            records::remove(store, verified, name).await?;
            store.reservations.remove(&Holder::Archive(name.to_owned()));
        }
        Begun::Nothing | Begun::Foreign(_) => {}
    }
    Ok(DiscardOutcome::Gone)
}

/// Returns the record with that name, compared with the requester. An unfinished copy of the requester whose record has
/// no valid signature is discarded and counts as nothing.
async fn find_attempt(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &str,
    requested_by: &str,
) -> Result<Begun, ExportError> {
    let (record, trust) = match records::read_or_remove_truncated(store, verified, name).await? {
        ReadRecord::Nothing => return Ok(Begun::Nothing),
        ReadRecord::Unreadable(why) => {
            let volume = name.to_owned();
            return Err(ExportError::RecordDamaged { volume, why });
        }
        ReadRecord::Record(record, trust) => (record, trust),
    };
    let copy = record.state.archive_info().and_then(|archive| archive.copy.as_ref());
    if copy.is_none_or(|copy| copy.requested_by != requested_by) || record.backend != store.config.backend {
        return Ok(Begun::Foreign(record.state.name()));
    }
    match (&record.state, trust) {
        (State::Copying(_), SignatureStatus::Signed) => Ok(Begun::Own(record)),
        (State::Copying(_), _) => {
            publish::discard_staged(store, verified, (&record.claim, name)).await?;
            records::remove(store, verified, name).await?;
            Ok(Begun::Nothing)
        }
        _ => {
            // The reply to the write that completed it may have been lost.
            if trust == SignatureStatus::Signed && matches!(record.state, State::Archived(_)) {
                track_complete(store, verified, &record);
            }
            Ok(Begun::Archive(record, trust))
        }
    }
}

fn track_complete(store: &ExportStore, verified: &VerifiedRoot, archived: &Record) {
    archives::track(store, verified, archived);
    store.state().copying.remove(&archived.volume);
}

/// Writes the record and creates the staging folder, which contains what an interrupted attempt completed. Returns `None` if
/// a previous process completed the copy.
async fn stage_archive(
    store: &ExportStore,
    request: &ArchiveRequest,
    source: &SourceTree,
    may_resume: bool,
) -> Result<Option<(Staging, Option<InterruptedCopy>)>, CopyError> {
    let _lock = store.lock_volume(&request.name).await?;
    let verified = store.verified_root().await?;
    let former = match find_attempt(store, &verified, &request.name, &request.requested_by).await? {
        Begun::Nothing => None,
        Begun::Own(record) if complete(store, &verified, &record).await? => return Ok(None),
        Begun::Own(record) => Some(record),
        Begun::Archive(..) => return Ok(None),
        Begun::Foreign(state) => return Err(taken(&request.name, state).into()),
    };
    let found = match former.as_ref().filter(|_| may_resume) {
        Some(former) => interrupted::find(store, &verified, request, former).await?,
        None => None,
    };
    let checkpoint = found.as_ref().map(|found| found.checkpoint.clone());
    let (record, held) = draft_record(store, &verified, (request, checkpoint), source).await?;
    // The volume's own archive would have the same record name as this one.
    if store.reservations.knows(&Holder::Volume(request.name.clone())) {
        return Err(taken(&request.name, State::Live.name()).into());
    }
    match former {
        Some(_) => records::replace(store, &verified, &record).await?,
        None if records::create(store, &verified, &record).await? == Created::Exists => {
            let doing = format!("recording the archive {}", request.name);
            return Err(ExportError::ConcurrentlyModified { doing }.into());
        }
        None => {}
    }
    held.keep(None);
    track_request(store, &request.name, &request.requested_by);
    let of = (&record.claim, request.name.as_str());
    let (folder, interrupted) = match found {
        Some(found) => {
            let (folder, interrupted) = interrupted::set_aside(store, &verified, of, found).await?;
            (Some(folder), interrupted)
        }
        None => {
            publish::discard_staged(store, &verified, of).await?;
            (None, None)
        }
    };
    let staging = staging::make_staging(store, &verified, &request.name, folder).await?;
    Ok(Some((staging, interrupted)))
}

/// Returns the record that announces the copy, with the current mode and owner of the source, and the reservation of
/// the archive's name.
async fn draft_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (request, checkpoint): (&ArchiveRequest, Option<Checkpoint>),
    source: &SourceTree,
) -> Result<(Record, Reservation), CopyError> {
    let was = &source.details.attributes;
    if was.uid.is_none() || was.gid.is_none() {
        return Err(CopyError::OwnerUnknown {
            path: "the root of the tree".into(),
            owner: format!("{}:{}", was.owner, was.group),
        });
    }
    let archive = ArchiveState {
        terms: request.terms.clone(),
        revision: Some(request.revision.clone()),
        // The requesting object specifies when the copy expires.
        retention: None,
        copy: Some(CopyState {
            volume: request.of.volume.clone(),
            requested_by: request.requested_by.clone(),
            outcome: None,
            amount: None,
            manifest: None,
            checkpoint,
            snapshot: None,
            shares_files: false,
        }),
        ..request.of.archive_metadata.archive_state(String::new(), Some(was))
    };
    let record = Record {
        volume: request.name.clone(),
        backend: store.config.backend.clone(),
        claim: request.claim.clone(),
        directory: request.of.directory.clone(),
        file_id: None,
        handle: None,
        adopted: false,
        shared: false,
        restores: None,
        group: source.group,
        metadata: None,
        state: State::Copying(archive.clone()),
    };
    let (target, held) = archives::reserve_name(store, verified, &record, MAX_NAME_LEN).await?;
    Ok((
        record.in_state(State::Copying(ArchiveState { target, ..archive })),
        held,
    ))
}

/// Saves a checkpoint in the record of a copy that is in progress.
pub(super) async fn record_checkpoint(
    store: &ExportStore,
    request: &ArchiveRequest,
    staging: &Staging,
    checkpoint: Checkpoint,
) -> Outcome {
    let _lock = store.lock_volume(&request.name).await?;
    let (verified, record, mut archive) = find_unfinished(store, request, staging).await?;
    if let Some(copy) = &mut archive.copy {
        copy.checkpoint = Some(checkpoint);
    }
    records::replace(store, &verified, &record.in_state(State::Copying(archive))).await?;
    Ok(())
}

/// Returns the record of a copy that is in progress, if it still is.
async fn find_unfinished(
    store: &ExportStore,
    request: &ArchiveRequest,
    staging: &Staging,
) -> Result<(Arc<VerifiedRoot>, Box<Record>, ArchiveState), CopyError> {
    let verified = store.verified_root().await?;
    if verified.differs_from(&staging.verified) {
        return Err(CopyError::ExportChanged);
    }
    let Begun::Own(record) = find_attempt(store, &verified, &request.name, &request.requested_by).await? else {
        return Err(CopyError::ExportChanged);
    };
    match record.state.clone() {
        State::Copying(archive) => Ok((verified, record, archive)),
        _ => Err(CopyError::ExportChanged),
    }
}

/// Renames a complete copy to its archive's name.
async fn publish_archive(
    store: &ExportStore,
    request: &ArchiveRequest,
    (source, staging): (&SourceTree, &Staging),
    finished: &FinishedCopy,
) -> Result<(), CopyError> {
    let _lock = store.lock_volume(&request.name).await?;
    publish::after_reconnections(|| publish_archive_once(store, request, (source, staging), finished)).await
}

async fn publish_archive_once(
    store: &ExportStore,
    request: &ArchiveRequest,
    (source, staging): (&SourceTree, &Staging),
    finished: &FinishedCopy,
) -> Result<(), CopyError> {
    let (verified, record, mut archive) = find_unfinished(store, request, staging).await?;
    if let Some(copy) = &mut archive.copy {
        copy.outcome = Some(finished.outcome.clone());
        copy.snapshot = finished.snapshot.clone();
        copy.amount = Some(finished.amount);
        copy.manifest = finished.manifest.as_ref().map(|(_, reference)| reference.clone());
        // The next backup may link to its files.
        copy.shares_files = copy.manifest.is_some();
    }
    restrict_copy(store, &verified, source, staging).await?;
    publish::clear_links(store, &verified, staging).await?;
    if let Some((file, _)) = &finished.manifest {
        manifest::publish(store, &verified, (staging, file), &request.name).await?;
    }
    let record = Record {
        file_id: Some(staging.tree.attributes.fileid),
        handle: Some(RecordedHandle::new(&verified, &staging.tree)),
        ..record.in_state(State::Copying(archive))
    };
    records::replace(store, &verified, &record).await?;
    rename_to_archive(store, &verified, &record, staging).await?;
    if !complete(store, &verified, &record).await? {
        return Err(unsettled(&record).into());
    }
    // Not urgent: the next lookup of the requested archive does it.
    if let Err(error) = publish::discard_staged(store, &verified, (&record.claim, &request.name)).await {
        tracing::debug!(archive = request.name, "its staging folder is left for later: {error}");
    }
    Ok(())
}

/// Sets mode 0700 and the operator as owner, as for every archive, and the times of the source.
async fn restrict_copy(
    store: &ExportStore,
    verified: &VerifiedRoot,
    source: &SourceTree,
    staging: &Staging,
) -> Result<(), ExportError> {
    let operator = &verified.reserved.attributes;
    let credential = &store.config.credential;
    let set = SetAttributes {
        mode: Some(0o700),
        uid: operator.uid.or(Some(credential.uid)),
        gid: operator.gid.or(Some(credential.gid)),
        size: None,
        times: Some(source.details.times),
    };
    let closed = store
        .for_write(verified)?
        .set_attributes(&staging.tree.handle, set)
        .await;
    closed.map(drop).context(|| "closing the copy".to_owned())
}

async fn rename_to_archive(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    staging: &Staging,
) -> Result<(), ExportError> {
    let Some(archive) = record.state.archive_info() else {
        return Err(unsettled(record));
    };
    let name = layout::name(&archive.target)?;
    let found = store.nfs.lookup(&verified.root.handle, &name).await;
    match found.context(|| format!("looking up {name}"))? {
        Some(node) if record.matches_node(&node) => return Ok(()),
        // The name was taken meanwhile: the next attempt chooses another one.
        Some(_) => return Err(unsettled(record)),
        None => {}
    }
    match publish::rename_staged(store, verified, record, staging, (&verified.root, &name)).await? {
        Named::Renamed => Ok(()),
        Named::Taken => Err(unsettled(record)),
    }
}

/// Reports whether a copy has its archive's name. If so, records it as archived.
pub(crate) async fn complete(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<bool, ExportError> {
    let State::Copying(archive) = &record.state else {
        return Ok(false);
    };
    if record.file_id.is_none()
        || archives::find_directory(store, verified, record, archive)
            .await?
            .is_none()
    {
        return Ok(false);
    }
    let mut archive = archive.clone();
    if let Some(copy) = &mut archive.copy {
        copy.checkpoint = None;
    }
    let archived = record.in_state(State::Archived(archive));
    records::replace_to_free_space(store, verified, &archived).await?;
    track_complete(store, verified, &archived);
    Ok(true)
}

/// Reserves the archive name of a copy that a previous process began. Remembers its requester if this cluster signed
/// the record.
pub(crate) fn track(store: &ExportStore, verified: &VerifiedRoot, record: &Record, signed: bool) {
    let Some(archive) = record.state.archive_info() else {
        return;
    };
    let places = archives::reserved_paths(store, verified, &archive.target);
    let holder = Holder::Archive(record.volume.clone());
    // On a conflict, the next attempt chooses another name.
    if let Ok(reservation) = store
        .reservations
        .reserve(holder, places, Sharing::Exclusive, &store.config.backend)
    {
        reservation.keep(None);
    }
    let is_own = signed && record.backend == store.config.backend;
    if let Some(copy) = archive.copy.as_ref().filter(|_| is_own) {
        track_request(store, &record.volume, &copy.requested_by);
    }
}

fn track_request(store: &ExportStore, name: &str, requested_by: &str) {
    store.state().copying.insert(name.to_owned(), requested_by.to_owned());
}

fn untrack_request(store: &ExportStore, name: &str, requested_by: &str) {
    let mut state = store.state();
    if state.copying.get(name).is_some_and(|by| by == requested_by) {
        state.copying.remove(name);
    }
}
