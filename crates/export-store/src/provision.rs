//! Provisioning of a claim's directory: first the record (data-safety rule 3), then parents and directory, then its
//! attributes.

mod adoption;
mod applied_attributes;
pub(crate) mod create;
pub(crate) mod group;
mod plan;
mod restore;
mod restore_plan;

use std::borrow::Cow;

use crate::error::ExportError;
use crate::naming::DirectoryPath;
use crate::path_reservations::{Holder, Reservation};
use crate::provision::create::CreatedDirectory;
use crate::provision::plan::{PathOccupant, ProvisionStep, RecordProgress, RecordWrite, decide};
use crate::record::{Record, RecordError, RecordedHandle, State};
use crate::records::{Created, ReadRecord};
use crate::request::{DirectoryRequest, Existing, ProvisionedDirectory, RollbackOutcome};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, other_clusters, parents, paths, readdir, records, rollback, volume_record};
use nfs_client::{FileRef, MkdirResult, NewDirectory};

/// Maximum number of steps of one attempt, in case the directory keeps changing.
const STEPS: u32 = 8;

/// A record that provisioning can start from.
enum Recorded {
    Nothing,
    Short,
    Open(Box<Record>),
}

impl Recorded {
    fn written(&self) -> RecordProgress {
        match self {
            Self::Nothing => RecordProgress::Nothing,
            Self::Short => RecordProgress::Short,
            Self::Open(record) => match (&record.state, record.adopted) {
                (State::Live, _) => RecordProgress::Live {
                    file_id: record.file_id,
                },
                (_, true) => RecordProgress::Adopting,
                (_, false) => RecordProgress::Creating,
            },
        }
    }

    fn adopted(&self) -> bool {
        matches!(self, Self::Open(record) if record.adopted)
    }

    fn shared(&self) -> bool {
        matches!(self, Self::Open(record) if record.shared)
    }

    /// Returns the request, with what the record decides instead: once recorded, a directory stays shared or unshared,
    /// whatever its class or backend says now. A shared one gets no mode, owner or group.
    fn applied_to<'a>(&self, request: &'a DirectoryRequest) -> Cow<'a, DirectoryRequest> {
        let is_complete = matches!(self, Self::Open(record) if record.state == State::Live);
        match (self.shared(), request.existing) {
            (false, Existing::Share) if is_complete => Cow::Owned(DirectoryRequest {
                existing: Existing::Refuse,
                ..request.clone()
            }),
            (true, _) | (_, Existing::Share) => Cow::Owned(DirectoryRequest {
                existing: Existing::Share,
                uid: None,
                gid_range: None,
                ..group::with_group(request, None)
            }),
            (false, _) => Cow::Borrowed(request),
        }
    }

    fn is_complete_at(&self, directory: &DirectoryPath) -> bool {
        self.open()
            .is_some_and(|record| record.state == State::Live && record.directory == *directory)
    }

    fn file_id(&self) -> Option<u64> {
        self.open()?.file_id
    }

    fn group(&self) -> Option<u32> {
        self.open()?.group
    }

    fn open(&self) -> Option<&Record> {
        match self {
            Self::Open(record) => Some(record),
            Self::Nothing | Self::Short => None,
        }
    }
}

