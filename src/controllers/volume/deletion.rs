//! Deletion of the object of a volume that is reclaimed: the decision about its directory (data-safety rule 15).

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Mutex;

use crate::api::names::RECLAIM_FINALIZER;
use crate::runtime::writes::{self, WriteError};
use export_store::ReclaimDecision;

const ACTION: &str = "delete the volume";

/// Deletes the volume's object if it is as it was read. From then on, no claim can get the volume, and the finalizer keeps
/// it until its directory is reclaimed.
#[derive(Debug)]
pub(super) struct VolumeDeletion {
    volumes: Api<PersistentVolume>,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    /// As it was read.
    Read(Box<PersistentVolume>),
    /// As it is now, kept by the finalizer.
    Deleted(Box<PersistentVolume>),
    /// Why, until that is taken.
    Failed(Option<WriteError>),
}

impl VolumeDeletion {
    /// Returns the deletion of a volume that was read just now.
    pub fn of(client: &Client, volume: PersistentVolume) -> Self {
        Self {
            volumes: Api::all(client.clone()),
            progress: Mutex::new(Progress::Read(Box::new(volume))),
        }
    }

    /// Returns why the volume was not deleted, if that was tried.
    pub async fn take_failure(&self) -> Option<WriteError> {
        match &mut *self.progress.lock().await {
            Progress::Failed(error) => error.take(),
            Progress::Read(_) | Progress::Deleted(_) => None,
        }
    }

    /// Deletes the volume, unless that was done before its directory was changed, and lets it go.
    pub async fn complete(&self) -> Result<(), WriteError> {
        let drop_finalizer = async |volume| writes::drop_finalizer(&self.volumes, volume, RECLAIM_FINALIZER).await;
        match &*self.progress.lock().await {
            Progress::Read(volume) => match writes::delete_as_read(&self.volumes, &**volume, ACTION).await? {
                Some(deleted) => drop_finalizer(&deleted).await,
                None => Ok(()),
            },
            Progress::Deleted(volume) => drop_finalizer(volume).await,
            Progress::Failed(_) => Err(WriteError::Conflict),
        }
    }

    /// Deletes the volume, with the finalizer that a volume of another provisioner does not have yet. Somebody who removes
    /// the finalizer wants to keep the data.
    async fn delete(&self, volume: &PersistentVolume) -> Result<PersistentVolume, WriteError> {
        let deleted = match writes::with_finalizer(&volume.metadata, RECLAIM_FINALIZER, true) {
            Some(finalizers) => {
                let fields = json!({"metadata": {"finalizers": finalizers}});
                let action = "keep the volume during its reclaim";
                let kept = writes::patch_as_read(&self.volumes, volume, fields, false, action).await?;
                writes::delete_as_read(&self.volumes, &kept, ACTION).await?
            }
            None => writes::delete_as_read(&self.volumes, volume, ACTION).await?,
        };
        deleted.ok_or(WriteError::NotFound)
    }
}

impl ReclaimDecision for VolumeDeletion {
    fn decide(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            let mut progress = self.progress.lock().await;
            if let Progress::Read(volume) = &*progress {
                *progress = match self.delete(volume).await {
                    Ok(deleted) => Progress::Deleted(Box::new(deleted)),
                    Err(error) => Progress::Failed(Some(error)),
                };
            }
            matches!(*progress, Progress::Deleted(_))
        })
    }
}
