//! Volumes whose objects were lost with their cluster, made again from the records on the export: only when an
//! administrator asks for it, and only from records that this cluster's key signed.
//!
//! Beside the reconciler, as scans are: ten thousand volumes take minutes, and the probe goes on meanwhile.

mod condition;
mod pass;
mod volume;

use std::sync::{Arc, Weak};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};

pub use condition::condition;

use crate::api::names::READOPT;
use crate::api::{NfsBackend, NfsBackendStatus, RecoveryRequest};
use crate::background::next_run::next_run;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::recovery::{BackendRevision, RecoveryOutcome};
use pass::RecoveryPass;

/// A backend that is asked to and not ready, or a pass that was cut off, is looked at again after this long.
const AGAIN: Duration = Duration::from_secs(10);
/// What was left out is looked at again after this long: its cause may be gone.
const LATER: Duration = Duration::from_secs(300);

/// Re-adopts a backend's volumes whenever it is asked to, from now on.
pub(crate) fn begin(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    tokio::spawn(keep_looking(Arc::clone(ctx), Arc::downgrade(backend)));
}

async fn keep_looking(ctx: Arc<Context>, backend: Weak<Backend>) {
    let mut until = Duration::MAX;
    while let Some(backend) = next_run(&ctx.shutdown, &backend, |backend| &backend.recovery.requested, until).await {
        let Some(pause) = ctx.shutdown.run_until_cancelled(look(&ctx, &backend)).await else {
            return;
        };
        until = pause;
    }
}

/// One look, and when the next one is due.
async fn look(ctx: &Context, backend: &Backend) -> Duration {
    let object = ctx.stores.backends.get(&ObjectRef::new(&backend.name));
    let object = object.filter(|object| object.uid().as_ref() == Some(&backend.uid));
    let Some((object, asked)) = object.and_then(|object| Some((Arc::clone(&object), RecoveryRequest::of(&object)?)))
    else {
        backend.recovery.clear();
        return Duration::MAX;
    };
    let known = backend.known();
    let confirmed = known.store.clone().filter(|export| backend.is_recovered_on(export));
    let Some(export) = confirmed else {
        return jittered(AGAIN);
    };
    let pass = RecoveryPass {
        ctx,
        backend,
        object: &object,
        export: &export,
        request: &asked,
        cluster_uid: &ctx.cluster_uid(),
    };
    match pass.run().await {
        Ok(outcome) => {
            end(ctx, backend, &object, outcome);
            jittered(LATER)
        }
        Err(error) => {
            tracing::warn!(backend = backend.name, "volumes are not all made again: {error}");
            backend.recovery.fail(error.to_string());
            ctx.request_probe(&backend.name);
            jittered(AGAIN)
        }
    }
}

/// Tells it, and lets claims go on: those whose volume was left out find that they are meant.
fn end(ctx: &Context, backend: &Backend, object: &NfsBackend, outcome: RecoveryOutcome) {
    let told = condition::result_condition(&outcome);
    if backend.recovery.finish(outcome) {
        let severity = match told.status {
            Some(true) => Severity::Normal,
            _ => Severity::Warning,
        };
        tracing::info!(backend = backend.name, reason = %told.reason, "{}", told.message);
        ctx.events
            .publish(object.object_ref(&()), severity, told.reason, "Readopt", &told.message);
    }
    ctx.request_probe(&backend.name);
    ctx.waiting_claims.wake_all();
}

/// After a probe: asks for a look where there is something to look at, and takes the annotation off when all is done and
/// the backend `said` so. Without the annotation, the condition is what is left to remember it by.
pub(crate) async fn follow(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    said: Option<&NfsBackendStatus>,
) -> Result<(), WriteError> {
    let asked = RecoveryRequest::of(object).is_some();
    let told = said.is_some_and(|status| condition::has_success(&status.conditions));
    match backend.recovery.outcome(&BackendRevision::of(object)) {
        _ if !asked => {
            backend.recovery.clear();
            Ok(())
        }
        // The pass came to its end after the status was put together.
        Some(outcome) if outcome.left_out == 0 && !told => {
            ctx.request_probe(&backend.name);
            Ok(())
        }
        Some(outcome) if outcome.left_out == 0 => {
            let api: Api<NfsBackend> = Api::all(ctx.clients.calls.clone());
            let value = object.annotations().get(READOPT).map_or("", String::as_str);
            writes::remove_annotation(&api, object, READOPT, value).await
        }
        Some(_) => Ok(()),
        None => {
            backend.recovery.requested.notify_one();
            Ok(())
        }
    }
}
