//! Conditions of claims: writing and removing them, and those that background tasks set and remove once their cause is
//! resolved.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;

/// Returns the condition of a claim with this type.
pub fn find<'a>(claim: &'a PersistentVolumeClaim, type_: &str) -> Option<&'a PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Sets a condition of a claim that is `True`, `False` or `Unknown`. Returns false, and writes nothing, if the claim has it.
pub async fn set_planned(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    (type_, manager): (&str, &str),
    planned: &PlannedCondition,
) -> Result<bool, WriteError> {
    let (existing, now) = (find(claim, type_), ctx.clock.now());
    let same = |existing: &&PersistentVolumeClaimCondition| {
        existing.reason.as_deref() == Some(&planned.reason.to_string())
            && existing.message.as_deref() == Some(&planned.message)
    };
    if existing.filter(same).is_some() {
        return Ok(false);
    }
    let status = planned.status_text();
    let since = existing.filter(|existing| existing.status == status);
    let since = since.and_then(|existing| existing.last_transition_time.clone());
    let condition = PersistentVolumeClaimCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(planned.reason.to_string()),
        message: Some(planned.message.clone()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        last_probe_time: Some(Time(now)),
    };
    set(&ctx.clients.calls, claim, manager, &condition).await?;
    Ok(true)
}

/// Sets a condition of a claim. Also succeeds if the claim no longer exists.
pub async fn set(
    client: &Client,
    claim: &PersistentVolumeClaim,
    manager: &str,
    condition: &PersistentVolumeClaimCondition,
) -> Result<(), WriteError> {
    write(client, claim, manager, json!({"status": {"conditions": [condition]}})).await
}

/// Sets a condition of a claim if the claim has not changed since it was read. If it has, the error is
/// [`WriteError::Conflict`]. Also succeeds if the claim no longer exists.
pub async fn set_if_unchanged(
    client: &Client,
    claim: &PersistentVolumeClaim,
    manager: &str,
    condition: &PersistentVolumeClaimCondition,
) -> Result<(), WriteError> {
    let fields = json!({
        "metadata": {"resourceVersion": claim.resource_version()},
        "status": {"conditions": [condition]},
    });
    write(client, claim, manager, fields).await
}

/// Removes a condition from a claim, if the claim has it.
pub async fn clear(
    client: &Client,
    claim: &PersistentVolumeClaim,
    (type_, manager): (&str, &str),
) -> Result<(), WriteError> {
    let condition = json!({"$patch": "delete", "type": type_});
    write(client, claim, manager, json!({"status": {"conditions": [condition]}})).await
}

/// Publishes an event about a claim.
pub fn event(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    severity: Severity,
    (reason, action): (Reason, &'static str),
    note: &str,
) {
    ctx.events
        .publish(claim.object_ref(&()), severity, reason, action, note);
}

async fn write(client: &Client, claim: &PersistentVolumeClaim, manager: &str, fields: Value) -> Result<(), WriteError> {
    let namespace = claim.namespace().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    match writes::merge_status(&api, claim, manager, fields, "set a condition of the claim").await {
        // A claim that no longer exists needs no condition.
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written,
    }
}

/// A condition that is present, and `True`, while something is wrong with the volume of a claim.
#[derive(Debug, Clone, Copy)]
pub struct ClaimCondition {
    /// Type of the condition.
    pub type_: &'static str,
    /// Its only reason.
    pub reason: Reason,
    /// Field manager that owns it.
    pub manager: &'static str,
    /// Action in its events.
    pub action: &'static str,
}

impl ClaimCondition {
    /// Returns the condition of a claim.
    pub fn find(self, claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
        find(claim, self.type_)
    }

    /// Sets the condition, with an event if it is new.
    pub async fn set(
        self,
        ctx: &Context,
        claim: &PersistentVolumeClaim,
        message: String,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let existing = self.find(claim);
        let since = existing.and_then(|existing| existing.last_transition_time.clone());
        let condition = PersistentVolumeClaimCondition {
            type_: self.type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(self.reason.to_string()),
            message: Some(message.clone()),
            last_transition_time: Some(since.unwrap_or(Time(now))),
            last_probe_time: Some(Time(now)),
        };
        set(&ctx.clients.calls, claim, self.manager, &condition).await?;
        if existing.is_none() {
            event(ctx, claim, Severity::Warning, (self.reason, self.action), &message);
        }
        Ok(())
    }

    /// Removes the condition.
    pub async fn clear(self, ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
        clear(&ctx.clients.calls, claim, (self.type_, self.manager)).await
    }
}

/// Reads the claim that is bound to a volume.
pub async fn bound_claim(
    ctx: &Context,
    volume: &PersistentVolume,
) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(None);
    };
    let (Some(namespace), Some(name)) = (&claim.namespace, &claim.name) else {
        return Ok(None);
    };
    let found = reads::get_claim(&ctx.clients.calls, namespace, name).await;
    let found = found.map_err(WriteError::action("read the claim of a volume"))?;
    Ok(found.filter(|found| found.uid() == claim.uid && found.metadata.deletion_timestamp.is_none()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use axum::http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use tower::{BoxError, service_fn};

    use super::*;

    /// The API server refuses a write with an outdated resource version.
    #[tokio::test]
    async fn a_repeated_condition_does_not_overwrite_a_newer_one() {
        let written = Arc::new(Mutex::new(Vec::<Value>::new()));
        let requests = Arc::clone(&written);
        let service = service_fn(move |request: Request<Body>| {
            let requests = Arc::clone(&requests);
            async move {
                let body = request.into_body().collect_bytes().await?;
                requests.lock().push(serde_json::from_slice(&body)?);
                let conflict = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Conflict", "message": "the object has been modified", "code": 409});
                let body = Body::from(conflict.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(409).body(body)?)
            }
        });
        let client = Client::new(service, "team");
        let seen = json!({"metadata": {"name": "data", "namespace": "team", "uid": "u", "resourceVersion": "7"}});
        let claim: PersistentVolumeClaim = serde_json::from_value(seen).unwrap();
        let condition = PersistentVolumeClaimCondition::default();
        let guarded = set_if_unchanged(&client, &claim, "manager", &condition).await;
        let unguarded = set(&client, &claim, "manager", &condition).await;
        for result in [guarded, unguarded] {
            assert!(matches!(result, Err(WriteError::Conflict)), "retried: {result:?}");
        }
        let written = written.lock();
        let versions: Vec<_> = written
            .iter()
            .map(|body| &body["metadata"]["resourceVersion"])
            .collect();
        assert_eq!(versions, [&json!("7"), &Value::Null]);
    }
}
