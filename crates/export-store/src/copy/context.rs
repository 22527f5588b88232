//! What all parts of a copy use: the two ends, the limits and the progress.

use std::sync::Arc;

use crate::copy::{CopyError, CopyLimits, CopyProgress};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Client, FsId};

/// One end of a copy.
pub(super) struct CopyEndpoint {
    pub store: Arc<ExportStore>,
    /// The verified root through which the handles were looked up.
    pub verified: Arc<VerifiedRoot>,
    /// The file system that the copy does not leave.
    pub fsid: FsId,
}

impl CopyEndpoint {
    async fn verify(&self) -> Result<(), CopyError> {
        let now = self.store.verified_root().await?;
        if now.differs_from(&self.verified) {
            return Err(CopyError::ExportChanged);
        }
        Ok(())
    }
}

/// A copy in progress.
pub(super) struct CopyContext {
    pub from: CopyEndpoint,
    pub to: CopyEndpoint,
    pub limits: CopyLimits,
    pub progress: Arc<CopyProgress>,
}

impl CopyContext {
    pub(super) fn source(&self) -> &Client {
        self.from.store.nfs()
    }

    pub(super) fn target(&self) -> &Client {
        self.to.store.nfs()
    }

    /// Reports whether source and target use the same connection, so that one server knows the handles of both.
    pub(super) fn is_same_server(&self) -> bool {
        Arc::ptr_eq(&self.from.store, &self.to.store)
    }

    /// Checks that the handles still belong to the exports on which they were looked up. Called after each page of a
    /// listing and before each retry of a file, to avoid writing to a replacement of the export, or as a process that
    /// is no longer the leader.
    pub(super) async fn verify_endpoints(&self) -> Result<(), CopyError> {
        self.from.verify().await?;
        self.to.verify().await
    }
}
