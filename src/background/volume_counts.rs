//! Keeps the numbers of volumes in the status of backends up to date between probes.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;

use crate::state::context::Context;

/// Starts the task. A probe, which writes the status if the number differs, is requested for each backend whose volumes
/// changed: every few seconds while claims are provisioned or volumes are reclaimed, however many there are.
pub fn start(ctx: &Arc<Context>) {
    let context = Arc::clone(ctx);
    let task = async move {
        loop {
            let changed = context.changed_backends.take().await;
            request_probes(&context, &changed);
        }
    };
    tokio::spawn(ctx.watchdog.watch("the numbers of volumes", task));
}

fn request_probes(ctx: &Context, changed: &BTreeSet<String>) {
    for name in changed {
        let object = ctx.stores.backends.get(&ObjectRef::new(name));
        let reported = object.and_then(|object| object.status.as_ref()?.volumes);
        if reported != i64::try_from(ctx.capacity.totals(name).volumes).ok() {
            ctx.request_probe(name);
        }
    }
}
