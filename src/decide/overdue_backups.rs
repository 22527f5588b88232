//! Which claims have no backup although their schedules requested one long enough ago. Pure.
//!
//! A backup has time until the next scheduled time, so that nobody chooses a maximum age. What is expected follows from what
//! schedules did, which is in their status and in their backups, and not from the times in their spec: these say nothing about
//! the time before the spec was edited, the schedule was resumed, or the claim was labeled.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use crate::api::backup::NfsBackup;
use crate::api::conditions::{BackupCondition, Reason};
use crate::api::schedule::NfsBackupSchedule;

/// Namespace and name of a claim.
pub type ClaimName = (String, String);

/// A schedule that requests backups, and what it did last.
struct ActiveSchedule<'a> {
    object: &'a NfsBackupSchedule,
    /// The last scheduled time whose backups were requested.
    requested: Timestamp,
    /// The last scheduled time that was handled: requested or missed.
    handled: Timestamp,
    /// The next scheduled time, if the one after it must have passed, too, and nothing was requested.
    stuck_at: Option<Timestamp>,
}

/// What a schedule requested for a claim.
#[derive(Default)]
struct Requests {
    /// The claim was selected at the last time, or could not be because its previous backup is not complete.
    is_selected: bool,
    /// Time of the newest request that had time to complete.
    due: Option<Timestamp>,
}

impl<'a> ActiveSchedule<'a> {
    /// Returns `None` for a schedule that requests nothing now, or never did.
    fn of(object: &'a NfsBackupSchedule, now: Timestamp) -> Option<Self> {
        if object.spec.suspend || object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let status = object.status.as_ref()?;
        // Unset if the schedule is invalid or one too many.
        let next = status.next_schedule_time.as_ref()?.0;
        let requested = status.last_schedule_time.as_ref()?.0;
        let missed = status.last_missed_time.as_ref().map(|time| time.0);
        let handled = missed.map_or(requested, |missed| missed.max(requested));
        let jitter = object.spec.jitter.as_ref().and_then(|jitter| jitter.get());
        let jitter = jitter.and_then(|jitter| SignedDuration::try_from(jitter).ok());
        let interval = next.duration_since(handled).max(SignedDuration::ZERO);
        let patience = interval.saturating_add(jitter.unwrap_or_default());
        Some(Self {
            object,
            requested,
            handled,
            stuck_at: (now.duration_since(next) > patience).then_some(next),
        })
    }
}

/// Returns, for each claim that the schedules select, whether its newest backup is older than they expect. `newest` is the time
/// when the newest backup of each claim began, without those whose data do not exist.
pub fn overdue_backups<'a>(
    schedules: impl Iterator<Item = &'a NfsBackupSchedule>,
    backups: impl Iterator<Item = &'a NfsBackup>,
    newest: &BTreeMap<ClaimName, Timestamp>,
    now: Timestamp,
) -> BTreeMap<ClaimName, bool> {
    let active = schedules.filter_map(|schedule| ActiveSchedule::of(schedule, now));
    let active = active.filter_map(|schedule| Some((schedule.object.metadata.uid.as_deref()?, schedule)));
    let active: HashMap<&str, ActiveSchedule<'a>> = active.collect();
    let mut requests: HashMap<(&str, &str), Requests> = HashMap::new();
    for backup in backups.filter(|backup| is_request(backup)) {
        let reference = backup.spec.schedule_ref.as_ref();
        let (Some(reference), Some(claim)) = (reference, backup.claim_name()) else {
            continue;
        };
        // Its name is not checked, which would cost a hash: a tenant can only deceive those who read about their own claims.
        let of_namespace = |schedule: &&ActiveSchedule| schedule.object.metadata.namespace == backup.metadata.namespace;
        let Some(schedule) = active.get(reference.uid.as_str()).filter(of_namespace) else {
            continue;
        };
        let time = reference.scheduled_time.0;
        let of_claim = requests.entry((&reference.uid, claim)).or_default();
        of_claim.is_selected |= time == schedule.requested || backup.is_unfinished();
        if time < schedule.handled {
            of_claim.due = of_claim.due.max(Some(time));
        }
    }
    let mut overdue = BTreeMap::new();
    for ((uid, claim), requests) in requests {
        let Some(schedule) = active.get(uid).filter(|_| requests.is_selected) else {
            continue;
        };
        let namespace = schedule.object.metadata.namespace.clone().unwrap_or_default();
        let claim = (namespace, claim.to_owned());
        let expected = schedule.stuck_at.or(requests.due);
        let is_overdue = expected.is_some_and(|expected| newest.get(&claim).is_none_or(|newest| *newest < expected));
        *overdue.entry(claim).or_default() |= is_overdue;
    }
    overdue
}

