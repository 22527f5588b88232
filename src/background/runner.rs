//! Runs the background tasks of a backend.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};

use crate::state::backends::Backend;
use crate::state::context::Context;

/// Recurring work on a backend, concurrent with its reconciler.
pub trait BackendTask: Send + 'static {
    /// True if a shutdown may interrupt a run. A task that changes the export is not interrupted between two calls.
    const INTERRUPTIBLE: bool;

    /// Returns the notification that requests a run at once.
    fn requested(backend: &Backend) -> &Arc<Notify>;

    /// Runs once. Returns the time until the next run.
    fn run(&mut self, ctx: &Context, backend: &Backend) -> impl Future<Output = Duration> + Send;
}

/// Returns ticks that limit a task to `per_second` steps. After a slow step, the next ones are not faster.
pub fn ticks(per_second: u32) -> Interval {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Runs a task after `delay`, whenever it is due and whenever it is requested, until the operator stops or the backend
/// is removed. The task does not keep the backend alive between two runs.
pub fn spawn<T: BackendTask>(ctx: &Arc<Context>, backend: &Arc<Backend>, mut task: T, mut delay: Duration) {
    let ctx = Arc::clone(ctx);
    let (requested, removal_token) = (Arc::clone(T::requested(backend)), backend.removal_token());
    let backend = Arc::downgrade(backend);
    let watchdog = ctx.watchdog.clone();
    tokio::spawn(watchdog.watch("the background work of a backend", async move {
        loop {
            tokio::select! {
                () = ctx.shutdown.cancelled() => return,
                () = removal_token.cancelled() => return,
                () = requested.notified() => {}
                () = tokio::time::sleep(delay) => {}
            }
            let Some(backend) = backend.upgrade() else { return };
            // In a box of its own, so that a task that sleeps does not take the memory of a run: there are eight for each backend.
            let run = Box::pin(task.run(&ctx, &backend));
            delay = match T::INTERRUPTIBLE {
                true => match ctx.shutdown.run_until_cancelled(run).await {
                    Some(next) => next,
                    None => return,
                },
                false => run.await,
            };
        }
    }));
}
