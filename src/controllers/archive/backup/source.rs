//! The claim that a backup copies, and the backend that gets the copy.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};

use super::checks::{Subject, check_names};
use super::report::BackupOutcome;
use crate::api::archive::NfsArchive;
use crate::decide::backup_destination::{destination_name, destination_of};
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::context::Context;
use crate::state::copy_jobs::destination::Destination;
use crate::state::copy_jobs::source::{ClaimSource, ClaimSourceError, find_claim};
use export_store::ClaimRef;

/// Source of a backup, its data, and the backend that gets the copy.
pub(super) struct BackupSource {
    pub(super) subject: Subject,
    pub(super) data: ClaimSource,
    pub(super) destination: Destination,
    /// Labels of the claim's namespace.
    pub(super) labels: BTreeMap<String, String>,
}

/// Finds the data of the claim that the object names. Claim, volume and namespace are read from the API server, because
/// the backup keeps a tenant's data for the users of that namespace. Fails with what the backup waits for.
pub(super) async fn find_source(
    ctx: &Context,
    object: &NfsArchive,
) -> Result<Result<BackupSource, BackupOutcome>, WriteError> {
    let named = &object.spec.claim_ref;
    if let Err(condition) = check_names(named) {
        return Ok(Err(BackupOutcome::Blocked(condition)));
    }
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let namespace = reads::get_metadata_opt(&namespaces, &named.namespace).await;
    let namespace = namespace.map_err(WriteError::action("read the namespace of the claim to copy"))?;
    let data = match find_claim(ctx, &named.namespace, &named.name, None).await? {
        Ok(data) => data,
        Err(ClaimSourceError::NotReady(condition)) => return Ok(Err(BackupOutcome::Waiting(condition))),
        Err(error) => return Ok(Err(BackupOutcome::Blocked(error.into_condition()))),
    };
    // The claim exists, so its namespace was created after the read above.
    let Some((namespace_uid, labels)) =
        namespace.and_then(|namespace| Some((namespace.uid()?, namespace.labels().clone())))
    else {
        return Err(WriteError::Conflict);
    };
    let name = match destination_name(object) {
        Some(name) => name.to_owned(),
        None => match data.live_backend(ctx).await? {
            Ok(backend) => destination_of(&backend),
            Err(condition) => return Ok(Err(BackupOutcome::Waiting(condition))),
        },
    };
    let destination = match Destination::find(ctx, &name) {
        Ok(destination) => destination,
        Err(condition) => return Ok(Err(BackupOutcome::Waiting(condition))),
    };
    let subject = Subject {
        claim: ClaimRef {
            namespace: named.namespace.clone(),
            namespace_uid,
            name: named.name.clone(),
            uid: data.directory.claim.uid.clone(),
        },
        volume: data.directory.volume.clone(),
        backend: name,
        export_id: destination.export_id.clone(),
    };
    Ok(Ok(BackupSource {
        subject,
        data,
        destination,
        labels,
    }))
}
