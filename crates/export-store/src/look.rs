//! A look at what is kept of a volume, to compare it with the cluster: nothing is changed here.

use super::ExportStore;
use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::layout;
use super::ledger::{Holder, Relation};
use super::record::State;
use super::records::Found;
use crate::naming::DirectoryPath;
use nfs_client::FileRef;

/// What has a name on the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Not known: nobody said where to look.
    Unknown,
    /// Nothing.
    Nothing,
    /// A directory on the export's own file system.
    Directory {
        /// Its fileid.
        file_id: u64,
    },
    /// Something else: a file, a link, another file system; or something else than a directory on the way.
    Other,
}

/// What the export has of a volume.
#[derive(Debug)]
pub struct Inspection {
    /// Its record.
    pub record: Found,
    /// What is at the directory's path, by the record; without one, by who asked.
    pub directory: PathState,
    /// What has the archive's name, where the record names one.
    pub archive: PathState,
    /// Another volume that is at the same path, by its object.
    pub shared_with: Option<String>,
}

/// More records than any export of ours holds; a listing that goes on and on is not followed.
const MOST_RECORDS: usize = 1_000_000;

impl ExportStore {
    pub(super) async fn recorded_volumes_on(
        &self,
        ground: &VerifiedRoot,
        leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Vec<String>, ExportError> {
        let doing = || "listing the records".to_owned();
        let (mut volumes, mut seen) = (Vec::new(), 0);
        let mut from = None;
        loop {
            let page = self.nfs.list(&ground.records.handle, from).await.while_(doing)?;
            seen += page.entries.len();
            let names = page.entries.iter().filter(|entry| !layout::is_draft(&entry.name));
            let names = names.filter_map(|entry| std::str::from_utf8(entry.name.as_bytes()).ok());
            // Ten thousand volumes that are well are as good as none in memory.
            let kept = names.filter(|name| layout::record(name).is_ok() && !leave_out(name));
            volumes.extend(kept.map(str::to_owned));
            if seen > MOST_RECORDS {
                let limit = format!("more than {MOST_RECORDS} entries");
                let action = "listing";
                return Err(nfs_client::NfsError::Limit { action, limit }).while_(doing);
            }
            match page.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        // Servers list in an order of their own, and not always in the same.
        volumes.sort_unstable();
        volumes.dedup();
        Ok(volumes)
    }

    pub(super) async fn kept_of_on(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        elsewhere: Option<&DirectoryPath>,
    ) -> Result<Inspection, ExportError> {
        let record = self.read_record(ground, volume).await?;
        let (directory, archive, shared_with) = match &record {
            Found::Record(record, _) => (
                self.at(ground, &record.directory).await?,
                match &record.state {
                    State::Archiving(note) | State::Archived(note) => self.at_root(ground, &note.target).await?,
                    _ => PathState::Unknown,
                },
                self.other_volume(ground, volume, &record.directory),
            ),
            Found::Nothing | Found::Unreadable(_) => {
                let directory = match elsewhere {
                    Some(directory) => self.at(ground, directory).await?,
                    None => PathState::Unknown,
                };
                (directory, PathState::Unknown, None)
            }
        };
        Ok(Inspection {
            record,
            directory,
            archive,
            shared_with,
        })
    }

    async fn at(&self, ground: &VerifiedRoot, directory: &DirectoryPath) -> Result<PathState, ExportError> {
        match self.walk(ground, directory).await {
            Ok(nodes) => Ok(self
                .leaf_of(&nodes, directory)
                .map_or(PathState::Nothing, |leaf| what_is(ground, leaf))),
            Err(ExportError::PathUnusable { .. }) => Ok(PathState::Other),
            Err(error) => Err(error),
        }
    }

    async fn at_root(&self, ground: &VerifiedRoot, name: &str) -> Result<PathState, ExportError> {
        let found = self.nfs.lookup(&ground.root.handle, &layout::name(name)?).await;
        let found = found.while_(|| format!("looking up {name}"))?;
        Ok(found.map_or(PathState::Nothing, |node| what_is(ground, &node)))
    }

    /// A volume of another name that has this very path: made by hand, perhaps, to use the data again.
    fn other_volume(&self, ground: &VerifiedRoot, volume: &str, directory: &DirectoryPath) -> Option<String> {
        let conflict = self.in_the_way(ground, volume, directory)?;
        match (conflict.holder, conflict.relation) {
            (Holder::Volume(name), Relation::Same) => Some(name),
            _ => None,
        }
    }
}

fn what_is(ground: &VerifiedRoot, node: &FileRef) -> PathState {
    if ground.is_plain_directory(node) {
        let file_id = node.attributes.fileid;
        return PathState::Directory { file_id };
    }
    PathState::Other
}
