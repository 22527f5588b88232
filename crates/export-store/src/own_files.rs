//! Small files in the operator's folder.

use crate::error::{ErrorContext as _, ExportError};
use nfs_client::{Client, FileHandle, Name, NfsError, SmallFile, Status};

/// Result of reading a small file.
pub(crate) enum OwnFile {
    /// There is none.
    Nothing,
    File(SmallFile),
    /// Something else has the name, and what is wrong with it.
    Unusable(String),
}

/// Reads a file of at most `limit` bytes.
pub(crate) async fn read(
    nfs: &Client,
    folder: &FileHandle,
    name: &Name,
    limit: usize,
    doing: impl FnOnce() -> String,
) -> Result<OwnFile, ExportError> {
    match nfs.read_file(folder, name, limit).await {
        Ok(None) => Ok(OwnFile::Nothing),
        Ok(Some(file)) => Ok(OwnFile::File(file)),
        Err(NfsError::Limit { .. }) => Ok(OwnFile::Unusable(format!("it has more than {limit} bytes"))),
        Err(error) => match error.status() {
            Some(Status::Symlink | Status::IsDirectory | Status::Invalid) => {
                Ok(OwnFile::Unusable("it is not a regular file".to_owned()))
            }
            _ => Err(error).context(doing),
        },
    }
}

/// Removes a file with this fileid. Succeeds if another process removed or replaced it first.
pub(crate) async fn remove(
    nfs: &Client,
    folder: &FileHandle,
    name: &Name,
    file_id: u64,
    doing: impl FnOnce() -> String,
) -> Result<(), ExportError> {
    match nfs.remove_file(folder, name, file_id).await {
        Err(error) if matches!(error.status(), Some(Status::NotFound | Status::NotSame)) => Ok(()),
        removed => removed.context(doing),
    }
}
