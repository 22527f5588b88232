//! What to do about a backup, and what to report. Pure.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::NfsArchive;
use crate::api::archive::ArchiveSummary;
use crate::api::backup::NfsBackup;
use crate::api::conditions::{ArchiveCondition, PlannedCondition, Reason};
use crate::decide::self_service::is_archive_of;

/// The next step of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BackupStep {
    /// Request an archive.
    Request,
    /// Delete the object: what it showed no longer exists, or its retention has ended and it has no archive.
    Delete,
    /// Only report.
    Report(Report),
    /// Report nothing: what the object shows cannot be read now.
    Wait,
}

/// State to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) state: ArchiveSummary,
    pub(super) ready: PlannedCondition,
}

/// What the plan depends on.
pub(super) struct Observed<'a> {
    pub(super) backup: &'a NfsBackup,
    /// The object with the name of the backup's archive.
    pub(super) archive: Option<&'a NfsArchive>,
    /// UID of the namespace; empty if the namespace is not in the cache.
    pub(super) namespace_uid: &'a str,
    pub(super) now: Timestamp,
}

impl Observed<'_> {
    /// Returns the archive if it is that of the backup.
    pub(super) fn own_archive(&self) -> Option<&NfsArchive> {
        let archive = self.archive?;
        is_archive_of(self.backup, archive, self.namespace_uid).then_some(archive)
    }

    /// Returns the next step.
    pub(super) fn plan(&self) -> BackupStep {
        if let Some(archive) = self.own_archive() {
            return BackupStep::Report(report_of(archive));
        }
        match self.backup.claim_name() {
            Some(_) => self.plan_without_archive(),
            None => self.plan_without_shown_archive(),
        }
    }

    fn plan_without_archive(&self) -> BackupStep {
        let name = self.backup.archive_name();
        if self.archive.is_some() {
            return missing(format!(
                "NfsArchive {name} exists and was not created for this NfsBackup: delete this object, and create another one"
            ));
        }
        // Also one that still waits: its data would be deleted as soon as they were copied.
        if self.backup.expiration_time().is_some_and(|at| at <= self.now) {
            return BackupStep::Delete;
        }
        if self.backup.observed().archive_uid.is_none() {
            return BackupStep::Request;
        }
        missing(format!(
            "NfsArchive {name} was deleted, or restored to a claim: the backup no longer exists, so delete this object"
        ))
    }

    fn plan_without_shown_archive(&self) -> BackupStep {
        let namespace = self.backup.namespace();
        // Its status may have been lost. To other namespaces, it looks as if it did not exist.
        let is_unknown = self.archive.is_some_and(|archive| {
            !archive.is_complete() && Some(&archive.spec.claim_ref.namespace) == namespace.as_ref()
        });
        match self.backup.is_view() {
            _ if is_unknown => BackupStep::Wait,
            true => BackupStep::Delete,
            false => missing(format!(
                "NfsArchive {} does not exist or did not come from this namespace: create another NfsBackup",
                self.backup.archive_name()
            )),
        }
    }
}

fn missing(message: String) -> BackupStep {
    BackupStep::Report(Report {
        state: ArchiveSummary::Missing,
        ready: PlannedCondition::fails(Reason::ArchiveNotFound, message),
    })
}

/// Returns what the archive's own condition reports.
fn report_of(archive: &NfsArchive) -> Report {
    let observed = archive.observed();
    if archive.metadata.deletion_timestamp.is_some() {
        return Report {
            state: ArchiveSummary::Purging,
            ready: PlannedCondition::fails(
                Reason::ArchiveBusy,
                format!("NfsArchive {} is being deleted", archive.name_any()),
            ),
        };
    }
    let type_ = ArchiveCondition::Available.to_string();
    let reported = observed.conditions.iter().find(|condition| condition.type_ == type_);
    let ready = reported.and_then(|condition| {
        let reason = Reason::parse(&condition.reason)?;
        Some(match condition.status.as_str() {
            "True" => PlannedCondition::holds(reason, &condition.message),
            "False" => PlannedCondition::fails(reason, &condition.message),
            _ => PlannedCondition::unknown(reason, &condition.message),
        })
    });
    Report {
        state: match observed.state {
            None | Some(ArchiveSummary::Unknown) if ready.is_none() => ArchiveSummary::Pending,
            state => state.unwrap_or(ArchiveSummary::Unknown),
        },
        ready: ready.unwrap_or_else(requested),
    }
}

