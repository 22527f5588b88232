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
    /// It is incomplete, or this cluster did not sign it: nothing confirms its content.
    Replaceable,
    Open(Box<Record>),
}

impl Recorded {
    fn written(&self) -> RecordProgress {
        match self {
            Self::Nothing => RecordProgress::Nothing,
            Self::Replaceable => RecordProgress::Replaceable,
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
            Self::Nothing | Self::Replaceable => None,
        }
    }
}

pub(crate) async fn provision(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<ProvisionedDirectory, ExportError> {
    let (record, start) = match announce(store, verified, request).await {
        Ok(Some((record, start))) => (Recorded::Open(Box::new(record)), start),
        Ok(None) => {
            let (record, walked) = tokio::join!(
                read_recorded(store, verified, request),
                walk_recorded(store, verified, request)
            );
            let record = record?;
            let walked = walked.filter(|_| record.is_complete_at(&request.directory));
            (record, Start::Recorded { walked })
        }
        Err(error) => return Err(clean_up(store, verified, request, &request.directory, error).await),
    };
    // Once recorded, a claim's directory never changes, even if pattern or labels change.
    let directory = match &record {
        Recorded::Open(record) => record.directory.clone(),
        Recorded::Nothing | Recorded::Replaceable => request.directory.clone(),
    };
    let restores = request.restore.as_ref().map(|which| which.volume.clone());
    if let Recorded::Open(record) = &record
        && record.restores != restores
    {
        return Err(ExportError::RecordMismatch {
            volume: request.volume.clone(),
            directory: directory.to_string(),
            what: format!("its record restores {:?}, and its claim {restores:?}", record.restores),
        });
    }
    let request = &record.applied_to(request);
    let was_complete = matches!(&record, Recorded::Open(record) if record.state == State::Live);
    let outcome = match group::assign(store, verified, request, &directory, record.open()).await {
        Ok(request) => match &request.restore {
            Some(which) => restore::restore(store, verified, &request, which, &directory, record).await,
            None => {
                let mut provisioning = Provisioning {
                    store,
                    verified,
                    request,
                    directory: &directory,
                    record,
                };
                provisioning.run(start).await
            }
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
                holder: Holder::Volume(request.volume.clone()),
            }),
        });
    }
    Err(clean_up(store, verified, request, &directory, error).await)
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
    let provisioning = Provisioning::without_record(store, verified, request);
    let (nodes, step) = provisioning.observe().await?;
    match (step, paths::leaf(&nodes, directory)) {
        (ProvisionStep::Adopt { .. } | ProvisionStep::Share { .. }, Some(leaf)) => {
            adoption::refuse(store, verified, request, directory, &nodes, leaf).await
        }
        (ProvisionStep::Absent, _) => Err(absent(directory)),
        (step, Some(leaf)) => provisioning.refuse(step, leaf).await,
        (_, None) => Ok(()),
    }
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
        ReadRecord::Unreadable(RecordError::Truncated) => Recorded::Replaceable,
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
                SignatureStatus::Unsigned | SignatureStatus::Forged => Recorded::Replaceable,
            }
        }
    })
}

/// What is known when the first step is taken.
enum Start {
    /// The record was created before anything was read about the volume.
    Announced {
        reservation: Reservation,
        /// The nodes of the path.
        nodes: Vec<FileRef>,
        /// The directory, if it was created together with the record.
        made: Option<Box<MkdirResult>>,
    },
    /// The record was read, if there is one.
    Recorded {
        /// The nodes of the path, if it was looked up meanwhile.
        walked: Option<Vec<FileRef>>,
    },
}

