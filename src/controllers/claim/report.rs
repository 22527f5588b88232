//! Reports the outcome of provisioning: condition, event, metric, log line and requeue.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::eligibility::{class_name, source_kind};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{CLAIM_CONDITION, managers, qualified_name};
use crate::runtime::clock::millis;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::waiting::{Blockers, ClaimRef, Epoch, claim_ref};
use crate::runtime::writes::{self, WriteError};
use crate::state::cached_claim::CachedClaim;
use crate::state::claim_condition;
use crate::state::context::Context;
use crate::state::last_written::Cached;

/// Time until a queued claim is checked again. A busy backend wakes the claims in its queue; this catches a missed
/// wake-up.
pub(super) const QUEUED: Duration = Duration::from_secs(30);
/// Time until a waiting claim is checked again. A change of a backend wakes the claims that wait for it; this catches a
/// missed change.
const WAITING: Duration = Duration::from_secs(300);
/// Time until a claim whose source cannot be copied is checked again. Only another source of that name helps.
const UNSUITABLE: Duration = Duration::from_secs(3600);
/// Interval at which a claim's condition shows the progress of its copy, each time with a write, and its source is
/// checked.
const COPYING: Duration = Duration::from_secs(15);
/// Time until a claim is tried again after the server did not answer a call: about a probe interval. If the next probe
/// finds the backend ready, as the one before the call did, nothing else wakes the claim. If it does not, the claim
/// waits for the backend from then on.
const UNANSWERED: Duration = Duration::from_secs(15);
/// Interval at which a claim's condition shows why its limit is not in force yet. The report of the agent wakes it.
pub(super) const AWAITING_LIMIT: Duration = Duration::from_secs(15);
/// Age up to which a claim does not report that it waits for a backend, its probe or the namespace: a claim that is created
/// together with them is provisioned a second later.
const NEW_CLAIM: Duration = Duration::from_secs(5);
/// Delay after a call with an unknown outcome. The capacity stays reserved meanwhile.
const UNKNOWN: Duration = Duration::from_secs(2);

/// The outcome of an attempt to provision a claim.
#[derive(Debug)]
pub enum ProvisionOutcome {
    /// Nothing to do.
    Nothing,
    /// The claim has its volume.
    Provisioned {
        /// The condition, with the location of the data.
        condition: PlannedCondition,
        /// True if this attempt created the volume.
        created_now: bool,
    },
    /// All slots of a backend are in use; the claim is in its queue.
    Queued,
    /// No backend can serve it now, which is not a failure.
    Waiting(PlannedCondition, Box<Blockers<ClaimRef>>),
    /// No backend can serve it now, and the next probe of a backend may change that: it is late, or the first one.
    AwaitingProbe(PlannedCondition),
    /// The watch has not delivered its namespace yet.
    AwaitingNamespace(PlannedCondition),
    /// The server did not answer a call that changes nothing.
    Unanswered(PlannedCondition),
    /// Its volume is being copied, and the end of the copy wakes it.
    Copying(PlannedCondition),
    /// Its directory exists, and the limit of its size is not in force yet.
    AwaitingLimit {
        /// The condition.
        condition: PlannedCondition,
        /// Time until it is reported, unless the limit is in force then.
        report_in: Duration,
    },
    /// The source of its data is not ready.
    AwaitingSource {
        /// The condition.
        condition: PlannedCondition,
        /// The claim to copy, if it is not bound yet.
        source: Option<ClaimRef>,
    },
    /// The data to copy are not there, which is no failure: a user removed them, or they are in a snapshot that does not
    /// exist, and may be taken later.
    DataMissing(PlannedCondition),
    /// No backend serves its selected node, which is released after a pause.
    WrongNode {
        /// The condition.
        condition: PlannedCondition,
        /// The node.
        node: String,
        /// The remaining pause.
        pause: Duration,
    },
    /// Its selected node was released; the scheduler selects another one.
    Rescheduled(PlannedCondition),
    /// The outcome of a call is unknown until the claim is checked again.
    Unknown(PlannedCondition),
    /// It failed, and may succeed later.
    Failed(PlannedCondition),
    /// It cannot succeed until a user changes something.
    Infeasible(PlannedCondition),
    /// The claim is deleted.
    ClaimDeleted,
}

