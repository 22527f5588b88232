//! What the re-adoption of a backend's volumes means for its condition. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::asked::RecoveryRequest;
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::api::names::READOPT;
use crate::state::recovery::{Outcome, Stage};

/// The condition, when there is one: while somebody asks, and afterwards if all came back.
pub fn verdict(asked: Option<&RecoveryRequest>, stage: &Stage, former: &[Condition]) -> Option<PlannedCondition> {
    if asked.is_none() {
        return former.iter().find_map(kept);
    }
    Some(match (&stage.trouble, &stage.outcome, stage.progress) {
        (Some(trouble), ..) => PlannedCondition::fails(
            Reason::Readopting,
            format!("{trouble}: it is tried again, and claims that could be provisioned here wait"),
        ),
        (None, Some(outcome), _) => told(outcome),
        (None, None, Some((done, of))) => PlannedCondition::fails(
            Reason::Readopting,
            format!("{done} of {of} records are looked at; claims that could be provisioned here wait"),
        ),
        (None, None, None) => PlannedCondition::fails(
            Reason::Readopting,
            "begins once the export is confirmed; claims that could be provisioned here wait",
        ),
    })
}

/// A good end is remembered when the annotation is gone.
fn kept(condition: &Condition) -> Option<PlannedCondition> {
    is_good(condition).then(|| PlannedCondition::holds(Reason::VolumesReadopted, condition.message.clone()))
}

/// Whether a good end is told.
pub fn is_told(conditions: &[Condition]) -> bool {
    conditions.iter().any(is_good)
}

fn is_good(condition: &Condition) -> bool {
    condition.type_ == BackendCondition::Readopted.to_string() && condition.status == "True"
}

/// What a pass came to, in words.
pub fn told(outcome: &Outcome) -> PlannedCondition {
    let there = format!(
        "{} volumes that the records know are there, {} of them made again",
        outcome.there, outcome.made
    );
    if outcome.left_out == 0 {
        return PlannedCondition::holds(Reason::VolumesReadopted, there);
    }
    let first: Vec<String> = outcome
        .first
        .iter()
        .map(|left| format!("{} ({})", left.volume, left.why))
        .collect();
    let more = match outcome.left_out.saturating_sub(outcome.first.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more, see the operator's log"),
    };
    PlannedCondition::fails(
        Reason::VolumesLeftOut,
        format!(
            "{there}; {} left out: {}{more}. Their claims wait: put right what is wrong, or remove the annotation {READOPT} to \
             have them provisioned anew",
            outcome.left_out,
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
        let asked = Some(&RecoveryRequest::All);
        let mut stage = Stage::default();
        assert_eq!(verdict(asked, &stage, &[]).unwrap().reason, Reason::Readopting);
        assert_eq!(verdict(None, &stage, &[]), None);
        stage.progress = Some((3, 7));
        assert!(verdict(asked, &stage, &[]).unwrap().message.contains("3 of 7"));
        stage.trouble = Some("no answer".into());
        assert!(verdict(asked, &stage, &[]).unwrap().message.starts_with("no answer"));
        let mut outcome = Outcome {
            there: 2,
            made: 1,
            ..Outcome::default()
        };
        let ended = |outcome: &Outcome| Stage {
            outcome: Some(Arc::new(outcome.clone())),
            ..Stage::default()
        };
        let good = verdict(asked, &ended(&outcome), &[]).unwrap();
        assert_eq!((good.status, good.reason), (Some(true), Reason::VolumesReadopted));
        let now = Time(Timestamp::from_second(1).unwrap());
        let written = |verdict: &PlannedCondition| verdict.condition("Readopted", Some(1), &[], now.clone());
        assert!(is_told(&[written(&good)]));
        assert_eq!(verdict(None, &Stage::default(), &[written(&good)]), Some(good));
        for number in 0..12 {
            outcome.leave_out(&format!("pvc-{number}"), "it is not signed".into(), None);
        }
        let bad = verdict(asked, &ended(&outcome), &[]).unwrap();
        assert_eq!((bad.status, bad.reason), (Some(false), Reason::VolumesLeftOut));
        for part in ["12 left out: pvc-0 (it is not signed)", "and 2 more", READOPT] {
            assert!(bad.message.contains(part), "{}", bad.message);
        }
        assert!(!is_told(&[written(&bad)]));
        assert_eq!(verdict(None, &Stage::default(), &[written(&bad)]), None);
    }
}
