//! Work on a backend beside its reconciler: when it is due, and when there is no more of it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::state::backends::Backend;
use tokio_util::sync::CancellationToken;

/// Waits until work on a backend is due: after `pause`, or when its bell is rung. None when the operator is to stop, or the
/// backend is forgotten; nothing here keeps it alive.
pub async fn next_run(
    shutdown: &CancellationToken,
    backend: &Weak<Backend>,
    bell: impl FnOnce(&Backend) -> &Arc<Notify>,
    pause: Duration,
) -> Option<Arc<Backend>> {
    let bell = Arc::clone(bell(&*backend.upgrade()?));
    let due = async {
        tokio::select! {
            () = bell.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    };
    shutdown.run_until_cancelled(due).await?;
    backend.upgrade()
}
