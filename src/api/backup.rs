//! `NfsBackup`: a backup that a tenant requests for a claim of their own namespace, or a view of an archive of it.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::archive::{ArchiveSummary, NfsArchive};
use super::consistency::{Consistency, CopiedData, CopiedSnapshot};
use super::schema::{Duration, backup_retention, max_snapshot_age};

/// Prefix of the names of the archives that the operator creates for backups. The UID of the backup follows.
const ARCHIVE_PREFIX: &str = "nfsbackup-";

/// What is requested of a backup.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsBackup",
    plural = "nfsbackups",
    shortname = "nfsbk",
    category = "storage",
    namespaced,
    status = "NfsBackupStatus",
    derive = "PartialEq",
    doc = "NfsBackup is a backup of a claim of its namespace, or shows an archive of its namespace. A claim of the namespace restores it by its dataSourceRef. Short name: nfsbk.",
    printcolumn(name = "Claim", type_ = "string", json_path = ".status.claimName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.requestedSize"),
    printcolumn(name = "Completed", type_ = "date", json_path = ".status.completionTime"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expirationTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Origin", type_ = "string", json_path = ".status.origin", priority = 1),
    printcolumn(name = "Archive", type_ = "string", json_path = ".status.archiveName", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self == oldSelf", "spec can't be changed: create another NfsBackup"),
    validation = ("!has(self.scheduleRef) || has(self.source.claimName)", "spec.scheduleRef requires source.claimName: only the operator sets it"),
    validation = ("!has(self.maxSnapshotAge) || has(self.consistency)", "maxSnapshotAge requires consistency: set consistency to Required or Preferred"),
    validation = ("!has(self.consistency) || has(self.source.claimName)", "spec.consistency requires source.claimName: an existing archive stays as it is"),
    validation = ("!has(self.retention) || has(self.source.claimName)", "spec.retention requires source.claimName: administrators decide about the retention of an existing archive"),
)]
pub struct NfsBackupSpec {
    /// What the backup is of.
    #[x_kube(validation = ("has(self.claimName) != has(self.archiveName)", "source must have exactly one member: set source.claimName to back up a claim"))]
    pub source: BackupSource,
    /// How long the backup is kept, such as `30d` or `1d12h`, counted from the creation of this object. After that, the backup
    /// and this object are deleted. If unset, the backup is kept until this object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "backup_retention")]
    pub retention: Option<Duration>,
    /// Whether the backup shows the claim at one moment. If unset, the data in use are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// Maximum age of the snapshot, such as `1h`, counted from the last probe before it. An older one counts as none. If unset,
    /// the newest snapshot is copied, whatever its age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_snapshot_age")]
    pub max_snapshot_age: Option<Duration>,
    /// NfsBackupSchedule that requested the backup. Set by the operator: the backup counts toward `keepLast` of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_ref: Option<ScheduleReference>,
}

/// NfsBackupSchedule that requested a backup.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleReference {
    /// Name of the schedule.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the schedule.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// The scheduled time.
    pub scheduled_time: Time,
}

/// What a backup is of. Exactly one member is set.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSource {
    /// Claim of this namespace whose current data are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')", "source.claimName must be a valid name of a claim: lower case letters, digits, `-` and `.`"))]
    pub claim_name: Option<String>,
    /// Existing NfsArchive that came from this namespace. The operator creates an object of the same name for each archive of a
    /// deleted claim. Deleting such an object does not delete the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 110))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')", "source.archiveName must be a valid name of an archive: lower case letters, digits, `-` and `.`"))]
    pub archive_name: Option<String>,
}

impl NfsBackup {
    /// Returns the observed state, which is empty before the operator wrote it. Nothing that matters is decided by it: a
    /// tenant may be able to write it.
    pub fn observed(&self) -> &NfsBackupStatus {
        self.status.as_ref().unwrap_or(&UNOBSERVED)
    }

    /// Returns the name of the archive that has the data. That of a claim's backup is made from the UID of this object, which
    /// the API server chose.
    pub fn archive_name(&self) -> String {
        match &self.spec.source.archive_name {
            Some(name) => name.clone(),
            None => format!("{ARCHIVE_PREFIX}{}", self.uid().unwrap_or_default()),
        }
    }

