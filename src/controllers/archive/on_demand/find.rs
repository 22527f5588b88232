//! What is to be copied: the claim that the object names, as it is now.

use std::time::Instant;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};

use super::judge::{Subject, nameable};
use crate::api::archive::NfsArchive;
use crate::api::conditions::PlannedCondition;
use crate::runtime::writes::WriteError;
use crate::state::claim_source::{self, ClaimSource};
use crate::state::context::Context;
use export_store::ClaimRef;

/// What is to be copied, and where it is.
pub(crate) struct Found {
    pub(crate) subject: Subject,
    pub(crate) located: ClaimSource,
}

/// Claim, volume and namespace are read live: what follows keeps a tenant's data, for those who are in his namespace.
pub(crate) async fn find(ctx: &Context, object: &NfsArchive) -> Result<Result<Found, PlannedCondition>, WriteError> {
    let asked = &object.spec.claim;
    if let Err(verdict) = nameable(asked) {
        return Ok(Err(verdict));
    }
    let namespaces: Api<Namespace> = Api::all(ctx.clients.calls.clone());
    let namespace = namespaces.get_metadata_opt(&asked.namespace).await;
    let namespace = namespace.map_err(WriteError::of("read the namespace of the claim to copy"))?;
    let (claim, volume) = match claim_source::read_bound_claim(ctx, &asked.namespace, &asked.name).await? {
        Ok(bound) => bound,
        Err(verdict) => return Ok(Err(verdict)),
    };
    // A claim is in a namespace: it was made just after we looked.
    let Some(namespace_uid) = namespace.and_then(|namespace| namespace.uid()) else {
        return Err(WriteError::Conflict);
    };
    let suitable = claim_source::check_ownership(&volume, &claim, &ctx.settings.provisioners());
    let located = match suitable.and_then(|()| claim_source::locate(ctx, &asked.name, &volume)) {
        Ok(located) => located,
        Err(verdict) => return Ok(Err(verdict)),
    };
    if let Err(verdict) = takes_copies(&located) {
        return Ok(Err(verdict));
    }
    let identity = located.snapshot.identity.as_ref();
    let subject = Subject {
        claim: ClaimRef {
            namespace: asked.namespace.clone(),
            namespace_uid,
            name: asked.name.clone(),
            uid: claim.uid().unwrap_or_default(),
        },
        volume: volume.name_any(),
        backend: located.backend.name.clone(),
        export_id: identity.map(|identity| identity.id.clone()).unwrap_or_default(),
    };
    Ok(Ok(Found { subject, located }))
}

/// A copy takes room as a new volume does: only where one could be made now.
fn takes_copies(located: &ClaimSource) -> Result<(), PlannedCondition> {
    let ready = located.snapshot.ready_now(Instant::now());
    if ready.status == Some(true) {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        ready.reason,
        format!(
            "waits for backend {}, which takes no copies now: {}",
            located.backend.name, ready.message
        ),
    ))
}