impl ProvisionOutcome {
    /// Returns the condition to report if the outcome is that of a check that changed nothing and can be repeated at any
    /// time.
    fn repeatable_condition(&self) -> Option<&PlannedCondition> {
        match self {
            Self::Waiting(condition, _)
            | Self::AwaitingProbe(condition)
            | Self::AwaitingNamespace(condition)
            | Self::Unanswered(condition)
            | Self::AwaitingSource { condition, .. }
            | Self::WrongNode { condition, .. }
            | Self::Infeasible(condition) => Some(condition),
            Self::Nothing
            | Self::Provisioned { .. }
            | Self::Queued
            | Self::Copying(_)
            | Self::AwaitingLimit { .. }
            | Self::DataMissing(_)
            | Self::Rescheduled(_)
            | Self::Unknown(_)
            | Self::Failed(_)
            | Self::ClaimDeleted => None,
        }
    }

    /// Returns the condition of an outcome that is tried again, and logged once.
    fn problem(&self) -> Option<&PlannedCondition> {
        match self {
            Self::DataMissing(condition) | Self::Failed(condition) => Some(condition),
            _ => None,
        }
    }
}

/// What is left to do after an outcome was applied.
enum FollowUp {
    /// Nothing is reported.
    Reconcile(Action),
    /// The condition is reported first.
    Report(PlannedCondition, Action),
}

/// Reports the outcome, and returns when to reconcile the claim again.
pub async fn report(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    outcome: ProvisionOutcome,
    started: Instant,
    epoch: Epoch,
) -> Result<Action, WriteError> {
    let elapsed = started.elapsed();
    let created_now = match outcome {
        ProvisionOutcome::Provisioned { created_now, .. } => Some(created_now),
        _ => None,
    };
    let repeatable = outcome.repeatable_condition();
    let is_repeated = repeatable.is_some_and(|condition| is_written(ctx, claim, condition));
    let must_queue = repeatable.is_some();
    let is_known = outcome
        .problem()
        .is_some_and(|condition| is_written(ctx, claim, condition));
    if !is_repeated && !is_known {
        log(&qualified_name(claim), &outcome, elapsed);
    }
    let (condition, action) = match apply(ctx, claim, outcome, elapsed, epoch) {
        FollowUp::Reconcile(action) => return Ok(action),
        FollowUp::Report(_, action) if is_repeated => return Ok(action),
        FollowUp::Report(condition, action) => (condition, action),
    };
    let _slot = match must_queue.then(|| ctx.report_slot(claim)) {
        Some(None) => return Ok(Action::requeue(jittered(QUEUED))),
        Some(slot) => slot,
        // The number of such writes is limited otherwise.
        None => None,
    };
    let if_unchanged = created_now == Some(false);
    match write_condition(ctx, claim, &condition, if_unchanged).await {
        Err(WriteError::Conflict) if if_unchanged => {
            // Nothing was written. A change of the condition alone does not cause a reconciliation.
            ctx.last_written.forget(&claim.uid().unwrap_or_default());
            return Ok(Action::requeue(jittered(writes::AFTER_CONFLICT)));
        }
        written => written?,
    }
    // Without a problem before, the condition is enough: an event for each claim would cost a third of its requests.
    let had_problem =
        is_reported_waiting(claim) || (created_now == Some(true) && provisioned_condition(claim).is_some());
    if created_now.is_some() && had_problem {
        let reason = Reason::ProvisioningSucceeded;
        event(ctx, claim, Severity::Normal, reason, &condition.message);
    }
    Ok(action)
}

