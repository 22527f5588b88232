//! Types of fields with validation rules that the API server checks (CEL, patterns, lengths).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

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
             "message": "`$` must start one of ${pvc.namespace}, ${pvc.name}, ${pvc.uid}, ${pv.name}, ${pvc.labels.KEY}, ${pvc.annotations.KEY}"},
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
            {"rule": "self.matches('^[^,\\\\s]+$')", "message": "each item must be a single mount option without commas and spaces"},
        ],
    })
}

checked_string! {
    /// Duration in Go notation, such as `30s` or `5m`.
    GoDuration,
    json_schema!({
        "type": "string",
        "example": "30s",
        "maxLength": 32,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",
             "message": "must be a duration between 1s and 24h, such as \"30s\" or \"5m\""},
        ],
    })
}

checked_string! {
    /// Pause between usage scans, in Go notation.
    CountInterval,
    json_schema!({
        "type": "string",
        "example": "24h",
        "maxLength": 32,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('720h')",
             "message": "must be a duration between 1m and 720h, such as \"24h\""},
        ],
    })
}

checked_string! {
    /// Duration in days, hours, minutes and seconds, such as `30d` or `1d12h`.
    Retention,
    json_schema!({
        "type": "string",
        "minLength": 2,
        "maxLength": 32,
        "example": "30d",
        "x-kubernetes-validations": [
            {"rule": "self.matches('^([0-9]{1,5}d)?([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,8}s)?$') && self.matches('[1-9]')",
             "message": "must be a duration in days, hours, minutes and seconds, such as \"30d\" or \"1d12h\""},
        ],
    })
}

checked_string! {
    /// Fileid in decimal. It is a string because JSON numbers do not reliably represent 64 bits.
    FileId,
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 20,
        "x-kubernetes-validations": [
            {"rule": "self.matches('^[0-9]+$')", "message": "must be a decimal number"},
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
            {"rule": "isQuantity(self) && !quantity(self).isLessThan(quantity('0'))", "message": "must be a quantity of 0 or more, such as \"500Gi\""},
        ],
    })
}

/// Numeric user or group ID: 32 bits, except the maximum, which means "unchanged" in `chown`.
pub(super) fn owner_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": 4_294_967_294_i64, "example": 1000})
}
/// Nullable [`owner_number`].
pub(super) fn optional_owner_number(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = owner_number(generator);
    schema.insert("nullable".into(), true.into());
    schema
}

/// TCP port.
pub(super) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535})
}
/// Nullable [`port`].
pub(super) fn optional_port(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = port(generator);
    schema.insert("nullable".into(), true.into());
    schema
}
