//! Preparation of a copy: reserves and records the target's name, and creates the staging folder. Detects missing
//! permissions before the copy starts.

use std::sync::Arc;

use crate::copy::{CopyError, publish};
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::path_reservations::{Reservation, Sharing};
use crate::provision::{group, new_record};
use crate::record::{Record, State};
use crate::records::{Created, ReadRecord};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{folders, layout, other_clusters, paths, records, volume_record};
use nfs_client::{FileRef, Name, SetAttributes, Status};

/// An arbitrary owner: if the operator can give a directory to this owner, it can give files to any owner.
const TEST_OWNER: u32 = 65_533;

/// A staging folder with an unfinished copy.
#[derive(Debug, Clone)]
pub struct Staging {
    pub(super) verified: Arc<VerifiedRoot>,
    /// The volume's folder in the staging folder.
    pub(super) folder: FileRef,
    /// Root of the copy.
    pub(super) tree: FileRef,
    /// Folder for additional names of files with several hard links.
    pub(super) links: FileRef,
    /// Group of the copy, from a range. What has the group of the source gets it.
    pub(super) own_group: Option<u32>,
}

/// What is left to do for a copy.
pub enum StagedCopy {
    /// A previous process finished the copy: the directory exists and is recorded.
    Done(ProvisionedDirectory),
    /// The copy must be made in this staging folder.
    Copy(Box<Staging>),
}

/// Prepares a copy: finds that it is finished already, or writes the record and creates the staging folder. Moves what
/// a previous process left of the copy into the trash.
pub(crate) async fn stage(store: &ExportStore, request: &DirectoryRequest) -> Result<StagedCopy, CopyError> {
    let _lock = store.lock_volume(&request.volume).await?;
    let verified = store.verified_root().await?;
    let staged = stage_at(store, &verified, request).await;
    if staged.is_ok() {
        store.confirm_answers(&verified).await?;
    }
    match staged {
        Err(CopyError::Export(error)) => {
            let hinted: Result<StagedCopy, ExportError> = store.with_hints(Err(error)).await;
            hinted.map_err(CopyError::Export)
        }
        staged => staged,
    }
}

async fn stage_at(
    store: &ExportStore,
    verified: &Arc<VerifiedRoot>,
    request: &DirectoryRequest,
) -> Result<StagedCopy, CopyError> {
    let record = open_record(store, verified, request).await?;
    // Once recorded, a claim's directory never changes.
    let directory = record
        .as_ref()
        .map_or(&request.directory, |record| &record.directory)
        .clone();
    let reservation = paths::reserve(store, verified, &request.volume, &directory, Sharing::Exclusive).await?;
    let nodes = paths::walk(store, verified, &directory).await?;
    paths::check_parents_and_clusters(store, verified, &directory, &nodes, Sharing::Exclusive).await?;
    if let Some(leaf) = paths::leaf(&nodes, &directory) {
        let finished = complete_published(store, verified, record.as_ref(), leaf, reservation).await?;
        return finished.map(StagedCopy::Done).ok_or_else(|| CopyError::TargetTaken {
            directory: directory.to_string(),
        });
    }
    other_clusters::refuse(store, verified, &directory, &nodes, Sharing::Exclusive, true).await?;
    let request = &*group::assign(store, verified, request, &directory, record.as_ref()).await?;
    let mut written = write_record(store, verified, request, &directory, record.is_some()).await?;
    other_clusters::recheck(store, verified, &directory, &nodes, Sharing::Exclusive).await?;
    group::recheck(store, verified, request, &mut written).await?;
    reservation.keep(None);
    publish::discard_staged(store, verified, (&request.claim, &request.volume)).await?;
    let staging = make_staging(store, verified, &request.volume, None).await?;
    Ok(StagedCopy::Copy(Box::new(Staging {
        own_group: request.gid_range.and(written.group),
        ..staging
    })))
}

/// Returns the record of this volume, if a copy can resume with it.
pub(crate) async fn open_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<Option<Record>, ExportError> {
    let volume = request.volume.clone();
    match records::read_or_remove_truncated(store, verified, &volume).await? {
        ReadRecord::Nothing => Ok(None),
        ReadRecord::Unreadable(why) => Err(ExportError::RecordDamaged { volume, why }),
        ReadRecord::Record(record, _) if record.claim.uid != request.claim.uid => Err(ExportError::RecordForeign {
            volume,
            holder: Box::new(record.claim),
        }),
        ReadRecord::Record(record, _) if !record.state.belongs_to_volume() || record.adopted => {
            Err(ExportError::RecordBusy {
                volume,
                state: record.state.name(),
                operation: "copying",
            })
        }
        ReadRecord::Record(record, SignatureStatus::Signed) => {
            volume_record::take_over(store, verified, *record).await.map(Some)
        }
        ReadRecord::Record(..) => {
            // Nothing confirms its content: it is treated as incomplete.
            records::remove(store, verified, &volume).await?;
            Ok(None)
        }
    }
}

