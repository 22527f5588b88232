//! Making a claim's directory: the record first (design 6.3), then parents and directory, then judge and say so.

mod decide;
mod make;
mod next_step;
mod observe;
mod restore;

use futures::future::try_join_all;

use self::decide::{Step, Write, Written};
use self::make::Made;
use super::ExportStore;
use super::error::ExportError;
use super::ground::VerifiedRoot;
use super::record::{Record, RecordError, State, handle_of};
use super::records::{Created, Found};
use super::request::{DirectoryRequest, ProvisionedDirectory, RollbackOutcome};
use super::signature::Trust;
use crate::naming::DirectoryPath;
use nfs_client::{FileKind, FileRef};

/// How often what is there may change under one attempt.
const STEPS: u32 = 8;

impl ExportStore {
    pub(super) async fn provision_on(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
    ) -> Result<ProvisionedDirectory, ExportError> {
        let volume = &request.volume;
        let record = match self.read_record(ground, volume).await? {
            Found::Nothing => Recorded::Nothing,
            Found::Unreadable(RecordError::Short) => Recorded::Short,
            Found::Unreadable(why) => {
                return Err(ExportError::RecordDamaged {
                    volume: volume.clone(),
                    why,
                });
            }
            Found::Record(record, trust) => {
                if record.claim.uid != request.claim.uid {
                    return Err(ExportError::RecordForeign {
                        volume: volume.clone(),
                        holder: Box::new(record.claim),
                    });
                }
                if !record.state.is_open() {
                    return Err(ExportError::RecordBusy {
                        volume: volume.clone(),
                        state: record.state.name(),
                        asked: "provisioning",
                    });
                }
                match trust {
                    Trust::Signed => Recorded::Open(record),
                    // Nobody vouches for what it says: it counts as one that was being written, and is written anew.
                    Trust::Unsigned | Trust::Forged => Recorded::Short,
                }
            }
        };
        // Once recorded, a claim's directory never changes, whatever became of pattern and labels.
        let directory = match &record {
            Recorded::Open(record) => record.directory.clone(),
            _ => request.directory.clone(),
        };
        let restores = request.restore.as_ref().map(|which| which.volume.clone());
        if let Recorded::Open(record) = &record
            && record.restores != restores
        {
            return Err(ExportError::Disagrees {
                volume: volume.clone(),
                directory: directory.to_string(),
                what: format!(
                    "its record says that it restores {:?}, and its claim {restores:?}",
                    record.restores
                ),
            });
        }
        let outcome = match &request.restore {
            Some(which) => self.restore(ground, request, which, &directory, record).await,
            None => self.make(ground, request, &directory, record).await,
        };
        let Err(error) = outcome else { return outcome };
        if !error.definite_refusal() {
            return Err(error);
        }
        // Refused for good: nothing is left of it, so that the claim can go elsewhere.
        match self.undo_on(ground, volume, &request.claim.uid, false).await {
            Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => Err(error),
            Ok(RollbackOutcome::NotEmpty) => Err(ExportError::LeftBehind {
                source: Box::new(error),
                cleanup: Box::new(ExportError::DirectoryExists {
                    directory: directory.to_string(),
                    holds_something: true,
                }),
            }),
            Err(cleanup) => Err(ExportError::LeftBehind {
                source: Box::new(error),
                cleanup: Box::new(cleanup),
            }),
        }
    }

    async fn make(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        mut record: Recorded,
    ) -> Result<ProvisionedDirectory, ExportError> {
        let reservation = self.reserve(ground, &request.volume, directory)?;
        for _ in 0..STEPS {
            if let Some(made) = self.step(ground, request, directory, &mut record).await? {
                reservation.keep(Some(ground.file_key(made.file_id)));
                return Ok(ProvisionedDirectory {
                    directory: directory.clone(),
                    file_id: made.file_id,
                    adopted: made.adopted,
                    mode_not_kept: made.mode_not_kept,
                });
            }
        }
        Err(ExportError::Unsettled {
            doing: format!("making {directory}"),
        })
    }

    /// Looks, decides, acts; `None` when it is to be looked at again.
    async fn step(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        record: &mut Recorded,
    ) -> Result<Option<Made>, ExportError> {
        let (nodes, step) = self.observe(ground, request, directory, record.written()).await?;
        let leaf = self.leaf_of(&nodes, directory);
        match (step, leaf) {
            (Step::Make { write }, _) => {
                let made = self.write(ground, request, directory, record, write, None).await?;
                if !made {
                    return Ok(None);
                }
                self.make_on(ground, request, directory, record, &nodes).await
            }
            (Step::TakeUp { write }, Some(leaf)) => {
                // It could be another cluster's, made in the same moment as ours.
                self.refuse_foreign(ground, directory, &nodes, true).await?;
                self.write(ground, request, directory, record, write, None).await?;
                let mode = Some(request.mode);
                let made = self.set(ground, request, directory, leaf, mode).await?;
                self.live(ground, record, &made).await.map(|()| Some(made))
            }
            (Step::Adopt { write }, Some(leaf)) => {
                self.refuse_adoption(ground, request, directory, &nodes, leaf).await?;
                let file_id = Some(leaf.attributes.fileid);
                if !self.write(ground, request, directory, record, write, file_id).await? {
                    return Ok(None);
                }
                // Its mode is as its owner wants it, unless somebody says otherwise.
                let mode = request.mode_asked.then_some(request.mode);
                let made = Made {
                    adopted: true,
                    ..self.set(ground, request, directory, leaf, mode).await?
                };
                self.live(ground, record, &made).await.map(|()| Some(made))
            }
            (Step::Done, Some(leaf)) => {
                if let Recorded::Open(record) = record {
                    self.renote(ground, record, request).await?;
                }
                Ok(Some(Made {
                    file_id: leaf.attributes.fileid,
                    handle: handle_of(leaf),
                    adopted: record.adopted(),
                    mode_not_kept: None,
                }))
            }
            (Step::Disagree, Some(leaf)) => Err(ExportError::Disagrees {
                volume: request.volume.clone(),
                directory: directory.to_string(),
                what: format!(
                    "its record knows fileid {:?}, and what has its name has {}",
                    record.file_id(),
                    leaf.attributes.fileid
                ),
            }),
            (_, Some(leaf)) => {
                self.refuse(ground, request, directory, step, leaf).await?;
                Ok(None)
            }
            // LookInside was answered; the others have a leaf whenever they are decided.
            (_, None) => Ok(None),
        }
    }