pub(crate) async fn provision(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<ProvisionedDirectory, ExportError> {
    let volume = &request.volume;
    let (record, announced, walked) = match announce(store, verified, request).await {
        Ok(Some(announced)) => (
            Recorded::Open(Box::new(announced.record.clone())),
            Some(announced),
            None,
        ),
        Ok(None) => {
            let (record, walked) = tokio::join!(
                read_recorded(store, verified, request),
                walk_recorded(store, verified, request)
            );
            let record = record?;
            let walked = walked.filter(|_| record.is_complete_at(&request.directory));
            (record, None, walked)
        }
        Err(error) => return Err(clean_up(store, verified, request, &request.directory, error).await),
    };
    // Once recorded, a claim's directory never changes, even if pattern or labels change.
    let directory = match &record {
        Recorded::Open(record) => record.directory.clone(),
        _ => request.directory.clone(),
    };
    let restores = request.restore.as_ref().map(|which| which.volume.clone());
    if let Recorded::Open(record) = &record
        && record.restores != restores
    {
        return Err(ExportError::RecordMismatch {
            volume: volume.clone(),
            directory: directory.to_string(),
            what: format!("its record restores {:?}, and its claim {restores:?}", record.restores),
        });
    }
    let request = &record.applied_to(request);
    let was_complete = matches!(&record, Recorded::Open(record) if record.state == State::Live);
    let outcome = match group::assign(store, verified, request, &directory, record.open()).await {
        Ok(request) => match &request.restore {
            Some(which) => restore::restore(store, verified, &request, which, &directory, record).await,
            None => create(store, verified, &request, &directory, record, (announced, walked)).await,
        },
        Err(error) => Err(error),
    };
    let Err(error) = outcome else { return outcome };
    if was_complete && error.definite_refusal() {
        // The volume may have been created since, and the reply to that was lost: only the caller can read it.
        return Err(ExportError::CleanupFailed {
            source: Box::new(error),
            cleanup: Box::new(ExportError::InUse {
                directory: directory.to_string(),
                holder: Holder::Volume(volume.clone()),
            }),
        });
    }
    Err(clean_up(store, verified, request, &directory, error).await)
}

/// Removes what was begun for a claim if its provisioning was definitely refused, so that it can use another backend.
/// Returns the error of the provisioning.
async fn clean_up(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    error: ExportError,
) -> ExportError {
    if !error.definite_refusal() {
        return error;
    }
    let cleanup = match rollback::rollback(store, verified, &request.volume, &request.claim.uid, false).await {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => return error,
        Ok(RollbackOutcome::NotEmpty) => ExportError::DirectoryExists {
            directory: directory.to_string(),
            holds_something: true,
        },
        Err(cleanup) => cleanup,
    };
    ExportError::CleanupFailed {
        source: Box::new(error),
        cleanup: Box::new(cleanup),
    }
}

/// Looks up the path of a volume with a record, while the record is read: most often an earlier attempt has completed it,
/// and only waited for something else. `None` if the path must be looked up later.
async fn walk_recorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Option<Vec<FileRef>> {
    let index = &store.reservations.record_index;
    let is_recorded = request.restore.is_none() && index.contains(&verified.identity.id, &request.volume);
    if !is_recorded {
        return None;
    }
    paths::walk(store, verified, &request.directory).await.ok()
}

/// Returns the record that provisioning starts from.
async fn read_recorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<Recorded, ExportError> {
    let volume = &request.volume;
    Ok(match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => Recorded::Nothing,
        ReadRecord::Unreadable(RecordError::Truncated) => Recorded::Short,
        ReadRecord::Unreadable(why) => {
            return Err(ExportError::RecordDamaged {
                volume: volume.clone(),
                why,
            });
        }
        ReadRecord::Record(record, trust) => {
            if record.claim.uid != request.claim.uid {
                return Err(ExportError::RecordForeign {
                    volume: volume.clone(),
                    holder: Box::new(record.claim),
                });
            }
            if !record.state.belongs_to_volume() {
                return Err(ExportError::RecordBusy {
                    volume: volume.clone(),
                    state: record.state.name(),
                    operation: "provisioning",
                });
            }
            match trust {
                SignatureStatus::Signed => {
                    let own = volume_record::take_over(store, verified, *record).await?;
                    Recorded::Open(Box::new(own))
                }
                // Nothing confirms its content: it is treated as incomplete and replaced.
                SignatureStatus::Unsigned | SignatureStatus::Forged => Recorded::Short,
            }
        }
    })
}

/// A record that was created before anything was read about the volume, and the nodes of the path.
struct Announced {
    record: Record,
    nodes: Vec<FileRef>,
    /// The directory, if it was created together with the record.
    made: Option<MkdirResult>,
    reservation: Reservation,
}