/// Counts the outcome, and lets the claim wait for what it needs. Returns what is left to do.
fn apply(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    outcome: ProvisionOutcome,
    elapsed: Duration,
    epoch: Epoch,
) -> FollowUp {
    let uid = claim.uid().unwrap_or_default();
    match outcome {
        ProvisionOutcome::Nothing | ProvisionOutcome::ClaimDeleted => {
            ctx.claim_retries.reset(&uid);
            ctx.waiting_claims.forget(&ObjectRef::from_obj(claim));
            FollowUp::Reconcile(Action::await_change())
        }
        ProvisionOutcome::Queued => FollowUp::Reconcile(Action::requeue(jittered(QUEUED))),
        ProvisionOutcome::Provisioned { condition, created_now } => {
            ctx.claim_retries.reset(&uid);
            ctx.reschedules.forget(&uid);
            ctx.waiting_claims.forget(&ObjectRef::from_obj(claim));
            if created_now {
                let class = class_name(claim).unwrap_or_default();
                ctx.metrics.claim_provisioned(&class, source_kind(claim), elapsed);
            }
            FollowUp::Report(condition, Action::await_change())
        }
        ProvisionOutcome::Waiting(condition, blockers) => {
            // Of objects that are created together, the claim may be watched first.
            if condition.reason == Reason::BackendNotFound
                && let Some(report_in) = until_not_new(claim, ctx.clock.now())
            {
                return FollowUp::Reconcile(wait(ctx, claim, epoch, *blockers, Action::requeue(report_in)));
            }
            let action = wait(ctx, claim, epoch, *blockers, Action::requeue(jittered(WAITING)));
            FollowUp::Report(condition, action)
        }
        ProvisionOutcome::AwaitingSource { condition, source } => {
            let blockers = Blockers {
                source,
                ..Blockers::default()
            };
            // A user has to replace the source, and tenants can create any number of such claims.
            let pause = match condition.reason {
                Reason::CopySourceUnsuitable => UNSUITABLE,
                _ => WAITING,
            };
            let action = wait(ctx, claim, epoch, blockers, Action::requeue(jittered(pause)));
            FollowUp::Report(condition, action)
        }
        ProvisionOutcome::AwaitingProbe(condition) => {
            let blockers = Blockers {
                probe: true,
                ..Blockers::default()
            };
            // A missing probe is not reported in addition, because it does not help the reader. Probes are late under load
            // and after a start, and the report would cost two writes for each waiting claim, one now and one after the
            // probe.
            if is_reported_waiting(claim) {
                return FollowUp::Reconcile(wait(ctx, claim, epoch, blockers, Action::requeue(jittered(WAITING))));
            }
            if let Some(report_in) = until_not_new(claim, ctx.clock.now()) {
                return FollowUp::Reconcile(wait(ctx, claim, epoch, blockers, Action::requeue(report_in)));
            }
            let action = wait(ctx, claim, epoch, blockers, Action::requeue(jittered(WAITING)));
            FollowUp::Report(condition, action)
        }
        ProvisionOutcome::AwaitingNamespace(condition) => {
            let action = Action::requeue(jittered(UNKNOWN));
            if until_not_new(claim, ctx.clock.now()).is_some() {
                return FollowUp::Reconcile(action);
            }
            FollowUp::Report(condition, action)
        }
        ProvisionOutcome::Unanswered(condition) => {
            let action = Action::requeue(jittered(UNANSWERED));
            FollowUp::Report(condition, wait(ctx, claim, epoch, Blockers::default(), action))
        }
        ProvisionOutcome::Copying(condition) => FollowUp::Report(condition, Action::requeue(jittered(COPYING))),
        ProvisionOutcome::AwaitingLimit { report_in, .. } if !report_in.is_zero() => {
            FollowUp::Reconcile(Action::requeue(report_in))
        }
        ProvisionOutcome::AwaitingLimit { condition, .. } => {
            FollowUp::Report(condition, Action::requeue(jittered(AWAITING_LIMIT)))
        }
        ProvisionOutcome::WrongNode { condition, node, pause } => {
            let blockers = Blockers {
                node: Some(node),
                ..Blockers::default()
            };
            FollowUp::Report(condition, wait(ctx, claim, epoch, blockers, Action::requeue(pause)))
        }
        // The same node may be selected again while the watch is disconnected. Then no event follows.
        ProvisionOutcome::Rescheduled(condition) => FollowUp::Report(condition, Action::requeue(jittered(WAITING))),
        ProvisionOutcome::Unknown(condition) => FollowUp::Report(condition, Action::requeue(jittered(UNKNOWN))),
        ProvisionOutcome::DataMissing(condition) => FollowUp::Report(condition, retry(ctx, claim, epoch)),
        ProvisionOutcome::Failed(condition) => {
            let class = class_name(claim).unwrap_or_default();
            ctx.metrics.claim_failed(&class, source_kind(claim));
            FollowUp::Report(condition, retry(ctx, claim, epoch))
        }
        ProvisionOutcome::Infeasible(condition) => FollowUp::Report(
            condition,
            wait(ctx, claim, epoch, Blockers::default(), Action::await_change()),
        ),
    }
}

