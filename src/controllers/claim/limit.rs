//! The limit of a claim's volume on the server (`spec.quota` of its backend): ordered before the volume is created, and with
//! `enforce: Required` awaited.
//!
//! The order is written after the record and before the volume, and nothing else remembers it: after a crash, the next
//! attempt finds the order and the report about it. While a claim waits, it holds no slot; the report wakes it
//! (`background/quota`).

use std::time::Duration;

use super::placement::pending_backend;
use super::provision::{ProvisionAttempt, ProvisionTarget, unresolved};
use super::report::ProvisionOutcome;
use crate::api::backend::QuotaSettings;
use crate::api::conditions::PlannedCondition;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::quota::{condition_now, order_volume};
use export_store::{ExportError, ExportStore, ProvisionedDirectory};

/// Time for which a claim waits for its limit before it reports that. Most limits are in force sooner, and a report would
/// cost two writes and an event.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// Orders the limit of a directory. Returns the outcome if the volume must not be created now.
pub(super) async fn order_limit(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    directory: &ProvisionedDirectory,
) -> Option<ProvisionOutcome> {
    let settings = target.snapshot.object.spec.quota.as_ref()?;
    // Nobody enforces the size of a directory that several volumes share. Required refuses it before it is recorded.
    if directory.shared {
        return None;
    }
    let (backend, export) = (&target.backend, &target.export);
    let volume = (attempt.volume.as_str(), attempt.request.bytes);
    match order_size(backend, export, settings, volume).await {
        Ok(None) => None,
        Ok(Some(condition)) => Some(awaiting(backend, &attempt.volume, condition)),
        Err(error) => {
            attempt.ctx.request_probe(&backend.name);
            Some(unresolved(backend, &error))
        }
    }
}

/// Orders the size of a volume. Returns the condition that explains what it waits for, if it has to.
pub(super) async fn order_size(
    backend: &Backend,
    export: &ExportStore,
    settings: &QuotaSettings,
    volume: (&str, u128),
) -> Result<Option<PlannedCondition>, ExportError> {
    let found = order_volume(backend, export, settings, volume).await?;
    Ok(match found {
        Some(found) if settings.is_required() && !found.is_in_force() => Some(condition_now(backend, settings, &found)),
        _ => None,
    })
}

/// Returns the outcome of a claim that still waits for its limit, without a call on the export: the background reads the
/// reports.
pub(super) fn still_awaited(ctx: &Context, volume: &str) -> Option<ProvisionOutcome> {
    let backend = pending_backend(ctx, volume)?;
    let known = backend.last_probe();
    let settings = known
        .object
        .spec
        .quota
        .as_ref()
        .filter(|settings| settings.is_required())?;
    let pending = backend.quota.pending(volume)?;
    if pending.state.is_in_force() {
        return None;
    }
    let condition = condition_now(&backend, settings, &pending.state);
    Some(awaiting(&backend, volume, condition))
}

fn awaiting(backend: &Backend, volume: &str, condition: PlannedCondition) -> ProvisionOutcome {
    let waited = backend.quota.pending(volume).map(|pending| pending.since.elapsed());
    ProvisionOutcome::AwaitingLimit {
        condition: PlannedCondition {
            message: format!("backend {}: {}", backend.name, condition.message),
            ..condition
        },
        report_in: REPORT_AFTER.saturating_sub(waited.unwrap_or_default()),
    }
}
