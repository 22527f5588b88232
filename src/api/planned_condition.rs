//! Conditions before they are written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::conditions::Reason;
use export_store::text::{escape, truncate};

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

/// Maximum length of a message, in bytes. The API server accepts 32 KiB in a condition and any length in a claim's, but a
/// message also becomes a log line and an event, and a tenant chooses parts of it.
const MAX_MESSAGE: usize = 4096;

impl PlannedCondition {
    /// Creates a condition with status `True`.
    pub fn holds(reason: Reason, message: impl AsRef<str>) -> Self {
        Self::new(Some(true), reason, message.as_ref())
    }

    /// Creates a condition with status `False`.
    pub fn fails(reason: Reason, message: impl AsRef<str>) -> Self {
        Self::new(Some(false), reason, message.as_ref())
    }

    /// Creates a condition with status `Unknown`.
    pub fn unknown(reason: Reason, message: impl AsRef<str>) -> Self {
        Self::new(None, reason, message.as_ref())
    }

    /// Escapes and truncates the message: it can contain text that a tenant, a server or another user of the export
    /// chose.
    fn new(status: Option<bool>, reason: Reason, message: &str) -> Self {
        Self {
            status,
            reason,
            message: truncate(&escape(truncate(message, MAX_MESSAGE)), MAX_MESSAGE).to_owned(),
        }
    }

    /// Returns the status as text.
    pub fn status_text(&self) -> &'static str {
        match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }

    /// Returns the condition to write. Keeps the `lastTransitionTime` of the `former` conditions if the status is the same.
    pub fn to_condition(&self, type_: &str, generation: Option<i64>, former: &[Condition], now: Time) -> Condition {
        let status = self.status_text();
        let same = |condition: &&Condition| condition.type_ == type_ && condition.status == status;
        let since = former.iter().find(same);
        let since = since.map_or(now, |condition| condition.last_transition_time.clone());
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_string(),
            message: self.message.clone(),
            observed_generation: generation,
            last_transition_time: since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_escaped_and_bounded() {
        let planned = PlannedCondition::fails(Reason::OverrideRefused, "a\nb\u{9b}");
        assert_eq!(planned.message, "a\\nb\\u{9b}");
        let planned = PlannedCondition::fails(Reason::OverrideRefused, "\u{9b}".repeat(MAX_MESSAGE));
        assert_eq!(planned.message.len(), MAX_MESSAGE);
    }
}
