//! Publishes usage: in annotations of the volume, a condition and an event of its claim, and the status of an archive.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use serde_json::{Value, json};

use super::plan::{needs_write, over_request};
use crate::api::archive::NfsArchive;
use crate::api::conditions::Reason;
use crate::api::names::{
    OVER_REQUEST_CONDITION, VOLUME_APPARENT_BYTES, VOLUME_COUNTED_AT, VOLUME_UNREAD, VOLUME_USED_BYTES,
    VOLUME_USED_FILES, is_shared, managers,
};
use crate::api::usage::ArchiveUsage;
use crate::decide::quantity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::claim_condition::{ClaimCondition, bound_claim};
use crate::state::context::Context;
use crate::state::usage::VolumeUsage;
use export_store::TreeUsage;

/// Condition of a claim that uses more than it requests.
const OVER_REQUEST: ClaimCondition = ClaimCondition {
    type_: OVER_REQUEST_CONDITION,
    reason: Reason::OverRequest,
    manager: managers::USAGE,
    action: "Count",
};

/// Writes the usage of a volume if it changed. The claim is written first, so that the annotations on the volume show
/// that both were written.
pub(super) async fn volume(
    ctx: &Context,
    backend: &Backend,
    volume: &PersistentVolume,
    figures: VolumeUsage,
) -> Result<(), WriteError> {
    let now = ctx.clock.now();
    let mut changed = needs_write(volume, &figures, now);
    if let Some(claim) = bound_claim(ctx, volume).await? {
        let (existing, over) = (
            OVER_REQUEST.find(&claim),
            over_request(&claim, &figures).filter(|_| !is_shared(volume)),
        );
        changed |= existing.is_some() != over.is_some();
        match (over, existing) {
            (Some(message), _) if changed => OVER_REQUEST.set(ctx, &claim, message, now).await?,
            (None, Some(_)) => OVER_REQUEST.clear(ctx, &claim).await?,
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
    if let Some(claim) = bound_claim(ctx, volume).await?
        && OVER_REQUEST.find(&claim).is_some()
    {
        OVER_REQUEST.clear(ctx, &claim).await?;
    }
    write(ctx, volume, json!({})).await
}

/// Writes the usage of an archive.
pub(super) async fn archive(ctx: &Context, archive: &NfsArchive, content: &TreeUsage) -> Result<(), WriteError> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let usage = ArchiveUsage {
        size: quantity::exact(content.used.into()),
        apparent_size: quantity::exact(content.size.into()),
        files: number(content.names),
        unread_directories: number(content.unread),
    };
    let api: Api<NfsArchive> = Api::all(ctx.clients.calls.clone());
    let (status, action) = (json!({"usage": usage}), "write the usage of an archive");
    ignore_deleted(writes::apply_status(&api, archive, managers::USAGE, &status, None, action).await)
}

fn annotations(figures: &VolumeUsage, now: Timestamp) -> Value {
    // A precision of one second is sufficient.
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut annotations = json!({
        VOLUME_USED_BYTES: figures.bytes.to_string(),
        VOLUME_USED_FILES: figures.files.to_string(),
        VOLUME_COUNTED_AT: at.to_string(),
    });
    let apparent = figures.apparent.map(|apparent| (VOLUME_APPARENT_BYTES, apparent));
    let unread = (figures.unread > 0).then_some((VOLUME_UNREAD, figures.unread));
    if let Some(annotations) = annotations.as_object_mut() {
        let known = apparent.into_iter().chain(unread);
        annotations.extend(known.map(|(name, number)| (name.to_owned(), number.to_string().into())));
    }
    annotations
}

async fn write(ctx: &Context, volume: &PersistentVolume, annotations: Value) -> Result<(), WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let fields = json!({"metadata": {"annotations": annotations}});
    let action = "write the usage of a volume";
    ignore_deleted(writes::apply(&api, volume, managers::USAGE, fields, action).await)
}

/// Ignores that an object no longer exists: it needs no usage.
fn ignore_deleted(written: Result<(), WriteError>) -> Result<(), WriteError> {
    match written {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written,
    }
}
