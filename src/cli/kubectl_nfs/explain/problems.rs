//! Conditions of a claim, besides Provisioned, that are problems. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use serde::Serialize;

use super::Reported;
use crate::api::names::{DIRECTORY_MISSING_CONDITION, OVER_REQUEST_CONDITION, SIZE_ENFORCED_CONDITION};
use crate::cli::output::{Table, Tone};

/// Conditions of Kubernetes about an expansion that failed.
const RESIZE_ERRORS: [&str; 2] = ["ControllerResizeError", "NodeResizeError"];
/// Ending of the state of a resource that cannot be expanded as requested.
const INFEASIBLE: &str = "Infeasible";

/// A problem of a claim.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    #[serde(rename = "type")]
    type_: String,
    #[serde(flatten)]
    reported: Reported,
    /// True if a pod cannot use the data, or the claim does not get what it requests.
    pub affects_data: bool,
}

/// Returns the problems of a claim.
pub fn of_claim(claim: &PersistentVolumeClaim) -> Vec<Problem> {
    let status = claim.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let mut problems: Vec<Problem> = conditions.iter().filter_map(Problem::of).collect();
    let states = status.allocated_resource_statuses.unwrap_or_default();
    let state = states.get("storage").filter(|state| state.ends_with(INFEASIBLE));
    if let Some(state) = state.filter(|_| !problems.iter().any(Problem::is_resize_error)) {
        problems.push(Problem {
            type_: "allocatedResourceStatuses.storage".to_owned(),
            reported: Reported {
                status: "True".to_owned(),
                reason: state.clone(),
                message: "the volume cannot have the requested size: request less".to_owned(),
            },
            affects_data: true,
        });
    }
    problems
}

impl Problem {
    /// Returns the condition if it is a problem. Those of other controllers are not about the volume.
    fn of(condition: &PersistentVolumeClaimCondition) -> Option<Self> {
        let type_ = condition.type_.as_str();
        let (problem, affects_data) = match type_ {
            DIRECTORY_MISSING_CONDITION => ("True", true),
            OVER_REQUEST_CONDITION => ("True", false),
            SIZE_ENFORCED_CONDITION => ("False", false),
            type_ if RESIZE_ERRORS.contains(&type_) => ("True", true),
            _ => return None,
        };
        (condition.status == problem).then(|| Self {
            type_: type_.to_owned(),
            reported: Reported::of(condition),
            affects_data,
        })
    }

    fn is_resize_error(&self) -> bool {
        RESIZE_ERRORS.contains(&self.type_.as_str())
    }
}

/// Returns a table with a row for each problem.
pub fn table(problems: &[Problem]) -> Table {
    let mut table = Table::new(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for problem in problems {
        let tone = match problem.affects_data {
            true => Tone::Problem,
            false => Tone::Warning,
        };
        let Reported {
            status,
            reason,
            message,
        } = &problem.reported;
        table.row(tone, [&problem.type_, status, reason, message]);
    }
    table
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::names::CLAIM_CONDITION;

    fn problems(conditions: &[(&str, &str)], states: &Value) -> Vec<(String, bool)> {
        let condition = |(type_, status): &(&str, &str)| json!({"type": type_, "status": status, "reason": "Why"});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let claim = json!({"metadata": {}, "status": {
            "phase": "Bound", "conditions": conditions, "allocatedResourceStatuses": states,
        }});
        let found = of_claim(&serde_json::from_value(claim).unwrap());
        found
            .into_iter()
            .map(|problem| (problem.type_, problem.affects_data))
            .collect()
    }

    #[test]
    fn each_condition_is_a_problem_with_its_status_only() {
        let fine = [
            (CLAIM_CONDITION, "True"),
            (SIZE_ENFORCED_CONDITION, "True"),
            (DIRECTORY_MISSING_CONDITION, "False"),
            ("Resizing", "True"),
        ];
        assert_eq!(problems(&fine, &json!({})), []);
        let wrong = [
            (DIRECTORY_MISSING_CONDITION, "True"),
            (OVER_REQUEST_CONDITION, "True"),
            (SIZE_ENFORCED_CONDITION, "False"),
            ("ControllerResizeError", "True"),
        ];
        let found = problems(&wrong, &json!({"storage": "ControllerResizeInfeasible"}));
        let expected = wrong
            .map(|(type_, _)| type_.to_owned())
            .into_iter()
            .zip([true, false, false, true]);
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn an_expansion_that_failed_without_a_condition_is_a_problem() {
        let found = problems(&[], &json!({"storage": "NodeResizeInfeasible"}));
        assert_eq!(found, [("allocatedResourceStatuses.storage".to_owned(), true)]);
        assert_eq!(problems(&[], &json!({"storage": "NodeResizeInProgress"})), []);
    }
}