/// Returns the copy that an earlier attempt finished, if it did. Unlike [`stage`], it begins nothing, so it does not matter
/// what has become of the source.
pub(crate) async fn find_finished(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<Option<ProvisionedDirectory>, ExportError> {
    // The staging and the rollback decide about any other record.
    let ReadRecord::Record(record, SignatureStatus::Signed) = records::read(store, verified, &request.volume).await?
    else {
        return Ok(None);
    };
    let is_own = record.claim.uid == request.claim.uid && record.state.belongs_to_volume() && !record.adopted;
    // A record has no fileid until its copy is complete.
    if !is_own || record.file_id.is_none() {
        return Ok(None);
    }
    let record = volume_record::take_over(store, verified, *record).await?;
    let reservation = paths::reserve(store, verified, &record.volume, &record.directory, Sharing::Exclusive).await?;
    let nodes = paths::walk(store, verified, &record.directory).await?;
    paths::check_parents_and_clusters(store, verified, &record.directory, &nodes, Sharing::Exclusive).await?;
    match paths::leaf(&nodes, &record.directory) {
        Some(leaf) => complete_published(store, verified, Some(&record), leaf, reservation).await,
        None => Ok(None),
    }
}

/// Returns the directory of a name if it is the finished copy, and marks its record as live.
async fn complete_published(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: Option<&Record>,
    leaf: &FileRef,
    reservation: Reservation,
) -> Result<Option<ProvisionedDirectory>, ExportError> {
    let published = record.filter(|record| verified.is_plain_directory(leaf) && record.matches_node(leaf));
    let Some((record, file_id)) = published.and_then(|record| Some((record, record.file_id?))) else {
        return Ok(None);
    };
    if record.state == State::Creating {
        records::replace(store, verified, &record.in_state(State::Live)).await?;
    }
    reservation.keep(Some(verified.file_key(file_id)));
    publish::discard_staged(store, verified, (&record.claim, &record.volume)).await?;
    Ok(Some(ProvisionedDirectory {
        directory: record.directory.clone(),
        file_id,
        adopted: false,
        shared: false,
        mode_not_kept: None,
        group: record.group,
    }))
}

/// Writes the record before anything is created (data-safety rule 3). It has no fileid until the copy is complete.
async fn write_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    over: bool,
) -> Result<Record, ExportError> {
    let record = new_record(store, request, directory);
    if over {
        return records::replace(store, verified, &record).await.map(|()| record);
    }
    if records::create(store, verified, &record).await? == Created::Exists {
        return Err(ExportError::ConcurrentlyModified {
            doing: format!("recording {directory}"),
        });
    }
    Ok(record)
}

/// Creates a volume's staging folder, or what belongs in one that exists and contains nothing of this attempt.
pub(crate) async fn make_staging(
    store: &ExportStore,
    verified: &Arc<VerifiedRoot>,
    volume: &str,
    existing: Option<FileRef>,
) -> Result<Staging, CopyError> {
    let folder = match existing {
        Some(folder) => folder,
        None => {
            let staging = staging_folder(store, verified).await?;
            create_folder(store, verified, &staging, layout::staged(volume)?, volume).await?
        }
    };
    let tree = create_folder(store, verified, &folder, layout::name(layout::STAGED_TREE)?, volume).await?;
    let links = create_folder(store, verified, &folder, layout::name(layout::STAGED_LINKS)?, volume).await?;
    check_chown(store, verified, &tree).await?;
    Ok(Staging {
        verified: Arc::clone(verified),
        folder,
        tree,
        links,
        own_group: None,
    })
}

async fn staging_folder(store: &ExportStore, verified: &VerifiedRoot) -> Result<FileRef, ExportError> {
    let path = format!("{}/{}/{}", layout::RESERVED, store.config.cluster_id, layout::STAGING);
    folders::ensure_folder(
        store.for_write(verified)?,
        &verified.root,
        &verified.cluster,
        layout::STAGING,
        &path,
        Some(&verified.reserved),
    )
    .await
}

pub(super) async fn create_folder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    name: Name,
    volume: &str,
) -> Result<FileRef, ExportError> {
    let mode = SetAttributes {
        mode: Some(0o700),
        ..SetAttributes::default()
    };
    let made = store
        .for_write(verified)?
        .make_directory(&folder.handle, &name, mode)
        .await;
    made.map(|made| made.node)
        .context(|| format!("creating the folder for the copy of volume {volume}"))
}

/// Checks that the operator can change the owner of files, before anything is copied.
async fn check_chown(store: &ExportStore, verified: &VerifiedRoot, tree: &FileRef) -> Result<(), CopyError> {
    let owner = SetAttributes {
        uid: Some(TEST_OWNER),
        gid: Some(TEST_OWNER),
        ..SetAttributes::default()
    };
    let refused = |why: String| Err(CopyError::MayNotChown { why });
    match store.for_write(verified)?.set_attributes(&tree.handle, owner).await {
        Ok(now) if now.uid == Some(TEST_OWNER) && now.gid == Some(TEST_OWNER) => Ok(()),
        Ok(now) => refused(format!(
            "a directory given to {TEST_OWNER}:{TEST_OWNER} belongs to {}:{}",
            now.owner, now.group
        )),
        Err(error) => match error.status() {
            Some(
                status @ (Status::NotPermitted
                | Status::Access
                | Status::BadOwner
                | Status::Invalid
                | Status::NotSupported),
            ) => refused(format!("it answered {status:?}")),
            _ => Err(CopyError::Nfs {
                path: "the owner of the copy's root".to_owned(),
                source: Box::new(error),
            }),
        },
    }
}
