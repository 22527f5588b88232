//! Types of fields with validation rules that the API server checks (CEL, patterns, lengths).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::duration;

macro_rules! checked_string {
    ($(#[$doc:meta])* $name:ident, $schema:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(value: &str) -> Self {
                Self(value.to_owned())
            }
        }
    };
}

checked_string! {
    /// A DNS name, IPv4 or IPv6 address (without brackets).
    ServerAddress,
    json_schema!({
        "type": "string",
        "example": "nfs.example.com",
        "minLength": 1,
        "maxLength": 253,
        "x-kubernetes-validations": [
            {"rule": "!self.contains('/')", "message": "server must be a DNS name or an IP address: put the export's path into `path`"},
            {"rule": "self.contains('/') || (self.contains(':') ? isIP(self) : self.matches('^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$'))",
             "message": "server must be a DNS name, an IPv4 address or an IPv6 address without brackets; set a port in `nfs.port`"},
        ],
    })
}

checked_string! {
    /// The absolute path of an export.
    ExportPath,
    json_schema!({
        "type": "string",
        "example": "/export",
        "minLength": 1,
        "maxLength": 1024,
        "x-kubernetes-validations": [
            {"rule": "self.startsWith('/')", "message": "path must be absolute: start it with `/`"},
            {"rule": "self == '/' || !self.startsWith('/') || self.substring(1).split('/').all(s, s != '' && s != '.' && s != '..')",
             "message": "path must not contain empty, `.` or `..` segments, and must not end with `/`"},
            {"rule": "!self.matches('[\\\\x00-\\\\x1f\\\\x7f]')", "message": "path must not contain control characters"},
        ],
    })
}

checked_string! {
    /// Permission bits in octal, with setuid, setgid and sticky, such as `0777` or `2770`.
    OctalMode,
    json_schema!({
        "type": "string",
        "example": "2770",
        "maxLength": 5,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^0?[0-7]{3,4}$')", "message": "mode must be octal, such as \"0777\" or \"2770\" (quote it)"},
        ],
    })
}

checked_string! {
    /// Directory pattern: segments of text and `${…}` variables, separated by `/`.
    DirectoryPattern,
    json_schema!({
        "type": "string",
        "example": "${pvc.namespace}/${pvc.name}",
        "minLength": 1,
        "maxLength": 1024,
        "x-kubernetes-validations": [
            {"rule": "self.split('/').all(s, s != '' && s != '.' && s != '..')",
             "message": "pattern must be relative, without empty, `.` or `..` segments"},
            // What `decide::directory_pattern::Pattern` reads.
            {"rule": "self.matches('^([^$]|[$][{](pv[.]name|pvc[.]uid|(pvc|[.]PVC)[.](namespace|name|(labels|annotations)[.][^}]+))[}])*$')",
             "message": "`$` in pattern must start one of ${pvc.namespace}, ${pvc.name}, ${pvc.uid}, ${pv.name}, ${pvc.labels.KEY}, ${pvc.annotations.KEY}"},
        ],
    })
}

checked_string! {
    /// Mount option, such as `hard` or `timeo=600`.
    MountOption,
    json_schema!({
        "type": "string",
        "example": "hard",
        "minLength": 1,
        "maxLength": 256,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^[^,\\\\s]+$')", "message": "each of mountOptions must be a single option: write options with commas or spaces as several items"},
        ],
    })
}

checked_string! {
    /// Duration in the notation of Go, and days, such as `30s` or `1d12h`. Each field has its own limits.
    Duration,
    duration_between("", ("0s", "2400000h"), ANY_DAYS, "30s")
}

impl Duration {
    /// Returns the duration. The schema refuses an invalid one.
    pub fn get(&self) -> Option<std::time::Duration> {
        duration::parse(&self.0)
    }
}

checked_string! {
    /// Fileid in decimal. It is a string because JSON numbers do not reliably represent 64 bits.
    FileId,
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 20,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^[0-9]+$')", "message": "fileID must be a decimal number: copy it from the record"},
        ],
    })
}