/// Creates the record of a volume whose path is free, without looking for a record first: nearly no volume has one. Returns
/// `None` and changes nothing if there is one, or if anything else has to be decided: then the record is read first.
async fn announce(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
) -> Result<Option<(Record, Start)>, ExportError> {
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
    let provisioning = Provisioning::without_record(store, verified, request);
    let Ok(reservation) = provisioning.reserve().await else {
        return Ok(None);
    };
    // An error here may be about a directory that the record does not name.
    let Ok((nodes, ProvisionStep::Make { .. })) = provisioning.observe().await else {
        return Ok(None);
    };
    let record = provisioning.new_record(None);
    let (created, made) = create_announced(store, verified, request, &record, &nodes).await?;
    let start = Start::Announced {
        reservation,
        nodes,
        made: made.map(Box::new),
    };
    Ok(match created {
        Created::Yes => Some((record, start)),
        Created::Exists => None,
    })
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

/// A directory that is being provisioned.
struct Provisioning<'a> {
    store: &'a ExportStore,
    verified: &'a VerifiedRoot,
    /// The request, with what the record and the choice of a group decide instead.
    request: Cow<'a, DirectoryRequest>,
    directory: &'a DirectoryPath,
    record: Recorded,
}

impl<'a> Provisioning<'a> {
    fn without_record(store: &'a ExportStore, verified: &'a VerifiedRoot, request: &'a DirectoryRequest) -> Self {
        Self {
            store,
            verified,
            request: Cow::Borrowed(request),
            directory: &request.directory,
            record: Recorded::Nothing,
        }
    }

    /// Takes steps until the directory exists and its record is complete.
    async fn run(&mut self, start: Start) -> Result<ProvisionedDirectory, ExportError> {
        let (reservation, mut made) = match start {
            Start::Announced {
                reservation,
                made: Some(node),
                ..
            } => (reservation, Some(self.complete(*node).await?)),
            Start::Announced { reservation, nodes, .. } => (reservation, self.make(&nodes).await?),
            Start::Recorded { walked } => {
                let reservation = self.reserve().await?;
                self.record_group().await?;
                (reservation, self.step(walked).await?)
            }
        };
        for _ in 1..STEPS {
            if made.is_some() {
                break;
            }
            made = self.step(None).await?;
        }
        let Some(made) = made else {
            return Err(ExportError::ConcurrentlyModified {
                doing: format!("creating {}", self.directory),
            });
        };
        reservation.keep(Some(self.verified.file_key(made.file_id)));
        Ok(ProvisionedDirectory {
            directory: self.directory.clone(),
            file_id: made.file_id,
            adopted: made.adopted,
            shared: self.record.shared(),
            mode_not_kept: made.mode_not_kept,
            group: self.record.group(),
        })
    }

    async fn reserve(&self) -> Result<Reservation, ExportError> {
        let (volume, sharing) = (&self.request.volume, self.request.existing.sharing());
        paths::reserve(self.store, self.verified, volume, self.directory, sharing).await
    }

    /// Observes, plans and takes one step. `walked` has the nodes of the path if it was looked up just now. Returns `None` if
    /// another step follows.
    async fn step(&mut self, walked: Option<Vec<FileRef>>) -> Result<Option<CreatedDirectory>, ExportError> {
        let (store, verified, directory) = (self.store, self.verified, self.directory);
        let nodes = match walked {
            Some(nodes) => nodes,
            None => paths::walk(store, verified, directory).await?,
        };
        let step = self.plan(&nodes).await?;
        match (step, paths::leaf(&nodes, directory)) {
            (ProvisionStep::Make { write }, _) => {
                self.write_record(write, None).await?;
                self.make(&nodes).await
            }
            (ProvisionStep::Resume { write }, Some(leaf)) => {
                self.write_record(write, None).await?;
                // Another cluster may have created it at the same time.
                self.recheck(&nodes).await?;
                let (request, mode) = (&self.request, Some(self.request.mode));
                let made = create::apply_attributes(store, verified, request, directory, leaf, mode).await?;
                self.mark_live(made).await
            }
            (ProvisionStep::Adopt { write }, Some(leaf)) => {
                if !self.record_existing(&nodes, leaf, write).await? {
                    return Ok(None);
                }
                let kept = create::adopt(store, verified, &self.request, directory, leaf).await?;
                self.mark_live(CreatedDirectory { adopted: true, ..kept }).await
            }
            (ProvisionStep::Share { write }, Some(leaf)) => {
                if !self.record_existing(&nodes, leaf, write).await? {
                    return Ok(None);
                }
                self.mark_live(self.existing(leaf, true)).await
            }
            (ProvisionStep::Absent, _) => Err(absent(directory)),
            (ProvisionStep::Done, Some(leaf)) => {
                if let Recorded::Open(record) = &self.record {
                    volume_record::update_metadata(store, verified, record, &self.request).await?;
                }
                Ok(Some(self.existing(leaf, self.record.adopted())))
            }
            (ProvisionStep::Mismatch, Some(leaf)) => Err(ExportError::RecordMismatch {
                volume: self.request.volume.clone(),
                directory: directory.to_string(),
                what: format!(
                    "its record knows fileid {:?}, and what has its name has {}",
                    self.record.file_id(),
                    leaf.attributes.fileid
                ),
            }),
            (_, Some(leaf)) => {
                self.refuse(step, leaf).await?;
                Ok(None)
            }
            // CheckEmpty was answered; the others have a leaf whenever they are decided.
            (_, None) => Ok(None),
        }
    }

