//! Who is told what was counted: the volume in annotations, its claim in a condition and an event, an archive in its status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::judge::{is_news, over};
use crate::api::archive::NfsArchive;
use crate::api::conditions::Reason;
use crate::api::names::{
    OVER_REQUEST_CONDITION, VOLUME_APPARENT_BYTES, VOLUME_COUNTED_AT, VOLUME_UNREAD, VOLUME_USED_BYTES,
    VOLUME_USED_FILES, managers,
};
use crate::api::usage::ArchiveUsage;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::usage::VolumeUsage;
use export_store::Content;
use export_store::text::format_bytes;

/// Tells volume and claim, as far as it is news to them. The claim first: what stands on the volume says that both know.
pub(crate) async fn volume(
    ctx: &Context,
    backend: &Backend,
    volume: &PersistentVolume,
    content: &Content,
) -> Result<(), WriteError> {
    let (figures, now) = (VolumeUsage::from(content), Timestamp::now());
    let mut news = is_news(volume, &figures, now);
    if let Some(claim) = claim_of(ctx, volume).await? {
        let (said, over) = (condition(&claim), over(&claim, &figures));
        news |= said.is_some() != over.is_some();
        match (over, said) {
            (Some(message), said) if news => raise(ctx, &claim, message, said, now).await?,
            (None, Some(_)) => lower(ctx, &claim).await?,
            _ => {}
        }
    }
    if news {
        write(ctx, volume, annotations(&figures, now)).await?;
    }
    ctx.usage.set(volume, &backend.name, figures);
    Ok(())
}

/// Takes off whatever was told.
pub(crate) async fn nothing(ctx: &Context, volume: &PersistentVolume) -> Result<(), WriteError> {
    if let Some(claim) = claim_of(ctx, volume).await?
        && condition(&claim).is_some()
    {
        lower(ctx, &claim).await?;
    }
    write(ctx, volume, json!({})).await
}

/// Tells an archive.
pub(crate) async fn archive(ctx: &Context, archive: &NfsArchive, content: &Content) -> Result<(), WriteError> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let usage = ArchiveUsage {
        bytes: number(content.used),
        size: format_bytes(content.used.into()),
        apparent_bytes: number(content.size),
        files: number(content.names),
        unread: number(content.unread),
    };
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let (fields, action) = (json!({"status": {"usage": usage}}), "write what an archive takes");
    unless_gone(writes::apply(&api, archive, managers::USAGE, fields, true, action).await)
}

fn annotations(figures: &VolumeUsage, now: Timestamp) -> Value {
    // To the second: nobody needs more.
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut told = json!({
        VOLUME_USED_BYTES: figures.bytes.to_string(),
        VOLUME_APPARENT_BYTES: figures.apparent.to_string(),
        VOLUME_USED_FILES: figures.files.to_string(),
        VOLUME_COUNTED_AT: at.to_string(),
    });
    if figures.unread > 0
        && let Some(told) = told.as_object_mut()
    {
        told.insert(VOLUME_UNREAD.to_owned(), figures.unread.to_string().into());
    }
    told
}

async fn write(ctx: &Context, volume: &PersistentVolume, annotations: Value) -> Result<(), WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let fields = json!({"metadata": {"annotations": annotations}});
    let action = "write on a volume what it holds";
    unless_gone(writes::apply(&api, volume, managers::USAGE, fields, false, action).await)
}

/// The claim that has the volume, as it is now.
async fn claim_of(ctx: &Context, volume: &PersistentVolume) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Ok(None);
    };
    let (Some(namespace), Some(name)) = (&claim.namespace, &claim.name) else {
        return Ok(None);
    };
    let found = claims(ctx, namespace).get_opt(name).await;
    let found = found.map_err(WriteError::action("read the claim of a volume that was counted"))?;
    Ok(found.filter(|found| found.uid() == claim.uid && found.metadata.deletion_timestamp.is_none()))
}

fn claims(ctx: &Context, namespace: &str) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.clients.calls.clone(), namespace)
}

fn condition(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == OVER_REQUEST_CONDITION)
}

/// Says that a claim has more than it asked for; with an event when that is new.
async fn raise(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    message: String,
    said: Option<&PersistentVolumeClaimCondition>,
    now: Timestamp,
) -> Result<(), WriteError> {
    let since = said.and_then(|said| said.last_transition_time.clone());
    let condition = PersistentVolumeClaimCondition {
        type_: OVER_REQUEST_CONDITION.to_owned(),
        status: "True".to_owned(),
        reason: Some(Reason::OverRequest.to_string()),
        message: Some(message.clone()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        last_probe_time: Some(Time(now)),
    };
    set(ctx, claim, json!({"status": {"conditions": [condition]}})).await?;
    if said.is_none() {
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

async fn lower(ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
    set(ctx, claim, json!({"status": {}})).await
}

async fn set(ctx: &Context, claim: &PersistentVolumeClaim, fields: Value) -> Result<(), WriteError> {
    let api = claims(ctx, &claim.namespace().unwrap_or_default());
    let action = "tell a claim what its volume holds";
    unless_gone(writes::apply(&api, claim, managers::USAGE, fields, true, action).await)
}

/// Nobody is left to be told.
fn unless_gone(written: Result<(), WriteError>) -> Result<(), WriteError> {
    match written {
        Err(WriteError::NotFound) => Ok(()),
        written => written,
    }
}
