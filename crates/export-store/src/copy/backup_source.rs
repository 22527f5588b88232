//! Source of a backup: the data in use, or a snapshot of them, which the server creates for the backup or has.

use std::sync::Arc;

use crate::copy::source::{self, SourceTree};
use crate::copy::{ArchiveRequest, CopyError, CopySource, SnapshotUse};
use crate::error::ExportError;
use crate::snapshots::{CreatedSnapshot, SnapshotSelector};
use crate::store::ExportStore;

/// The source of a backup. Close it, also after a failure.
pub(super) struct BackupSource {
    pub(super) tree: SourceTree,
    /// Why the data in use are copied, although a snapshot was preferred.
    pub(super) no_snapshot: Option<String>,
    created: Option<CreatedSnapshot>,
}

impl BackupSource {
    /// Opens the source. Creates the snapshot, if one is to be created.
    pub(super) async fn open(origin: &Arc<ExportStore>, request: &ArchiveRequest) -> Result<Self, CopyError> {
        let Some(using) = &request.snapshot else {
            return Self::in_use(origin, request, None).await;
        };
        let why = match Self::of_snapshot(origin, request, using).await {
            Err(CopyError::Export(ExportError::SnapshotUnavailable { why })) if !using.required => why,
            opened => return opened,
        };
        Self::in_use(origin, request, Some(why)).await
    }

    async fn in_use(
        origin: &Arc<ExportStore>,
        request: &ArchiveRequest,
        no_snapshot: Option<String>,
    ) -> Result<Self, CopyError> {
        let tree = source::open(origin, &CopySource::Volume(request.of.clone())).await?;
        Ok(Self {
            tree,
            no_snapshot,
            created: None,
        })
    }

    async fn of_snapshot(
        origin: &Arc<ExportStore>,
        request: &ArchiveRequest,
        using: &SnapshotUse,
    ) -> Result<Self, CopyError> {
        if !using.create {
            return Self::of_existing(origin, request, using).await;
        }
        let created = match CreatedSnapshot::create(origin, &request.requested_by).await {
            Ok(created) => created,
            Err(ExportError::SnapshotUnavailable { why: refusal }) => {
                let existing = Self::of_existing(origin, request, using).await;
                return existing.map_err(|error| match error {
                    CopyError::Export(ExportError::SnapshotUnavailable { why }) => {
                        let why = format!("{refusal}; among those that exist: {why}");
                        ExportError::SnapshotUnavailable { why }.into()
                    }
                    error => error,
                });
            }
            Err(error) => return Err(error.into()),
        };
        match open_snapshot(origin, request, SnapshotSelector::Named(created.name())).await {
            Ok(tree) => Ok(Self {
                tree,
                no_snapshot: None,
                created: Some(created),
            }),
            Err(error) => {
                remove(created, request).await;
                Err(error)
            }
        }
    }

    async fn of_existing(
        origin: &Arc<ExportStore>,
        request: &ArchiveRequest,
        using: &SnapshotUse,
    ) -> Result<Self, CopyError> {
        let tree = open_snapshot(origin, request, using.selector.clone()).await?;
        Ok(Self {
            tree,
            no_snapshot: None,
            created: None,
        })
    }

    /// Removes the snapshot that was created.
    pub(super) async fn close(self, request: &ArchiveRequest) {
        if let Some(created) = self.created {
            remove(created, request).await;
        }
    }
}

async fn open_snapshot(
    origin: &Arc<ExportStore>,
    request: &ArchiveRequest,
    selector: SnapshotSelector,
) -> Result<SourceTree, CopyError> {
    source::open(origin, &CopySource::Snapshot(request.of.clone(), selector)).await
}

async fn remove(created: CreatedSnapshot, request: &ArchiveRequest) {
    if let Err(error) = created.remove().await {
        tracing::warn!(
            archive = request.name,
            "failed to remove a snapshot; the next probe removes it: {error}"
        );
    }
}