/// Returns true if the claim's condition shows that it waits.
pub(super) fn is_reported_waiting(claim: &PersistentVolumeClaim) -> bool {
    provisioned_condition(claim).is_some_and(|condition| condition.status != "True")
}

/// Returns the time until a claim is older than [`NEW_CLAIM`], if it is not yet. Whatever the clocks of the API server and
/// of this machine show, that is at most [`NEW_CLAIM`].
fn until_not_new(claim: &PersistentVolumeClaim, now: Timestamp) -> Option<Duration> {
    let created = claim.creation_timestamp()?.0;
    let age = Duration::try_from(now.duration_since(created)).unwrap_or_default();
    NEW_CLAIM.checked_sub(age).filter(|left| !left.is_zero())
}

/// Waits for a change of a backend, of a class or of the blockers, or until the delay of the action has passed. Requeues
/// at once if there was a change since `epoch`.
fn wait(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    epoch: Epoch,
    blockers: Blockers<ClaimRef>,
    action: Action,
) -> Action {
    let waits = ctx.waiting_claims.add(claim_ref(claim), blockers, epoch);
    if waits { action } else { Action::requeue(Duration::ZERO) }
}

/// Retries after a pause that doubles each time. Requeues at once if there was a change since `epoch` that may unblock what
/// failed.
fn retry(ctx: &Context, claim: &PersistentVolumeClaim, epoch: Epoch) -> Action {
    let waits = ctx.waiting_claims.park_failed(claim_ref(claim), None, epoch);
    let pause = ctx.claim_retries.record_failure(&claim.uid().unwrap_or_default());
    Action::requeue(if waits { pause } else { Duration::ZERO })
}

/// Sets the condition, then publishes an event, unless the claim already has this condition.
///
/// With `if_unchanged`, it is set only if the claim is as it was read: the process that created the volume may have set
/// a better one, which the watch has not delivered yet. Otherwise, the error is [`WriteError::Conflict`].
async fn write_condition(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    planned: &PlannedCondition,
    if_unchanged: bool,
) -> Result<(), WriteError> {
    let previous = provisioned_condition(claim);
    let status = status_text(planned);
    let message = planned.message.clone();
    let reason = planned.reason.to_string();
    let same_reason =
        previous.is_some_and(|previous| previous.status == status && previous.reason.as_deref() == Some(&reason));
    let (cached, state) = (cached_state(claim), planned_state(planned));
    let since = previous
        .filter(|previous| previous.status == status)
        .and_then(|previous| previous.last_transition_time.clone())
        .unwrap_or_else(|| Time(ctx.clock.now()));
    let condition = PersistentVolumeClaimCondition {
        type_: CLAIM_CONDITION.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.clone()),
        message: Some(message.clone()),
        last_transition_time: Some(since),
        last_probe_time: Some(Time(ctx.clock.now())),
    };
    let uid = claim.uid().unwrap_or_default();
    let write_and_publish = async {
        match if_unchanged {
            true => {
                claim_condition::set_if_unchanged(&ctx.clients.calls, claim, managers::CONDITION, &condition).await?
            }
            false => claim_condition::set(&ctx.clients.calls, claim, managers::CONDITION, &condition).await?,
        }
        // After the write: a write that fails is retried, and each retry would publish the event again.
        if !same_reason && (planned.reason == Reason::Copying || planned.reason.awaits_probe()) {
            event(ctx, claim, Severity::Normal, planned.reason, &planned.message);
        } else if !same_reason && planned.status != Some(true) {
            let note = format!("{}: {}", planned.reason, planned.message);
            event(ctx, claim, Severity::Warning, Reason::ProvisioningFailed, &note);
        }
        Ok(())
    };
    let last_written = &ctx.last_written;
    last_written
        .write_unless_current(
            &Cached::new(claim.meta(), managers::CONDITION, cached.as_ref()),
            &state,
            write_and_publish,
        )
        .await?;
    if planned.status == Some(true) {
        // The claim has its volume, so no other status follows.
        last_written.forget(&uid);
    }
    Ok(())
}

/// What is compared to find out if a condition changed: status, reason and message.
type ConditionState = (String, Option<String>, Option<String>);

fn cached_state(claim: &PersistentVolumeClaim) -> Option<ConditionState> {
    let condition = provisioned_condition(claim)?;
    Some((
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ))
}

