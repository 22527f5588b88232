//! Slow counts of what a backend's volumes and archives really hold (`spec.usage`).
//!
//! One volume after the other, by name, one call at a time and at a pace: how far it is stands in the backend's status, and
//! a restart goes on from there. What a volume holds is written on it; a claim that has more than it asked for is told.

mod judge;
mod round;
mod tell;

use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use kube::ResourceExt;

use crate::api::names::COUNT_NOW;
use crate::api::{NfsBackend, UsageStatus};
use crate::background::next_run::next_run;
use crate::runtime::retry::jittered;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::usage::UsageProgress;
use export_store::text::format_bytes;
use round::{CountError, UsageScan, clear};

/// The export is not confirmed yet, or was cut off, or the API server: the count goes on where it stopped.
const AGAIN: Duration = Duration::from_secs(10);

/// Keeps a backend's volumes counted from now on, as its object asks for.
pub(crate) fn begin(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    if let Some(former) = object.status.as_ref().and_then(|status| status.usage.as_ref()) {
        backend.usage_scan.update(|progress| *progress = former_life(former));
    }
    tokio::spawn(keep_counted(Arc::clone(ctx), Arc::downgrade(backend)));
}

/// How far a former life came.
fn former_life(status: &UsageStatus) -> UsageProgress {
    UsageProgress {
        under_way: status.under_way.clone(),
        asked: false,
        skipped: status.skipped,
        last_completed: status.last_completed.as_ref().map(|at| at.0),
    }
}

/// How long it is from one count to the next; none: they are not counted.
fn interval(object: &NfsBackend) -> Option<Duration> {
    let asked = object.spec.usage.as_ref()?.interval.parse::<kube::core::Duration>();
    // Checked by the schema; should it be nonsense all the same, seldom is right.
    Some(asked.map_or(Duration::from_secs(24 * 3600), Duration::from))
}

/// Counts whenever it is due, until the operator stops or the backend is forgotten.
async fn keep_counted(ctx: Arc<Context>, backend: Weak<Backend>) {
    if !ctx.wait_for_sync().await {
        return;
    }
    let (mut until, mut told) = (Duration::ZERO, String::new());
    while let Some(backend) = next_run(&ctx.shutdown, &backend, |backend| &backend.usage_scan.requested, until).await {
        let Some(next) = ctx.shutdown.run_until_cancelled(turn(&ctx, &backend)).await else {
            return;
        };
        until = next.unwrap_or_else(|error| put_off(&backend, &error, &mut told));
    }
}

/// It goes on later. Why is said once, and nothing of an export that is only being looked at for the first time.
fn put_off(backend: &Backend, error: &CountError, told: &mut String) -> Duration {
    let why = error.to_string();
    if why != *told && !matches!(error, CountError::NotConfirmed) {
        tracing::info!(backend = backend.name, "not counted for now: {why}");
    }
    *told = why;
    jittered(AGAIN)
}

/// Does what is due; answers when to look again.
async fn turn(ctx: &Context, backend: &Backend) -> Result<Duration, CountError> {
    let known = backend.known();
    let Some(interval) = interval(&known.object) else {
        ctx.usage.turn_off(&backend.name);
        backend
            .usage_scan
            .update(|progress| *progress = UsageProgress::default());
        clear(ctx, backend).await?;
        return Ok(Duration::MAX);
    };
    let progress = backend.usage_scan.progress();
    ctx.usage.turn_on(&backend.name, progress.last_completed);
    let wait = judge::wait(&progress, interval, Timestamp::now());
    if !wait.is_zero() {
        return Ok(jittered(wait));
    }
    UsageScan::new(ctx, backend, &known)?.run().await?;
    ctx.usage
        .turn_on(&backend.name, backend.usage_scan.progress().last_completed);
    // Perhaps it was asked for once more meanwhile.
    Ok(Duration::ZERO)
}

/// What the status says; none where volumes are not counted.
pub(crate) fn status(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Option<UsageStatus> {
    object.spec.usage.as_ref()?;
    let (total, progress) = (ctx.usage.total(&backend.name), backend.usage_scan.progress());
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Some(UsageStatus {
        volumes: number(total.volumes),
        bytes: number(total.bytes),
        size: format_bytes(total.bytes.into()),
        files: number(total.files),
        archived_bytes: archived(ctx, &backend.name),
        skipped: progress.skipped,
        last_completed: progress.last_completed.map(Time),
        under_way: progress.under_way,
    })
}

/// What a backend's archives take that were counted, in bytes.
fn archived(ctx: &Context, backend: &str) -> i64 {
    let archives = ctx.stores.archives.state();
    let here = archives.iter().filter(|archive| archive.spec.backend == backend);
    let counted = here.filter_map(|archive| archive.status.as_ref()?.usage.as_ref());
    counted.fold(0, |sum, usage| sum.saturating_add(usage.bytes))
}

/// A count is asked for by an annotation.
pub(crate) fn is_asked_for(object: &NfsBackend) -> Option<&str> {
    object.annotations().get(COUNT_NOW).map(String::as_str)
}
