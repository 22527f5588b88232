//! Reads chunks of a manifest. Their digests are verified before anything is decoded.

use super::{ChunkRef, MAX_CHUNK, ManifestEntry, ManifestRef, ManifestRoot, VERSION, decode_entries, digest_of};
use nfs_client::{Client, FileHandle, NfsError};

/// Reason why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    /// A call failed.
    #[error("reading the manifest: {0}")]
    Nfs(#[from] NfsError),
    /// The manifest is not what was written.
    #[error("the manifest is damaged: {0}")]
    Damaged(&'static str),
    /// A newer release wrote the manifest.
    #[error("the manifest has version {0}, and this release reads version {VERSION}")]
    TooNew(u32),
}

/// The file of a manifest.
pub(super) struct ManifestReader<'a> {
    pub nfs: &'a Client,
    pub file: &'a FileHandle,
}

impl ManifestReader<'_> {
    /// Reads the root chunk.
    pub(super) async fn root(&self, reference: &ManifestRef) -> Result<ManifestRoot, ManifestError> {
        let reference = ChunkRef::of_record(reference).ok_or(ManifestError::Damaged("its digest is invalid"))?;
        let chunk = self.chunk(&reference).await?;
        let undecodable = |_| ManifestError::Damaged("its root cannot be decoded");
        // The version comes first, so that it is readable in every version.
        let (version, _) = postcard::take_from_bytes::<u32>(&chunk).map_err(undecodable)?;
        if version != VERSION {
            return Err(ManifestError::TooNew(version));
        }
        postcard::from_bytes(&chunk).map_err(undecodable)
    }

    /// Reads the entries of a chunk.
    pub(super) async fn entries(&self, reference: &ChunkRef) -> Result<Vec<ManifestEntry>, ManifestError> {
        let chunk = self.chunk(reference).await?;
        decode_entries(&chunk).map_err(|_| ManifestError::Damaged("a chunk cannot be decoded"))
    }

    async fn chunk(&self, reference: &ChunkRef) -> Result<Vec<u8>, ManifestError> {
        let length = usize::try_from(reference.length).unwrap_or(usize::MAX);
        if length > MAX_CHUNK {
            return Err(ManifestError::Damaged("a chunk is too long"));
        }
        let mut chunk = Vec::with_capacity(length);
        while chunk.len() < length {
            let at = reference.offset.saturating_add(chunk.len() as u64);
            let read = self.nfs.read(self.file, at, length - chunk.len()).await?;
            if read.bytes.is_empty() {
                return Err(ManifestError::Damaged("it is shorter than before"));
            }
            chunk.extend_from_slice(&read.bytes);
        }
        if chunk.len() != length || digest_of(&chunk) != reference.digest {
            return Err(ManifestError::Damaged("a chunk has another digest"));
        }
        Ok(chunk)
    }
}