fn planned_state(planned: &PlannedCondition) -> ConditionState {
    (
        status_text(planned).to_owned(),
        Some(planned.reason.to_string()),
        Some(planned.message.clone()),
    )
}

fn status_text(planned: &PlannedCondition) -> &'static str {
    if planned.status == Some(true) { "True" } else { "False" }
}

/// Returns true if the claim already has this condition.
fn is_written(ctx: &Context, claim: &PersistentVolumeClaim, planned: &PlannedCondition) -> bool {
    let cached = cached_state(claim);
    ctx.last_written.is_current(
        &Cached::new(claim.meta(), managers::CONDITION, cached.as_ref()),
        &planned_state(planned),
    )
}

/// Returns the operator's condition on a claim.
pub fn provisioned_condition(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    claim_condition::find(claim, CLAIM_CONDITION)
}

/// Counts the claims whose condition shows that they have no volume, by reason.
pub fn waiting_by_reason<'a>(claims: impl IntoIterator<Item = &'a CachedClaim>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for reason in claims.into_iter().filter_map(CachedClaim::waiting_reason) {
        *counts.entry(reason.to_string()).or_default() += 1;
    }
    counts
}

/// Publishes an event about a claim.
pub fn event(ctx: &Context, claim: &PersistentVolumeClaim, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(claim.object_ref(&()), severity, reason, "Provision", note);
}

fn log(claim: &str, outcome: &ProvisionOutcome, elapsed: Duration) {
    let ms = millis(elapsed);
    match outcome {
        ProvisionOutcome::Provisioned {
            condition,
            created_now: true,
        } => {
            tracing::info!(claim, ms, reason = %condition.reason, "{}", condition.message)
        }
        ProvisionOutcome::Nothing
        | ProvisionOutcome::Queued
        | ProvisionOutcome::ClaimDeleted
        | ProvisionOutcome::Provisioned { .. } => {
            tracing::debug!(claim, ms, ?outcome);
        }
        ProvisionOutcome::Copying(condition)
        | ProvisionOutcome::AwaitingProbe(condition)
        | ProvisionOutcome::AwaitingNamespace(condition)
        | ProvisionOutcome::AwaitingLimit { condition, .. } => {
            tracing::debug!(claim, ms, "{}", condition.message)
        }
        ProvisionOutcome::Waiting(condition, _)
        | ProvisionOutcome::Unanswered(condition)
        | ProvisionOutcome::AwaitingSource { condition, .. }
        | ProvisionOutcome::DataMissing(condition)
        | ProvisionOutcome::WrongNode { condition, .. }
        | ProvisionOutcome::Rescheduled(condition) => {
            tracing::info!(claim, ms, reason = %condition.reason, "waiting: {}", condition.message)
        }
        ProvisionOutcome::Unknown(condition)
        | ProvisionOutcome::Failed(condition)
        | ProvisionOutcome::Infeasible(condition) => {
            tracing::warn!(claim, ms, reason = %condition.reason, "{}", condition.message);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_that_already_reports_why_it_waits_does_not_report_a_late_probe() {
        let waiting = |conditions: serde_json::Value| {
            let claim = json!({"metadata": {"name": "data"}, "status": {"conditions": conditions}});
            is_reported_waiting(&serde_json::from_value(claim).unwrap())
        };
        let provisioned = |status: &str| json!([{"type": "nfs-operator.io/Provisioned", "status": status}]);
        assert!(waiting(provisioned("False")));
        assert!(!waiting(json!([])), "a new claim reports why it waits");
        assert!(!waiting(provisioned("True")), "its volume was lost");
        assert!(
            !waiting(json!([{"type": "Resizing", "status": "False"}])),
            "another condition"
        );
    }

    #[test]
    fn only_a_new_claim_waits_silently_for_a_probe_whatever_the_clocks_show() {
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let claim = json!({"metadata": {"name": "data", "creationTimestamp": created.to_string()}});
        let claim = serde_json::from_value(claim).unwrap();
        let silent = |now: &str| until_not_new(&claim, now.parse().unwrap());
        assert_eq!(silent("2026-01-01T00:00:02Z"), Some(Duration::from_secs(3)));
        assert_eq!(silent("2026-01-01T00:00:05Z"), None);
        assert_eq!(silent("2026-01-02T00:00:00Z"), None);
        assert_eq!(silent("2025-12-31T00:00:00Z"), Some(NEW_CLAIM), "its clock is ahead");
    }
}