    /// Returns the claim to copy, if this object requests a copy.
    pub fn claim_name(&self) -> Option<&str> {
        let source = &self.spec.source;
        source.claim_name.as_deref().filter(|_| source.archive_name.is_none())
    }

    /// Returns true if the data are not complete yet.
    pub fn is_unfinished(&self) -> bool {
        let state = self.observed().state.unwrap_or(ArchiveSummary::Pending);
        matches!(state, ArchiveSummary::Pending | ArchiveSummary::Copying)
    }

    /// Returns true if this object only shows the archive that has its name. The operator creates and deletes these.
    pub fn is_view(&self) -> bool {
        self.spec.source.archive_name.as_ref() == Some(&self.name_any())
    }

    /// Returns the time when the backup expires. `None` without a retention, or if a value is out of range.
    pub fn expiration_time(&self) -> Option<Timestamp> {
        let created = self.metadata.creation_timestamp.as_ref()?.0;
        let retention = SignedDuration::try_from(self.spec.retention.as_ref()?.get()?).ok()?;
        created.checked_add(retention).ok()
    }
}

impl NfsArchive {
    /// Returns true if a tenant requested this archive with an NfsBackup. The archives count toward
    /// `spec.backups.selfService` of their backend.
    pub fn is_self_service(&self) -> bool {
        self.spec.backup_ref.is_some() || self.name_any().starts_with(ARCHIVE_PREFIX)
    }
}

/// Where a backup comes from.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum BackupOrigin {
    /// This object requested it.
    Claim,
    /// The claim was deleted, and its data were archived.
    ClaimDeleted,
    /// An administrator requested it, or another NfsBackup.
    Archive,
}

static UNOBSERVED: NfsBackupStatus = NfsBackupStatus {
    observed_generation: None,
    state: None,
    origin: None,
    claim_name: None,
    archive_name: None,
    archive_uid: None,
    backend_name: None,
    requested_size: None,
    completion_time: None,
    expiration_time: None,
    snapshot: None,
    copied: None,
    conditions: Vec::new(),
};

/// Observed state of a backup.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackupStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the condition, for printing: the state of the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Unknown"))]
    pub state: Option<ArchiveSummary>,
    /// Where the backup comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<BackupOrigin>,
    /// Name of the claim that the data are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub claim_name: Option<String>,
    /// Name of the NfsArchive that has the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub archive_name: Option<String>,
    /// UID of the NfsArchive.
    #[serde(default, rename = "archiveUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub archive_uid: Option<String>,
    /// Name of the NfsBackend that stores the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub backend_name: Option<String>,
    /// Storage that the claim requested. A claim that restores the backup must request at least as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_size: Option<Quantity>,
    /// Time when the data were complete, by the API server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Time after which the archive may be purged. Unset if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<Time>,
    /// Snapshot of the server that was copied. Unset if the data were copied while in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CopiedSnapshot>,
    /// What the backup contains, and how much of it was copied. Unset until it is complete, and for archives of deleted claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<CopiedData>,
    /// Condition of the backup: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(spec: &Value) -> NfsBackup {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn the_archive_of_a_claims_backup_is_named_after_the_uid_whatever_the_object_contains() {
        let named = backup(&json!({"source": {"claimName": "data"}}));
        assert_eq!(
            (named.archive_name().as_str(), named.claim_name()),
            ("nfsbackup-u", Some("data"))
        );
        // The API server refuses both; the operator then copies nothing.
        let both = backup(&json!({"source": {"claimName": "data", "archiveName": "pvc-1"}}));
        assert_eq!((both.archive_name().as_str(), both.claim_name()), ("pvc-1", None));
    }

    #[test]
    fn only_an_object_with_the_name_of_its_archive_is_a_view() {
        assert!(backup(&json!({"source": {"archiveName": "b"}})).is_view());
        assert!(!backup(&json!({"source": {"archiveName": "c"}})).is_view());
        assert!(!backup(&json!({"source": {"claimName": "b"}})).is_view());
    }

    #[test]
    fn the_retention_counts_from_the_creation_of_the_object() {
        let expires = |spec| backup(&spec).expiration_time().map(|at| at.to_string());
        assert_eq!(
            expires(json!({"source": {"claimName": "d"}, "retention": "1d12h"})).as_deref(),
            Some("2026-01-02T12:00:00Z")
        );
        assert_eq!(expires(json!({"source": {"claimName": "d"}})), None);
    }
}