    /// Looks up the path and plans the next step.
    async fn observe(&self) -> Result<(Vec<FileRef>, ProvisionStep), ExportError> {
        let nodes = paths::walk(self.store, self.verified, self.directory).await?;
        let step = self.plan(&nodes).await?;
        Ok((nodes, step))
    }

    /// Plans the next step from the nodes of the path.
    async fn plan(&self, nodes: &[FileRef]) -> Result<ProvisionStep, ExportError> {
        let (store, verified, directory) = (self.store, self.verified, self.directory);
        let (written, existing) = (self.record.written(), self.request.existing);
        let leaf = paths::leaf(nodes, directory);
        paths::check_parents_and_clusters(store, verified, directory, nodes, existing.sharing()).await?;
        let mut occupant = match leaf {
            None => PathOccupant::Nothing,
            Some(leaf) if !verified.is_plain_directory(leaf) => PathOccupant::Other,
            Some(leaf) => PathOccupant::Directory {
                file_id: leaf.attributes.fileid,
                held: self.other_holder(leaf).await?.is_some(),
                empty: None,
            },
        };
        let mut step = decide(written, occupant, existing);
        if step == ProvisionStep::CheckEmpty
            && let (Some(leaf), PathOccupant::Directory { empty, .. }) = (leaf, &mut occupant)
        {
            *empty = Some(readdir::is_empty(store, leaf, directory).await?);
            step = decide(written, occupant, existing);
        }
        Ok(step)
    }

    /// Returns another holder of an existing directory.
    async fn other_holder(&self, leaf: &FileRef) -> Result<Option<Holder>, ExportError> {
        let (volume, sharing) = (&self.request.volume, self.request.existing.sharing());
        file_holders::holder_of(self.store, self.verified, leaf, Some(volume), sharing).await
    }

