//! Archives: their names, retention and permissions, and their purge through the trash (data-safety rule 7).
//!
//! A purge has two steps, and the object is deleted between them: [`ExportStore::begin_purge`] records it,
//! [`ExportStore::end_purge`] does it. Until then it can be canceled.

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::{DirectoryPath, archive_name};
use crate::path_reservations::{Holder, Reservation, ReservedPath, Sharing};
use crate::recent_archives::RecentArchive;
use crate::record::{
    ArchiveState, CopyState, Record, RecordedHandle, RestoreTarget, RetentionTerms, State, TermsRevision,
};
use crate::records::ReadRecord;
use crate::request::ClaimRef;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{copy, layout, other_clusters, paths, records};
use nfs_client::{FileRef, Name, SetAttributes, Status};

/// Maximum number of names to try: the plain one, one with the volume's hash, and numbered ones.
const NAMES: u32 = 100;
/// Maximum number of steps of one attempt, in case the directory keeps changing.
const STEPS: u32 = 8;

/// Reference to an archive. The name alone could be reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRef {
    /// Name of the volume that was archived; for a copy, name of the object that requested it.
    pub volume: String,
    /// UID of the claim that the volume was for.
    pub claim_uid: String,
    /// Fileid of the directory.
    pub file_id: u64,
}

/// State of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchivePhase {
    /// The archive is kept.
    Archived,
    /// The archive is being moved into the trash.
    Purging,
    /// The archive is being restored to a volume.
    Restoring(RestoreTarget),
}

/// An archive as recorded on the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedArchive {
    /// Name of the volume that was archived; for a copy, name of the object that requested it.
    pub volume: String,
    /// The claim that the volume was for.
    pub claim: ClaimRef,
    /// Original path of the directory.
    pub directory: DirectoryPath,
    /// Fileid of the directory.
    pub file_id: u64,
    /// Metadata of the archive in the record.
    pub archive: ArchiveState,
    /// State.
    pub phase: ArchivePhase,
    /// The directory exists under the archive's name.
    pub exists: bool,
    /// Identity of the export.
    pub export_id: String,
    /// Result of checking the record's signature.
    pub trust: SignatureStatus,
}

impl RecordedArchive {
    /// Returns the archive of a record that this process signed. Its directory is at the archive's name. `None` if the record
    /// is not that of an archive that is kept, or if the archive is another backend's.
    pub(crate) fn of_written(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Option<Self> {
        let State::Archived(archive) = &record.state else {
            return None;
        };
        if record.backend != store.config.backend {
            return None;
        }
        Some(Self {
            volume: record.volume.clone(),
            claim: record.claim.clone(),
            directory: record.directory.clone(),
            file_id: record.file_id?,
            archive: archive.clone(),
            phase: ArchivePhase::Archived,
            exists: true,
            export_id: verified.identity.id.clone(),
            trust: SignatureStatus::Signed,
        })
    }

    /// Returns the volume whose data the archive contains.
    pub fn of_volume(&self) -> &str {
        self.archive.copy.as_ref().map_or(&self.volume, |copy| &copy.volume)
    }
}

/// An archive that is kept without an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedArchive {
    /// Name of the archive, which is that of its record.
    pub name: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// Size of the volume, as a quantity.
    pub size: Option<String>,
}

impl ReleasedArchive {
    fn new(record: &Record, archive: &ArchiveState) -> Self {
        Self {
            name: record.volume.clone(),
            namespace: record.claim.namespace.clone(),
            size: archive.size.clone(),
        }
    }
}

/// Reports whether a rename failed because the directory or its target changed meanwhile.
pub(super) fn changed_meanwhile(status: Option<Status>) -> bool {
    matches!(
        status,
        Some(Status::Exists | Status::NotEmpty | Status::NotFound | Status::NotSame)
    )
}

pub(super) fn busy(record: &Record, operation: &'static str) -> ExportError {
    ExportError::RecordBusy {
        volume: record.volume.clone(),
        state: record.state.name(),
        operation,
    }
}

fn damaged(volume: &str, why: super::RecordError) -> ExportError {
    ExportError::RecordDamaged {
        volume: volume.to_owned(),
        why,
    }
}

