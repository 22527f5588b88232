//! Purges of expired archives, one at a time.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use rand::RngExt as _;

use super::ops;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::retention;
use crate::runtime::clock;
use crate::runtime::events::Severity;
use crate::runtime::writes::WriteError;
use crate::state::archives::expiry_reason;
use crate::state::backends::Backend;
use crate::state::context::Context;

/// Maximum number of intervals until an archive that gets no slot is retried. Thousands of archives that expire
/// together do not all retry for each slot, and few slots remain unused.
const MAX_RETRY_INTERVALS: u32 = 8;
/// Time until the clocks are compared again after they disagreed; an administrator has to correct them.
const CLOCK_RETRY: Duration = Duration::from_secs(60);

/// Requeues the older archives of the same claim that have expired: an available archive may be the newer one that
/// `keepLast` requires.
pub fn requeue_expired_siblings(ctx: &Context, object: &NfsArchive) {
    let backend = ctx.stores.backends.get(&ObjectRef::new(&object.spec.backend));
    let keeps_last = backend.is_some_and(|backend| backend.spec.archive_policy.keep_last.is_some());
    if !keeps_last || object.is_on_demand() {
        return;
    }
    let now = Timestamp::now();
    for other in ctx.stores.archives.state() {
        let sibling = retention::is_same_claim(&other.spec, &object.spec) && other.uid() != object.uid();
        if sibling && !other.spec.legal_hold && expiry_reason(ctx, &other, now).is_some() {
            ctx.requeue_archive(ObjectRef::from_obj(other.as_ref()));
        }
    }
}

/// Acquires a slot to purge an expired archive, or returns how long to wait.
///
/// A clock that is far ahead must not empty an export: archives of a backend are purged one at a time with an interval in
/// between, which also applies to the first one after a start, and the archive must have expired by the API server's clock
/// too.
pub async fn acquire_purge_slot(
    ctx: &Context,
    backend: &Backend,
    object: &NfsArchive,
) -> Result<Result<(), Duration>, WriteError> {
    let interval = ctx.settings.purge_pause;
    if let Err(left) = backend.acquire_purge_slot(interval) {
        let spread = rand::rng().random_range(0.0..f64::from(MAX_RETRY_INTERVALS));
        return Ok(Err(left + interval.mul_f64(spread)));
    }
    let server_time = clock::api_server_time(&ctx.clients.calls).await?;
    if expiry_reason(ctx, object, server_time).is_some() {
        return Ok(Ok(()));
    }
    let condition = PlannedCondition::fails(
        Reason::ClocksDisagree,
        format!(
            "it has expired by the clock of the operator's node, but not by that of the API server, which is at \
             {server_time}: correct the clocks; nothing is purged until then"
        ),
    );
    tracing::warn!(archive = object.name_any(), reason = %condition.reason, "{}", condition.message);
    if ctx.last_reported.changed(&object.uid().unwrap_or_default(), &condition) {
        ops::publish(ctx, object, Severity::Warning, condition.reason, &condition.message);
    }
    Ok(Err(CLOCK_RETRY))
}