checked_string! {
    /// Amount of storage, such as `500Gi`.
    StorageAmount,
    json_schema!({
        "type": "string",
        "example": "500Gi",
        "maxLength": 64,
        "x-kubernetes-validations": [
            {"rule": "isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
             "message": "limit, reserve, maxBytesPerNamespace and maxBytes must be quantities of 0 or more: write a number and a unit, such as \"500Gi\""},
        ],
    })
}

/// Duration of a field with its limits, which are in Go's notation. CEL does not know days, and computing with parts of a
/// string exceeds its budget: `days` is the pattern of the values with days.
fn duration_between(field: &str, (min, max): (&str, &str), days: &str, example: &str) -> Schema {
    let rule = format!(
        "self.matches('^([0-9]{{1,9}}([.][0-9]{{1,9}})?(ms|s|m|h))+$') ? duration(self) >= duration('{min}') && \
         duration(self) <= duration('{max}') : self.matches('{days}')"
    );
    let message = format!("{field} must be a duration from {min} to {max}: write it such as \"{example}\" or \"1d\"");
    json_schema!({
        "type": "string",
        "example": example,
        "maxLength": duration::MAX_LENGTH,
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
    })
}

/// Interval of the probes.
pub(super) fn probe_interval(_: &mut SchemaGenerator) -> Schema {
    duration_between("probeInterval", ("1s", "24h"), "^1d$", "30s")
}

/// Interval of the usage scans.
pub(super) fn usage_interval(_: &mut SchemaGenerator) -> Schema {
    let days = "^(([1-9]|[12][0-9])d([0-9]{1,2}h)?([0-9]{1,2}m)?([0-9]{1,2}s)?|30d)$";
    duration_between("usage.interval", ("1m", "720h"), days, "24h")
}

/// Retention of archives, up to more than two hundred years.
pub(super) fn retention(_: &mut SchemaGenerator) -> Schema {
    duration_between("archivePolicy.retention", ("1s", "2400000h"), ANY_DAYS, "720h")
}

/// Retention of a tenant's backup.
pub(super) fn backup_retention(_: &mut SchemaGenerator) -> Schema {
    duration_between("retention", ("1s", "2400000h"), ANY_DAYS, "30d")
}

/// Age of the snapshots that backups are copied from.
pub(super) fn max_snapshot_age(_: &mut SchemaGenerator) -> Schema {
    duration_between("maxSnapshotAge", ("1s", "2400000h"), ANY_DAYS, "1h")
}

/// Bandwidth, at least that of one read or write in a second.
pub(super) fn bandwidth(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "example": "50Mi",
        "maxLength": 64,
        "x-kubernetes-validations": [
            {"rule": "isQuantity(self) && !quantity(self).isLessThan(quantity('1Mi'))",
             "message": "copies.maxBytesPerSecond must be a quantity of 1Mi or more: write a number and a unit, such as \"50Mi\""},
        ],
    })
}

/// Delay of the backups of a schedule.
pub(super) fn jitter(_: &mut SchemaGenerator) -> Schema {
    duration_between("jitter", ("1s", "24h"), "^1d$", "30m")
}

/// Time after which the backups of a schedule are no longer requested.
pub(super) fn starting_deadline(_: &mut SchemaGenerator) -> Schema {
    duration_between("startingDeadline", ("1s", "2400000h"), ANY_DAYS, "6h")
}

/// Pattern of durations with days.
const ANY_DAYS: &str = "^[1-9][0-9]{0,4}d([0-9]{1,2}h)?([0-9]{1,2}m)?([0-9]{1,2}s)?$";

/// Exact quantity in a status. It may exceed 64 bits.
pub(super) fn exact_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 64, "example": "32Gi"})
}

/// Numeric user or group ID: 32 bits, except the maximum, which means "unchanged" in `chown`.
pub(super) fn owner_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": 4_294_967_294_i64, "example": 1000})
}

/// Numeric ID of a group that the kubelet adds to pods: as [`owner_number`], without 0, which it ignores.
pub(super) fn pod_group(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 1, "maximum": 4_294_967_294_i64, "example": 20000})
}

/// TCP port.
pub(super) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535})
}
