//! What is said in a condition, before it is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::conditions::Reason;
use export_store::text::truncate;

/// A condition as planned: without times, which are filled in when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCondition {
    /// `True`, `False` or, when nothing is known, `Unknown`.
    pub status: Option<bool>,
    /// Machine-readable reason.
    pub reason: Reason,
    /// What happened, and the remedy.
    pub message: String,
}

/// The longest message that a condition may carry (API conventions), in bytes.
const LONGEST_MESSAGE: usize = 32_768;

impl PlannedCondition {
    /// A condition that holds.
    pub fn holds(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(true),
            reason,
            message: message.into(),
        }
    }

    /// A condition that does not hold.
    pub fn fails(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: Some(false),
            reason,
            message: message.into(),
        }
    }

    /// A condition of which nothing is known.
    pub fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            status: None,
            reason,
            message: message.into(),
        }
    }

    /// The condition to write: `lastTransitionTime` moves only when the status changes.
    pub fn condition(&self, type_: &str, generation: Option<i64>, former: &[Condition], now: Time) -> Condition {
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
            message: truncate(&self.message, LONGEST_MESSAGE).to_owned(),
            observed_generation: generation,
            last_transition_time: since,
        }
    }
}
