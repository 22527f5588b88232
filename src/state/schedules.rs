//! The schedules of the schedule watch: how many of a namespace are served, and what their changes requeue.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::{NfsArchive, NfsBackup, NfsBackupSchedule};
use crate::decide::overdue_backups::overdue_backups;
use crate::runtime::backup_metrics::BackupFigures;
use crate::state::context::Context;

/// Maximum number of schedules of a namespace that request backups. Each may run once a minute, which costs a few requests
/// (docs/security.md, Budget).
const MAX_PER_NAMESPACE: usize = 100;

/// Position among the schedules of a namespace: the oldest ones are served.
type Rank = (Option<Timestamp>, String);

fn rank(schedule: &NfsBackupSchedule) -> Rank {
    let created = schedule.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, schedule.name_any())
}

/// Checks that a schedule is one of those of its namespace that are served.
///
/// # Errors
/// The condition to report.
pub fn check_number(ctx: &Context, schedule: &NfsBackupSchedule) -> Result<(), PlannedCondition> {
    let (namespace, rank_of_this) = (schedule.namespace(), rank(schedule));
    let older = ctx
        .stores
        .schedules
        .state()
        .into_iter()
        .filter(|other| other.namespace() == namespace && rank(other) < rank_of_this);
    if older.count() < MAX_PER_NAMESPACE {
        return Ok(());
    }
    let message = format!(
        "the namespace has {MAX_PER_NAMESPACE} older schedules, the maximum, so this one requests no backups: delete schedules, \
         or select more claims in one"
    );
    Err(PlannedCondition::fails(Reason::TooManySchedules, message))
}

/// Returns the figures for the metrics. `archives` and `backups` are empty unless metrics of each claim are enabled.
pub fn figures(
    schedules: &[Arc<NfsBackupSchedule>],
    archives: &[Arc<NfsArchive>],
    backups: &[Arc<NfsBackup>],
    now: Timestamp,
) -> BackupFigures {
    let mut figures = BackupFigures::default();
    for schedule in schedules {
        let ready = schedule.status.as_ref().and_then(|status| status.conditions.first());
        // Only names of reasons become labels, whatever the status contains.
        if let Some(reason) = ready.and_then(|ready| Reason::parse(&ready.reason)) {
            *figures.schedules.entry(reason.to_string()).or_default() += 1;
        }
    }
    // A snapshot may be older than the schedule expects: its maximum age is that of the backup.
    let mut begun = BTreeMap::new();
    for archive in archives
        .iter()
        .filter(|archive| archive.is_on_demand() && archive.is_good())
    {
        let claim = &archive.spec.claim_ref;
        let observed = archive.observed();
        let snapshot = observed
            .snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.last_probe_time.as_ref());
        // The data of a snapshot are as old as the snapshot.
        let of_data = observed.archive_time.iter().chain(snapshot).min_by_key(|time| time.0);
        for (times, time) in [
            (&mut figures.newest, of_data),
            (&mut begun, observed.archive_time.as_ref()),
        ] {
            if let Some(Time(time)) = time {
                let newest = times.entry((claim.namespace.clone(), claim.name.clone()));
                newest
                    .and_modify(|newest| *newest = (*newest).max(*time))
                    .or_insert(*time);
            }
        }
    }
    let (schedules, backups) = (schedules.iter().map(Arc::as_ref), backups.iter().map(Arc::as_ref));
    figures.overdue = overdue_backups(schedules, backups, &begun, now);
    figures
}