    /// Fails if the step refuses what exists.
    async fn refuse(&self, step: ProvisionStep, leaf: &FileRef) -> Result<(), ExportError> {
        let directory = self.directory;
        match step {
            ProvisionStep::Held => match self.other_holder(leaf).await? {
                Some(holder) => Err(ExportError::FileidInUse {
                    directory: directory.to_string(),
                    holder,
                }),
                None => Ok(()),
            },
            ProvisionStep::Refuse => Err(ExportError::DirectoryExists {
                directory: directory.to_string(),
                holds_something: !readdir::is_empty(self.store, leaf, directory).await?,
            }),
            ProvisionStep::Unusable => Err(ExportError::PathUnusable {
                path: directory.to_string(),
                why: paths::what_it_is(leaf),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the record of the directory that is about to be created, or adopted if it has a fileid.
    fn new_record(&self, adopted: Option<u64>) -> Record {
        Record {
            file_id: adopted,
            adopted: adopted.is_some(),
            shared: self.request.existing == Existing::Share,
            ..new_record(self.store, &self.request, self.directory)
        }
    }

    /// Writes the record that announces the next step.
    async fn write_record(&mut self, write: RecordWrite, adopted: Option<u64>) -> Result<(), ExportError> {
        let new = self.new_record(adopted);
        match write {
            RecordWrite::Skip => return Ok(()),
            RecordWrite::Replace => records::replace(self.store, self.verified, &new).await?,
            RecordWrite::Create => {
                if records::create(self.store, self.verified, &new).await? == Created::Exists {
                    return Err(ExportError::ConcurrentlyModified {
                        doing: format!("recording {}", self.directory),
                    });
                }
            }
        }
        self.record = Recorded::Open(Box::new(new));
        Ok(())
    }

    /// Records the group of an unfinished directory, if it is another one than before.
    async fn record_group(&mut self) -> Result<(), ExportError> {
        match &mut self.record {
            Recorded::Open(record) if record.group != self.request.gid => {
                record.group = self.request.gid;
                record.metadata.clone_from(&self.request.metadata);
                records::replace(self.store, self.verified, record).await
            }
            _ => Ok(()),
        }
    }

    /// Checks and records an existing directory that the volume gets. Returns false if that changed what was observed.
    async fn record_existing(
        &mut self,
        nodes: &[FileRef],
        leaf: &FileRef,
        write: RecordWrite,
    ) -> Result<bool, ExportError> {
        let (store, verified, directory) = (self.store, self.verified, self.directory);
        adoption::refuse(store, verified, &self.request, directory, nodes, leaf).await?;
        if parents::disown(store, verified, directory).await? {
            return Ok(false);
        }
        self.write_record(write, Some(leaf.attributes.fileid)).await?;
        self.recheck(nodes).await?;
        Ok(true)
    }

    /// Checks the recorded path and the recorded group again: another cluster may have recorded the same at the same time.
    /// The request has the recorded group then.
    async fn recheck(&mut self, nodes: &[FileRef]) -> Result<(), ExportError> {
        let (store, verified, sharing) = (self.store, self.verified, self.request.existing.sharing());
        other_clusters::recheck(store, verified, self.directory, nodes, sharing).await?;
        if let Recorded::Open(record) = &mut self.record {
            group::recheck(store, verified, &self.request, record).await?;
            if self.request.gid_range.is_some() {
                self.request = Cow::Owned(group::with_group(&self.request, record.group));
            }
        }
        Ok(())
    }

    /// Creates the directory that is recorded. Returns `None` if another step follows.
    async fn make(&mut self, nodes: &[FileRef]) -> Result<Option<CreatedDirectory>, ExportError> {
        self.recheck(nodes).await?;
        let (store, verified, directory) = (self.store, self.verified, self.directory);
        create::create_directory(store, verified, &self.request, directory, &self.record, nodes).await
    }

    /// Checks the attributes of the directory that was created with the record.
    async fn complete(&self, made: MkdirResult) -> Result<CreatedDirectory, ExportError> {
        let (store, verified, directory) = (self.store, self.verified, self.directory);
        create::complete(store, verified, &self.request, directory, &self.record, made).await
    }

    async fn mark_live(&self, made: CreatedDirectory) -> Result<Option<CreatedDirectory>, ExportError> {
        create::mark_live(self.store, self.verified, &self.record, &made).await?;
        Ok(Some(made))
    }

    /// Describes a directory whose attributes stay as they are.
    fn existing(&self, leaf: &FileRef, adopted: bool) -> CreatedDirectory {
        CreatedDirectory {
            file_id: leaf.attributes.fileid,
            handle: RecordedHandle::new(self.verified, leaf),
            adopted,
            mode_not_kept: None,
        }
    }
}

/// Returns the record of a directory that is about to be created for a claim.
pub(crate) fn new_record(store: &ExportStore, request: &DirectoryRequest, directory: &DirectoryPath) -> Record {
    Record {
        volume: request.volume.clone(),
        backend: store.config.backend.clone(),
        claim: request.claim.clone(),
        directory: directory.clone(),
        file_id: None,
        handle: None,
        adopted: false,
        shared: false,
        restores: None,
        group: request.gid,
        metadata: request.metadata.clone(),
        state: State::Creating,
    }
}

fn absent(directory: &DirectoryPath) -> ExportError {
    ExportError::SharedMissing {
        directory: directory.to_string(),
    }
}
