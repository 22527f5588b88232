//! What a claim is told: the one place that turns an outcome into condition, event, metric, log line and requeue.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::guard::class_name;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{CLAIM_CONDITION, managers};
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::waiting::Epoch;

/// A claim in the queue of a busy backend is woken by it; this catches a bell that was missed.
const QUEUED: Duration = Duration::from_secs(30);
/// A claim that waits for a backend is woken by its change; this catches a change that was missed.
const WAITING: Duration = Duration::from_secs(300);
/// How often a claim is told how far its copy is, each time with a write, and looks whether its source is there.
const COPYING: Duration = Duration::from_secs(15);
/// The outcome of a call is unknown: looked at again soon, the room is held meanwhile.
const UNKNOWN: Duration = Duration::from_secs(2);
/// A condition's message changes with every figure in it; the first kilobytes are enough for a person.
const LONGEST_MESSAGE: usize = 4096;

/// What became of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing to do.
    Nothing,
    /// It has its volume: the condition says where its data is.
    Provisioned {
        /// The condition.
        verdict: PlannedCondition,
        /// Whether this attempt made it.
        now: bool,
    },
    /// All of a backend's slots are in use: the claim is in its queue.
    Queued,
    /// No backend can serve it now; not a failure.
    Waiting(PlannedCondition),
    /// The same, and the next probe of a backend, which is late, may say otherwise: the claim waits for that one.
    Doubtful(PlannedCondition),
    /// Its volume is being copied, and the end of that wakes it; or what it is a copy of is not there yet.
    Copying(PlannedCondition),
    /// No backend serves its selected node, which is given back after a pause.
    WrongNode {
        /// The condition.
        verdict: PlannedCondition,
        /// Until then.
        pause: Duration,
    },
    /// Its selected node was given back: the scheduler goes on.
    Rescheduled(PlannedCondition),
    /// A call's outcome is unknown: looking tells.
    Unknown(PlannedCondition),
    /// It failed, and may succeed later.
    Failed(PlannedCondition),
    /// It cannot succeed until somebody changes something.
    Infeasible(PlannedCondition),
    /// The claim is gone.
    Gone,
}

/// Tells it, and answers when to look at the claim again.
pub async fn report(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    outcome: Outcome,
    started: Instant,
    looked: Epoch,
) -> Result<Action, WriteError> {
    let uid = claim.uid().unwrap_or_default();
    let took = started.elapsed();
    let as_seen = matches!(outcome, Outcome::Provisioned { now: false, .. });
    log(&ObjectRef::from_obj(claim), &outcome, took);
    let (verdict, action) = match outcome {
        Outcome::Nothing | Outcome::Gone => {
            ctx.claim_retries.forget(&uid);
            return Ok(Action::await_change());
        }
        Outcome::Queued => return Ok(Action::requeue(jittered(QUEUED))),
        Outcome::Provisioned { verdict, now } => {
            ctx.claim_retries.forget(&uid);
            ctx.reschedules.forget(&uid);
            if now {
                ctx.metrics
                    .claim_provisioned(&class_name(claim).unwrap_or_default(), took);
                event(
                    ctx,
                    claim,
                    Severity::Normal,
                    Reason::ProvisioningSucceeded,
                    &verdict.message,
                );
            }
            (verdict, Action::await_change())
        }
        Outcome::Waiting(verdict) => (verdict, wait(ctx, claim, looked, Action::requeue(jittered(WAITING)))),
        Outcome::Doubtful(verdict) => {
            let action = wait(ctx, claim, looked, Action::requeue(jittered(WAITING)));
            if told_to_wait(claim) {
                return Ok(action);
            }
            (verdict, action)
        }
        Outcome::Copying(verdict) => (verdict, Action::requeue(jittered(COPYING))),
        Outcome::WrongNode { verdict, pause } => (verdict, wait(ctx, claim, looked, Action::requeue(pause))),
        // The same node may be selected again while the watch is broken off, and then nothing tells of it.
        Outcome::Rescheduled(verdict) => (verdict, Action::requeue(jittered(WAITING))),
        Outcome::Unknown(verdict) => (verdict, Action::requeue(jittered(UNKNOWN))),
        Outcome::Failed(verdict) => {
            ctx.metrics.claim_failed(&class_name(claim).unwrap_or_default());
            let waits = ctx.waiting_claims.park_failed(ObjectRef::from_obj(claim), looked);
            let pause = ctx.claim_retries.failed(&uid);
            (verdict, Action::requeue(if waits { pause } else { Duration::ZERO }))
        }
        Outcome::Infeasible(verdict) => (verdict, wait(ctx, claim, looked, Action::await_change())),
    };
    tell(ctx, claim, &verdict, as_seen).await?;
    Ok(action)
}