/// Returns false for a backup that is being deleted, and for one that waits for its claim, which was deleted or is not bound.
fn is_request(backup: &NfsBackup) -> bool {
    backup.metadata.deletion_timestamp.is_none() && !(backup.is_unfinished() && waits_for_claim(backup))
}

fn waits_for_claim(backup: &NfsBackup) -> bool {
    let type_ = BackupCondition::Ready.to_string();
    let mut conditions = backup.observed().conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == type_);
    let reason = ready.and_then(|ready| Reason::parse(&ready.reason));
    matches!(reason, Some(Reason::CopySourceNotReady | Reason::CopySourceGone))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A time on a day of the month on which all times are.
    fn on(day: i64, hour: i64) -> Timestamp {
        Timestamp::from_second((day * 24 + hour) * 3600).unwrap()
    }

    fn merge(object: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) if object.is_object() => {
                for (name, value) in fields {
                    merge(&mut object[name.as_str()], value);
                }
            }
            other => *object = other.clone(),
        }
    }

    /// Returns a daily schedule that ran at the beginning of `day`.
    fn daily(day: i64, change: &Value) -> NfsBackupSchedule {
        let mut object = json!({
            "metadata": {"name": "daily", "namespace": "shop", "uid": "u"},
            "spec": {"schedule": "@daily", "claims": {"selector": {}}},
            "status": {"lastScheduleTime": on(day, 0), "nextScheduleTime": on(day + 1, 0)},
        });
        merge(&mut object, change);
        serde_json::from_value(object).unwrap()
    }

    /// Returns the backup of a claim that the schedule requested at the beginning of `day`.
    fn request(of: &NfsBackupSchedule, claim: &str, day: i64, state: &str, reason: &str) -> NfsBackup {
        let condition = json!({
            "type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": on(day, 0),
        });
        let reference = json!({"name": "daily", "uid": of.metadata.uid, "scheduledTime": on(day, 0)});
        serde_json::from_value(json!({
            "metadata": {"name": format!("daily-{day}-{claim}"), "namespace": of.metadata.namespace},
            "spec": {"source": {"claimName": claim}, "scheduleRef": reference},
            "status": {"state": state, "conditions": [condition]},
        }))
        .unwrap()
    }

    fn complete(of: &NfsBackupSchedule, day: i64) -> NfsBackup {
        request(of, "data", day, "Available", "DataPresent")
    }

    fn waiting(of: &NfsBackupSchedule, day: i64) -> NfsBackup {
        request(of, "data", day, "Pending", "BackupQuotaExceeded")
    }

    /// Returns whether the claim is overdue, if anything is expected of it. The newest backup began at `newest`.
    fn overdue(
        schedules: &[NfsBackupSchedule],
        backups: &[NfsBackup],
        newest: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<bool> {
        let claim = ("shop".to_owned(), "data".to_owned());
        let newest = newest.map(|newest| (claim.clone(), newest)).into_iter().collect();
        let overdue = overdue_backups(schedules.iter(), backups.iter(), &newest, now);
        assert!(overdue.keys().all(|found| *found == claim), "{overdue:?}");
        overdue.get(&claim).copied()
    }

    #[test]
    fn a_backup_has_time_until_the_next_scheduled_time() {
        let ran = |day: i64| daily(day, &json!({}));
        let after = |day: i64, backups: &[NfsBackup], newest: Timestamp| {
            overdue(&[ran(day)], backups, Some(newest), on(day, 1))
        };
        let requested = [complete(&ran(1), 1), waiting(&ran(2), 2)];
        assert_eq!(after(2, &requested, on(1, 0)), Some(false));
        // The claim was skipped.
        assert_eq!(after(3, &requested, on(1, 0)), Some(true));
        assert_eq!(after(9, &requested, on(1, 0)), Some(true));
        let [older, newer] = requested.clone();
        assert_eq!(after(3, &[newer, older], on(1, 0)), Some(true), "in any order");
        // It began late, or somebody else requested one.
        assert_eq!(after(3, &requested, on(2, 12)), Some(false));
    }

    #[test]
    fn data_that_no_longer_exist_are_no_backup() {
        let ran = daily(2, &json!({}));
        let lost = [
            request(&ran, "data", 1, "Missing", "ArchiveNotFound"),
            request(&ran, "data", 2, "Missing", "ArchiveNotFound"),
        ];
        assert_eq!(overdue(&[ran], &lost, None, on(2, 1)), Some(true));
    }

    #[test]
    fn nothing_is_expected_of_new_claims_and_of_schedules_that_are_new_edited_or_were_suspended() {
        let ran = daily(20, &json!({}));
        let is_overdue =
            |backups: &[NfsBackup], newest| overdue(std::slice::from_ref(&ran), backups, newest, on(20, 1));
        assert_eq!(is_overdue(&[], None), None);
        assert_eq!(is_overdue(&[waiting(&ran, 20)], None), Some(false));
        // Nothing was requested from day 2 to 19, and what is requested now is being copied.
        let resumed = [complete(&ran, 1), waiting(&ran, 20)];
        assert_eq!(is_overdue(&resumed, Some(on(1, 0))), Some(false));
    }

    #[test]
    fn only_schedules_that_request_backups_expect_any() {
        let ran = daily(3, &json!({}));
        let is_overdue = |change: &Value| overdue(&[daily(3, change)], &[waiting(&ran, 1)], None, on(3, 1));
        assert_eq!(is_overdue(&json!({})), Some(true));
        for change in [
            json!({"spec": {"suspend": true}}),
            json!({"metadata": {"deletionTimestamp": on(3, 0)}}),
            // Recreated, so that it is another one.
            json!({"metadata": {"uid": "v"}}),
            json!({"metadata": {"namespace": "other"}}),
            // Its spec is invalid, or the namespace has too many schedules.
            json!({"status": {"nextScheduleTime": null}}),
            json!({"status": null}),
        ] {
            assert_eq!(is_overdue(&change), None, "{change}");
        }
        // The next time was missed.
        let missed =
            json!({"status": {"lastScheduleTime": on(1, 0), "lastMissedTime": on(2, 0), "nextScheduleTime": on(3, 0)}});
        assert_eq!(is_overdue(&missed), Some(true));
    }

    #[test]
    fn nothing_is_expected_of_claims_that_are_gone_or_no_longer_selected() {
        let ran = daily(3, &json!({}));
        let is_overdue = |backup: NfsBackup| overdue(std::slice::from_ref(&ran), &[backup], None, on(3, 1));
        for reason in ["CopySourceNotReady", "CopySourceGone"] {
            assert_eq!(is_overdue(request(&ran, "data", 2, "Pending", reason)), None);
        }
        assert_eq!(is_overdue(request(&ran, "data", 2, "Missing", "ArchiveNotFound")), None);
        let mut deleted = waiting(&ran, 2);
        assert_eq!(is_overdue(deleted.clone()), Some(true));
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!(on(3, 0))).unwrap();
        assert_eq!(is_overdue(deleted), None);
    }

    #[test]
    fn a_schedule_whose_requests_fail_is_expected_to_have_made_them_by_the_time_after() {
        let is_overdue = |change: &Value, now| {
            let ran = daily(2, change);
            overdue(std::slice::from_ref(&ran), &[complete(&ran, 2)], Some(on(2, 0)), now)
        };
        let unchanged = json!({});
        assert_eq!(is_overdue(&unchanged, on(3, 23)), Some(false));
        assert_eq!(is_overdue(&unchanged, on(4, 1)), Some(true));
        let jitter = json!({"spec": {"jitter": "6h"}});
        assert_eq!(is_overdue(&jitter, on(4, 1)), Some(false));
        assert_eq!(is_overdue(&jitter, on(4, 7)), Some(true));
    }

    #[test]
    fn each_schedule_that_selects_a_claim_expects_its_own() {
        let (first, second) = (daily(3, &json!({})), daily(3, &json!({"metadata": {"uid": "v"}})));
        let requested = [complete(&first, 1), complete(&first, 3), waiting(&second, 2)];
        for schedules in [[first.clone(), second.clone()], [second, first]] {
            let is_overdue = |newest| overdue(&schedules, &requested, Some(newest), on(3, 1));
            assert_eq!(is_overdue(on(1, 0)), Some(true));
            assert_eq!(is_overdue(on(3, 0)), Some(false));
        }
    }
}
