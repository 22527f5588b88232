//! Before a copy: the target's name is held and recorded, the folder for the copy made; and nothing is begun that could not
//! be finished for lack of a right.

use std::sync::Arc;

use super::CopyError;
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::naming::DirectoryPath;
use crate::record::{Record, RecordError, State};
use crate::records::{Created, Found};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::signature::Trust;
use crate::{ExportStore, layout};
use nfs_client::{FileRef, Name, SetAttributes, Status};

/// An owner that is nobody's in particular: whoever may give a directory to it may give files to anybody.
const SOMEBODY: u32 = 65_533;

/// A folder of ours with a copy in the making.
#[derive(Debug, Clone)]
pub struct Staging {
    pub(super) ground: Arc<VerifiedRoot>,
    /// This volume's folder there.
    pub(super) folder: FileRef,
    /// The copy's root.
    pub(super) tree: FileRef,
    /// Further names of files with several.
    pub(super) links: FileRef,
}

/// What is to be done for a copy.
pub enum StagedCopy {
    /// A former life finished it: the directory is there and recorded.
    Done(ProvisionedDirectory),
    /// It is to be made, in there.
    Copy(Box<Staging>),
}

impl ExportStore {
    /// Gets ready for a copy: finds that it is finished already, or writes the record and makes the folder for it. What a
    /// former life left of it goes into the trash.
    pub async fn stage_copy(&self, request: &DirectoryRequest) -> Result<StagedCopy, CopyError> {
        let _turn = self.turns.of(&request.volume).await;
        let ground = self.ground().await?;
        let staged = self.stage_on(&ground, request).await;
        match staged {
            Err(CopyError::Export(error)) => Err(self
                .told::<StagedCopy>(Err(error))
                .await
                .err()
                .map_or(CopyError::ExportChanged, CopyError::Export)),
            staged => staged,
        }
    }

    async fn stage_on(&self, ground: &Arc<VerifiedRoot>, request: &DirectoryRequest) -> Result<StagedCopy, CopyError> {
        let record = self.copy_record(ground, request).await?;
        // Once recorded, a claim's directory never changes.
        let directory = record
            .as_ref()
            .map_or(&request.directory, |record| &record.directory)
            .clone();
        let reservation = self.reserve(ground, &request.volume, &directory)?;
        let nodes = self.walk(ground, &directory).await?;
        self.judge_way(ground, &directory, &nodes).await?;
        if let Some(leaf) = self.leaf_of(&nodes, &directory) {
            let finished = self.finished(ground, record.as_ref(), leaf).await?;
            let Some(file_id) = finished else {
                return Err(CopyError::TargetTaken {
                    directory: directory.to_string(),
                });
            };
            reservation.keep(Some(ground.file_key(file_id)));
            self.discard_staged(ground, &request.volume).await?;
            return Ok(StagedCopy::Done(ProvisionedDirectory {
                directory,
                file_id,
                adopted: false,
                mode_not_kept: None,
            }));
        }
        self.refuse_foreign(ground, &directory, &nodes, true).await?;
        self.announce(ground, request, &directory, record.is_some()).await?;
        reservation.keep(None);
        self.discard_staged(ground, &request.volume).await?;
        self.make_staging(ground, &request.volume)
            .await
            .map(|staging| StagedCopy::Copy(Box::new(staging)))
    }

    /// The record of this volume, if it is one that a copy may go on with.
    pub(super) async fn copy_record(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
    ) -> Result<Option<Record>, ExportError> {
        let volume = request.volume.clone();
        match self.read_record(ground, &volume).await? {
            Found::Nothing => Ok(None),
            Found::Unreadable(RecordError::Short) => {
                // It ended while it was written, and so before anything was made.
                self.remove_record(ground, &volume).await?;
                Ok(None)
            }
            Found::Unreadable(why) => Err(ExportError::RecordDamaged { volume, why }),
            Found::Record(record, _) if record.claim.uid != request.claim.uid => Err(ExportError::RecordForeign {
                volume,
                holder: Box::new(record.claim),
            }),
            Found::Record(record, _) if !record.state.is_open() || record.adopted => Err(ExportError::RecordBusy {
                volume,
                state: record.state.name(),
                asked: "copying",
            }),
            Found::Record(record, Trust::Signed) => Ok(Some(*record)),
            Found::Record(..) => {
                // Nobody vouches for what it says: it counts as one that was being written.
                self.remove_record(ground, &volume).await?;
                Ok(None)
            }
        }
    }