    /// Whether the way to a directory leads through nothing that is anybody's (design 6.5).
    pub(super) async fn judge_way(
        &self,
        ground: &VerifiedRoot,
        directory: &DirectoryPath,
        nodes: &[FileRef],
    ) -> Result<(), ExportError> {
        self.judge_parents(ground, directory, nodes).await?;
        let depth = directory.segments().len().saturating_sub(1);
        match nodes.get(..depth.min(nodes.len())).unwrap_or_default() {
            [] => Ok(()),
            parents => self.refuse_foreign(ground, directory, parents, false).await,
        }
    }

    /// The same, without a look at what other clusters have.
    pub(super) async fn judge_parents(
        &self,
        ground: &VerifiedRoot,
        directory: &DirectoryPath,
        nodes: &[FileRef],
    ) -> Result<(), ExportError> {
        let depth = directory.segments().len().saturating_sub(1);
        let parents = nodes.get(..depth.min(nodes.len())).unwrap_or_default();
        let path_of = |index: usize| {
            let segments = directory.segments().iter().take(index + 1);
            segments.cloned().collect::<Vec<_>>().join("/")
        };
        for (index, parent) in parents.iter().enumerate() {
            if !ground.is_plain_directory(parent) {
                return Err(ExportError::PathUnusable {
                    path: path_of(index),
                    why: what_it_is(parent),
                });
            }
            if let Some(holder) = self.ledger.holder_of(&ground.file_key(parent.attributes.fileid), None) {
                return Err(ExportError::Held {
                    directory: path_of(index),
                    holder,
                });
            }
        }
        if parents.is_empty() {
            return Ok(());
        }
        let look = parents.iter().enumerate().map(async |(index, parent)| {
            let path = path_of(index);
            if self.holds_reserved(parent, &path).await? {
                return Err(ExportError::NestedBackend { path });
            }
            Ok(())
        });
        try_join_all(look).await.map(drop)
    }

    /// Whether what is there may be taken over (design 6.3).
    async fn refuse_adoption(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        nodes: &[FileRef],
        leaf: &FileRef,
    ) -> Result<(), ExportError> {
        if !request.adoptable {
            return Err(ExportError::NotAdoptable {
                directory: directory.to_string(),
                why: "its name holds a label or an annotation, which a tenant chooses; use a pattern without them",
            });
        }
        if self.holds_reserved(leaf, &directory.to_string()).await? {
            return Err(ExportError::NestedBackend {
                path: directory.to_string(),
            });
        }
        self.refuse_foreign(ground, directory, nodes, true).await
    }

    /// Writes the record that announces the next step; false when somebody else wrote it meanwhile.
    async fn write(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        record: &mut Recorded,
        write: Write,
        adopted: Option<u64>,
    ) -> Result<bool, ExportError> {
        let new = Record {
            volume: request.volume.clone(),
            backend: self.keeper.backend.clone(),
            claim: request.claim.clone(),
            directory: directory.clone(),
            file_id: adopted,
            handle: None,
            adopted: adopted.is_some(),
            restores: None,
            note: request.note.clone(),
            state: State::Creating,
        };
        match write {
            Write::Not => return Ok(true),
            Write::Over => self.replace_record(ground, &new).await?,
            Write::New => {
                if self.create_record(ground, &new).await? == Created::Exists {
                    return Err(ExportError::Unsettled {
                        doing: format!("recording {directory}"),
                    });
                }
            }
        }
        *record = Recorded::Open(Box::new(new));
        Ok(true)
    }
}

/// What was read where the record should be, as far as it lets us go on.
enum Recorded {
    Nothing,
    Short,
    Open(Box<Record>),
}

impl Recorded {
    fn written(&self) -> Written {
        match self {
            Self::Nothing => Written::Nothing,
            Self::Short => Written::Short,
            Self::Open(record) => match (&record.state, record.adopted) {
                (State::Live, _) => Written::Live {
                    file_id: record.file_id,
                },
                (_, true) => Written::Adopting,
                (_, false) => Written::Creating,
            },
        }
    }

    fn adopted(&self) -> bool {
        matches!(self, Self::Open(record) if record.adopted)
    }

    fn file_id(&self) -> Option<u64> {
        match self {
            Self::Open(record) => record.file_id,
            _ => None,
        }
    }
}

fn what_it_is(node: &FileRef) -> &'static str {
    match node.attributes.kind {
        FileKind::Directory => "is where another file system begins",
        FileKind::Symlink => "is a symbolic link, which is not followed",
        FileKind::Regular | FileKind::Other => "is no directory",
    }
}
