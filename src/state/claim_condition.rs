//! Conditions that background tasks set on the claims of volumes, and remove once their cause is resolved.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::conditions::Reason;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;

/// Returns the condition of a claim with this type.
pub fn find<'a>(claim: &'a PersistentVolumeClaim, type_: &str) -> Option<&'a PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
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
        self.apply(ctx, claim, json!({"status": {"conditions": [condition]}}))
            .await?;
        if existing.is_none() {
            let object = claim.object_ref(&());
            ctx.events
                .publish(object, Severity::Warning, self.reason, self.action, &message);
        }
        Ok(())
    }

    /// Removes the condition.
    pub async fn clear(self, ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
        self.apply(ctx, claim, json!({"status": {}})).await
    }

    async fn apply(self, ctx: &Context, claim: &PersistentVolumeClaim, fields: Value) -> Result<(), WriteError> {
        let namespace = claim.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
        let action = "write a condition of the claim of a volume";
        match writes::apply(&api, claim, self.manager, fields, true, action).await {
            // A claim that no longer exists needs no condition.
            Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
            written => written,
        }
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
