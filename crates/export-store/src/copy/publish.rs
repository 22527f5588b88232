//! After a copy: it becomes the volume's directory at once, or goes into the trash.

use super::{CopyError, SourceTree, Staging};
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::record::{Record, State, handle_of};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::{ExportStore, layout};
use nfs_client::{FileRef, Name, RemoveOutcome, SetAttributes, Status};

/// How often a name in the trash is tried that is taken: it ends with the second.
const TRASH_NAMES: i64 = 8;

/// Whether a copy got its name.
pub(super) enum Named {
    Given,
    /// Something else has it.
    Taken,
}

impl ExportStore {
    /// Gives a complete copy its name. Mode and owner are the source's, unless somebody asked for others.
    ///
    /// Killed before the RENAME, the copy is begun anew; after it, [`stage_copy`](Self::stage_copy) finds it finished, by the
    /// fileid that was recorded before.
    pub async fn publish_copy(
        &self,
        request: &DirectoryRequest,
        source: &SourceTree,
        staging: &Staging,
    ) -> Result<ProvisionedDirectory, CopyError> {
        let _turn = self.turns.of(&request.volume).await;
        let ground = self.ground().await?;
        if ground.differs_from(&staging.ground) {
            return Err(CopyError::ExportChanged);
        }
        let record = self.copy_record(&ground, request).await?;
        let Some(record) = record.filter(|record| record.state == State::Creating) else {
            return Err(CopyError::ExportChanged);
        };
        let record = Record {
            file_id: Some(staging.tree.attributes.fileid),
            handle: Some(handle_of(&staging.tree)),
            ..record
        };
        let mode_not_kept = self.dress_root(&ground, request, source, staging).await?;
        self.clear_links(&ground, staging).await?;
        self.replace_record(&ground, &record).await?;
        self.rename_published(&ground, &record, staging).await?;
        self.replace_record(&ground, &record.in_state(State::Live)).await?;
        self.ledger_takes(&ground, &record)?;
        // It can wait: whoever stages or undoes this volume again does it.
        if let Err(error) = self.discard_staged(&ground, &request.volume).await {
            tracing::debug!(volume = request.volume, "its staging folder is left for later: {error}");
        }
        Ok(ProvisionedDirectory {
            directory: record.directory,
            file_id: staging.tree.attributes.fileid,
            adopted: false,
            mode_not_kept,
        })
    }

    /// Removes what there is of a copy that nobody wants any more, through the trash.
    pub async fn discard_copy(&self, volume: &str) -> Result<(), CopyError> {
        let _turn = self.turns.of(volume).await;
        let ground = self.ground().await?;
        Ok(self.discard_staged(&ground, volume).await?)
    }

    async fn dress_root(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        source: &SourceTree,
        staging: &Staging,
    ) -> Result<Option<u32>, CopyError> {
        let (as_is, request) = (&source.details.attributes, &source.asked(request));
        let mode = if request.mode_asked { request.mode } else { as_is.mode };
        let set = SetAttributes {
            mode: Some(mode),
            uid: request.uid.or(as_is.uid),
            gid: request.gid.or(as_is.gid),
            size: None,
            times: Some(source.details.times),
        };
        let root = String::from("the root of the tree");
        if set.uid.is_none() || set.gid.is_none() {
            return Err(CopyError::OwnerUnknown {
                path: root,
                owner: format!("{}:{}", as_is.owner, as_is.group),
            });
        }
        let now = self.changing(ground)?.set_attributes(&staging.tree.handle, set).await;
        let now = now.while_(|| format!("setting mode and owner of {}", request.directory))?;
        if now.uid != set.uid || now.gid != set.gid {
            return Err(CopyError::OwnerNotKept {
                path: root,
                asked: format!("{}:{}", set.uid.unwrap_or_default(), set.gid.unwrap_or_default()),
                got: format!("{}:{}", now.owner, now.group),
            });
        }
        match now.mode == mode {
            true => Ok(None),
            false if request.mode_asked => Err(CopyError::Export(ExportError::ModeRefused {
                directory: request.directory.to_string(),
                asked: mode,
                got: now.mode,
                refused: None,
            })),
            false => Ok(Some(now.mode)),
        }
    }

