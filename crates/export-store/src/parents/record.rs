//! The record of a parent directory: a small signed file that says which directory the operator made at a path.

use nfs_client::{FileRef, Name};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::{self, DirectoryPath};
use crate::own_files::{self, OwnFile};
use crate::record::RecordedHandle;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, records};

/// Mode of parent directories: anyone may traverse them. The directories below protect their own content.
pub(super) const PARENT_MODE: u32 = 0o755;
/// Maximum size of the file in bytes. A path of 1,024 bytes and two handles of 128 bytes in hexadecimal fit in it.
const MAX_LEN: usize = 4 * 1024;
/// Length of the names of the files: all digits of a SHA-256.
const FILE_NAME_LENGTH: usize = 64;
/// Version of the format.
const VERSION: u32 = 1;
/// Prefix of what is signed beside the content. No volume has a name with a slash, so a volume's record is never taken
/// for a parent's.
const SIGNED_AS: &str = "parents/";

/// A parent directory that the operator made, or is about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParentRecord {
    pub path: DirectoryPath,
    /// The directory, once it exists. Until then, the path was found free and is about to get one.
    pub directory: Option<ParentDirectory>,
}

/// A directory by its fileid and its handle, as the server returned them when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ParentDirectory {
    #[serde(rename = "fileID")]
    pub file_id: u64,
    pub handle: RecordedHandle,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ParentFile {
    version: u32,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<ParentDirectory>,
}

impl ParentRecord {
    /// Reports whether a node is the recorded directory. Without a fileid, the process stopped between the two writes of
    /// the record: then a directory with the attributes of a new parent is taken for it. Only an empty one is ever removed.
    pub(super) fn is_of(&self, verified: &VerifiedRoot, node: &FileRef) -> bool {
        let plain = verified.is_plain_directory(node);
        plain
            && match &self.directory {
                Some(ParentDirectory { file_id, handle }) => {
                    // The fileid may have been reused. The handle was not, unless the server changes its handles.
                    *file_id == node.attributes.fileid && (handle.is_outdated(verified) || handle.is_of(node))
                }
                None => has_attributes_of_a_new_parent(verified, node),
            }
    }

    fn to_bytes(&self) -> Result<Vec<u8>, ExportError> {
        let file = ParentFile {
            version: VERSION,
            path: self.path.to_string(),
            directory: self.directory.clone(),
        };
        let mut bytes = serde_json::to_vec(&file).map_err(|error| ExportError::NameUnusable {
            name: self.path.to_string(),
            why: error.to_string(),
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn parse(content: &[u8]) -> Option<Self> {
        let file: ParentFile = serde_json::from_slice(content).ok()?;
        let path = DirectoryPath::parse(&file.path).ok()?;
        (file.version == VERSION).then_some(Self {
            path,
            directory: file.directory,
        })
    }
}

/// Reports whether a directory has the mode and the owner that a parent has when this operator made it.
fn has_attributes_of_a_new_parent(verified: &VerifiedRoot, node: &FileRef) -> bool {
    let (found, own) = (&node.attributes, &verified.reserved.attributes);
    let same_owner = match (found.uid, own.uid) {
        (Some(found), Some(own)) => found == own,
        _ => found.owner == own.owner,
    };
    same_owner && found.mode & 0o777 == PARENT_MODE
}

/// Returns the name of the file about a path: a hash, because a path may be longer than a name.
pub(super) fn file_name(path: &DirectoryPath) -> String {
    naming::hash(&path.to_string(), FILE_NAME_LENGTH)
}

/// Reads a record by the name of its file. Returns `None` if there is none that this cluster signed for the path with
/// that name: then no parent is taken for the operator's own.
pub(super) async fn read(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    name: &str,
) -> Result<Option<ParentRecord>, ExportError> {
    let doing = || format!("reading the record {name} of a parent directory");
    let OwnFile::File(file) = own_files::read(&store.nfs, &folder.handle, &layout::name(name)?, MAX_LEN, doing).await?
    else {
        return Ok(None);
    };
    let record = ParentRecord::parse(&file.content).filter(|record| file_name(&record.path) == name);
    Ok(record.filter(|record| {
        let status = records::signer(store, verified).verify(&signed_as(&record.path), &file.content);
        status == SignatureStatus::Signed
    }))
}

/// Writes a record over an existing one.
pub(super) async fn write(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    record: &ParentRecord,
) -> Result<(), ExportError> {
    let name = file_name(&record.path);
    let content = records::signer(store, verified).seal(&signed_as(&record.path), &record.to_bytes()?);
    let (name, draft) = (layout::record(&name)?, layout::draft(&name)?);
    let nfs = store.for_write(verified)?;
    nfs.replace_file(&folder.handle, &name, &draft, &content, 0o600)
        .await
        .context(|| format!("recording the parent directory {}", record.path))
        .map(drop)
}

/// Removes a record, if it exists.
pub(super) async fn remove(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    name: &Name,
) -> Result<(), ExportError> {
    let doing = || format!("removing the record {name} of a parent directory");
    let found = store.nfs.lookup(&folder.handle, name).await.context(doing)?;
    let Some(node) = found else { return Ok(()) };
    let (nfs, file_id) = (store.for_write(verified)?, node.attributes.fileid);
    own_files::remove(nfs, &folder.handle, name, file_id, doing).await
}

fn signed_as(path: &DirectoryPath) -> String {
    format!("{SIGNED_AS}{path}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn path(text: &str) -> DirectoryPath {
        DirectoryPath::parse(text).unwrap()
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let record = ParentRecord {
            path: path("team/sub"),
            directory: None,
        };
        let bytes = record.to_bytes().unwrap();
        assert_eq!(ParentRecord::parse(&bytes), Some(record));
        for broken in [
            "",
            "{}",
            r#"{"version":1,"path":"../team"}"#,
            r#"{"version":1,"path":".nfs-operator"}"#,
            r#"{"version":1,"path":"archived-x"}"#,
            r#"{"version":2,"path":"team"}"#,
        ] {
            assert_eq!(ParentRecord::parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn each_path_has_a_file_of_its_own() {
        let names = ["team", "Team", "team/sub", "team-sub"].map(|text| file_name(&path(text)));
        assert!(names.iter().all(|name| name.len() == FILE_NAME_LENGTH));
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
