//! What a reclaim came to: the one place that turns an outcome into event, metric, log line and requeue.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::state::context::Context;
use crate::state::waiting::Moment;

/// The outcome of a call is unknown: looked at again soon.
const UNKNOWN: Duration = Duration::from_secs(2);
/// The backend is not there or not reachable: looked at again after about its probe.
const WAITING: Duration = Duration::from_secs(15);

/// A volume in the queue of a busy backend is woken by it; this catches a bell that was missed.
const QUEUED: Duration = Duration::from_secs(30);

/// What became of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing to do.
    Nothing,
    /// The data is dealt with and the volume object is gone.
    Reclaimed(PlannedCondition),
    /// It changed while it was looked at: its next event tells.
    Changed,
    /// All of its backend's slots for reclaims are in use: the volume is in its queue.
    Queued,
    /// Its record can't be given to its claim now, which nobody waits for.
    Later(PlannedCondition),
    /// The backend can't be reached now; not a failure of this volume.
    Waiting(PlannedCondition),
    /// A call's outcome is unknown: looking tells.
    Unknown(PlannedCondition),
    /// The data stays as it is, and so does the volume.
    Failed(PlannedCondition),
}

/// Tells it, and answers when to look at the volume again.
pub fn report(ctx: &Context, volume: &PersistentVolume, outcome: &Outcome, started: Instant, looked: Moment) -> Action {
    let uid = volume.uid().unwrap_or_default();
    let class = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.clone())
        .unwrap_or_default();
    let ms = started.elapsed().as_millis();
    match outcome {
        Outcome::Nothing | Outcome::Changed => Action::await_change(),
        Outcome::Queued => Action::requeue(jittered(QUEUED)),
        Outcome::Reclaimed(verdict) => {
            ctx.volume_retries.forget(&uid);
            ctx.last_reported.forget(&uid);
            ctx.metrics.volume_reclaimed(&class, started.elapsed());
            event(ctx, volume, Severity::Normal, verdict.reason, &verdict.message);
            tracing::info!(volume = volume.name_any(), ms, reason = %verdict.reason, "{}", verdict.message);
            Action::await_change()
        }
        Outcome::Later(verdict) => {
            tracing::info!(volume = volume.name_any(), reason = %verdict.reason, "{}", verdict.message);
            wait(ctx, volume, looked, jittered(WAITING))
        }
        Outcome::Waiting(verdict) => {
            tell_once(ctx, volume, verdict);
            wait(ctx, volume, looked, jittered(WAITING))
        }
        Outcome::Unknown(verdict) => {
            tracing::warn!(volume = volume.name_any(), ms, reason = %verdict.reason, "{}", verdict.message);
            Action::requeue(jittered(UNKNOWN))
        }
        Outcome::Failed(verdict) => {
            ctx.metrics.volume_failed(&class);
            tell_once(ctx, volume, verdict);
            let waits = ctx.waiting_volumes.add_failing(ObjectRef::from_obj(volume), looked);
            let pause = ctx.volume_retries.failed(&uid);
            Action::requeue(if waits { pause } else { Duration::ZERO })
        }
    }
}

/// Waits for a change of a backend, or for the pause to end.
fn wait(ctx: &Context, volume: &PersistentVolume, looked: Moment, pause: Duration) -> Action {
    let waits = ctx.waiting_volumes.add(ObjectRef::from_obj(volume), looked);
    Action::requeue(if waits { pause } else { Duration::ZERO })
}

/// Sends a warning, unless it was the last thing that was said of this volume.
fn tell_once(ctx: &Context, volume: &PersistentVolume, verdict: &PlannedCondition) {
    tracing::warn!(volume = volume.name_any(), reason = %verdict.reason, "{}", verdict.message);
    if ctx.last_reported.changed(&volume.uid().unwrap_or_default(), verdict) {
        let note = format!("{}: {}", verdict.reason, verdict.message);
        event(ctx, volume, Severity::Warning, Reason::VolumeFailedDelete, &note);
    }
}

/// Sends an event about a volume.
pub fn event(ctx: &Context, volume: &PersistentVolume, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(volume.object_ref(&()), severity, reason, "Reclaim", note);
}
