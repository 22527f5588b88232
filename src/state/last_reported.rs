//! Conditions last reported for objects that have none in their status, so that each is reported once.

use export_store::UidMap;
use parking_lot::Mutex;

use crate::api::conditions::PlannedCondition;

/// Last reported conditions by object UID. Contains only objects with a failure.
#[derive(Default)]
pub struct LastReported(Mutex<UidMap<PlannedCondition>>);

impl LastReported {
    /// Records the condition. Returns true if it differs from the last one.
    pub fn changed(&self, uid: &str, planned: &PlannedCondition) -> bool {
        let mut reported = self.0.lock();
        reported.insert(uid, planned.clone()).as_ref() != Some(planned)
    }

    /// Returns true if a condition was reported for an object since it was created or has recovered.
    pub fn has_reported(&self, uid: &str) -> bool {
        self.0.lock().contains_key(uid)
    }

    /// Forgets an object that has recovered or is deleted.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
