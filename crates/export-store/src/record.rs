//! The record: a small file on the export that identifies the volume and claim of a directory.
//!
//! Any client may have written the file. Paths and archive names in it are therefore checked, and its size is bounded
//! before it is read.

mod state;
mod volume_metadata;

use serde::{Deserialize, Serialize};
pub use state::{
    ArchiveState, Checkpoint, CopiedAmount, CopiedSnapshot, CopyState, ManifestRef, RestoreTarget, RetentionTerms,
    State, TermsRevision,
};
pub use volume_metadata::VolumeMetadata;

use crate::layout;
use crate::naming::DirectoryPath;
use crate::path_reservations::Sharing;
use crate::request::ClaimRef;
use crate::signature::SIGNATURE_LENGTH;
use crate::verified_root::VerifiedRoot;
use nfs_client::FileRef;

/// Maximum size of a record in bytes, including its signature. A path of 1,024 bytes, an archive's name, and names of
/// Kubernetes objects (253 bytes each, with every byte escaped in the worst case) fit in it.
pub const MAX_RECORD_LEN: usize = 16 * 1024;

/// The newest version of the format that this release reads.
const VERSION: u32 = 3;

/// Returns the version of a record's format. Earlier releases archive and delete what a record names, so they must not
/// read that of a shared directory. They let a pod write to what was an archive, so they must not read that of an archive
/// whose files are in other archives too. They avoid the directory nevertheless, because they find its path.
fn version_of(shared: bool, state: &State) -> u32 {
    let shares_files = state.archive_info().is_some_and(ArchiveState::shares_files);
    match (shares_files, shared) {
        (true, _) => 3,
        (false, true) => 2,
        (false, false) => 1,
    }
}

/// The owner and the state of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the volume, or of the object that requested a copy.
    pub volume: String,
    /// Name of the backend.
    pub backend: String,
    /// The claim.
    pub claim: ClaimRef,
    /// Path of the directory, relative to the export's path.
    pub directory: DirectoryPath,
    /// Fileid of the directory, once it exists.
    pub file_id: Option<u64>,
    /// File handle of the directory, as of the last change of state. The fileid is reused after the directory is removed
    /// (immediately on ext4), the handle is not. Servers may change handles after a move or an upgrade, so the handle
    /// alone is compared only while a change is in progress.
    pub handle: Option<RecordedHandle>,
    /// The directory existed before. It is archived even if the policy is Delete.
    pub adopted: bool,
    /// The directory existed before, and volumes share it: other records may name it too. It is never changed, archived
    /// or deleted, whatever the policy is. A shared directory is also `adopted`.
    pub shared: bool,
    /// Volume whose archive was restored to this directory.
    pub restores: Option<String>,
    /// Group that pods of the volume get, and the group of its directory. It is in use as long as the record exists; a
    /// volume to which the archive is restored keeps it.
    pub group: Option<u32>,
    /// Metadata of the volume; only while it exists or is being created, and unset if too long.
    pub metadata: Option<VolumeMetadata>,
    /// State.
    pub state: State,
}

/// File handle of a directory in a record. Handles are in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedHandle {
    directory: String,
    /// Handle of the folder of records at the same time. As long as the folder has it, the server did not change its
    /// handles. Unset in the records of earlier releases.
    folder: Option<String>,
}

impl RecordedHandle {
    /// Returns the handle of a directory as looked up just now.
    pub(crate) fn new(verified: &VerifiedRoot, directory: &FileRef) -> Self {
        Self {
            directory: hexadecimal(directory),
            folder: Some(hexadecimal(&verified.records)),
        }
    }

    /// Reports whether a node has this handle.
    pub(crate) fn is_of(&self, node: &FileRef) -> bool {
        self.directory == hexadecimal(node)
    }

    /// Reports whether the folder of records had another handle when this one was recorded: the export was copied, or the
    /// server changed its handles.
    pub(crate) fn is_of_another_folder(&self, verified: &VerifiedRoot) -> bool {
        self.folder.is_some() && self.is_outdated(verified)
    }

    /// Reports whether the server changed its handles since this one was recorded, or may have.
    pub(crate) fn is_outdated(&self, verified: &VerifiedRoot) -> bool {
        self.folder.as_ref() != Some(&hexadecimal(&verified.records))
    }
}

fn hexadecimal(node: &FileRef) -> String {
    format!("{:?}", node.handle)
}

