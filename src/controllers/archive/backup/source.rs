//! The claim that a backup copies.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::checks::{Subject, check_names};
use crate::api::archive::NfsArchive;
use crate::api::conditions::PlannedCondition;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::context::Context;
use crate::state::copy_jobs::source::{ClaimSource, find_claim};
use export_store::ClaimRef;

/// Source of a backup, and its data.
pub(super) struct BackupSource {
    pub(super) subject: Subject,
    pub(super) data: ClaimSource,
}

/// Finds the data of the claim that the object names. Claim, volume and namespace are read from the API server, because
/// the backup keeps a tenant's data for the users of that namespace.
pub(super) async fn find_source(
    ctx: &Context,
    object: &NfsArchive,
) -> Result<Result<BackupSource, PlannedCondition>, WriteError> {
    let named = &object.spec.claim_ref;
    if let Err(condition) = check_names(named) {
        return Ok(Err(condition));
    }
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let namespace = reads::get_metadata_opt(&namespaces, &named.namespace).await;
    let namespace = namespace.map_err(WriteError::action("read the namespace of the claim to copy"))?;
    let data = match find_claim(ctx, &named.namespace, &named.name, None).await? {
        Ok(data) => data,
        Err(error) => return Ok(Err(error.into_condition())),
    };
    // The claim exists, so its namespace was created after the read above.
    let Some(namespace_uid) = namespace.and_then(|namespace| namespace.uid()) else {
        return Err(WriteError::Conflict);
    };
    if let Err(condition) = check_backend_ready(&data) {
        return Ok(Err(condition));
    }
    let subject = Subject {
        claim: ClaimRef {
            namespace: named.namespace.clone(),
            namespace_uid,
            name: named.name.clone(),
            uid: data.request.claim.uid.clone(),
        },
        volume: data.request.volume.clone(),
        backend: data.backend.name.clone(),
        export_id: data.snapshot.export_id().unwrap_or_default().to_owned(),
    };
    Ok(Ok(BackupSource { subject, data }))
}

/// Checks that the backend is ready for a new volume, because a copy needs space like a volume.
fn check_backend_ready(data: &ClaimSource) -> Result<(), PlannedCondition> {
    let ready = data.snapshot.ready_now(Instant::now());
    if ready.status == Some(true) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        ready.reason,
        format!(
            "waits for backend {}, which takes no copies now: {}",
            data.backend.name, ready.message
        ),
    ))
}
