//! What the operator still waits for before it works.

use std::sync::Arc;

use tokio::sync::watch;

/// How far the operator has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessState {
    /// It waits for the Lease, for this reason.
    Waiting(String),
    /// All is well, and another process works: that one.
    Standby(String),
    /// It leads; these watch caches are not filled yet.
    Leading(Vec<&'static str>),
}

/// How far the operator has come; clones are one.
///
/// The caches' own `wait_until_ready` (kube 5.0) wakes only the waiter that asked last, and each controller waits for
/// its own cache that way: so everybody else waits here.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<ReadinessState>>);

impl Default for Readiness {
    fn default() -> Self {
        let first = ReadinessState::Waiting("the Lease was not read yet".to_owned());
        Self(Arc::new(watch::Sender::new(first)))
    }
}

impl Readiness {
    /// Where it stands until it leads. True: that is news.
    pub fn stands(&self, standing: ReadinessState) -> bool {
        self.0.send_if_modified(|former| {
            let news = *former != standing;
            *former = standing;
            news
        })
    }

    /// It leads, and works once each of `parts` was reported ready.
    pub fn leads(&self, parts: &[&'static str]) {
        self.0.send_replace(ReadinessState::Leading(parts.to_vec()));
    }

    /// One part is ready.
    pub fn ready(&self, part: &str) {
        self.0.send_modify(|standing| {
            if let ReadinessState::Leading(parts) = standing {
                parts.retain(|waiting| *waiting != part);
            }
        });
    }

    /// How far it has come.
    pub fn standing(&self) -> ReadinessState {
        self.0.borrow().clone()
    }

    /// Ends when it leads and all parts are ready.
    pub async fn all(&self) {
        let complete =
            |standing: &ReadinessState| matches!(standing, ReadinessState::Leading(parts) if parts.is_empty());
        // The sender is ours, so the channel never closes.
        let _ = self.0.subscribe().wait_for(complete).await;
    }
}