/// Reason why a file is not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The file is incomplete: the writer or the server stopped, or the space ran out.
    #[error("it is incomplete")]
    Truncated,
    /// The file is not a record.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A newer release wrote the file.
    #[error("it has version {0}, and this release reads versions up to {VERSION}")]
    TooNew(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordFile {
    version: u32,
    volume: String,
    backend: String,
    claim: ClaimRef,
    directory: String,
    #[serde(default, rename = "fileID", skip_serializing_if = "Option::is_none")]
    file_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder_handle: Option<String>,
    #[serde(default)]
    adopted: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restores: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(default, rename = "note", skip_serializing_if = "Option::is_none")]
    metadata: Option<VolumeMetadata>,
    state: State,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Record {
    /// Returns the file's content without a signature. It ends with a newline, for `cat`.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        let wire = RecordFile {
            version: version_of(self.shared, &self.state),
            volume: self.volume.clone(),
            backend: self.backend.clone(),
            claim: self.claim.clone(),
            directory: self.directory.to_string(),
            file_id: self.file_id,
            handle: self.handle.as_ref().map(|handle| handle.directory.clone()),
            folder_handle: self.handle.as_ref().and_then(|handle| handle.folder.clone()),
            adopted: self.adopted,
            shared: self.shared,
            restores: self.restores.clone(),
            group: self.group,
            metadata: self.metadata.clone().filter(|_| self.state.belongs_to_volume()),
            state: self.state.clone(),
        };
        let mut bytes = serde_json::to_vec(&wire).map_err(|error| RecordError::Damaged(error.to_string()))?;
        bytes.push(b'\n');
        if bytes.len() + SIGNATURE_LENGTH > MAX_RECORD_LEN {
            return Err(RecordError::Damaged(format!("over {MAX_RECORD_LEN} bytes")));
        }
        Ok(bytes)
    }

    /// Parses the record of `volume`.
    pub fn parse(volume: &str, bytes: &[u8]) -> Result<Self, RecordError> {
        // After a crash, some file systems leave a file of the right length that contains only zeros.
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(RecordError::Truncated);
        }
        let version: Version = read(bytes)?;
        if version.version > VERSION {
            return Err(RecordError::TooNew(version.version));
        }
        let wire: RecordFile = read(bytes)?;
        let directory = DirectoryPath::parse(&wire.directory)
            .map_err(|error| RecordError::Damaged(format!("its directory is invalid: {error}")))?;
        if wire.volume != volume {
            return Err(RecordError::Damaged(format!("it is about volume {:?}", wire.volume)));
        }
        if let Some(restored) = &wire.restores
            && layout::record(restored).is_err()
        {
            return Err(RecordError::Damaged(format!("{restored:?} is not a valid volume name")));
        }
        if let Some(archive) = wire.state.archive_info()
            && !layout::is_archive_name(&archive.target)
        {
            return Err(RecordError::Damaged(format!(
                "{:?} is not a valid archive name",
                archive.target
            )));
        }
        let copy = wire.state.archive_info().and_then(|archive| archive.copy.as_ref());
        if matches!(wire.state, State::Copying(_)) && copy.is_none() {
            return Err(RecordError::Damaged(
                "it does not name the requester of the copy".into(),
            ));
        }
        if let Some(copy) = copy
            && layout::record(&copy.volume).is_err()
        {
            return Err(RecordError::Damaged(format!(
                "{:?} is not a valid volume name",
                copy.volume
            )));
        }
        if let State::Restoring { to, .. } = &wire.state
            && (layout::record(&to.volume).is_err() || DirectoryPath::parse(&to.directory).is_err())
        {
            return Err(RecordError::Damaged(format!("{to:?} can't be where it is restored to")));
        }
        Ok(Self {
            volume: wire.volume,
            backend: wire.backend,
            claim: wire.claim,
            directory,
            file_id: wire.file_id,
            handle: wire.handle.map(|directory| RecordedHandle {
                directory,
                folder: wire.folder_handle,
            }),
            adopted: wire.adopted || wire.shared,
            shared: wire.shared,
            restores: wire.restores,
            group: wire.group,
            metadata: wire.metadata,
            state: wire.state,
        })
    }

    /// Reports whether a node is the recorded directory. Compares file handles only while a change is in progress.
    pub fn matches_node(&self, node: &FileRef) -> bool {
        let same = self.handle.as_ref().is_none_or(|handle| handle.is_of(node));
        let at_rest = matches!(self.state, State::Live | State::Archived(_));
        self.file_id == Some(node.attributes.fileid) && (same || at_rest)
    }

    /// Returns whether other volumes may have the directory.
    pub fn sharing(&self) -> Sharing {
        match self.shared {
            true => Sharing::Shared,
            false => Sharing::Exclusive,
        }
    }

    /// Reports whether the record and a volume of `directory` share it.
    pub(crate) fn shares(&self, directory: &DirectoryPath, sharing: Sharing) -> bool {
        self.shared && sharing == Sharing::Shared && self.directory.folded() == directory.folded()
    }

    /// Reports whether the record is of a volume that a claim uses.
    pub fn is_in_use(&self) -> bool {
        self.state == State::Live && self.metadata.as_ref().is_none_or(|metadata| !metadata.released)
    }

    /// Returns the base of the archive's name: the name of a requested copy, otherwise the directory's.
    pub fn archive_stem(&self) -> &str {
        match self.state.archive_info() {
            Some(ArchiveState { copy: Some(_), .. }) => &self.volume,
            _ => self.directory.last_segment(),
        }
    }

    /// Returns a copy of this record in another state.
    #[must_use]
    pub fn in_state(&self, state: State) -> Self {
        Self { state, ..self.clone() }
    }
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof => RecordError::Truncated,
        _ => RecordError::Damaged(error.to_string()),
    })
}

#[cfg(test)]
mod tests;
