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
use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::quota::{OrderedLimit, condition_now, order_provisioned, order_volume, report_unlimited};
use export_store::{DirectoryRequest, ExportError, ExportStore, LimitReport, NoLimit, NoOrder, ProvisionedDirectory};

/// Time for which a claim waits for its limit before it reports that. Most limits are in force sooner, and a report would
/// cost two writes and an event.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// Looks whether a volume has no order yet, while its directory is created. `None` if it may have one.
pub(super) async fn find_no_order(attempt: &ProvisionAttempt<'_>, target: &ProvisionTarget) -> Option<NoOrder> {
    let (backend, volume) = (&target.backend, &attempt.volume);
    let is_new = target.snapshot.object.spec.quota.is_some() && backend.quota.pending(volume).is_none();
    if !is_new {
        return None;
    }
    // A failure is that of the order, too, which reports it.
    target.export.find_no_order(volume).await.ok().flatten()
}

/// Orders the limit of a directory. Returns the outcome if the volume must not be created now.
pub(super) async fn order_limit(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    (request, directory): (&DirectoryRequest, &ProvisionedDirectory),
    no_order: Option<NoOrder>,
) -> Option<ProvisionOutcome> {
    let settings = target.snapshot.object.spec.quota.as_ref()?;
    let (backend, export) = (&target.backend, &target.export);
    let limit = (attempt.request.bytes, no_order);
    let ordered = order_provisioned(backend, export, settings, (request, directory), limit);
    match ordered.await {
        // A shared directory. Required refuses it before it is recorded.
        Ok(OrderedLimit::Nothing(why)) => {
            if let Err(error) = report_unlimited(attempt.ctx, attempt.claim, why).await {
                tracing::debug!(
                    volume = attempt.volume,
                    "the claim reports later that it has no limit: {error}"
                );
            }
            None
        }
        Ok(OrderedLimit::Ordered(found)) => {
            let condition = unmet(backend, settings, &found)?;
            Some(awaiting(backend, report_in(backend, &attempt.volume), condition))
        }
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
    Ok(match order_volume(backend, export, settings, volume).await? {
        OrderedLimit::Ordered(found) => unmet(backend, settings, &found),
        OrderedLimit::Nothing(NoLimit::Changing) if settings.is_required() => Some(PlannedCondition::fails(
            Reason::LimitPending,
            "the directory is being changed: its limit is ordered afterwards",
        )),
        // It never has one.
        OrderedLimit::Nothing(_) => None,
    })
}

/// Returns the condition of a limit that is required and not in force.
fn unmet(backend: &Backend, settings: &QuotaSettings, found: &LimitReport) -> Option<PlannedCondition> {
    let condition = condition_now(backend, settings, found);
    (settings.is_required() && condition.status != Some(true)).then_some(condition)
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
    let condition = unmet(&backend, settings, &pending.state)?;
    Some(awaiting(&backend, report_in(&backend, volume), condition))
}

/// Returns the time until a claim reports that it waits for its limit.
fn report_in(backend: &Backend, volume: &str) -> Duration {
    let waited = backend.quota.pending(volume).map(|pending| pending.since.elapsed());
    REPORT_AFTER.saturating_sub(waited.unwrap_or_default())
}

fn awaiting(backend: &Backend, report_in: Duration, condition: PlannedCondition) -> ProvisionOutcome {
    ProvisionOutcome::AwaitingLimit {
        condition: PlannedCondition {
            message: format!("backend {}: {}", backend.name, condition.message),
            ..condition
        },
        report_in,
    }
}
