//! What was last said of an object that has no condition to say it in, so that it is said once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::api::conditions::PlannedCondition;

/// The last words, by the object's uid; only objects that something is wrong with are in it.
#[derive(Default)]
pub struct LastReported(Mutex<HashMap<String, PlannedCondition>>);

impl LastReported {
    /// Whether this was not the last thing said, and notes it.
    pub fn changed(&self, uid: &str, verdict: &PlannedCondition) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(uid.to_owned(), verdict.clone()).as_ref() != Some(verdict)
    }

    /// The object is well, or gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}
