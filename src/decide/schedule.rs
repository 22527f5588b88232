//! When a schedule of backups is due, which claims it selects, and what its backups are called. Pure.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use sha2::{Digest, Sha256};

use crate::api::backup::NfsBackup;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{BETA_STORAGE_PROVISIONER, BIND_COMPLETED, STORAGE_PROVISIONER};
use crate::api::schedule::NfsBackupSchedule;
use crate::decide::placement::parse_selector;

/// A handled time that is later than now by more than this is not believed: the clock was wrong when it was recorded, and the
/// schedule would do nothing until then. Longer than the corrections of a clock that works.
const MAX_AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// The parsed spec of a schedule.
#[derive(Debug)]
pub struct ParsedSchedule {
    cron: Cron,
    zone: TimeZone,
    /// Delay after each scheduled time.
    delay: SignedDuration,
    /// How long after the delayed time the backups are still requested.
    deadline: Option<SignedDuration>,
    selector: Option<Selector>,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The backups of this scheduled time.
    Run(Timestamp),
    /// Nothing any more for this scheduled time: its deadline has passed.
    Missed(Timestamp),
    /// Nothing before this scheduled time.
    Later(Timestamp),
    /// Nothing, ever.
    Never,
}

/// Names that are in databases of time zones and are none: those of the machine, and of an unknown zone.
const NOT_ZONES: [&str; 4] = ["localtime", "posixrules", "Factory", "Etc/Unknown"];
/// Folders with the zones once more. The same name would mean something else where the operator has no such folder.
const COPIES: [&str; 2] = ["posix/", "right/"];

/// Returns the time zone with this name, in upper or lower case.
fn named_zone(name: &str) -> Option<TimeZone> {
    let is_zone = NOT_ZONES.iter().all(|other| !name.eq_ignore_ascii_case(other));
    let lower = name.to_ascii_lowercase();
    let is_copy = COPIES.iter().any(|folder| lower.starts_with(folder));
    TimeZone::get(name).ok().filter(|_| is_zone && !is_copy)
}

impl ParsedSchedule {
    /// Parses the spec of a schedule.
    ///
    /// # Errors
    /// The condition that names the invalid field.
    pub fn of(schedule: &NfsBackupSchedule) -> Result<Self, PlannedCondition> {
        let spec = &schedule.spec;
        let invalid = |message: String| PlannedCondition::fails(Reason::InvalidSpec, message);
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(&spec.schedule).map_err(|error| {
            invalid(format!(
                "spec.schedule {:?} is not in cron format: {error} Correct it, for example to \"30 2 * * *\"",
                spec.schedule
            ))
        })?;
        let zone = match &spec.time_zone {
            None => TimeZone::UTC,
            Some(name) => named_zone(name).ok_or_else(|| {
                let what = "is not a time zone of the IANA database: correct it, for example to Europe/Berlin";
                invalid(format!("spec.timeZone {name:?} {what}"))
            })?,
        };
        let selector = spec.claims.selector.as_ref().map(|selector| {
            let what = "spec.claims.selector is not a valid label selector: correct it";
            parse_selector(selector).ok_or_else(|| invalid(what.to_owned()))
        });
        let duration = |field: &Option<crate::api::backend::Duration>| {
            let duration = field.as_ref().and_then(|duration| duration.get());
            duration.and_then(|duration| SignedDuration::try_from(duration).ok())
        };
        let uid = schedule.uid().unwrap_or_default();
        Ok(Self {
            cron,
            zone,
            delay: duration(&spec.jitter).map_or(SignedDuration::ZERO, |jitter| delay_within(&uid, jitter)),
            deadline: duration(&spec.starting_deadline),
            selector: selector.transpose()?,
        })
    }

    /// Returns the time at which the backups of a scheduled time are requested.
    pub fn start(&self, scheduled: Timestamp) -> Timestamp {
        scheduled.checked_add(self.delay).unwrap_or(Timestamp::MAX)
    }

