//! Publishes usage: in annotations of the volume, a condition and an event of its claim, and the status of an archive.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::plan::{needs_write, over_request};
use crate::api::archive::NfsArchive;
use crate::api::conditions::Reason;
use crate::api::names::{
    OVER_REQUEST_CONDITION, VOLUME_APPARENT_BYTES, VOLUME_COUNTED_AT, VOLUME_UNREAD, VOLUME_USED_BYTES,
    VOLUME_USED_FILES, managers,
};
use crate::api::usage::ArchiveUsage;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::usage::VolumeUsage;
use export_store::TreeUsage;
use export_store::text::format_bytes;

/// Writes the usage of a volume if it changed. The claim is written first, so that the annotations on the volume show
/// that both were written.
pub(super) async fn volume(
    ctx: &Context,
    backend: &Backend,
    volume: &PersistentVolume,
    content: &TreeUsage,
) -> Result<(), WriteError> {
    let (figures, now) = (VolumeUsage::from(content), Timestamp::now());
    let mut changed = needs_write(volume, &figures, now);
    if let Some(claim) = claim_of(ctx, volume).await? {
        let (existing, over) = (over_request_condition(&claim), over_request(&claim, &figures));
        changed |= existing.is_some() != over.is_some();
        match (over, existing) {
            (Some(message), existing) if changed => set_condition(ctx, &claim, message, existing, now).await?,
            (None, Some(_)) => clear_condition(ctx, &claim).await?,
            _ => {}
        }
    }
    if changed {
        write(ctx, volume, annotations(&figures, now)).await?;
    }
    ctx.usage.set(volume, &backend.name, figures);
    Ok(())
}

/// Removes the usage of a volume.
pub(super) async fn remove(ctx: &Context, volume: &PersistentVolume) -> Result<(), WriteError> {
    if let Some(claim) = claim_of(ctx, volume).await?
        && over_request_condition(&claim).is_some()
    {
        clear_condition(ctx, &claim).await?;
    }
    write(ctx, volume, json!({})).await
}

/// Writes the usage of an archive.
pub(super) async fn archive(ctx: &Context, archive: &NfsArchive, content: &TreeUsage) -> Result<(), WriteError> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let usage = ArchiveUsage {
        bytes: number(content.used),
        size: format_bytes(content.used.into()),
        apparent_bytes: number(content.size),
        files: number(content.names),
        unread: number(content.unread),
    };
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let (fields, action) = (json!({"status": {"usage": usage}}), "write the usage of an archive");
    ignore_deleted(writes::apply(&api, archive, managers::USAGE, fields, true, action).await)
}

fn annotations(figures: &VolumeUsage, now: Timestamp) -> Value {
    // A precision of one second is sufficient.
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut annotations = json!({
        VOLUME_USED_BYTES: figures.bytes.to_string(),
        VOLUME_APPARENT_BYTES: figures.apparent.to_string(),
        VOLUME_USED_FILES: figures.files.to_string(),
        VOLUME_COUNTED_AT: at.to_string(),
    });
    if figures.unread > 0
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.insert(VOLUME_UNREAD.to_owned(), figures.unread.to_string().into());
    }
    annotations
}

async fn write(ctx: &Context, volume: &PersistentVolume, annotations: Value) -> Result<(), WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let fields = json!({"metadata": {"annotations": annotations}});
    let action = "write the usage of a volume";
    ignore_deleted(writes::apply(&api, volume, managers::USAGE, fields, false, action).await)
}

/// Reads the claim that is bound to the volume.
async fn claim_of(ctx: &Context, volume: &PersistentVolume) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(None);
    };
    let (Some(namespace), Some(name)) = (&claim.namespace, &claim.name) else {
        return Ok(None);
    };
    let found = reads::get_claim(&ctx.clients.calls, namespace, name).await;
    let found = found.map_err(WriteError::action("read the claim of a volume that was counted"))?;
    Ok(found.filter(|found| found.uid() == claim.uid && found.metadata.deletion_timestamp.is_none()))
}

fn claims(ctx: &Context, namespace: &str) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.clients.calls.clone(), namespace)
}

fn over_request_condition(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == OVER_REQUEST_CONDITION)
}

/// Sets the condition that a claim uses more than it requests, with an event if it is new.
async fn set_condition(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    message: String,
    existing: Option<&PersistentVolumeClaimCondition>,
    now: Timestamp,
) -> Result<(), WriteError> {
    let since = existing.and_then(|existing| existing.last_transition_time.clone());
    let condition = PersistentVolumeClaimCondition {
        type_: OVER_REQUEST_CONDITION.to_owned(),
        status: "True".to_owned(),
        reason: Some(Reason::OverRequest.to_string()),
        message: Some(message.clone()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        last_probe_time: Some(Time(now)),
    };
    apply_status(ctx, claim, json!({"status": {"conditions": [condition]}})).await?;
    if existing.is_none() {
        ctx.events.publish(
            claim.object_ref(&()),
            Severity::Warning,
            Reason::OverRequest,
            "Count",
            &message,
        );
    }
    Ok(())
}

async fn clear_condition(ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
    apply_status(ctx, claim, json!({"status": {}})).await
}

async fn apply_status(ctx: &Context, claim: &PersistentVolumeClaim, fields: Value) -> Result<(), WriteError> {
    let api = claims(ctx, &claim.namespace().unwrap_or_default());
    let action = "write the usage condition of a claim";
    ignore_deleted(writes::apply(&api, claim, managers::USAGE, fields, true, action).await)
}

/// Ignores that an object no longer exists: it needs no usage.
fn ignore_deleted(written: Result<(), WriteError>) -> Result<(), WriteError> {
    match written {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written,
    }
}
