//! Reading small files as a whole.

use crate::{FileKind, NfsError, ReadResult, Status};

/// What errors report as the action.
pub const READ: &str = "reading a file";

/// Fails unless an object is a regular file.
pub fn require_regular(kind: FileKind) -> Result<(), NfsError> {
    let status = match kind {
        FileKind::Regular => return Ok(()),
        FileKind::Symlink => Status::Symlink,
        FileKind::Directory => Status::IsDirectory,
        FileKind::Other => Status::Invalid,
    };
    Err(NfsError::Status { action: READ, status })
}

/// The content of a file, collected from its parts up to a maximum size.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    limit: usize,
}

impl Content {
    /// Returns the empty content of a file of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Offset of the next part.
    pub fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Number of bytes to request next: one more than the limit allows, to detect a larger file.
    pub fn missing(&self) -> usize {
        self.limit + 1 - self.bytes.len()
    }

    /// Appends the next part; returns whether the content is complete.
    pub fn append(&mut self, part: &ReadResult) -> Result<bool, NfsError> {
        self.bytes.extend_from_slice(&part.bytes);
        if self.bytes.len() > self.limit {
            return Err(NfsError::Limit {
                action: READ,
                limit: format!("a file of more than {} bytes", self.limit),
            });
        }
        Ok(part.eof)
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