/// Whether the claim says that it waits, and for what. That a probe is late as well says nothing that would help, and it is
/// late when there is too much to do already: a write to each claim that waits, and another one after the probe.
fn told_to_wait(claim: &PersistentVolumeClaim) -> bool {
    condition(claim).is_some_and(|told| told.status != "True")
}

/// Waits for a change of a backend or a class, or for the action's time; looks again at once if one came meanwhile.
fn wait(ctx: &Context, claim: &PersistentVolumeClaim, looked: Epoch, action: Action) -> Action {
    let waits = ctx.waiting_claims.add(ObjectRef::from_obj(claim), looked);
    if waits { action } else { Action::requeue(Duration::ZERO) }
}

/// Sets the condition, with an event, if it isn't so already. `as_seen`: only if the claim is still as it was read. Who made
/// the volume may have said it already, and better, and the watch be late; the change is about to come, and is looked at.
async fn tell(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    verdict: &PlannedCondition,
    as_seen: bool,
) -> Result<(), WriteError> {
    let former = condition(claim);
    let status = if verdict.status == Some(true) { "True" } else { "False" };
    let message: String = verdict.message.chars().take(LONGEST_MESSAGE).collect();
    let reason = verdict.reason.to_string();
    let same_reason = former.is_some_and(|former| former.status == status && former.reason.as_deref() == Some(&reason));
    if same_reason && former.and_then(|former| former.message.as_deref()) == Some(&message) {
        return Ok(());
    }
    if verdict.reason == Reason::Copying && !same_reason {
        event(ctx, claim, Severity::Normal, Reason::Copying, &message);
    } else if verdict.status != Some(true) && !same_reason {
        event(
            ctx,
            claim,
            Severity::Warning,
            Reason::ProvisioningFailed,
            &format!("{reason}: {message}"),
        );
    }
    let since = former
        .filter(|former| former.status == status)
        .and_then(|former| former.last_transition_time.clone())
        .unwrap_or_else(|| Time(Timestamp::now()));
    let condition = PersistentVolumeClaimCondition {
        type_: CLAIM_CONDITION.to_owned(),
        status: status.to_owned(),
        reason: Some(reason),
        message: Some(message),
        last_transition_time: Some(since),
        last_probe_time: Some(Time(Timestamp::now())),
    };
    let api = Api::namespaced(ctx.clients.calls.clone(), &claim.namespace().unwrap_or_default());
    write(&api, claim, &condition, as_seen).await
}

/// Writes the condition; done when the claim is gone, or should be as seen and is not.
async fn write(
    api: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    condition: &PersistentVolumeClaimCondition,
    as_seen: bool,
) -> Result<(), WriteError> {
    let mut fields = json!({"status": {"conditions": [condition]}});
    if as_seen {
        writes::merge(
            &mut fields,
            json!({"metadata": {"resourceVersion": claim.resource_version()}}),
        );
    }
    let action = "set the claim's condition";
    match writes::apply(api, claim, managers::CONDITION, fields, true, action).await {
        Err(WriteError::NotFound) => Ok(()),
        written => written,
    }
}

