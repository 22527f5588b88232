//! Conditions that background tasks set on the claims of volumes, and remove once their cause is resolved.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Resource, ResourceExt};
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
    apply(ctx, claim, manager, json!({"status": {"conditions": [condition]}})).await?;
    Ok(true)
}

/// Removes the conditions of a field manager from a claim.
pub async fn clear(ctx: &Context, claim: &PersistentVolumeClaim, manager: &str) -> Result<(), WriteError> {
    apply(ctx, claim, manager, json!({"status": {}})).await
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

async fn apply(ctx: &Context, claim: &PersistentVolumeClaim, manager: &str, fields: Value) -> Result<(), WriteError> {
    let namespace = claim.namespace().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    let action = "write a condition of the claim of a volume";
    match writes::apply(&api, claim, manager, fields, true, action).await {
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
        let fields = json!({"status": {"conditions": [condition]}});
        apply(ctx, claim, self.manager, fields).await?;
        if existing.is_none() {
            event(ctx, claim, Severity::Warning, (self.reason, self.action), &message);
        }
        Ok(())
    }

    /// Removes the condition.
    pub async fn clear(self, ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
        clear(ctx, claim, self.manager).await
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
