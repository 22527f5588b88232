//! The condition Readopted of a backend, which reports the progress of the recovery of its volumes. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::RecoveryRequest;
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::api::names::{ABANDON_LOST_VOLUMES, READOPT};
use crate::state::recovery::{RecoveryOutcome, RecoveryProgress};

/// Returns the condition. After a request was handled, its success remains.
pub fn condition(
    request: Option<&RecoveryRequest>,
    progress: &RecoveryProgress,
    former: &[Condition],
) -> PlannedCondition {
    if request.is_none() {
        let success = former.iter().find_map(keep_success);
        return success.unwrap_or_else(|| {
            PlannedCondition::holds(Reason::NothingToReadopt, "no recovery of volumes is requested")
        });
    }
    match (&progress.error, &progress.outcome, progress.processed) {
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
    }
}

/// Returns the condition again if it reports a success.
fn keep_success(condition: &Condition) -> Option<PlannedCondition> {
    let is_success = condition.type_ == BackendCondition::Readopted.to_string()
        && condition.reason == Reason::VolumesReadopted.to_string();
    is_success.then(|| PlannedCondition::holds(Reason::VolumesReadopted, condition.message.clone()))
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
            "{summary}; {} left out: {}{more}. Their claims wait: fix the causes, or annotate the backend with \
             {ABANDON_LOST_VOLUMES}=<volume>, and remove it from {READOPT} if that names it, to have the claim provisioned \
             with a new, empty volume",
            outcome.skipped,
            first.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn the_condition_says_how_far_it_is_and_remembers_a_good_end() {
        let request = RecoveryRequest {
            all: true,
            names: BTreeSet::new(),
        };
        let request = Some(&request);
        let mut progress = RecoveryProgress::default();
        assert_eq!(condition(request, &progress, &[]).reason, Reason::Readopting);
        let nothing = condition(None, &progress, &[]);
        assert_eq!((nothing.status, nothing.reason), (Some(true), Reason::NothingToReadopt));
        progress.processed = Some((3, 7));
        assert!(condition(request, &progress, &[]).message.contains("3 of 7"));
        progress.error = Some("no answer".into());
        assert!(condition(request, &progress, &[]).message.starts_with("no answer"));
        let mut outcome = RecoveryOutcome {
            existing: 2,
            recreated: 1,
            ..RecoveryOutcome::default()
        };
        let ended = |outcome: &RecoveryOutcome| RecoveryProgress {
            outcome: Some(Arc::new(outcome.clone())),
            ..RecoveryProgress::default()
        };
        let good = condition(request, &ended(&outcome), &[]);
        assert_eq!((good.status, good.reason), (Some(true), Reason::VolumesReadopted));
        let now = Time(Timestamp::UNIX_EPOCH);
        let written = |planned: &PlannedCondition| planned.to_condition("Readopted", Some(1), &[], now.clone());
        assert_eq!(condition(None, &RecoveryProgress::default(), &[written(&good)]), good);
        for number in 0..12 {
            outcome.skip(&format!("pvc-{number}"), "it is not signed".into(), None);
        }
        let bad = condition(request, &ended(&outcome), &[]);
        assert_eq!((bad.status, bad.reason), (Some(false), Reason::VolumesLeftOut));
        for part in [
            "12 left out: pvc-0 (it is not signed)",
            "and 2 more",
            ABANDON_LOST_VOLUMES,
        ] {
            assert!(bad.message.contains(part), "{}", bad.message);
        }
        assert_eq!(condition(None, &RecoveryProgress::default(), &[written(&bad)]), nothing);
    }
}
