//! What has a directory's name on the export, and whether that refuses the claim. Changes nothing.

use super::decide::{Step, There, Written, decide};
use super::what_it_is;
use crate::ExportStore;
use crate::error::ExportError;
use crate::ground::VerifiedRoot;
use crate::ledger::Holder;
use crate::naming::DirectoryPath;
use crate::records::Found;
use crate::request::DirectoryRequest;
use nfs_client::FileRef;

impl ExportStore {
    /// Whether a claim that nothing was begun for is refused as things are.
    pub(crate) async fn foresee_on(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
    ) -> Result<(), ExportError> {
        let DirectoryRequest { volume, directory, .. } = request;
        // What was begun is there to be gone on with.
        if !matches!(self.read_record(ground, volume).await?, Found::Nothing) {
            return Ok(());
        }
        if let Some(conflict) = self.in_the_way(ground, volume, directory) {
            return Err(ExportError::Overlaps {
                directory: directory.to_string(),
                conflict: Box::new(conflict),
            });
        }
        let (nodes, step) = self.observe(ground, request, directory, Written::Nothing).await?;
        match (step, self.leaf_of(&nodes, directory)) {
            (Step::Adopt { .. }, Some(leaf)) => self.refuse_adoption(ground, request, directory, &nodes, leaf).await,
            (step, Some(leaf)) => self.refuse(ground, request, directory, step, leaf).await,
            (_, None) => Ok(()),
        }
    }

    /// What is on the way and at its end, and what is to be done next.
    pub(super) async fn observe(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        written: Written,
    ) -> Result<(Vec<FileRef>, Step), ExportError> {
        let nodes = self.walk(ground, directory).await?;
        let leaf = self.leaf_of(&nodes, directory);
        self.judge_way(ground, directory, &nodes).await?;
        let mut there = match leaf {
            None => There::Nothing,
            Some(leaf) if !ground.is_plain_directory(leaf) => There::Other,
            Some(leaf) => There::Directory {
                file_id: leaf.attributes.fileid,
                held: self.other_holder(ground, request, leaf).is_some(),
                empty: None,
            },
        };
        let mut step = decide(written, there, request.existing);
        if step == Step::LookInside
            && let (Some(leaf), There::Directory { empty, .. }) = (leaf, &mut there)
        {
            *empty = Some(self.is_empty(leaf, directory).await?);
            step = decide(written, there, request.existing);
        }
        Ok((nodes, step))
    }

    /// Who else has what is there.
    fn other_holder(&self, ground: &VerifiedRoot, request: &DirectoryRequest, leaf: &FileRef) -> Option<Holder> {
        let holder = Holder::Volume(request.volume.clone());
        let file = ground.file_key(leaf.attributes.fileid);
        self.ledger.holder_of(&file, Some(&holder))
    }

    /// The error of a step that is a refusal of what is there.
    pub(super) async fn refuse(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        directory: &DirectoryPath,
        step: Step,
        leaf: &FileRef,
    ) -> Result<(), ExportError> {
        match step {
            Step::Held => match self.other_holder(ground, request, leaf) {
                Some(holder) => Err(ExportError::Held {
                    directory: directory.to_string(),
                    holder,
                }),
                None => Ok(()),
            },
            Step::Refuse => Err(ExportError::DirectoryExists {
                directory: directory.to_string(),
                holds_something: !self.is_empty(leaf, directory).await?,
            }),
            Step::Unusable => Err(ExportError::PathUnusable {
                path: directory.to_string(),
                why: what_it_is(leaf),
            }),
            _ => Ok(()),
        }
    }
}
