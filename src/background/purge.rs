//! Purges the trash of a backend, so that no claim or reclaim waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::runner::{self, BackendTask};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportError, PurgeLimits, PurgeReport};

/// Interval between attempts to purge entries that could not be removed or that the previous process left.
const INTERVAL: Duration = Duration::from_secs(60);
/// Delay after the first purge that failed or changed nothing. It doubles with each further one, up to [`INTERVAL`].
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);

/// Starts the purges of a backend's trash.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>) {
    let purger = Purger {
        backoff: INITIAL_BACKOFF,
    };
    runner::spawn(ctx, backend, purger, Duration::ZERO);
}

struct Purger {
    backoff: Duration,
}

impl BackendTask for Purger {
    const INTERRUPTIBLE: bool = false;

    fn requested(backend: &Backend) -> &Arc<Notify> {
        &backend.purge_requested
    }

    async fn run(&mut self, ctx: &Context, backend: &Backend) -> Duration {
        let known = backend.last_probe();
        let (Some(export), Some(identity)) = (&known.store, &known.identity) else {
            self.backoff = INITIAL_BACKOFF;
            return INTERVAL;
        };
        // The backends on one export share its trash.
        let first = ctx.backends.first_on_export(&identity.id);
        let other = first.filter(|first| first.name != backend.name);
        if let Some(other) = &other {
            other.purge_requested.notify_one();
        }
        let limits = PurgeLimits {
            shared_trash: other.is_none(),
            ..PurgeLimits::default()
        };
        match export.purge_trash(limits).await {
            Ok(report) => {
                ctx.metrics.backends.trash_purged(&backend.name, report.removed);
                if report.removed > 0 || report.failed > 0 {
                    tracing::info!(
                        backend = backend.name,
                        removed = report.removed,
                        failed = report.failed,
                        left = report.left.entries,
                        "purged trash"
                    );
                }
                if let Some(error) = &report.error {
                    warn_stopped(backend, error);
                }
                let delay = self.delay_after(&report);
                backend.set_purge_report(report);
                delay
            }
            Err(error) => {
                warn_stopped(backend, &error);
                self.back_off()
            }
        }
    }
}

fn warn_stopped(backend: &Backend, error: &ExportError) {
    tracing::warn!(backend = backend.name, reason = ?error.kind(), "failed to purge the trash: {error}");
}

impl Purger {
    /// Returns the time until the next purge. A purge that a limit interrupted is continued at once, and one that an
    /// error stopped soon, unless it changed nothing. Pure, except for the backoff.
    fn delay_after(&mut self, report: &PurgeReport) -> Duration {
        if report.interrupted && report.removed + report.raised == 0 {
            return self.back_off();
        }
        self.backoff = INITIAL_BACKOFF;
        match (report.interrupted, &report.error) {
            (false, _) => INTERVAL,
            (true, None) => Duration::ZERO,
            (true, Some(_)) => self.back_off(),
        }
    }

    fn back_off(&mut self) -> Duration {
        let backoff = self.backoff;
        self.backoff = (2 * backoff).min(INTERVAL);
        backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_that_changes_nothing_is_repeated_less_and_less_often() {
        let mut purger = Purger {
            backoff: INITIAL_BACKOFF,
        };
        let interrupted = |removed, raised| PurgeReport {
            interrupted: true,
            removed,
            raised,
            ..PurgeReport::default()
        };
        let delays = [(); 5].map(|()| purger.delay_after(&interrupted(0, 0)).as_secs());
        assert_eq!(delays, [5, 10, 20, 40, 60]);
        assert_eq!(purger.delay_after(&interrupted(1, 0)), Duration::ZERO);
        assert_eq!(purger.delay_after(&interrupted(0, 0)), INITIAL_BACKOFF);
        // Moving directories up is progress, too.
        assert_eq!(purger.delay_after(&interrupted(0, 1)), Duration::ZERO);
        assert_eq!(purger.delay_after(&PurgeReport::default()), INTERVAL);
        // After an error, a purge that got further is repeated soon, however often that happens.
        let stopped = |removed| PurgeReport {
            error: Some(ExportError::NotLeader),
            ..interrupted(removed, 0)
        };
        let delays = [1, 1, 0, 0, 1].map(|removed| purger.delay_after(&stopped(removed)).as_secs());
        assert_eq!(delays, [5, 5, 10, 20, 5]);
    }
}