    /// Returns what is due at `now` if everything until `handled` was handled. Of several times that passed, only the last one
    /// counts.
    pub fn due(&self, handled: Timestamp, now: Timestamp) -> Due {
        let Ok(effective) = now.checked_sub(self.delay) else {
            return Due::Never;
        };
        // A pattern without a next time is searched only once.
        let Some(next) = self.next(effective) else {
            return Due::Never;
        };
        match self.previous(effective).filter(|previous| *previous > handled) {
            Some(previous) => match self.deadline {
                Some(deadline) if effective.duration_since(previous) > deadline => Due::Missed(previous),
                _ => Due::Run(previous),
            },
            None => Due::Later(next),
        }
    }

    /// Returns the first scheduled time after `after`. `None` if there is none.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&after, false).ok()?;
        Some(next.timestamp())
    }

    /// Returns the last scheduled time until `until`.
    fn previous(&self, until: Timestamp) -> Option<Timestamp> {
        let until = until.to_zoned(self.zone.clone());
        let previous = self.cron.find_previous_occurrence(&until, true).ok()?;
        Some(previous.timestamp())
    }

    /// Returns true if the labels of a claim select it, `serves` its provisioner, and it has been bound: before, there is
    /// nothing to back up. A claim that is bound to an existing volume has no provisioner, and is selected by its name only.
    pub fn selects(&self, claim: &ObjectMeta, serves: impl Fn(&str) -> bool) -> bool {
        let (no_labels, annotations) = (Default::default(), claim.annotations.as_ref());
        let labels = claim.labels.as_ref().unwrap_or(&no_labels);
        let provisioner = annotations.and_then(|annotations| {
            let stable = annotations.get(STORAGE_PROVISIONER);
            stable.or_else(|| annotations.get(BETA_STORAGE_PROVISIONER))
        });
        let is_bound = annotations.is_some_and(|annotations| annotations.contains_key(BIND_COMPLETED));
        let is_selected = self.selector.as_ref().is_some_and(|selector| selector.matches(labels));
        is_selected && is_bound && provisioner.is_some_and(|provisioner| serves(provisioner))
    }
}

/// Returns the time until which all times of a schedule were handled. Those before the object was created count as handled.
pub fn handled(schedule: &NfsBackupSchedule, now: Timestamp) -> Timestamp {
    let status = schedule.status.as_ref();
    let recorded = [
        status.and_then(|status| status.last_schedule_time.as_ref()),
        status.and_then(|status| status.last_missed_time.as_ref()),
    ];
    let recorded = recorded.into_iter().flatten().map(|time| time.0);
    let believed = recorded.filter(|time| time.duration_since(now) <= MAX_AHEAD);
    let created = schedule.metadata.creation_timestamp.as_ref().map(|time| time.0);
    believed.chain(created).max().unwrap_or(now)
}

/// Returns the delay of the schedule with this UID, which is less than `jitter` and always the same.
fn delay_within(uid: &str, jitter: SignedDuration) -> SignedDuration {
    let seconds = u64::try_from(jitter.as_secs()).unwrap_or(0).max(1);
    let delay = u64::from_be_bytes(digest(&[uid])) % seconds;
    SignedDuration::from_secs(i64::try_from(delay).unwrap_or(0))
}

/// Returns the name of the backup of a claim that a schedule requests for a scheduled time. It is always the same, so that a
/// backup is requested once, however often the operator restarts meanwhile.
pub fn backup_name(schedule: &NfsBackupSchedule, claim: &str, at: Timestamp) -> String {
    let uid = schedule.uid().unwrap_or_default();
    let hash = u64::from_be_bytes(digest(&[&uid, claim])) >> 24;
    format!("{}-{}-{hash:010x}", schedule.name_any(), at.strftime("%Y%m%d%H%M"))
}

/// Returns true if a schedule requested a backup: the backup refers to its UID, and has the name that follows from that.
pub fn is_of_schedule(backup: &NfsBackup, schedule: &NfsBackupSchedule) -> bool {
    let (Some(reference), Some(claim)) = (&backup.spec.schedule_ref, backup.claim_name()) else {
        return false;
    };
    backup.namespace() == schedule.namespace()
        && Some(&reference.uid) == schedule.metadata.uid.as_ref()
        && backup.name_any() == backup_name(schedule, claim, reference.scheduled_time.0)
}