/// Our condition on a claim.
pub fn condition(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimCondition> {
    claim
        .status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == CLAIM_CONDITION)
}

/// How many of these claims are told that they have no volume, by reason.
pub fn waiting<'a>(claims: impl IntoIterator<Item = &'a PersistentVolumeClaim>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for reason in claims.into_iter().filter_map(waits_for) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

fn waits_for(claim: &PersistentVolumeClaim) -> Option<String> {
    let told = condition(claim).filter(|told| told.status != "True")?;
    told.reason.clone()
}

/// Sends an event about a claim.
pub fn event(ctx: &Context, claim: &PersistentVolumeClaim, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(claim.object_ref(&()), severity, reason, "Provision", note);
}

fn log(claim: &ObjectRef<PersistentVolumeClaim>, outcome: &Outcome, took: Duration) {
    let ms = took.as_millis();
    match outcome {
        Outcome::Provisioned { verdict, now: true } => {
            tracing::info!(%claim, ms, reason = %verdict.reason, "{}", verdict.message)
        }
        Outcome::Nothing | Outcome::Queued | Outcome::Gone | Outcome::Provisioned { .. } => {
            tracing::debug!(%claim, ms, ?outcome);
        }
        Outcome::Copying(verdict) | Outcome::Doubtful(verdict) => tracing::debug!(%claim, ms, "{}", verdict.message),
        Outcome::Waiting(verdict) | Outcome::WrongNode { verdict, .. } | Outcome::Rescheduled(verdict) => {
            tracing::info!(%claim, ms, reason = %verdict.reason, "waiting: {}", verdict.message)
        }
        Outcome::Unknown(verdict) | Outcome::Failed(verdict) | Outcome::Infeasible(verdict) => {
            tracing::warn!(%claim, ms, reason = %verdict.reason, "{}", verdict.message);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    use super::*;

    #[test]
    fn a_claim_that_says_already_what_it_waits_for_is_not_told_that_a_probe_is_late() {
        let told = |conditions: serde_json::Value| {
            let claim = json!({"metadata": {"name": "data"}, "status": {"conditions": conditions}});
            told_to_wait(&serde_json::from_value(claim).unwrap())
        };
        let says = |status: &str| json!([{"type": "nfs-operator.io/Provisioned", "status": status}]);
        assert!(told(says("False")));
        assert!(!told(json!([])), "a new claim hears why it waits");
        assert!(!told(says("True")), "its volume went");
        assert!(
            !told(json!([{"type": "Resizing", "status": "False"}])),
            "another condition"
        );
    }

    /// The API server refuses a write that names a version which the claim no longer has.
    #[tokio::test]
    async fn what_is_said_anew_of_a_volume_gives_way_to_whatever_was_said_meanwhile() {
        let written = Arc::new(Mutex::new(Vec::<Value>::new()));
        let heard = Arc::clone(&written);
        let service = service_fn(move |request: Request<Body>| {
            let heard = Arc::clone(&heard);
            async move {
                let body = request.into_body().collect_bytes().await?;
                heard.lock().unwrap().push(serde_json::from_slice(&body)?);
                let conflict = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Conflict", "message": "the object has been modified", "code": 409});
                let answer = Body::from(conflict.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(409).body(answer)?)
            }
        });
        let api = Api::namespaced(Client::new(service, "team"), "team");
        let seen = json!({"metadata": {"name": "data", "namespace": "team", "uid": "u", "resourceVersion": "7"}});
        let claim: PersistentVolumeClaim = serde_json::from_value(seen).unwrap();
        for as_seen in [true, false] {
            let condition = PersistentVolumeClaimCondition::default();
            write(&api, &claim, &condition, as_seen).await.unwrap();
        }
        let written = written.lock().unwrap();
        let versions: Vec<_> = written
            .iter()
            .map(|body| &body["metadata"]["resourceVersion"])
            .collect();
        assert_eq!(versions, [&json!("7"), &Value::Null]);
    }
}
