//! The condition Readopted of a backend, which reports the progress of the recovery of its volumes. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::RecoveryRequest;
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::api::names::READOPT;
use crate::state::recovery::{RecoveryOutcome, RecoveryProgress};

/// Returns the condition while recovery is requested, and afterwards if all volumes were recovered.
pub fn condition(
    request: Option<&RecoveryRequest>,
    progress: &RecoveryProgress,
    former: &[Condition],
) -> Option<PlannedCondition> {
    if request.is_none() {
        return former.iter().find_map(keep_success);
    }
    Some(match (&progress.error, &progress.outcome, progress.processed) {
        (Some(error), ..) => PlannedCondition::fails(
            Reason::Readopting,
            format!("{error}: retrying; claims that this backend could serve wait"),
        ),
        (None, Some(outcome), _) => result_condition(outcome),
        (None, None, Some((done, total))) => PlannedCondition::fails(
            Reason::Readopting,
            format!("processed {done} of {total} records; claims that this backend could serve wait"),
        ),
        (None, None, None) => PlannedCondition::fails(
            Reason::Readopting,
            "begins once the export is confirmed; claims that this backend could serve wait",
        ),
    })
}

/// Returns the condition again if it reports a success, which remains after the annotation is removed.
fn keep_success(condition: &Condition) -> Option<PlannedCondition> {
    is_success(condition).then(|| PlannedCondition::holds(Reason::VolumesReadopted, condition.message.clone()))
}

/// Reports whether the conditions of a backend contain a success.
pub(super) fn has_success(conditions: &[Condition]) -> bool {
    conditions.iter().any(is_success)
}

fn is_success(condition: &Condition) -> bool {
    condition.type_ == BackendCondition::Readopted.to_string() && condition.status == "True"
}

/// Returns the condition after a pass.
pub(super) fn result_condition(outcome: &RecoveryOutcome) -> PlannedCondition {
    let volumes = match outcome.existing {
        1 => "1 recorded volume exists".to_owned(),
        existing => format!("{existing} recorded volumes exist"),
    };
    let summary = format!("{volumes}, {} recreated", outcome.recreated);
    if outcome.skipped == 0 {
        return PlannedCondition::holds(Reason::VolumesReadopted, summary);
    }
    let first: Vec<String> = outcome
        .first
        .iter()
        .map(|skipped| format!("{} ({})", skipped.volume, skipped.reason))
        .collect();
    let more = match outcome.skipped.saturating_sub(outcome.first.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more, see the operator's log"),
    };
    PlannedCondition::fails(
        Reason::VolumesLeftOut,
        format!(
            "{summary}; {} left out: {}{more}. Their claims wait: fix the causes, or set the annotation {READOPT} to false to \
             have the claims provisioned with new, empty volumes",
            outcome.skipped,
            first.join(", ")
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn the_condition_says_how_far_it_is_and_remembers_a_good_end() {
        let request = Some(&RecoveryRequest::All);
        let mut progress = RecoveryProgress::default();
        assert_eq!(condition(request, &progress, &[]).unwrap().reason, Reason::Readopting);
        assert_eq!(condition(None, &progress, &[]), None);
        progress.processed = Some((3, 7));
        assert!(condition(request, &progress, &[]).unwrap().message.contains("3 of 7"));
        progress.error = Some("no answer".into());
        assert!(
            condition(request, &progress, &[])
                .unwrap()
                .message
                .starts_with("no answer")
        );
        let mut outcome = RecoveryOutcome {
            existing: 2,
            recreated: 1,
            ..RecoveryOutcome::default()
        };
        let ended = |outcome: &RecoveryOutcome| RecoveryProgress {
            outcome: Some(Arc::new(outcome.clone())),
            ..RecoveryProgress::default()
        };
        let good = condition(request, &ended(&outcome), &[]).unwrap();
        assert_eq!((good.status, good.reason), (Some(true), Reason::VolumesReadopted));
        let now = Time(Timestamp::from_second(1).unwrap());
        let written = |planned: &PlannedCondition| planned.to_condition("Readopted", Some(1), &[], now.clone());
        assert!(has_success(&[written(&good)]));
        assert_eq!(
            condition(None, &RecoveryProgress::default(), &[written(&good)]),
            Some(good)
        );
        for number in 0..12 {
            outcome.skip(&format!("pvc-{number}"), "it is not signed".into(), None);
        }
        let bad = condition(request, &ended(&outcome), &[]).unwrap();
        assert_eq!((bad.status, bad.reason), (Some(false), Reason::VolumesLeftOut));
        for part in ["12 left out: pvc-0 (it is not signed)", "and 2 more", READOPT] {
            assert!(bad.message.contains(part), "{}", bad.message);
        }
        assert!(!has_success(&[written(&bad)]));
        assert_eq!(condition(None, &RecoveryProgress::default(), &[written(&bad)]), None);
    }
}