/// Creates the record of a volume whose path is free, without looking for a record first: nearly no volume has one. Returns
/// `None` and changes nothing if there is one, or if anything else has to be decided: then the record is read first.
async fn announce(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<Option<Announced>, ExportError> {
    let directory = &request.directory;
    // A restore and the choice of a group depend on the record.
    if request.restore.is_some() || request.gid_range.is_some() {
        return Ok(None);
    }
    // An earlier attempt wrote it.
    if store
        .reservations
        .record_index
        .contains(&verified.identity.id, &request.volume)
    {
        return Ok(None);
    }
    let sharing = request.existing.sharing();
    let Ok(reservation) = paths::reserve(store, verified, &request.volume, directory, sharing).await else {
        return Ok(None);
    };
    // An error here may be about a directory that the record does not name.
    let observed = observe(store, verified, request, directory, RecordProgress::Nothing).await;
    let Ok((nodes, ProvisionStep::Make { .. })) = observed else {
        return Ok(None);
    };
    let record = new_record(store, request, directory, None);
    let (created, made) = create_announced(store, verified, request, &record, &nodes).await?;
    match created {
        Created::Yes => Ok(Some(Announced {
            record,
            nodes,
            made,
            reservation,
        })),
        Created::Exists => Ok(None),
    }
}

/// Creates the record, and with it the directory, if its parent exists and no other cluster is known on the export.
async fn create_announced(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    record: &Record,
    nodes: &[FileRef],
) -> Result<(Created, Option<MkdirResult>), ExportError> {
    let names = record.directory.names();
    let has_parent = nodes.len() + 1 == names.len();
    match (names.last(), other_clusters::none_while(store, verified)) {
        (Some(name), Some(none_while)) if has_parent => {
            let parent = paths::parent(verified, nodes, &record.directory);
            let directory = NewDirectory {
                at: (&parent.handle, name),
                attributes: create::attributes(request),
            };
            records::create_with_directory(store, verified, record, &none_while, &directory).await
        }
        _ => Ok((records::create(store, verified, record).await?, None)),
    }
}

async fn create(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    mut record: Recorded,
    (announced, mut walked): (Option<Announced>, Option<Vec<FileRef>>),
) -> Result<ProvisionedDirectory, ExportError> {
    let (reservation, mut announced) = match announced {
        Some(announced) => (announced.reservation, Some((announced.nodes, announced.made))),
        None => {
            let sharing = request.existing.sharing();
            let reservation = paths::reserve(store, verified, &request.volume, directory, sharing).await?;
            (reservation, None)
        }
    };
    record_group(store, verified, request, &mut record).await?;
    for _ in 0..STEPS {
        let made = match announced.take() {
            Some((_, Some(made))) => {
                let completed = create::complete(store, verified, request, directory, &record, made);
                completed.await.map(Some)?
            }
            Some((nodes, None)) => make(store, verified, request, directory, &mut record, &nodes).await?,
            None => step(store, verified, request, directory, &mut record, walked.take()).await?,
        };
        if let Some(made) = made {
            reservation.keep(Some(verified.file_key(made.file_id)));
            return Ok(ProvisionedDirectory {
                directory: directory.clone(),
                file_id: made.file_id,
                adopted: made.adopted,
                shared: record.shared(),
                mode_not_kept: made.mode_not_kept,
                group: record.group(),
            });
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("creating {directory}"),
    })
}

/// Records the group of an unfinished directory, if it is another one than before.
async fn record_group(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    record: &mut Recorded,
) -> Result<(), ExportError> {
    match record {
        Recorded::Open(record) if record.group != request.gid => {
            **record = Record {
                group: request.gid,
                metadata: request.metadata.clone(),
                ..(**record).clone()
            };
            records::replace(store, verified, record).await
        }
        _ => Ok(()),
    }
}

/// Checks the recorded path and the recorded group again: another cluster may have recorded the same at the same time.
/// Returns the request with the group.
async fn recheck<'a>(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &'a DirectoryRequest,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    record: &mut Recorded,
) -> Result<Cow<'a, DirectoryRequest>, ExportError> {
    other_clusters::recheck(store, verified, directory, nodes, request.existing.sharing()).await?;
    match record {
        Recorded::Open(record) => group::recheck(store, verified, request, record).await,
        Recorded::Nothing | Recorded::Short => Ok(Cow::Borrowed(request)),
    }
}