/// Returns the first bytes of a hash that is the same in every release.
fn digest(parts: &[&str]) -> [u8; 8] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    first
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use std::time::Instant;

    use serde_json::{Value, json};

    use super::*;

    fn schedule(cron: &str, rest: Value) -> NfsBackupSchedule {
        let mut spec = json!({"schedule": cron, "claims": {"selector": {}}});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "nightly", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_time_that_passed_is_due_once_and_only_the_last_one() {
        let times = ParsedSchedule::of(&schedule("30 2 * * *", json!({}))).unwrap();
        let created = at("2026-01-01T12:00:00Z");
        let due = |handled, now| times.due(handled, at(now));
        assert_eq!(
            due(created, "2026-01-01T13:00:00Z"),
            Due::Later(at("2026-01-02T02:30:00Z"))
        );
        assert_eq!(
            due(created, "2026-01-02T02:29:59Z"),
            Due::Later(at("2026-01-02T02:30:00Z"))
        );
        let first = at("2026-01-02T02:30:00Z");
        assert_eq!(due(created, "2026-01-02T02:30:00Z"), Due::Run(first));
        assert_eq!(
            due(first, "2026-01-02T02:30:01Z"),
            Due::Later(at("2026-01-03T02:30:00Z"))
        );
        // After days without the operator, one backup is made.
        assert_eq!(due(first, "2026-01-09T10:00:00Z"), Due::Run(at("2026-01-09T02:30:00Z")));
        // A clock that is set back repeats nothing.
        assert_eq!(due(first, "2026-01-01T20:00:00Z"), Due::Later(first));
    }

    #[test]
    fn a_time_whose_deadline_has_passed_is_missed() {
        let times = ParsedSchedule::of(&schedule("0 2 * * *", json!({"startingDeadline": "1h"}))).unwrap();
        let handled = at("2026-01-01T02:00:00Z");
        let run = at("2026-01-02T02:00:00Z");
        assert_eq!(times.due(handled, at("2026-01-02T03:00:00Z")), Due::Run(run));
        assert_eq!(times.due(handled, at("2026-01-02T03:00:01Z")), Due::Missed(run));
    }

    #[test]
    fn times_are_those_of_the_time_zone_across_changes_of_its_clock() {
        let zone = json!({"timeZone": "Europe/Berlin"});
        let times = ParsedSchedule::of(&schedule("30 2 * * *", zone)).unwrap();
        let next = |after: &str| times.next(at(after)).unwrap().to_string();
        assert_eq!(next("2026-01-01T00:00:00Z"), "2026-01-01T01:30:00Z");
        assert_eq!(next("2026-07-01T00:00:00Z"), "2026-07-01T00:30:00Z");
        // 2026-03-29 has no 02:30 in Berlin, and 2026-10-25 has two.
        assert_eq!(next("2026-03-28T12:00:00Z"), "2026-03-29T01:00:00Z");
        assert_eq!(next("2026-10-24T12:00:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(next("2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn invalid_fields_are_named() {
        for (cron, rest, field) in [
            ("every day", json!({}), "spec.schedule"),
            ("61 * * * *", json!({}), "spec.schedule"),
            ("* * * * * *", json!({}), "spec.schedule"),
            ("0 2 * * *", json!({"timeZone": "Mars/Olympus"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "../../etc/passwd"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "Etc/Unknown"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "localtime"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "Localtime"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "Factory"}), "spec.timeZone"),
            ("0 2 * * *", json!({"timeZone": "posix/Europe/Berlin"}), "spec.timeZone"),
            (
                "0 2 * * *",
                json!({"claims": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}}),
                "spec.claims.selector",
            ),
        ] {
            let condition = ParsedSchedule::of(&schedule(cron, rest)).unwrap_err();
            assert_eq!(condition.reason, Reason::InvalidSpec);
            assert!(condition.message.starts_with(field), "{}", condition.message);
        }
    }

    #[test]
    fn a_schedule_that_is_never_due_costs_little() {
        let times = ParsedSchedule::of(&schedule("0 0 30 2 *", json!({}))).unwrap();
        let started = Instant::now();
        assert_eq!(
            times.due(at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z")),
            Due::Never
        );
        let took = started.elapsed();
        println!("searched in {took:?}");
        assert!(took.as_secs() < 5, "{took:?}");
    }

    #[test]
    fn each_schedule_has_a_delay_of_its_own_within_the_jitter() {
        let delays: Vec<i64> = (0..100)
            .map(|n| delay_within(&n.to_string(), SignedDuration::from_secs(600)).as_secs())
            .collect();
        assert!(delays.iter().all(|delay| (0..600).contains(delay)));
        assert!(delays.iter().any(|delay| *delay < 200) && delays.iter().any(|delay| *delay > 400));
        let times = ParsedSchedule::of(&schedule("0 2 * * *", json!({"jitter": "10m"}))).unwrap();
        let (created, run) = (at("2026-01-01T12:00:00Z"), at("2026-01-02T02:00:00Z"));
        assert_eq!(times.start(run), run + times.delay);
        assert_eq!(times.due(created, times.start(run)), Due::Run(run));
        if times.delay > SignedDuration::ZERO {
            assert_eq!(times.due(created, run), Due::Later(run));
        }
    }

    #[test]
    fn names_are_the_same_in_every_release_and_differ_by_schedule_claim_and_time() {
        let nightly = schedule("0 2 * * *", json!({}));
        let run = at("2026-01-02T02:00:00Z");
        let name = backup_name(&nightly, "data", run);
        assert_eq!(name, backup_name(&nightly, "data", run));
        assert!(name.starts_with("nightly-202601020200-") && name.len() == 31, "{name}");
        assert_ne!(name, backup_name(&nightly, "other", run));
        assert_ne!(name, backup_name(&nightly, "data", run + SignedDuration::from_mins(1)));
        let mut recreated = nightly;
        recreated.metadata.uid = Some("v".into());
        assert_ne!(name, backup_name(&recreated, "data", run));
    }

    /// Lets a schedule run by a clock that advances in steps, and returns its runs.
    fn runs(times: &ParsedSchedule, from: Timestamp, to: Timestamp, step: SignedDuration) -> Vec<Timestamp> {
        let (mut handled, mut now, mut runs) = (from, from, Vec::new());
        while now <= to {
            match times.due(handled, now) {
                Due::Run(at) => {
                    handled = at;
                    runs.push(at);
                }
                Due::Later(at) => assert!(at > now),
                due => assert!(!matches!(due, Due::Missed(_) | Due::Never), "{due:?} at {now}"),
            }
            now += step;
        }
        runs
    }

    #[test]
    fn around_changes_of_the_clock_no_time_is_lost_or_repeated_whenever_it_is_looked_at() {
        let changes = [
            ("Europe/Berlin", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("America/New_York", "2026-11-01T06:00:00Z"),
            ("America/Santiago", "2026-09-06T04:00:00Z"),
            ("Asia/Beirut", "2026-03-28T22:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ];
        let patterns = [
            "30 2 * * *",
            "0 0 * * *",
            "0 * * * *",
            "*/20 1-3 * * *",
            "30 1,2,3 * * *",
        ];
        for ((zone, change), pattern) in changes
            .into_iter()
            .flat_map(|change| patterns.map(|pattern| (change, pattern)))
        {
            let times = ParsedSchedule::of(&schedule(pattern, json!({"timeZone": zone}))).unwrap();
            let (from, to) = (
                at(change) - SignedDuration::from_hours(26),
                at(change) + SignedDuration::from_hours(26),
            );
            let expected: Vec<Timestamp> = std::iter::successors(times.next(from), |last| times.next(*last))
                .take_while(|next| *next <= to)
                .collect();
            assert!(expected.len() >= 2, "{zone} {pattern}: {expected:?}");
            for step in [599, 1151] {
                let runs = runs(&times, from, to, SignedDuration::from_secs(step));
                // The last time may be later than the last look.
                assert!(
                    expected.len() - runs.len() <= 1,
                    "{zone} {change} {pattern}: {runs:?}, not {expected:?}"
                );
                assert_eq!(runs, expected[..runs.len()], "{zone} {change} {pattern}");
            }
            if pattern == "30 2 * * *" {
                let dates: Vec<_> = expected
                    .iter()
                    .map(|run| run.to_zoned(times.zone.clone()).date())
                    .collect();
                assert!(
                    dates.windows(2).all(|dates| dates[0].tomorrow().unwrap() == dates[1]),
                    "{zone} {dates:?}"
                );
            }
        }
    }

    #[test]
    fn a_recorded_time_far_in_the_future_does_not_stop_the_schedule() {
        let status = |last: &str| {
            let mut schedule = schedule("0 2 * * *", json!({}));
            schedule.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            schedule.status = serde_json::from_value(json!({"lastScheduleTime": last})).unwrap();
            handled(&schedule, at("2026-01-03T12:00:00Z")).to_string()
        };
        assert_eq!(status("2026-01-03T02:00:00Z"), "2026-01-03T02:00:00Z");
        // The clock was set back by less than a day: nothing is repeated.
        assert_eq!(status("2026-01-04T02:00:00Z"), "2026-01-04T02:00:00Z");
        assert_eq!(status("2027-01-03T02:00:00Z"), "2026-01-01T00:00:00Z");
    }

    #[test]
    fn only_backups_with_the_uid_and_the_name_that_follows_are_of_a_schedule() {
        let nightly = schedule("0 2 * * *", json!({}));
        let time = "2026-01-02T02:00:00Z";
        let backup = |name: &str, claim: &str, uid: &str| -> NfsBackup {
            let spec = json!({
                "source": {"claimName": claim}, "scheduleRef": {"name": "nightly", "uid": uid, "scheduledTime": time},
            });
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        let name = backup_name(&nightly, "data", at(time));
        assert!(is_of_schedule(&backup(&name, "data", "u"), &nightly));
        assert!(
            !is_of_schedule(&backup(&name, "data", "v"), &nightly),
            "another schedule's"
        );
        assert!(
            !is_of_schedule(&backup("mine", "data", "u"), &nightly),
            "a tenant's own"
        );
        assert!(
            !is_of_schedule(&backup(&name, "other", "u"), &nightly),
            "another claim's"
        );
        let mut unscheduled = backup(&name, "data", "u");
        unscheduled.spec.schedule_ref = None;
        assert!(!is_of_schedule(&unscheduled, &nightly));
    }

    #[test]
    fn labels_select_only_claims_that_this_operator_provisioned() {
        let selector = json!({"claims": {"selector": {"matchLabels": {"backup": "yes"}}}});
        let parsed = ParsedSchedule::of(&schedule("0 2 * * *", selector)).unwrap();
        let selects = |labels: Value, annotations: Value| {
            let claim = json!({"name": "a", "labels": labels, "annotations": annotations});
            parsed.selects(&serde_json::from_value(claim).unwrap(), |provisioner| {
                provisioner == "us"
            })
        };
        let bound = |name: &str, provisioner: &str| json!({name: provisioner, BIND_COMPLETED: "yes"});
        let (yes, ours) = (json!({"backup": "yes"}), bound(STORAGE_PROVISIONER, "us"));
        assert!(selects(yes.clone(), ours.clone()));
        assert!(selects(yes.clone(), bound(BETA_STORAGE_PROVISIONER, "us")));
        assert!(!selects(json!({"backup": "no"}), ours.clone()));
        assert!(!selects(Value::Null, ours));
        assert!(!selects(yes.clone(), bound(STORAGE_PROVISIONER, "them")));
        assert!(
            !selects(yes.clone(), json!({STORAGE_PROVISIONER: "us"})),
            "it was never bound"
        );
        assert!(!selects(yes, Value::Null));
    }
}