/// Returns the archive of a volume, if it belongs to this backend.
pub(crate) async fn find(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<RecordedArchive>, ExportError> {
    let (record, trust) = match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => return Ok(None),
        ReadRecord::Unreadable(why) => return Err(damaged(volume, why)),
        ReadRecord::Record(record, trust) => (record, trust),
    };
    let (Some(archive), Some(file_id)) = (record.state.archive().cloned(), record.file_id) else {
        return Ok(None);
    };
    if record.backend != store.config.backend {
        return Ok(None);
    }
    // That of a volume that had a claim when the records were read.
    if !store.state().archives.contains(volume) {
        track(store, verified, &record);
    }
    let directory = find_directory(store, verified, &record, &archive).await?;
    let phase = match &record.state {
        State::Purging { .. } => ArchivePhase::Purging,
        State::Restoring { to, .. } => ArchivePhase::Restoring(to.clone()),
        State::Archived(_)
            if directory.is_none() && is_purged_unrecorded(store, verified, &record, file_id).await? =>
        {
            ArchivePhase::Purging
        }
        _ => ArchivePhase::Archived,
    };
    Ok(Some(RecordedArchive {
        volume: record.volume,
        claim: record.claim,
        directory: record.directory,
        file_id,
        exists: directory.is_some(),
        archive,
        phase,
        export_id: verified.identity.id.clone(),
        trust,
    }))
}