/// Observes, plans and takes one step. `walked` has the nodes of the path if it was looked up just now. Returns `None` if
/// another step follows.
async fn step(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &mut Recorded,
    walked: Option<Vec<FileRef>>,
) -> Result<Option<CreatedDirectory>, ExportError> {
    let nodes = match walked {
        Some(nodes) => nodes,
        None => paths::walk(store, verified, directory).await?,
    };
    let step = plan_step(store, verified, request, directory, record.written(), &nodes).await?;
    let leaf = paths::leaf(&nodes, directory);
    match (step, leaf) {
        (ProvisionStep::Make { write }, _) => {
            let made = write_record(store, verified, request, directory, record, write, None).await?;
            if !made {
                return Ok(None);
            }
            make(store, verified, request, directory, record, &nodes).await
        }
        (ProvisionStep::Resume { write }, Some(leaf)) => {
            write_record(store, verified, request, directory, record, write, None).await?;
            // Another cluster may have created it at the same time.
            let request = recheck(store, verified, request, directory, &nodes, record).await?;
            let mode = Some(request.mode);
            let made = create::apply_attributes(store, verified, &request, directory, leaf, mode).await?;
            create::mark_live(store, verified, record, &made)
                .await
                .map(|()| Some(made))
        }
        (ProvisionStep::Adopt { write }, Some(leaf)) => {
            adoption::refuse(store, verified, request, directory, &nodes, leaf).await?;
            if parents::disown(store, verified, directory).await? {
                return Ok(None);
            }
            let file_id = Some(leaf.attributes.fileid);
            if !write_record(store, verified, request, directory, record, write, file_id).await? {
                return Ok(None);
            }
            let request = recheck(store, verified, request, directory, &nodes, record).await?;
            let adopted = create::adopt(store, verified, &request, directory, leaf).await?;
            let made = CreatedDirectory {
                adopted: true,
                ..adopted
            };
            create::mark_live(store, verified, record, &made)
                .await
                .map(|()| Some(made))
        }
        (ProvisionStep::Share { write }, Some(leaf)) => {
            adoption::refuse(store, verified, request, directory, &nodes, leaf).await?;
            if parents::disown(store, verified, directory).await? {
                return Ok(None);
            }
            let file_id = Some(leaf.attributes.fileid);
            if !write_record(store, verified, request, directory, record, write, file_id).await? {
                return Ok(None);
            }
            recheck(store, verified, request, directory, &nodes, record).await?;
            let made = CreatedDirectory {
                file_id: leaf.attributes.fileid,
                handle: RecordedHandle::new(verified, leaf),
                adopted: true,
                mode_not_kept: None,
            };
            create::mark_live(store, verified, record, &made)
                .await
                .map(|()| Some(made))
        }
        (ProvisionStep::Absent, _) => Err(absent(directory)),
        (ProvisionStep::Done, Some(leaf)) => {
            if let Recorded::Open(record) = record {
                volume_record::update_metadata(store, verified, record, request).await?;
            }
            Ok(Some(CreatedDirectory {
                file_id: leaf.attributes.fileid,
                handle: RecordedHandle::new(verified, leaf),
                adopted: record.adopted(),
                mode_not_kept: None,
            }))
        }
        (ProvisionStep::Mismatch, Some(leaf)) => Err(ExportError::RecordMismatch {
            volume: request.volume.clone(),
            directory: directory.to_string(),
            what: format!(
                "its record knows fileid {:?}, and what has its name has {}",
                record.file_id(),
                leaf.attributes.fileid
            ),
        }),
        (_, Some(leaf)) => {
            refuse(store, verified, request, directory, step, leaf).await?;
            Ok(None)
        }
        // CheckEmpty was answered; the others have a leaf whenever they are decided.
        (_, None) => Ok(None),
    }
}

/// Creates the directory that is recorded.
async fn make(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &mut Recorded,
    nodes: &[FileRef],
) -> Result<Option<CreatedDirectory>, ExportError> {
    let request = recheck(store, verified, request, directory, nodes, record).await?;
    create::create_directory(store, verified, &request, directory, record, nodes).await
}

/// Returns the record of a directory that is about to be created or adopted.
fn new_record(
    store: &ExportStore,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    adopted: Option<u64>,
) -> Record {
    Record {
        volume: request.volume.clone(),
        backend: store.config.backend.clone(),
        claim: request.claim.clone(),
        directory: directory.clone(),
        file_id: adopted,
        handle: None,
        adopted: adopted.is_some(),
        shared: request.existing == Existing::Share,
        restores: None,
        group: request.gid,
        metadata: request.metadata.clone(),
        state: State::Creating,
    }
}

