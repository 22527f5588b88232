//! Archives whose time is over, and the turns that their purges take.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use rand::RngExt as _;

use super::act;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::policy::retention;
use crate::runtime::clock;
use crate::runtime::events::Severity;
use crate::runtime::writes::WriteError;
use crate::state::archives::expiry_reason;
use crate::state::backends::Backend;
use crate::state::context::Context;

/// Who finds no turn comes back after so many pauses at most: thousands that expired together are not all there at each
/// turn, and the next turn is not missed for long.
const SPREAD: u32 = 8;
/// Clocks that disagree are an administrator's to set right.
const DISAGREED: Duration = Duration::from_secs(60);

/// An archive that is good may be the one too many for older ones of its claim: they are looked at.
pub fn call_older(ctx: &Context, object: &NfsArchive) {
    let backend = ctx.stores.backends.get(&ObjectRef::new(&object.spec.backend));
    let counts = backend.is_some_and(|backend| backend.spec.archive_policy.keep_last.is_some());
    if !counts || object.is_on_demand() {
        return;
    }
    let now = Timestamp::now();
    for other in ctx.stores.archives.state() {
        let older = retention::is_of_the_same_claim(&other.spec, &object.spec) && other.uid() != object.uid();
        if older && !other.spec.legal_hold && expiry_reason(ctx, &other, now).is_some() {
            ctx.requeue_archive(ObjectRef::from_obj(other.as_ref()));
        }
    }
}

/// Whether it is this archive's turn to be purged because its time is over; else how long to wait.
///
/// A clock that is far ahead must not empty an export: one archive of a backend goes at a time, with a pause before the
/// next, which the first one after a start keeps too; and the API server's clock has to say the same as ours.
pub async fn turn(ctx: &Context, backend: &Backend, object: &NfsArchive) -> Result<Result<(), Duration>, WriteError> {
    let pause = ctx.settings.purge_pause;
    if let Err(left) = backend.take_turn_to_purge(pause) {
        return Ok(Err(
            left + pause.mul_f64(rand::rng().random_range(0.0..f64::from(SPREAD)))
        ));
    }
    let theirs = clock::of_the_api_server(ctx).await?;
    if expiry_reason(ctx, object, theirs).is_some() {
        return Ok(Ok(()));
    }
    let message = format!(
        "its time is over by the clock of the operator's node and not by that of the API server, where it is {theirs}: set \
         the clocks right; nothing is purged meanwhile"
    );
    let verdict = PlannedCondition::fails(Reason::ClocksDisagree, message);
    tracing::warn!(archive = object.name_any(), reason = %verdict.reason, "{}", verdict.message);
    if ctx.last_reported.changed(&object.uid().unwrap_or_default(), &verdict) {
        act::event(ctx, object, Severity::Warning, verdict.reason, &verdict.message);
    }
    Ok(Err(DISAGREED))
}
