//! Writes to a claim's annotations: its placement, and the release of its selected node.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::report::{self, ProvisionOutcome};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, SELECTED_NODE, managers};
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::last_written::Cached;

/// Writes the backend that a claim is placed on, unless the claim has it.
pub(super) async fn set_placed_on(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    backend: &str,
) -> Result<(), WriteError> {
    write_placed_on(ctx, claim, Some(backend), "set the claim's placement").await
}

/// Returns true if a claim has no placement: neither in the cache, nor did this process write one.
pub(super) fn is_unplaced(ctx: &Context, claim: &PersistentVolumeClaim) -> bool {
    let placement = claim.annotations().get(PLACED_ON).map(String::as_str);
    ctx.last_written.is_current(&cached_placement(claim, &placement), &None)
}

/// Clears the placement of a claim that no backend has a directory for. Succeeds if the claim is deleted.
pub(super) async fn clear_placed_on(ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
    match write_placed_on(ctx, claim, None, "clear the claim's placement").await {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written,
    }
}

async fn write_placed_on(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    backend: Option<&str>,
    action: &'static str,
) -> Result<(), WriteError> {
    let fields = match backend {
        Some(backend) => json!({"metadata": {"annotations": {PLACED_ON: backend}}}),
        None => json!({}),
    };
    let api = claims(ctx, claim);
    let placement = claim.annotations().get(PLACED_ON).map(String::as_str);
    let cached = cached_placement(claim, &placement);
    let write = writes::apply(&api, claim, managers::PLACEMENT, fields, action);
    ctx.last_written
        .write_unless_current(&cached, &backend, write)
        .await
        .map(drop)
}

fn cached_placement<'a>(
    claim: &'a PersistentVolumeClaim,
    placement: &'a Option<&'a str>,
) -> Cached<'a, Option<&'a str>> {
    Cached::new(&claim.metadata, managers::PLACEMENT, Some(placement))
}

/// Releases the selected node, which no backend serves, so that the scheduler selects another one. It is released after
/// a pause that grows with each release.
pub(super) async fn release_node(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    node: &str,
    condition: PlannedCondition,
) -> Result<ProvisionOutcome, WriteError> {
    let uid = claim.uid().unwrap_or_default();
    let pause = ctx.reschedules.remaining(&uid, node, Instant::now());
    if !pause.is_zero() {
        return Ok(ProvisionOutcome::WrongNode {
            condition,
            node: node.to_owned(),
            pause,
        });
    }
    let action = "release the selected node";
    let removed = writes::remove_annotation_if_unchanged(&claims(ctx, claim), claim, SELECTED_NODE, action).await;
    match removed {
        Ok(()) => {
            ctx.reschedules.record_release(&uid);
            let note = format!(
                "released node {node}, the scheduler may select another one: {}",
                condition.message
            );
            report::event(ctx, claim, Severity::Normal, Reason::Rescheduled, &note);
            Ok(ProvisionOutcome::Rescheduled(condition))
        }
        Err(WriteError::Conflict) => Ok(ProvisionOutcome::WrongNode {
            condition,
            node: node.to_owned(),
            pause: writes::AFTER_CONFLICT,
        }),
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(ProvisionOutcome::ClaimDeleted),
        Err(error) => Err(error),
    }
}

fn claims(ctx: &Context, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.clients.calls.clone(), &claim.namespace().unwrap_or_default())
}
