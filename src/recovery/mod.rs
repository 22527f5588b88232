//! Recreates volumes whose objects were lost with their cluster, from the records on the export: only if an administrator
//! requests it, and only from records that this cluster's key signed.
//!
//! Runs concurrently with the reconciler: ten thousand volumes take minutes, and probes continue meanwhile.

mod condition;
mod pass;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

pub use condition::condition;

use crate::api::requests::BackendRequest;
use crate::api::{NfsBackend, RecoveryRequest};
use crate::background::runner::{self, BackendTask};
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::recovery::{BackendRevision, RecoveryOutcome};
use pass::RecoveryPass;

/// Time until the next attempt if the backend is not ready or a pass was interrupted.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Time until the next pass if volumes were left out: the causes may be resolved by then.
const LEFT_OUT_INTERVAL: Duration = Duration::from_secs(300);

/// Starts the recovery of a backend's volumes, which runs whenever it is requested.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    runner::spawn(ctx, backend, Recovery, Duration::MAX);
}

struct Recovery;

impl BackendTask for Recovery {
    const INTERRUPTIBLE: bool = true;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.recovery.requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let object = ctx.stores.backends.get(&ObjectRef::new(&backend.name));
        let object = object.filter(|object| object.uid().as_ref() == Some(&backend.uid));
        let Some((object, request)) =
            object.and_then(|object| Some((Arc::clone(&object), RecoveryRequest::of(&object)?)))
        else {
            backend.recovery.clear();
            return Duration::MAX;
        };
        let known = backend.last_probe();
        let confirmed = known.store.clone().filter(|export| backend.is_recovered_on(export));
        let Some(export) = confirmed else {
            return jittered(RETRY_INTERVAL);
        };
        let pass = RecoveryPass {
            ctx,
            backend,
            object: &object,
            export: &export,
            request: &request,
            cluster_uid: &ctx.cluster_uid(),
        };
        match pass.run().await {
            Ok(outcome) => {
                complete(ctx, backend, &object, &outcome);
                publish(ctx, backend, &object, outcome);
                jittered(LEFT_OUT_INTERVAL)
            }
            Err(error) => {
                tracing::warn!(
                    backend = backend.name,
                    "the recovery of volumes was interrupted: {error}"
                );
                backend.recovery.fail(error.to_string());
                ctx.request_probe(&backend.name);
                jittered(RETRY_INTERVAL)
            }
        }
    }
}

/// Records the requests on a backend that are handled: all volumes that they ask for exist.
fn complete(ctx: &Context, backend: &Backend, object: &NfsBackend, outcome: &RecoveryOutcome) {
    for (request, skipped) in [
        (BackendRequest::Readopt, outcome.skipped),
        (BackendRequest::ReadoptVolumes, outcome.skipped_named),
    ] {
        if let Some(value) = backend.requests.due(object, request).filter(|_| skipped == 0) {
            backend.requests.complete(request, value, ctx.clock.now());
        }
    }
}

/// Publishes the outcome of a pass, and wakes the waiting claims: those of left-out volumes then report the reason.
fn publish(ctx: &Context, backend: &Backend, object: &NfsBackend, outcome: RecoveryOutcome) {
    if let Some(outcome) = backend.recovery.finish(outcome) {
        let result = condition::result_condition(&outcome);
        let severity = match result.status {
            Some(true) => Severity::Normal,
            _ => Severity::Warning,
        };
        tracing::info!(backend = backend.name, reason = %result.reason, "{}", result.message);
        ctx.events.publish(
            object.object_ref(&()),
            severity,
            result.reason,
            "Readopt",
            &result.message,
        );
    }
    ctx.request_probe(&backend.name);
    ctx.waiting_claims.wake_all();
}

/// Requests a pass if one is due. Called after each probe.
pub fn after_probe(object: &NfsBackend, backend: &Backend) {
    if RecoveryRequest::of(object).is_none() {
        backend.recovery.clear();
    } else if backend.recovery.outcome(&BackendRevision::of(object)).is_none() {
        backend.recovery.requested.notify_one();
    }
}