/// Returns the archive of a volume like [`find`], but without a request if this process made it just now.
pub(crate) async fn find_for_report(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<RecordedArchive>, ExportError> {
    let known = recent(store, verified, volume);
    match known.and_then(|recent| RecordedArchive::of_written(store, verified, &recent.record)) {
        Some(found) => Ok(Some(found)),
        None => find(store, verified, volume).await,
    }
}

fn recent(store: &ExportStore, verified: &VerifiedRoot, volume: &str) -> Option<RecentArchive> {
    let recent = &store.reservations.recent_archives;
    recent.get(&verified.identity.id, &verified.token, volume)
}

/// Saves the retention terms of an archive, with the revision of the object that they are from.
pub(crate) async fn save_retention(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    terms: &RetentionTerms,
    revision: &TermsRevision,
) -> Result<(), ExportError> {
    save_terms(store, verified, which, (terms, revision), |archive| {
        archive.terms != *terms || archive.revision.as_ref() != Some(revision) || archive.released
    })
    .await
}

/// Records that the terms of a new archive are those of the object that was created from them. Keeps a newer revision of
/// this object.
pub(crate) async fn bind_object(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    terms: &RetentionTerms,
    object: &TermsRevision,
) -> Result<(), ExportError> {
    save_terms(store, verified, which, (terms, object), |archive| {
        archive.terms == *terms && !archive.is_bound_to(object)
    })
    .await
}

/// Saves the terms in the record of an archive that is kept and `needs` them.
async fn save_terms(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    (terms, revision): (&RetentionTerms, &TermsRevision),
    needs: impl FnOnce(&ArchiveState) -> bool,
) -> Result<(), ExportError> {
    let recent = recent(store, verified, &which.volume);
    let record = signed_record(store, verified, which).await?;
    match &record.state {
        State::Archived(archive) if needs(archive) => {
            let archived = State::Archived(archive.with_terms(terms, Some(revision)));
            // A purge requires it.
            let record = record.in_state(archived);
            records::replace_to_free_space(store, verified, &record).await?;
            track(store, verified, &record);
            // The directory of the archive is where it was.
            if let Some(recent) = recent {
                let recent_archives = &store.reservations.recent_archives;
                recent_archives.insert(&verified.identity.id, recent.with_record(record));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Records that an archive is kept without an object.
pub(crate) async fn release(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<(), ExportError> {
    let record = signed_record(store, verified, which).await?;
    let State::Archived(archive) = &record.state else {
        return Err(busy(&record, "releasing it"));
    };
    if archive.released {
        return Ok(());
    }
    let released = ArchiveState {
        released: true,
        ..archive.clone()
    };
    let record = record.in_state(State::Archived(released));
    records::replace(store, verified, &record).await?;
    track(store, verified, &record);
    Ok(())
}

/// Records a purge, or cancels a recorded one, depending on whether the record has the terms of the object that wants it.
pub(crate) async fn begin_purge(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    terms: &RetentionTerms,
    object: &TermsRevision,
) -> Result<bool, ExportError> {
    let record = signed_record(store, verified, which).await?;
    let archive = match &record.state {
        State::Purging { archive, .. } if archive.has_terms_of(terms, object) => return Ok(true),
        // Another object announced it: this one is compared with the record first. A purge that was carried out ends.
        State::Purging { .. } => return cancel_purge(store, verified, which).await.map(|canceled| !canceled),
        State::Archived(archive) => archive.clone(),
        _ => return Err(busy(&record, "purging it")),
    };
    if !archive.has_terms_of(terms, object) {
        return Ok(false);
    }
    refuse_while_needed(store, verified, &record, &archive).await?;
    let directory = find_directory(store, verified, &record, &archive).await?;
    let purging = State::Purging {
        archive,
        since: store.unix_time(),
    };
    let found = directory.map(|directory| RecordedHandle::new(verified, &directory));
    let record = Record {
        handle: found.or_else(|| record.handle.clone()),
        ..record.in_state(purging)
    };
    records::replace_to_free_space(store, verified, &record)
        .await
        .map(|_| true)
}

/// Fails while an archive has a legal hold, is being copied, or something else uses it.
async fn refuse_while_needed(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    archive: &ArchiveState,
) -> Result<(), ExportError> {
    let volume = &record.volume;
    if archive.terms.held {
        return Err(ExportError::ArchiveHeld { volume: volume.clone() });
    }
    refuse_while_copied(store, volume)?;
    refuse_while_volume_exists(store, record)?;
    let holder = Holder::Archive(volume.clone());
    paths::refuse_conflict(store, verified, &holder, Sharing::Exclusive, &archive.target).await
}

/// Moves an archive into the trash of a full export, where its purge cannot be recorded. What the record would show is in
/// the name: if this is interrupted, [`find`] reports a purge that was carried out.
pub(crate) async fn purge_unrecorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    terms: &RetentionTerms,
    object: &TermsRevision,
) -> Result<bool, ExportError> {
    let record = signed_record(store, verified, which).await?;
    let State::Archived(archive) = &record.state else {
        return Err(busy(&record, "purging it"));
    };
    if !archive.has_terms_of(terms, object) {
        return Ok(false);
    }
    refuse_while_needed(store, verified, &record, archive).await?;
    if let Some(found) = find_directory(store, verified, &record, archive).await? {
        let segments = std::slice::from_ref(&archive.target);
        other_clusters::refuse_removal(store, verified, &record.volume, segments, std::slice::from_ref(&found)).await?;
        let (name, trashed) = (layout::name(&archive.target)?, unrecorded_name(&record, which.file_id)?);
        let (from, to) = ((&verified.root.handle, &name), (&verified.trash.handle, &trashed));
        // Its record does not change before the directory does.
        store
            .reservations
            .recent_archives
            .remove(&verified.identity.id, &record.volume);
        let moved = store.for_write(verified)?.rename(from, which.file_id, to).await;
        moved.context(|| format!("moving {name} into the trash"))?;
    }
    remove_manifest(store, verified, &record, archive).await?;
    records::remove(store, verified, &record.volume).await?;
    untrack(store, &record.volume);
    Ok(true)
}

fn unrecorded_name(record: &Record, file_id: u64) -> Result<Name, ExportError> {
    layout::trashed_unrecorded(&record.claim, &record.volume, file_id)
}

/// Reports whether an archive is in the trash of a full export, where its purge could not be recorded.
async fn is_purged_unrecorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    file_id: u64,
) -> Result<bool, ExportError> {
    let trashed = unrecorded_name(record, file_id)?;
    let found = store.nfs.lookup(&verified.trash.handle, &trashed).await;
    let found = found.context(|| format!("looking up {trashed} in the trash"))?;
    Ok(found.is_some_and(|found| found.attributes.fileid == file_id))
}

pub(crate) async fn end_purge(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<(), ExportError> {
    let mut record = signed_record(store, verified, which).await?;
    for _ in 0..STEPS {
        let State::Purging { archive, since } = &record.state else {
            return Err(busy(&record, "purging it"));
        };
        let (archive, since) = (archive.clone(), *since);
        let Some(found) = find_directory(store, verified, &record, &archive).await? else {
            remove_manifest(store, verified, &record, &archive).await?;
            records::remove(store, verified, &record.volume).await?;
            untrack(store, &record.volume);
            return Ok(());
        };
        let trashed = layout::trashed(&record.claim, &record.volume, since)?;
        let taken = store.nfs.lookup(&verified.trash.handle, &trashed).await;
        if taken
            .context(|| format!("looking up {trashed} in the trash"))?
            .is_some()
        {
            // A later time results in another name.
            let since = store.unix_time().max(since.saturating_add(1));
            *record = record.in_state(State::Purging { archive, since });
            records::replace_to_free_space(store, verified, &record).await?;
            continue;
        }
        // The object may be deleted already: the recorded purge waits until nothing uses the directory.
        let holder = Holder::Archive(record.volume.clone());
        paths::refuse_conflict(store, verified, &holder, Sharing::Exclusive, &archive.target).await?;
        let segments = std::slice::from_ref(&archive.target);
        other_clusters::refuse_removal(store, verified, &record.volume, segments, std::slice::from_ref(&found)).await?;
        let (name, to) = (layout::name(&archive.target)?, (&verified.trash.handle, &trashed));
        let from = (&verified.root.handle, &name);
        match store.for_write(verified)?.rename(from, which.file_id, to).await {
            Err(error) if changed_meanwhile(error.status()) => {}
            moved => moved.context(|| format!("moving {name} into the trash"))?,
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("purging the archive of volume {}", which.volume),
    })
}

/// Removes the manifest of a copy that is gone, before its record.
async fn remove_manifest(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    archive: &ArchiveState,
) -> Result<(), ExportError> {
    match &archive.copy {
        Some(_) => copy::remove_manifest(store, verified, &record.volume).await,
        None => Ok(()),
    }
}

/// Cancels a recorded purge. Returns false if it was done already.
pub(crate) async fn cancel_purge(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<bool, ExportError> {
    let record = signed_record(store, verified, which).await?;
    match &record.state {
        State::Purging { archive, .. } if find_directory(store, verified, &record, archive).await?.is_some() => {
            let archived = record.in_state(State::Archived(archive.clone()));
            records::replace_to_free_space(store, verified, &archived)
                .await
                .map(|_| true)
        }
        State::Purging { .. } => Ok(false),
        _ => Ok(true),
    }
}

/// Removes the record of an archive whose directory was restored to a volume.
pub(crate) async fn finish_restore(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    to: &RestoreTarget,
) -> Result<(), ExportError> {
    let record = signed_record(store, verified, which).await?;
    let archive = match &record.state {
        State::Restoring { to: recorded, archive } if recorded == to => archive,
        _ => return Err(busy(&record, "finishing its restore")),
    };
    let directory = DirectoryPath::parse(&to.directory).map_err(|error| ExportError::NameUnusable {
        name: to.directory.clone(),
        why: error.to_string(),
    })?;
    let nodes = paths::walk(store, verified, &directory).await?;
    let leaf = paths::leaf(&nodes, &directory);
    if leaf.map(|leaf| leaf.attributes.fileid) != record.file_id {
        return Err(ExportError::RecordMismatch {
            volume: to.volume.clone(),
            directory: to.directory.clone(),
            what: "it is not the directory that was restored".into(),
        });
    }
    remove_manifest(store, verified, &record, archive).await?;
    records::remove(store, verified, &record.volume).await?;
    untrack(store, &record.volume);
    Ok(())
}

/// Returns the record of an archive, if it matches the reference and is signed by this cluster.
pub(crate) async fn signed_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<Box<Record>, ExportError> {
    match matching_record(store, verified, which).await? {
        (record, SignatureStatus::Signed) => Ok(record),
        (record, SignatureStatus::Unsigned | SignatureStatus::Forged) => {
            Err(ExportError::RecordUnsigned { volume: record.volume })
        }
    }
}

/// Returns the record of an archive, signed or not, if it matches the reference.
pub(crate) async fn matching_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<(Box<Record>, SignatureStatus), ExportError> {
    let (record, trust) = match records::read(store, verified, &which.volume).await? {
        ReadRecord::Record(record, trust) => (record, trust),
        ReadRecord::Unreadable(why) => return Err(damaged(&which.volume, why)),
        ReadRecord::Nothing => {
            return Err(ExportError::ArchiveUnrecorded {
                volume: which.volume.clone(),
            });
        }
    };
    if record.claim.uid != which.claim_uid {
        return Err(ExportError::RecordForeign {
            volume: which.volume.clone(),
            holder: Box::new(record.claim),
        });
    }
    if record.file_id != Some(which.file_id) || record.backend != store.config.backend {
        return Err(ExportError::RecordMismatch {
            volume: which.volume.clone(),
            directory: record.directory.to_string(),
            what: format!(
                "its object has fileid {} on backend {}, its record {:?} on backend {}",
                which.file_id, store.config.backend, record.file_id, record.backend
            ),
        });
    }
    Ok((record, trust))
}

/// Returns the archive's directory, if it exists.
///
/// # Errors
/// [`ExportError::RecordMismatch`] if a change is in progress and the node of that name has the fileid but another handle:
/// either the server changed its handles, or another directory got the fileid.
pub(crate) async fn find_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    archive: &ArchiveState,
) -> Result<Option<FileRef>, ExportError> {
    let name = layout::name(&archive.target)?;
    let found = store.nfs.lookup(&verified.root.handle, &name).await;
    let found = found.context(|| format!("looking up {name}"))?;
    let Some(node) =
        found.filter(|node| verified.is_plain_directory(node) && record.file_id == Some(node.attributes.fileid))
    else {
        return Ok(None);
    };
    if record.matches_node(&node) {
        return Ok(Some(node));
    }
    Err(ExportError::RecordMismatch {
        volume: record.volume.clone(),
        directory: archive.target.clone(),
        what: "it has the fileid and not the file handle that its record knows".into(),
    })
}

/// An archive that is neither being purged nor restored.
pub(crate) struct AvailableArchive {
    /// Its directory.
    pub node: FileRef,
    /// Its metadata.
    pub archive: ArchiveState,
    /// The group that pods of the volume got.
    pub group: Option<u32>,
}

/// Returns an archive that is neither being purged nor restored.
pub(crate) async fn find_available(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
) -> Result<AvailableArchive, ExportError> {
    let volume = which.volume.clone();
    let record = match signed_record(store, verified, which).await {
        Err(ExportError::ArchiveUnrecorded { .. }) => return Err(ExportError::ArchiveGone { volume }),
        record => record?,
    };
    let State::Archived(archive) = &record.state else {
        let state = record.state.name();
        return Err(ExportError::ArchiveTaken { volume, state });
    };
    match find_directory(store, verified, &record, archive).await? {
        Some(node) => Ok(AvailableArchive {
            node,
            archive: archive.clone(),
            group: record.group,
        }),
        None => Err(ExportError::ArchiveMissing { volume }),
    }
}

/// Fails while the archive is being copied.
pub(crate) fn refuse_while_copied(store: &ExportStore, volume: &str) -> Result<(), ExportError> {
    if store.is_being_copied(volume) {
        let volume = volume.to_owned();
        return Err(ExportError::ArchiveCopied { volume });
    }
    Ok(())
}

/// Fails while the volume's object exists: its reclaim must end first.
pub(crate) fn refuse_while_volume_exists(store: &ExportStore, record: &Record) -> Result<(), ExportError> {
    let volume = record.volume.clone();
    match store.reservations.knows(&Holder::Volume(volume.clone())) {
        true => Err(ExportError::ArchivedVolumeExists { volume }),
        false => Ok(()),
    }
}

/// Releases the reserved path of an archive that no longer exists, and forgets the archive.
pub(crate) fn untrack(store: &ExportStore, volume: &str) {
    store.reservations.remove(&Holder::Archive(volume.to_owned()));
    let mut state = store.state();
    state.archives.remove(volume);
    state.released.remove(volume);
}

/// Signs an archive's record that its object confirms. Cancels a purge in an unsigned record if the directory exists.
pub(crate) async fn sign_confirmed(
    store: &ExportStore,
    verified: &VerifiedRoot,
    which: &ArchiveRef,
    terms: &RetentionTerms,
    revision: &TermsRevision,
) -> Result<(), ExportError> {
    let (record, trust) = matching_record(store, verified, which).await?;
    if trust == SignatureStatus::Signed {
        return Ok(());
    }
    let kept = match &record.state {
        State::Archived(archive) => Some(archive),
        State::Purging { archive, .. } if find_directory(store, verified, &record, archive).await?.is_some() => {
            Some(archive)
        }
        _ => None,
    };
    let record = match kept {
        Some(archive) => &record.in_state(State::Archived(ArchiveState {
            // The object does not confirm them. The files of a copy may be in others, whatever the record says.
            retention: None,
            copy: archive.copy.clone().map(|copy| CopyState {
                manifest: None,
                shares_files: true,
                ..copy
            }),
            ..archive.with_terms(terms, Some(revision))
        })),
        None => &*record,
    };
    records::replace(store, verified, record).await
}

pub(crate) fn reserved_paths(store: &ExportStore, verified: &VerifiedRoot, target: &str) -> Vec<ReservedPath> {
    paths::reserved_paths(store, &verified.identity.id, target)
}

/// Reserves the first name for the archive of a record without looking it up: the operator knows its own archives, and the
/// rename looks up what else may have the name. `None` if another holder has it.
pub(crate) fn reserve_first_name(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    longest_name: usize,
) -> Option<(String, Reservation)> {
    let target = archive_name(record.archive_stem(), &record.volume, 0, longest_name);
    let reserved = try_reserve(store, verified, record, &target)?;
    Some((target, reserved))
}

fn try_reserve(store: &ExportStore, verified: &VerifiedRoot, record: &Record, target: &str) -> Option<Reservation> {
    let reserved = store.reservations.reserve(
        Holder::Archive(record.volume.clone()),
        reserved_paths(store, verified, target),
        Sharing::Exclusive,
        &store.config.backend,
    );
    reserved.ok()
}

/// Reserves an unused name for the archive of a record.
pub(crate) async fn reserve_name(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    longest_name: usize,
) -> Result<(String, Reservation), ExportError> {
    let mut last = String::new();
    for attempt in 0..NAMES {
        let target = archive_name(record.archive_stem(), &record.volume, attempt, longest_name);
        last.clone_from(&target);
        let Some(reserved) = try_reserve(store, verified, record, &target) else {
            continue;
        };
        let taken = store.nfs.lookup(&verified.root.handle, &layout::name(&target)?).await;
        let doing = || format!("choosing a name for the archive of {}", record.directory);
        if taken.context(doing)?.is_none() {
            return Ok((target, reserved));
        }
    }
    Err(ExportError::NoArchiveName {
        directory: record.directory.to_string(),
        last,
    })
}

/// Returns the attributes that restrict an archive to the operator: its owner, unless the archive has it, and mode 0700.
pub(crate) fn restriction(verified: &VerifiedRoot, archive: &FileRef) -> SetAttributes {
    let (operator, now) = (&verified.reserved.attributes, &archive.attributes);
    let is_owner = now.uid == operator.uid && now.gid == operator.gid;
    SetAttributes {
        mode: Some(0o700),
        uid: operator.uid.filter(|_| !is_owner),
        gid: operator.gid.filter(|_| !is_owner),
        ..SetAttributes::default()
    }
}

/// Restricts an archive to the operator. Returns warnings for attributes that could not be
/// set.
pub(crate) async fn restrict(
    store: &ExportStore,
    verified: &VerifiedRoot,
    archive: &FileRef,
    name: &str,
) -> Result<Vec<String>, ExportError> {
    let all = restriction(verified, archive);
    let owner = SetAttributes { mode: None, ..all };
    let mode = SetAttributes {
        mode: all.mode,
        ..SetAttributes::default()
    };
    let mut warnings = Vec::new();
    let mut parts = vec![("mode", mode)];
    if owner != SetAttributes::default() {
        // Set the owner first: a change of the owner may clear mode bits.
        parts.insert(0, ("owner", owner));
    }
    for (what, part) in parts {
        match store.for_write(verified)?.set_attributes(&archive.handle, part).await {
            Ok(_) => {}
            // The directory is archived nevertheless. Clients that could read it before still can, so warn.
            Err(error) if error.status().is_some_and(|status| status != nfs_client::Status::Stale) => {
                warnings.push(format!("the {what} of {name} stays as it was: {error}"));
            }
            Err(error) => return Err(error).context(|| format!("closing {name}")),
        }
    }
    Ok(warnings)
}

/// Reserves an archive's path and remembers it.
pub(crate) fn track(store: &ExportStore, verified: &VerifiedRoot, record: &Record) {
    let Some(archive) = record.state.archive() else { return };
    store.reservations.insert(
        Holder::Archive(record.volume.clone()),
        reserved_paths(store, verified, &archive.target),
        record.file_id.map(|id| verified.file_key(id)),
    );
    if record.backend != store.config.backend {
        return;
    }
    let mut state = store.state();
    state.archives.insert(record.volume.clone());
    match archive.released {
        true => state
            .released
            .insert(record.volume.clone(), ReleasedArchive::new(record, archive)),
        false => state.released.remove(&record.volume),
    };
}
