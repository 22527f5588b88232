//! Purges what was deleted, in the background, off the path of claims.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::export::PurgeLimits;
use crate::operator::backends::Backend;

/// What could not be removed, and what a former life left, is tried again after this long.
const AGAIN: Duration = Duration::from_secs(60);

/// Purges a backend's trash whenever there is something in it, until the backend is forgotten.
pub async fn keep_purged(backend: Weak<Backend>) {
    while let Some(backend) = backend.upgrade() {
        let interrupted = purge(&backend).await;
        if interrupted {
            continue;
        }
        let rung = Arc::clone(&backend.trash);
        drop(backend);
        tokio::select! {
            () = rung.notified() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// One go; answers whether there is more that could go.
async fn purge(backend: &Backend) -> bool {
    let Some(export) = backend.known().export.clone() else {
        return false;
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
            backend.set_purged(report);
            interrupted
        }
        Err(error) => {
            tracing::warn!(backend = backend.name, reason = %error.reason(), "cannot purge the trash: {error}");
            false
        }
    }
}
