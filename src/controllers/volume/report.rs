//! Reports the outcome of a volume's reconciliation: event, metric, log line and requeue.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_BACKEND;
use crate::runtime::clock::millis;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::waiting::{Blockers, Epoch};
use crate::state::context::Context;

/// Delay after a call with an unknown outcome.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Delay if the backend does not exist or cannot be reached: about a probe interval.
const WAITING: Duration = Duration::from_secs(15);
/// Time until a queued or just reclaimed volume is checked again. A busy backend wakes the volumes in its queue; this catches
/// a missed wake-up.
const QUEUED: Duration = Duration::from_secs(30);

/// The outcome of a volume's reconciliation.
#[derive(Debug)]
pub enum ReclaimOutcome {
    /// Nothing to do.
    Nothing,
    /// The policy was applied and the volume object is deleted.
    Reclaimed {
        /// What happened to the data.
        condition: PlannedCondition,
        /// True if an event reported why the volume could not be reclaimed before, or if there are warnings.
        had_problem: bool,
    },
    /// The volume changed in the meantime; its next event follows.
    Changed,
    /// This process reclaimed the volume a moment ago: the watch reported it late. It is checked again, because it exists
    /// again if etcd is restored.
    JustReclaimed,
    /// All of its backend's slots for reclaims are in use; the volume is in its queue.
    Queued,
    /// Its record cannot be transferred to its claim now. Nothing waits for that.
    Postponed(PlannedCondition),
    /// The backend cannot be reached now, which is not a failure of this volume.
    Waiting(PlannedCondition),
    /// The outcome of a call is unknown until the volume is checked again.
    Unknown(PlannedCondition),
    /// The data and the volume stay as they are.
    Failed(PlannedCondition),
}

/// Reports the outcome, and returns when to reconcile the volume again.
pub fn report(
    ctx: &Context,
    volume: &PersistentVolume,
    outcome: &ReclaimOutcome,
    started: Instant,
    epoch: Epoch,
) -> Action {
    let uid = volume.uid().unwrap_or_default();
    let class = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.clone())
        .unwrap_or_default();
    let ms = millis(started.elapsed());
    match outcome {
        ReclaimOutcome::Nothing | ReclaimOutcome::Changed => Action::await_change(),
        ReclaimOutcome::Queued | ReclaimOutcome::JustReclaimed => Action::requeue(jittered(QUEUED)),
        ReclaimOutcome::Reclaimed { condition, had_problem } => {
            ctx.volume_retries.reset(&uid);
            ctx.last_reported.forget(&uid);
            ctx.metrics.volume_reclaimed(&class, started.elapsed());
            // Without a problem, the log line is enough: an event for each volume would cost a fifth of its requests, about
            // an object that no longer exists.
            if *had_problem {
                event(ctx, volume, Severity::Normal, condition.reason, &condition.message);
            }
            tracing::info!(volume = volume.name_any(), ms, reason = %condition.reason, "{}", condition.message);
            Action::await_change()
        }
        ReclaimOutcome::Postponed(condition) => {
            if ctx.last_reported.changed(&uid, condition) {
                tracing::info!(volume = volume.name_any(), reason = %condition.reason, "{}", condition.message);
            }
            wait(ctx, volume, epoch, jittered(WAITING))
        }
        // After each start, until the first probe ends.
        ReclaimOutcome::Waiting(condition) if condition.reason.awaits_probe() => {
            tracing::debug!(volume = volume.name_any(), reason = %condition.reason, "{}", condition.message);
            wait(ctx, volume, epoch, jittered(WAITING))
        }
        ReclaimOutcome::Waiting(condition) => {
            warn_once(ctx, volume, condition);
            wait(ctx, volume, epoch, jittered(WAITING))
        }
        ReclaimOutcome::Unknown(condition) => {
            tracing::warn!(volume = volume.name_any(), ms, reason = %condition.reason, "{}", condition.message);
            Action::requeue(jittered(UNKNOWN))
        }
        ReclaimOutcome::Failed(condition) => {
            ctx.metrics.volume_failed(&class);
            warn_once(ctx, volume, condition);
            let waits = ctx
                .waiting_volumes
                .park_failed(ObjectRef::from_obj(volume), backend_of(volume), epoch);
            let pause = ctx.volume_retries.record_failure(&uid);
            Action::requeue(if waits { pause } else { Duration::ZERO })
        }
    }
}

fn backend_of(volume: &PersistentVolume) -> Option<&str> {
    volume.annotations().get(VOLUME_BACKEND).map(String::as_str)
}

/// Waits for a change of the volume's backend, or for the pause to end.
fn wait(ctx: &Context, volume: &PersistentVolume, epoch: Epoch, pause: Duration) -> Action {
    let blockers = Blockers {
        backend: backend_of(volume).map(Into::into),
        ..Blockers::default()
    };
    let waits = ctx.waiting_volumes.add(ObjectRef::from_obj(volume), blockers, epoch);
    Action::requeue(if waits { pause } else { Duration::ZERO })
}

/// Logs and publishes a warning, unless it equals the last one about this volume.
fn warn_once(ctx: &Context, volume: &PersistentVolume, condition: &PlannedCondition) {
    if ctx.last_reported.changed(&volume.uid().unwrap_or_default(), condition) {
        tracing::warn!(volume = volume.name_any(), reason = %condition.reason, "{}", condition.message);
        let note = format!("{}: {}", condition.reason, condition.message);
        event(ctx, volume, Severity::Warning, Reason::VolumeFailedDelete, &note);
    }
}

fn event(ctx: &Context, volume: &PersistentVolume, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(volume.object_ref(&()), severity, reason, "Reclaim", note);
}
