//! `NfsBackupSchedule`: backups of the claims of a namespace at regular times.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::consistency::Consistency;
use super::schema::{Duration, backup_retention, jitter, max_snapshot_age, starting_deadline};

/// Which claims are backed up, when, and how long the backups are kept.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsBackupSchedule",
    plural = "nfsbackupschedules",
    shortname = "nfsbs",
    category = "storage",
    namespaced,
    status = "NfsBackupScheduleStatus",
    derive = "PartialEq",
    doc = "NfsBackupSchedule requests NfsBackups of claims of its namespace at regular times. Short name: nfsbs.",
    validation = ("size(self.metadata.name) <= 63", "metadata.name must have at most 63 characters, because the names of the backups begin with it: choose a shorter name"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.lastScheduleTime"),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.nextScheduleTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Missed", type_ = "date", json_path = ".status.lastMissedTime", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.maxSnapshotAge) || has(self.consistency)", "maxSnapshotAge requires consistency: set consistency to Required or Preferred"))]
pub struct NfsBackupScheduleSpec {
    /// Times in cron format: minute, hour, day of month, month and day of week, such as `30 2 * * *`; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly` or `@yearly`. If both days are restricted, either one is sufficient.
    #[schemars(length(min = 1, max = 100), extend("example" = "30 2 * * *"))]
    #[x_kube(validation = ("self.matches('^@(hourly|daily|weekly|monthly|yearly)$') || self.matches('^[^ ]+( [^ ]+){4}$')", "schedule must be five fields (minute, hour, day of month, month and day of week) with a space between them, or @hourly, @daily, @weekly, @monthly or @yearly: write it such as \"30 2 * * *\""))]
    pub schedule: String,
    /// Time zone of the schedule, such as `Europe/Berlin`. If unset, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), extend("example" = "Europe/Berlin"))]
    #[x_kube(validation = ("self.matches('^[A-Z][A-Za-z0-9_+/-]*$')", "timeZone must be a name of the IANA database: write it such as Europe/Berlin"))]
    pub time_zone: Option<String>,
    /// Claims to back up. A claim is backed up if either field selects it.
    #[x_kube(validation = ("has(self.selector) || size(self.matchNames) > 0", "claims must select something: set claims.matchNames or claims.selector"))]
    pub claims: ScheduledClaims,
    /// Requests and deletes no backups while true. When it is set to false, the last time that passed meanwhile is made up for, within
    /// `startingDeadline`.
    #[serde(default)]
    pub suspend: bool,
    /// How long after a scheduled time its backups are still requested, for example after the operator was not running. If
    /// unset, the last scheduled time is always made up for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "starting_deadline")]
    pub starting_deadline: Option<Duration>,
    /// Maximum delay of the backups after the scheduled time. Each schedule has a delay of its own within it, which is always
    /// the same, so that the schedules of many namespaces do not start at once. If unset, there is no delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "jitter")]
    pub jitter: Option<Duration>,
    /// `spec.retention` of the backups. If unset, they are kept until they are deleted, or as defined by `keepLast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "backup_retention")]
    pub retention: Option<Duration>,
    /// `spec.consistency` of the backups: whether each shows its claim at one moment. If unset, the data in use are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// `spec.maxSnapshotAge` of the backups: maximum age of the snapshot, such as `1h`, counted from the last probe before it. An
    /// older one counts as none. If unset, the newest snapshot is copied, whatever its age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_snapshot_age")]
    pub max_snapshot_age: Option<Duration>,
    /// Number of complete backups of each claim to keep. Older ones of this schedule are deleted, unless they have a legal hold.
    /// A recreated claim is another claim. If unset, no backup is deleted because of its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: Option<i32>,
}

/// Selection of claims of the namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledClaims {
    /// Names of claims.
    #[serde(default)]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set", "default" = []))]
    pub match_names: Vec<String>,
    /// Label selector of claims; `{}` selects all claims of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Observed state of a schedule.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackupScheduleStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Last scheduled time whose backups were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// Next scheduled time, without the delay of `jitter`. Unset while suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_schedule_time: Option<Time>,
    /// Last scheduled time whose backups were not requested, because `startingDeadline` had passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_missed_time: Option<Time>,
    /// Conditions of the schedule: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