/// Returns the condition of a backup whose archive was just created.
pub(super) fn requested() -> PlannedCondition {
    PlannedCondition::fails(Reason::Copying, "the copy was requested, and has not started yet")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(source: &Value, rest: &Value) -> NfsBackup {
        let mut object = json!({
            "metadata": {"name": "b", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"source": source},
        });
        for (key, value) in rest.as_object().unwrap() {
            match key.as_str() {
                "retention" => object["spec"]["retention"] = value.clone(),
                "name" => object["metadata"]["name"] = value.clone(),
                _ => object["status"] = value.clone(),
            }
        }
        serde_json::from_value(object).unwrap()
    }

    fn archive(name: &str, change: (&str, Value)) -> NfsArchive {
        let condition = json!({
            "type": "Available", "status": "True", "reason": "DataPresent", "message": "the data exists",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut object = json!({
            "metadata": {"name": name, "deletionTimestamp": null},
            "spec": {"claimRef": {"namespace": "team", "name": "data"}},
            "status": {"namespaceUID": "ns", "fileID": "7", "state": "Available", "conditions": [condition]},
        });
        if let Some(field) = object.pointer_mut(change.0) {
            *field = change.1;
        }
        serde_json::from_value(object).unwrap()
    }

    fn plan(backup: &NfsBackup, archive: Option<&NfsArchive>) -> BackupStep {
        Observed {
            backup,
            archive,
            namespace_uid: "ns",
            now: "2026-01-03T00:00:00Z".parse().unwrap(),
        }
        .plan()
    }

    fn reported(step: BackupStep) -> (ArchiveSummary, Reason) {
        match step {
            BackupStep::Report(report) => (report.state, report.ready.reason),
            other => unreachable!("{other:?}"),
        }
    }

    const UNCHANGED: (&str, Value) = ("/none", Value::Null);

    #[test]
    fn a_backup_requests_its_archive_once_and_reports_what_became_of_it() {
        let claim = json!({"claimName": "data"});
        let fresh = backup(&claim, &json!({}));
        assert_eq!(plan(&fresh, None), BackupStep::Request);
        let requested = backup(&claim, &json!({"status": {"archiveUID": "a"}}));
        assert_eq!(
            reported(plan(&requested, None)),
            (ArchiveSummary::Missing, Reason::ArchiveNotFound)
        );
        let own = archive("nfsbackup-u", UNCHANGED);
        for backup in [&fresh, &requested] {
            assert_eq!(
                reported(plan(backup, Some(&own))),
                (ArchiveSummary::Available, Reason::DataPresent)
            );
        }
        let created = archive("nfsbackup-u", ("/status", json!({"state": "Unknown"})));
        assert_eq!(
            reported(plan(&fresh, Some(&created))),
            (ArchiveSummary::Pending, Reason::Copying)
        );
        let deleted = archive(
            "nfsbackup-u",
            ("/metadata/deletionTimestamp", json!("2026-01-02T00:00:00Z")),
        );
        assert_eq!(
            reported(plan(&fresh, Some(&deleted))),
            (ArchiveSummary::Purging, Reason::ArchiveBusy)
        );
    }

    #[test]
    fn a_backup_whose_archive_expired_is_deleted_and_one_whose_archive_was_deleted_stays() {
        let claim = json!({"claimName": "data"});
        let status = json!({"archiveUID": "a"});
        let with = |retention: &str| backup(&claim, &json!({"retention": retention, "status": status}));
        assert_eq!(plan(&with("2d"), None), BackupStep::Delete);
        assert_eq!(reported(plan(&with("3d"), None)).0, ArchiveSummary::Missing);
        assert_eq!(
            reported(plan(&with("2d"), Some(&archive("nfsbackup-u", UNCHANGED)))).0,
            ArchiveSummary::Available,
            "the archive decides"
        );
    }

    #[test]
    fn a_backup_whose_retention_ended_while_it_waited_is_not_made() {
        let with = |retention: &str| backup(&json!({"claimName": "data"}), &json!({"retention": retention}));
        assert_eq!(plan(&with("2d"), None), BackupStep::Delete);
        assert_eq!(plan(&with("3d"), None), BackupStep::Request);
    }

    #[test]
    fn an_archive_that_was_not_created_for_the_backup_is_not_shown() {
        let forged = backup(
            &json!({"claimName": "data"}),
            &json!({"status": {"archiveUID": "a", "archiveName": "pvc-1"}}),
        );
        for change in [
            ("/spec/claimRef/namespace", json!("other")),
            ("/status/namespaceUID", json!("former")),
        ] {
            let found = archive("nfsbackup-u", change);
            assert_eq!(
                reported(plan(&forged, Some(&found))),
                (ArchiveSummary::Missing, Reason::ArchiveNotFound)
            );
        }
    }

    #[test]
    fn the_archives_of_other_namespaces_look_as_if_they_did_not_exist() {
        for name in ["b", "pvc-1"] {
            let backup = backup(&json!({"archiveName": "pvc-1"}), &json!({"name": name}));
            let absent = plan(&backup, None);
            for change in [
                ("/spec/claimRef/namespace", json!("other")),
                ("/status/namespaceUID", json!("former")),
            ] {
                assert_eq!(plan(&backup, Some(&archive("pvc-1", change))), absent, "{name}");
            }
            let lost = archive("pvc-1", ("/status/fileID", Value::Null));
            assert_eq!(plan(&backup, Some(&lost)), BackupStep::Wait);
        }
    }

    #[test]
    fn an_object_that_only_shows_an_archive_goes_with_it() {
        let view = backup(&json!({"archiveName": "pvc-1"}), &json!({"name": "pvc-1"}));
        assert_eq!(plan(&view, None), BackupStep::Delete);
        assert_eq!(
            reported(plan(&view, Some(&archive("pvc-1", UNCHANGED)))).1,
            Reason::DataPresent
        );
    }
}
