//! What the operator still waits for before it works.

use std::sync::Arc;

use tokio::sync::watch;

/// The parts that are not ready yet.
///
/// The caches' own `wait_until_ready` (kube 5.0) wakes only the waiter that asked last, and each controller waits for
/// its own cache that way: so everybody else waits here.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<Vec<&'static str>>>);

impl Readiness {
    /// Not ready until each of `parts` was reported ready.
    pub fn waiting_for(parts: &[&'static str]) -> Self {
        Self(Arc::new(watch::Sender::new(parts.to_vec())))
    }

    /// One part is ready.
    pub fn ready(&self, part: &str) {
        self.0.send_modify(|parts| parts.retain(|waiting| *waiting != part));
    }

    /// The parts that are not ready yet.
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.borrow().clone()
    }

    /// Ends when all parts are ready.
    pub async fn all(&self) {
        // The sender is ours, so the channel never closes.
        let _ = self.0.subscribe().wait_for(Vec::is_empty).await;
    }
}