/// Writes the record that announces the next step.
async fn write_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &mut Recorded,
    write: RecordWrite,
    adopted: Option<u64>,
) -> Result<bool, ExportError> {
    let new = new_record(store, request, directory, adopted);
    match write {
        RecordWrite::Skip => return Ok(true),
        RecordWrite::Replace => records::replace(store, verified, &new).await?,
        RecordWrite::Create => {
            if records::create(store, verified, &new).await? == Created::Exists {
                return Err(ExportError::ConcurrentlyModified {
                    doing: format!("recording {directory}"),
                });
            }
        }
    }
    *record = Recorded::Open(Box::new(new));
    Ok(true)
}

/// Checks whether a claim without a record would be refused.
pub(crate) async fn dry_run(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<(), ExportError> {
    let DirectoryRequest { volume, directory, .. } = request;
    // An unfinished attempt can always continue.
    if !matches!(records::read(store, verified, volume).await?, ReadRecord::Nothing) {
        return Ok(());
    }
    let own = Holder::Volume(volume.clone());
    let sharing = request.existing.sharing();
    paths::refuse_conflict(store, verified, &own, sharing, &directory.to_string()).await?;
    let (nodes, step) = observe(store, verified, request, directory, RecordProgress::Nothing).await?;
    match (step, paths::leaf(&nodes, directory)) {
        (ProvisionStep::Adopt { .. } | ProvisionStep::Share { .. }, Some(leaf)) => {
            adoption::refuse(store, verified, request, directory, &nodes, leaf).await
        }
        (ProvisionStep::Absent, _) => Err(absent(directory)),
        (step, Some(leaf)) => refuse(store, verified, request, directory, step, leaf).await,
        (_, None) => Ok(()),
    }
}

/// Looks up the path and plans the next step.
async fn observe(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    written: RecordProgress,
) -> Result<(Vec<FileRef>, ProvisionStep), ExportError> {
    let nodes = paths::walk(store, verified, directory).await?;
    let step = plan_step(store, verified, request, directory, written, &nodes).await?;
    Ok((nodes, step))
}

/// Plans the next step from the nodes of the path.
async fn plan_step(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    written: RecordProgress,
    nodes: &[FileRef],
) -> Result<ProvisionStep, ExportError> {
    let leaf = paths::leaf(nodes, directory);
    let sharing = request.existing.sharing();
    paths::check_parents_and_clusters(store, verified, directory, nodes, sharing).await?;
    let mut occupant = match leaf {
        None => PathOccupant::Nothing,
        Some(leaf) if !verified.is_plain_directory(leaf) => PathOccupant::Other,
        Some(leaf) => PathOccupant::Directory {
            file_id: leaf.attributes.fileid,
            held: other_holder(store, verified, request, leaf).await?.is_some(),
            empty: None,
        },
    };
    let mut step = decide(written, occupant, request.existing);
    if step == ProvisionStep::CheckEmpty
        && let (Some(leaf), PathOccupant::Directory { empty, .. }) = (leaf, &mut occupant)
    {
        *empty = Some(readdir::is_empty(store, leaf, directory).await?);
        step = decide(written, occupant, request.existing);
    }
    Ok(step)
}

/// Returns another holder of an existing directory.
async fn other_holder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    leaf: &FileRef,
) -> Result<Option<Holder>, ExportError> {
    let sharing = request.existing.sharing();
    file_holders::holder_of(store, verified, leaf, Some(&request.volume), sharing).await
}

fn absent(directory: &DirectoryPath) -> ExportError {
    ExportError::SharedMissing {
        directory: directory.to_string(),
    }
}

/// Returns the error of a step that refuses an existing directory.
async fn refuse(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    step: ProvisionStep,
    leaf: &FileRef,
) -> Result<(), ExportError> {
    match step {
        ProvisionStep::Held => match other_holder(store, verified, request, leaf).await? {
            Some(holder) => Err(ExportError::FileidInUse {
                directory: directory.to_string(),
                holder,
            }),
            None => Ok(()),
        },
        ProvisionStep::Refuse => Err(ExportError::DirectoryExists {
            directory: directory.to_string(),
            holds_something: !readdir::is_empty(store, leaf, directory).await?,
        }),
        ProvisionStep::Unusable => Err(ExportError::PathUnusable {
            path: directory.to_string(),
            why: paths::what_it_is(leaf),
        }),
        _ => Ok(()),
    }
}
