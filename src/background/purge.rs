//! Purges what was deleted, in the background, off the path of claims.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::state::backends::Backend;
use export_store::PurgeLimits;

/// What could not be removed, and what a former life left, is tried again after this long.
const AGAIN: Duration = Duration::from_secs(60);
/// A purge that broke off because the export could not be reached is tried again after this long at first, and after twice
/// as long each time, up to [`AGAIN`].
const SOON: Duration = Duration::from_secs(5);

/// How a purge ended.
enum Ended {
    /// There is more that could go.
    Interrupted,
    /// What could go is gone.
    Done,
    /// The export could not be reached.
    Failed,
}

/// Purges a backend's trash whenever there is something in it, until the backend is forgotten.
pub async fn run_purger(backend: Weak<Backend>) {
    let mut soon = SOON;
    while let Some(backend) = backend.upgrade() {
        let pause = match purge(&backend).await {
            Ended::Interrupted => continue,
            Ended::Done => {
                soon = SOON;
                AGAIN
            }
            Ended::Failed => {
                let pause = soon;
                soon = (2 * soon).min(AGAIN);
                pause
            }
        };
        let rung = Arc::clone(&backend.purge_requested);
        drop(backend);
        tokio::select! {
            () = rung.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One go.
async fn purge(backend: &Backend) -> Ended {
    let Some(export) = backend.known().store.clone() else {
        return Ended::Done;
    };
    match export.purge_trash(PurgeLimits::default()).await {
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
            if interrupted { Ended::Interrupted } else { Ended::Done }
        }
        Err(error) => {
            tracing::warn!(backend = backend.name, reason = ?error.kind(), "cannot purge the trash: {error}");
            Ended::Failed
        }
    }
}
