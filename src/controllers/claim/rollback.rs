//! Rollback of a volume that is not created: its directory, its record, and what the operator keeps in memory.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;

use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportError, ExportStore, RollbackOutcome};

/// Reason why a volume was not rolled back.
#[derive(Debug, thiserror::Error)]
pub(super) enum RollbackError {
    /// The volume exists: the reply to its creation was lost, and the watch has not delivered it yet.
    #[error("volume {0} exists")]
    VolumeExists(String),
    /// It is not known whether the volume exists.
    #[error("failed to read volume {0}: {cause}", cause = api_error_text(.1))]
    VolumeUnknown(String, #[source] Box<kube::Error>),
    /// The rollback failed on the export.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Removes the directory and the record of a volume that is not created. The directory is removed only with rmdir, and
/// never if a volume names the path. Returns true if nothing of the claim is left, so that another backend may be tried.
pub(super) async fn roll_back(
    ctx: &Context,
    backend: &Backend,
    export: &ExportStore,
    volume: &str,
    claim_uid: &str,
) -> Result<bool, RollbackError> {
    let result = match refuse_if_exists(&Api::all(ctx.clients.calls.clone()), volume).await {
        Ok(()) => export.rollback(volume, claim_uid).await.map_err(RollbackError::from),
        Err(error) => Err(error),
    };
    match result {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
            backend.remove_pending(volume);
            ctx.capacity.release(volume);
            // An incomplete copy is in the trash now.
            backend.purge_requested.notify_one();
            Ok(true)
        }
        // The directory has data and its record: it keeps its capacity, and the claim stays on the backend.
        Ok(RollbackOutcome::NotEmpty) => Ok(false),
        Err(error) => {
            tracing::warn!(
                backend = backend.name,
                volume,
                "failed to roll back a volume that is not created: {error}"
            );
            Err(error)
        }
    }
}

/// Fails if the volume exists. It is read from the API server (data-safety rule 15): the path reservations have a volume
/// only once the watch delivered it.
async fn refuse_if_exists(volumes: &Api<PersistentVolume>, volume: &str) -> Result<(), RollbackError> {
    match reads::get_metadata_opt(volumes, volume).await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(RollbackError::VolumeExists(volume.to_owned())),
        Err(error) => Err(RollbackError::VolumeUnknown(volume.to_owned(), Box::new(error))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    use super::*;

    /// An API server that answers each request like this.
    fn api(code: u16, object: Value) -> Api<PersistentVolume> {
        let service = service_fn(move |_: Request<Body>| {
            let body = Body::from(object.to_string().into_bytes());
            async move { Ok::<_, BoxError>(Response::builder().status(code).body(body)?) }
        });
        Api::all(Client::new(service, "default"))
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
            "message": reason, "code": code})
    }

    #[tokio::test]
    async fn a_volume_that_exists_or_cannot_be_read_is_not_rolled_back() {
        let exists = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": "pvc-1", "uid": "u"}});
        let refused = refuse_if_exists(&api(200, exists), "pvc-1").await.unwrap_err();
        assert!(matches!(refused, RollbackError::VolumeExists(_)), "{refused}");
        let refused = refuse_if_exists(&api(403, status(403, "Forbidden")), "pvc-1")
            .await
            .unwrap_err();
        assert!(matches!(refused, RollbackError::VolumeUnknown(..)), "{refused}");
        refuse_if_exists(&api(404, status(404, "NotFound")), "pvc-1")
            .await
            .unwrap();
    }
}
