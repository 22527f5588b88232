//! The status of a schedule. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::conditions::{PlannedCondition, Reason, ScheduleCondition};
use crate::api::schedule::{NfsBackupSchedule, NfsBackupScheduleStatus};

/// What is new.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The condition; if unset, that of the last time is kept.
    ready: Option<PlannedCondition>,
    /// A scheduled time whose backups were requested.
    requested: Option<Timestamp>,
    /// A scheduled time that was missed.
    missed: Option<Timestamp>,
    /// The next scheduled time.
    pub(super) next: Option<Timestamp>,
}

impl Report {
    /// Nothing is due before `next`.
    pub(super) fn waiting(next: Timestamp) -> Self {
        Self::default().with_next(next)
    }

    /// The backups of this scheduled time were requested.
    pub(super) fn requested(at: Timestamp, ready: PlannedCondition) -> Self {
        Self {
            ready: Some(ready),
            requested: Some(at),
            ..Self::default()
        }
    }

    /// This scheduled time was missed.
    pub(super) fn missed(at: Timestamp, ready: PlannedCondition) -> Self {
        Self {
            ready: Some(ready),
            missed: Some(at),
            ..Self::default()
        }
    }

    /// Nothing is requested any more.
    pub(super) fn refused(ready: PlannedCondition) -> Self {
        Self {
            ready: Some(ready),
            ..Self::default()
        }
    }

    pub(super) fn with_next(self, next: Timestamp) -> Self {
        Self {
            next: Some(next),
            ..self
        }
    }
}

/// Returns the status to write.
pub(super) fn status(schedule: &NfsBackupSchedule, report: &Report, now: Timestamp) -> NfsBackupScheduleStatus {
    let (generation, previous) = (
        schedule.metadata.generation,
        schedule.status.clone().unwrap_or_default(),
    );
    let type_ = ScheduleCondition::Ready.to_string();
    let ready = report.ready.clone().or_else(|| kept(schedule, &type_));
    let ready =
        ready.unwrap_or_else(|| PlannedCondition::holds(Reason::Scheduled, "waits for the next scheduled time"));
    NfsBackupScheduleStatus {
        observed_generation: generation,
        last_schedule_time: report.requested.map(Time).or(previous.last_schedule_time),
        last_missed_time: report.missed.map(Time).or(previous.last_missed_time),
        next_schedule_time: report.next.map(Time),
        conditions: vec![ready.to_condition(&type_, generation, &previous.conditions, Time(now))],
    }
}

/// Returns the condition that reports the last time, if the spec is the same since.
fn kept(schedule: &NfsBackupSchedule, type_: &str) -> Option<PlannedCondition> {
    let conditions = &schedule.status.as_ref()?.conditions;
    let former = conditions.iter().find(|condition| condition.type_ == type_)?;
    if former.observed_generation != schedule.metadata.generation {
        return None;
    }
    // Whether there are too many schedules was just checked.
    let reason = Reason::parse(&former.reason).filter(|reason| *reason != Reason::TooManySchedules)?;
    match former.status.as_str() {
        "True" => Some(PlannedCondition::holds(reason, &former.message)),
        _ => Some(PlannedCondition::fails(reason, &former.message)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(hour * 3600).unwrap()
    }

    fn reason(status: &NfsBackupScheduleStatus) -> &str {
        &status.conditions.first().unwrap().reason
    }

    #[test]
    fn what_happened_at_the_last_time_is_reported_until_the_spec_or_the_next_time() {
        let spec = json!({"schedule": "@hourly", "claims": {"selector": {}}});
        let object = json!({"metadata": {"name": "s", "generation": 1}, "spec": spec});
        let mut schedule: NfsBackupSchedule = serde_json::from_value(object).unwrap();
        let mut step = |report: Report, generation| {
            schedule.metadata.generation = Some(generation);
            let status = status(&schedule, &report, at(0));
            schedule.status = Some(status.clone());
            status
        };
        let times = |status: &NfsBackupScheduleStatus| {
            let times = [
                &status.last_schedule_time,
                &status.last_missed_time,
                &status.next_schedule_time,
            ];
            times.map(|time| time.as_ref().map(|time| time.0.as_second() / 3600))
        };
        let created = step(Report::waiting(at(1)), 1);
        assert_eq!(
            (reason(&created), times(&created)),
            ("Scheduled", [None, None, Some(1)])
        );
        let skipped = PlannedCondition::fails(Reason::ClaimsSkipped, "a");
        let ran = step(Report::requested(at(1), skipped).with_next(at(2)), 1);
        assert_eq!((reason(&ran), times(&ran)), ("ClaimsSkipped", [Some(1), None, Some(2)]));
        assert_eq!(
            step(Report::waiting(at(2)), 1),
            ran,
            "an idle schedule causes no writes"
        );
        let missed = PlannedCondition::fails(Reason::ScheduleMissed, "b");
        let missed = step(Report::missed(at(2), missed).with_next(at(3)), 1);
        assert_eq!(
            (reason(&missed), times(&missed)),
            ("ScheduleMissed", [Some(1), Some(2), Some(3)])
        );
        let too_many = PlannedCondition::fails(Reason::TooManySchedules, "d");
        let too_many = step(Report::refused(too_many), 1);
        assert_eq!(reason(&too_many), "TooManySchedules");
        let served_again = step(Report::waiting(at(3)), 1);
        assert_eq!(reason(&served_again), "Scheduled");
        let suspended = step(Report::refused(PlannedCondition::fails(Reason::Suspended, "c")), 2);
        assert_eq!(
            (reason(&suspended), times(&suspended)),
            ("Suspended", [Some(1), Some(2), None])
        );
        let resumed = step(Report::waiting(at(4)), 3);
        assert_eq!(
            (reason(&resumed), times(&resumed)),
            ("Scheduled", [Some(1), Some(2), Some(4)])
        );
    }
}
