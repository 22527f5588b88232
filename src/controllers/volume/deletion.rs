//! Deletion of the object of a volume that is reclaimed: the decision about its directory (data-safety rule 15).

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;

use crate::api::backend::OnDelete;
use crate::api::names::{RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_ON_DELETE};
use crate::runtime::writes::{self, WriteError};
use export_store::ReclaimDecision;

const ACTION: &str = "delete the volume";

/// Deletes the volume's object if it is as it was read. From then on, no claim can get the volume, and the finalizer keeps
/// it until its directory is reclaimed.
#[derive(Debug)]
pub(super) struct VolumeDeletion {
    volumes: Api<PersistentVolume>,
    on_delete: OnDelete,
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
    /// Returns the deletion of a volume that was read just now, and whose directory this policy applies to.
    pub fn of(client: &Client, volume: PersistentVolume, on_delete: OnDelete) -> Self {
        Self {
            volumes: Api::all(client.clone()),
            on_delete,
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
        // Nobody can get it any more. The admission policy lets the operator delete no volume that is retained.
        if self.on_delete == OnDelete::Retain && volume.metadata.deletion_timestamp.is_some() {
            return self.record_retain(volume.clone()).await;
        }
        let deleted = match writes::with_finalizer(&volume.metadata, RECLAIM_FINALIZER, true) {
            Some(finalizers) => {
                let fields = json!({"metadata": {"finalizers": finalizers}});
                let action = "keep the volume during its reclaim";
                let kept = writes::patch_as_read(&self.volumes, volume, fields, false, action).await?;
                writes::delete_as_read(&self.volumes, &kept, ACTION).await?
            }
            None => writes::delete_as_read(&self.volumes, volume, ACTION).await?,
        };
        let deleted = deleted.ok_or(WriteError::NotFound)?;
        match self.on_delete {
            OnDelete::Retain => self.record_retain(deleted).await,
            OnDelete::Archive | OnDelete::Delete => Ok(deleted),
        }
    }

    /// Records on the volume that its directory is retained, unless it says so. The record on the export is removed next: if
    /// this process ends after that, and the backend's policy or the volume's changes, the next process must not look for
    /// it. Not before the volume is deleted: another claim could still get it, whose data another policy is for.
    async fn record_retain(&self, deleted: PersistentVolume) -> Result<PersistentVolume, WriteError> {
        let (annotations, retained) = (deleted.annotations(), OnDelete::Retain.annotation_value());
        let is_recorded = annotations
            .get(VOLUME_ON_DELETE)
            .is_some_and(|policy| policy == retained);
        // Annotations would turn a volume of nfs-subdir, whose class decides, into one of this operator.
        if is_recorded || !annotations.contains_key(VOLUME_BACKEND) {
            return Ok(deleted);
        }
        let fields = json!({"metadata": {"annotations": {VOLUME_ON_DELETE: retained}}});
        let action = "record that the directory is retained";
        writes::patch_as_read(&self.volumes, &deleted, fields, false, action).await
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tower::{BoxError, service_fn};

    use super::*;

    /// Decides about a volume on an API server that answers the request to delete it with `code`. Returns the decision, and
    /// the requests with the annotations in them.
    async fn decide(annotations: Value, on_delete: OnDelete, code: u16) -> (bool, Vec<(Method, Value)>) {
        let volume = json!({"metadata": {"name": "pvc-a", "uid": "u", "resourceVersion": "1", "finalizers": [RECLAIM_FINALIZER],
            "annotations": annotations}});
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let (kept, requests) = (json!(volume), Arc::new(Mutex::new(Vec::new())));
        let received = Arc::clone(&requests);
        let service = service_fn(move |request: Request<Body>| {
            let (kept, received) = (kept.clone(), Arc::clone(&received));
            async move {
                let method = request.method().clone();
                let body: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
                let code = if method == Method::DELETE { code } else { 200 };
                received.lock().await.push((
                    method,
                    body.pointer("/metadata/annotations").cloned().unwrap_or_default(),
                ));
                let failure = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Conflict", "message": "no", "code": code});
                let reply = if code == 200 { kept } else { failure };
                let body = Body::from(reply.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        let deletion = VolumeDeletion::of(&Client::new(service, "default"), volume, on_delete);
        let decided = deletion.decide().await;
        let requests = requests.lock().await.clone();
        (decided, requests)
    }

    #[tokio::test]
    async fn only_a_deleted_volume_says_that_its_directory_is_retained() {
        let deletion = || (Method::DELETE, Value::Null);
        let retained = || (Method::PATCH, json!({VOLUME_ON_DELETE: "retain"}));
        let (plain, of_class) = (
            json!({VOLUME_BACKEND: "main"}),
            json!({VOLUME_BACKEND: "main", VOLUME_ON_DELETE: "archive"}),
        );
        let already = json!({VOLUME_BACKEND: "main", VOLUME_ON_DELETE: "retain"});
        for (annotations, on_delete, code, expected) in [
            (&plain, OnDelete::Retain, 200, (true, vec![deletion(), retained()])),
            (&plain, OnDelete::Retain, 409, (false, vec![deletion()])),
            (&plain, OnDelete::Delete, 200, (true, vec![deletion()])),
            // An administrator retains a volume whose class archives.
            (&of_class, OnDelete::Retain, 200, (true, vec![deletion(), retained()])),
            (&already, OnDelete::Retain, 200, (true, vec![deletion()])),
            // A volume of nfs-subdir.
            (&json!({}), OnDelete::Retain, 200, (true, vec![deletion()])),
        ] {
            let decided = decide(annotations.clone(), on_delete, code).await;
            assert_eq!(decided, expected, "{annotations} {on_delete:?} {code}");
        }
    }
}
