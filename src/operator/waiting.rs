//! Claims that wait for something other than their own change, and the bell that wakes them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

/// A claim by name.
pub type ClaimRef = ObjectRef<PersistentVolumeClaim>;

/// The claims that no backend can serve now.
pub struct Waiting {
    claims: Mutex<HashSet<ClaimRef>>,
    bell: mpsc::UnboundedSender<ClaimRef>,
}

impl Waiting {
    /// The set, and the stream of claims to be looked at again. The stream holds at most one entry a claim and
    /// ring, so it is bounded by the number of claims.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ClaimRef>) {
        let (bell, woken) = mpsc::unbounded_channel();
        (
            Self {
                claims: Mutex::default(),
                bell,
            },
            woken,
        )
    }

    /// A claim waits.
    pub fn add(&self, claim: ClaimRef) {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).insert(claim);
    }

    /// Something changed that may cure the wait: all are looked at again.
    pub fn wake_all(&self) {
        let claims = std::mem::take(&mut *self.claims.lock().unwrap_or_else(PoisonError::into_inner));
        for claim in claims {
            self.wake(claim);
        }
    }

    /// One claim is looked at again.
    pub fn wake(&self, claim: ClaimRef) {
        // The receiver ends only with the operator: then nobody is to be woken.
        let _ = self.bell.send(claim);
    }
}