/// Handles a change of the cache of schedules: the place of a deleted one is taken by the next one.
pub fn observe_cached(event: &Event<NfsBackupSchedule>, ctx: &Context) {
    let Event::Delete(deleted) = event else { return };
    ctx.last_written.forget(&deleted.uid().unwrap_or_default());
    ctx.backup_retries.reset(&deleted.uid().unwrap_or_default());
    let namespace = deleted.namespace();
    let all = ctx.stores.schedules.state().into_iter();
    let mut others: Vec<Arc<NfsBackupSchedule>> = all.filter(|other| other.namespace() == namespace).collect();
    if others.len() < MAX_PER_NAMESPACE {
        return;
    }
    others.sort_by_cached_key(|other| rank(other));
    if let Some(next) = others.get(MAX_PER_NAMESPACE - 1) {
        ctx.requeue_schedule(ObjectRef::from_obj(next.as_ref()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_metrics_are_of_the_newest_requested_backup_whose_data_exist() {
        let archive = |name: &str, state: &str, time: &str| -> Arc<NfsArchive> {
            let spec = json!({"claimRef": {"namespace": "team", "name": "data"}});
            let status = json!({"state": state, "fileID": "7", "volumeName": "pvc-1", "archiveTime": time});
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status})).unwrap(),
            )
        };
        let archives = [
            archive("nfsbackup-1", "Available", "2026-01-01T00:00:00Z"),
            archive("nfsbackup-2", "Held", "2026-01-03T00:00:00Z"),
            archive("nfsbackup-3", "Missing", "2026-01-04T00:00:00Z"),
            archive("nfsbackup-4", "Available", "2026-01-02T00:00:00Z"),
            // The archive of a deleted claim.
            archive("pvc-1", "Available", "2026-01-05T00:00:00Z"),
        ];
        let schedule = |reason: &str| -> Arc<NfsBackupSchedule> {
            let time = "2026-01-01T00:00:00Z";
            let ready =
                json!({"type": "Ready", "status": "True", "reason": reason, "message": "", "lastTransitionTime": time});
            let spec = json!({"schedule": "@daily", "claims": {"selector": {}}});
            let object = json!({"metadata": {"name": "s"}, "spec": spec, "status": {"conditions": [ready]}});
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let schedules = ["Scheduled", "ClaimsSkipped", "Scheduled", "written-by-a-tenant"].map(schedule);
        let figures = figures(&schedules, &archives, &[], Timestamp::UNIX_EPOCH);
        let of_claim = ("team".to_owned(), "data".to_owned());
        let newest = BTreeMap::from([(of_claim, "2026-01-03T00:00:00Z".parse().unwrap())]);
        assert_eq!(figures.newest, newest);
        let by_reason = [("ClaimsSkipped".to_owned(), 1), ("Scheduled".to_owned(), 2)];
        assert_eq!(figures.schedules, BTreeMap::from(by_reason));
    }

    #[test]
    fn a_backup_of_an_old_snapshot_is_not_overdue() {
        let spec = json!({"schedule": "@daily", "claims": {"selector": {}}});
        let status = json!({"lastScheduleTime": "2026-01-03T00:00:00Z", "nextScheduleTime": "2026-01-04T00:00:00Z"});
        let metadata = json!({"name": "s", "namespace": "team", "uid": "u"});
        let schedule = json!({"metadata": metadata, "spec": spec, "status": status});
        let schedule: Arc<NfsBackupSchedule> = Arc::new(serde_json::from_value(schedule).unwrap());
        let request = |time: &str| -> Arc<NfsBackup> {
            let reference = json!({"name": "s", "uid": "u", "scheduledTime": time});
            let spec = json!({"source": {"claimName": "data"}, "scheduleRef": reference});
            let metadata = json!({"name": "b", "namespace": "team"});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
        };
        let backups = ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"].map(request);
        let archive = |time: &str| -> Arc<NfsArchive> {
            let snapshot = json!({"name": "weekly", "lastProbeTime": "2025-12-28T00:00:00Z"});
            let status = json!({"state": "Available", "fileID": "7", "volumeName": "pvc-1", "archiveTime": time, "snapshot": snapshot});
            let spec = json!({"claimRef": {"namespace": "team", "name": "data"}});
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": status})).unwrap(),
            )
        };
        let overdue = |archives: &[Arc<NfsArchive>]| {
            let now = "2026-01-03T01:00:00Z".parse().unwrap();
            let figures = figures(std::slice::from_ref(&schedule), archives, &backups, now);
            figures.overdue.into_values().collect::<Vec<_>>()
        };
        assert_eq!(overdue(&[archive("2026-01-02T00:00:05Z")]), [false]);
        assert_eq!(overdue(&[archive("2026-01-01T00:00:05Z")]), [true]);
    }
}
