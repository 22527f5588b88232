//! Purges the trash of a backend, so that no claim or reclaim waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::runner::{self, BackendTask};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::PurgeLimits;

/// Interval between attempts to purge entries that could not be removed or that the previous process left.
const INTERVAL: Duration = Duration::from_secs(60);
/// Delay after the first failed purge. It doubles with each further failure, up to [`INTERVAL`].
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
                if report.removed > 0 || report.failed > 0 {
                    tracing::info!(
                        backend = backend.name,
                        removed = report.removed,
                        failed = report.failed,
                        left = report.left.entries,
                        "purged trash"
                    );
                }
                let interrupted = report.interrupted;
                backend.set_purge_report(report);
                if interrupted {
                    return Duration::ZERO;
                }
                self.backoff = INITIAL_BACKOFF;
                INTERVAL
            }
            Err(error) => {
                tracing::warn!(backend = backend.name, reason = ?error.kind(), "failed to purge the trash: {error}");
                let backoff = self.backoff;
                self.backoff = (2 * backoff).min(INTERVAL);
                backoff
            }
        }
    }
}
