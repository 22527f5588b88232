//! Purges of expired archives, one at a time.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use rand::RngExt as _;

use super::observe::{Location, RetentionBasis};
use super::ops::{self, OpsError};
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::retention::{self, is_newer};
use crate::runtime::clock;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::archives::{expiry_reason, is_intact};
use crate::state::backends::{Backend, PurgeTurn};
use crate::state::context::Context;

/// Spread of the retries of archives that get no slot, in intervals, while few of them wait.
const MIN_SPREAD: f64 = 8.0;
/// Spread for each archive that waits, in intervals: about eight of them retry in an interval, however many there are, and few
/// slots remain unused.
const SPREAD_EACH: f64 = 0.25;
/// Maximum time until an archive that gets no slot is retried.
const MAX_RETRY: Duration = Duration::from_secs(3600);
/// Time until the clocks are compared again after they disagreed; an administrator has to correct them.
const CLOCK_RETRY: Duration = Duration::from_secs(60);

/// Requeues the older archives of the same claim that have expired: an available archive may be the newer one that
/// `keepLast` requires.
pub fn requeue_expired_siblings(ctx: &Context, object: &NfsArchive) {
    let backend = ctx
        .stores
        .backends
        .get(&ObjectRef::new(&object.observed().backend_name));
    let keeps_last = backend.is_some_and(|backend| backend.spec.archive_policy.keep_last.is_some());
    if !keeps_last || object.is_on_demand() {
        return;
    }
    let now = ctx.clock.now();
    for other in ctx.stores.archives.state() {
        let sibling = retention::is_same_claim(&other, object) && other.uid() != object.uid();
        if sibling && !other.spec.legal_hold && expiry_reason(ctx, &other, now).is_some() {
            ctx.requeue_archive(ObjectRef::from_obj(other.as_ref()));
        }
    }
}

/// Reads what decides if an archive has expired, from the API server and the export (data-safety rule 15). Returns `None`
/// if the backend was deleted or replaced.
pub async fn read_retention(
    ctx: &Context,
    location: &Location,
    object: &NfsArchive,
    now: Timestamp,
) -> Result<Option<RetentionBasis>, OpsError> {
    let backend = &location.backend;
    let found = backend
        .live
        .read(&Api::all(ctx.clients.calls.clone()), &backend.name)
        .await?;
    let Some(found) = found.filter(|found| found.uid().as_ref() == Some(&backend.uid)) else {
        return Ok(None);
    };
    let policy = found.spec.archive_policy.clone();
    let newer = match policy.keep_last.and_then(|last| usize::try_from(last).ok()) {
        Some(last) if !object.is_on_demand() => count_confirmed(ctx, location, object, last).await?,
        _ => 0,
    };
    Ok(Some(RetentionBasis { policy, newer, now }))
}

/// Counts newer archives whose objects and directories exist, up to `enough`.
async fn count_confirmed(
    ctx: &Context,
    location: &Location,
    object: &NfsArchive,
    enough: usize,
) -> Result<usize, OpsError> {
    let mut confirmed = 0;
    for candidate in ctx.stores.archives.state() {
        if confirmed >= enough {
            break;
        }
        if !is_newer(&candidate, object) {
            continue;
        }
        let live = reads::get_opt(&ops::api(ctx), &candidate.name_any()).await;
        let live = live.map_err(WriteError::action("read a newer archive of the claim"))?;
        let Some(live) = live.filter(|live| is_newer(live, object)) else {
            continue;
        };
        confirmed += usize::from(is_intact(&live, (&location.backend.name, &location.export)).await?);
    }
    Ok(confirmed)
}

/// Acquires a slot to purge an expired archive and returns the API server's time, or returns how long to wait.
///
/// A clock that is far ahead must not empty an export: archives of a backend are purged one at a time with an interval in
/// between, which also applies to the first one after a start, and the archive must have expired by the API server's clock
/// too. Namespaces take turns.
pub async fn acquire_purge_slot(
    ctx: &Context,
    backend: &Backend,
    object: &NfsArchive,
) -> Result<Result<Timestamp, Duration>, WriteError> {
    let interval = ctx.settings.purge_pause;
    let wait = match backend.request_purge(&object.name_any(), &object.spec.claim_ref.namespace, interval) {
        PurgeTurn::Now => None,
        PurgeTurn::Wait(left) => Some(left),
        PurgeTurn::Other(next) => {
            ctx.requeue_archive(ObjectRef::new(&next));
            Some(interval)
        }
    };
    if let Some(left) = wait {
        let spread = MIN_SPREAD.max(backend.waiting_purges() as f64 * SPREAD_EACH);
        let latest = interval.mul_f64(spread).min(interval.max(MAX_RETRY));
        return Ok(Err(left + latest.mul_f64(rand::rng().random_range(0.0..1.0))));
    }
    let server_time = clock::api_server_time(&ctx.clients.calls).await?;
    if expiry_reason(ctx, object, server_time).is_some() {
        return Ok(Ok(server_time));
    }
    let condition = PlannedCondition::fails(
        Reason::ClocksDisagree,
        format!(
            "it has expired by the clock of the operator's node, but not by that of the API server, which is at \
             {server_time}: correct the clocks; nothing is purged until then"
        ),
    );
    ops::warn_once(ctx, object, &condition);
    Ok(Err(CLOCK_RETRY))
}