    /// Removes the further names of files with several, so that each has as many as in the source when it is seen.
    pub(super) async fn clear_links(&self, ground: &VerifiedRoot, staging: &Staging) -> Result<(), ExportError> {
        let doing = || "removing further names of hard links".to_owned();
        let mut before = usize::MAX;
        loop {
            let page = self.nfs.list(&staging.links.handle, None).await.while_(doing)?;
            let names: Vec<Name> = page.entries.into_iter().map(|entry| entry.name).collect();
            if names.is_empty() {
                return Ok(());
            }
            let nfs = self.changing(ground)?;
            let outcomes = nfs.remove_batch(&staging.links.handle, &names).await.while_(doing)?;
            let removed = |outcome: &&RemoveOutcome| !matches!(outcome, RemoveOutcome::Refused(_));
            let gone = outcomes.iter().filter(removed).count();
            // Nothing went, twice in a row: whoever purges the trash says why.
            if gone == 0 && before == 0 {
                return Ok(());
            }
            before = gone;
        }
    }

    /// The RENAME to the volume's directory, by fileid; done already is done.
    async fn rename_published(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        staging: &Staging,
    ) -> Result<(), CopyError> {
        let directory = &record.directory;
        let nodes = self.walk(ground, directory).await?;
        let taken = || CopyError::TargetTaken {
            directory: directory.to_string(),
        };
        if let Some(leaf) = self.leaf_of(&nodes, directory) {
            return if record.is_about(leaf) { Ok(()) } else { Err(taken()) };
        }
        let parent = self.make_parents(ground, directory, &nodes).await?;
        let unsettled = || ExportError::Unsettled {
            doing: format!("making {directory}"),
        };
        let (parent, names) = (parent.ok_or_else(unsettled)?, directory.names());
        let name = names.last().ok_or_else(unsettled)?;
        match self.rename_staged(ground, record, staging, (&parent, name)).await? {
            Named::Given => Ok(()),
            Named::Taken => Err(taken()),
        }
    }

    /// The RENAME of a complete copy to a name that nothing had, by fileid.
    pub(super) async fn rename_staged(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        staging: &Staging,
        (parent, name): (&FileRef, &Name),
    ) -> Result<Named, ExportError> {
        let tree = layout::name(layout::STAGED_TREE)?;
        let from = (&staging.folder.handle, &tree);
        let renamed = self
            .changing(ground)?
            .rename(from, staging.tree.attributes.fileid, (&parent.handle, name))
            .await;
        let Err(error) = renamed else { return Ok(Named::Given) };
        // The reply of a RENAME may be lost: what has the name tells.
        let there = self.nfs.lookup(&parent.handle, name).await;
        match there.while_(|| format!("looking up {name}"))? {
            Some(leaf) if record.is_about(&leaf) => Ok(Named::Given),
            Some(_) if error.status() == Some(Status::Exists) => Ok(Named::Taken),
            _ => Err(error).while_(|| format!("giving the copy its name {name}")),
        }
    }

    fn ledger_takes(&self, ground: &VerifiedRoot, record: &Record) -> Result<(), ExportError> {
        self.reserve(ground, &record.volume, &record.directory)?
            .keep(record.file_id.map(|id| ground.file_key(id)));
        Ok(())
    }

    /// Puts a volume's folder among the copies into the trash, if there is one.
    pub(crate) async fn discard_staged(&self, ground: &VerifiedRoot, volume: &str) -> Result<(), ExportError> {
        let doing = || format!("putting the unfinished copy of volume {volume} into the trash");
        let staging = layout::name(layout::STAGING)?;
        let Some(staging) = self.nfs.lookup(&ground.cluster.handle, &staging).await.while_(doing)? else {
            return Ok(());
        };
        let name = layout::staged(volume)?;
        let Some(folder) = self.nfs.lookup(&staging.handle, &name).await.while_(doing)? else {
            return Ok(());
        };
        self.trash_ours(ground, volume, (&staging, &name), folder.attributes.fileid)
            .await
    }

    /// Renames something of ours with this fileid into the trash.
    pub(crate) async fn trash_ours(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        (folder, name): (&FileRef, &Name),
        file_id: u64,
    ) -> Result<(), ExportError> {
        let now = jiff::Timestamp::now().as_second();
        let mut last = None;
        for since in now..now.saturating_add(TRASH_NAMES) {
            let target = layout::trashed(volume, since)?;
            let renamed = self
                .changing(ground)?
                .rename((&folder.handle, name), file_id, (&ground.trash.handle, &target))
                .await;
            match renamed {
                Ok(()) => return Ok(()),
                Err(error) if error.status() == Some(Status::NotFound) => return Ok(()),
                Err(error) if error.status() == Some(Status::Exists) => last = Some(error),
                Err(error) => {
                    last = Some(error);
                    break;
                }
            }
        }
        last.map_or(Ok(()), Err)
            .while_(|| format!("moving {name} into the trash"))
    }
}