    /// The fileid of a directory that is the finished copy; its record says so afterwards.
    async fn finished(
        &self,
        ground: &VerifiedRoot,
        record: Option<&Record>,
        leaf: &FileRef,
    ) -> Result<Option<u64>, ExportError> {
        let Some(record) = record.filter(|record| ground.is_plain_directory(leaf) && record.is_about(leaf)) else {
            return Ok(None);
        };
        if record.state == State::Creating {
            self.replace_record(ground, &record.in_state(State::Live)).await?;
        }
        Ok(record.file_id)
    }

    /// Writes the record before anything is made (design 6.3). It knows no fileid as long as nothing has the name.
    async fn announce(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        over: bool,
    ) -> Result<(), ExportError> {
        let record = Record {
            volume: request.volume.clone(),
            backend: self.keeper.backend.clone(),
            claim: request.claim.clone(),
            directory: directory.clone(),
            file_id: None,
            handle: None,
            restores: None,
            adopted: false,
            note: request.note.clone(),
            state: State::Creating,
        };
        if over {
            return self.replace_record(ground, &record).await;
        }
        if self.create_record(ground, &record).await? == Created::Exists {
            return Err(ExportError::Unsettled {
                doing: format!("recording {directory}"),
            });
        }
        Ok(())
    }

    pub(super) async fn make_staging(&self, ground: &Arc<VerifiedRoot>, volume: &str) -> Result<Staging, CopyError> {
        let staging = self.staging_folder(ground).await?;
        let folder = self.make_in(ground, &staging, layout::staged(volume)?, volume).await?;
        let tree = self
            .make_in(ground, &folder, layout::name(layout::STAGED_TREE)?, volume)
            .await?;
        let links = self
            .make_in(ground, &folder, layout::name(layout::STAGED_LINKS)?, volume)
            .await?;
        self.may_chown(ground, &tree).await?;
        Ok(Staging {
            ground: Arc::clone(ground),
            folder,
            tree,
            links,
        })
    }

    async fn staging_folder(&self, ground: &VerifiedRoot) -> Result<FileRef, ExportError> {
        let path = format!("{}/{}/{}", layout::RESERVED, self.keeper.cluster_id, layout::STAGING);
        self.own_folder(
            &ground.root,
            &ground.cluster,
            layout::STAGING,
            &path,
            Some(&ground.reserved),
        )
        .await
    }

    async fn make_in(
        &self,
        ground: &VerifiedRoot,
        folder: &FileRef,
        name: Name,
        volume: &str,
    ) -> Result<FileRef, ExportError> {
        let mode = SetAttributes {
            mode: Some(0o700),
            ..SetAttributes::default()
        };
        let made = self.changing(ground)?.make_directory(&folder.handle, &name, mode).await;
        made.map(|made| made.node)
            .while_(|| format!("making the folder for the copy of volume {volume}"))
    }

    /// Whether files can be given to their owners: asked before anything is copied.
    async fn may_chown(&self, ground: &VerifiedRoot, tree: &FileRef) -> Result<(), CopyError> {
        let owner = SetAttributes {
            uid: Some(SOMEBODY),
            gid: Some(SOMEBODY),
            ..SetAttributes::default()
        };
        let refused = |why: String| Err(CopyError::MayNotChown { why });
        match self.changing(ground)?.set_attributes(&tree.handle, owner).await {
            Ok(now) if now.uid == Some(SOMEBODY) && now.gid == Some(SOMEBODY) => Ok(()),
            Ok(now) => refused(format!(
                "a directory given to {SOMEBODY}:{SOMEBODY} belongs to {}:{}",
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
}
