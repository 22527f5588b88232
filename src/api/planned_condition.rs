//! Conditions before they are written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::conditions::Reason;
use export_store::text::truncate;

/// Condition without times, which [`Self::to_condition`] adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCondition {
    /// `Some(true)` for `True`, `Some(false)` for `False`, `None` for `Unknown`.
    pub status: Option<bool>,
    /// Reason of the condition.
    pub reason: Reason,
    /// Description of the cause, and the remedy.
    pub message: String,
}

/// Maximum length of the message of a condition in bytes (`metav1.Condition`).
const MAX_MESSAGE: usize = 32_768;

impl PlannedCondition {
    /// Creates a condition with status `True`.
    pub fn holds(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(true),
            reason,
            message: message.into(),
        }
    }

    /// Creates a condition with status `False`.
    pub fn fails(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(false),
            reason,
            message: message.into(),
        }
    }

    /// Creates a condition with status `Unknown`.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: None,
            reason,
            message: message.into(),
        }
    }

    /// Returns the condition to write. Keeps the `lastTransitionTime` of the `former` conditions if the status is the same.
    pub fn to_condition(&self, type_: &str, generation: Option<i64>, former: &[Condition], now: Time) -> Condition {
        let status = match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let same = |condition: &&Condition| condition.type_ == type_ && condition.status == status;
        let since = former.iter().find(same);
        let since = since.map_or(now, |condition| condition.last_transition_time.clone());
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_string(),
            message: truncate(&self.message, MAX_MESSAGE).to_owned(),
            observed_generation: generation,
            last_transition_time: since,
        }
    }
}
