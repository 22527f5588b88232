//! Names in arguments and output.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::decide::object_name::is_object_name;

/// Parses the name of a claim: `pvc/NAME`, or `NAME` alone.
pub fn parse_claim(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some(("pvc" | "persistentvolumeclaim" | "persistentvolumeclaims", name)) => name,
        Some(_) => return Err("expected pvc/NAME: set the namespace with -n".to_owned()),
        None => text,
    };
    parse_name(name)
}

/// Parses the name of an archive: `nfsa/NAME`, `nfsarchive/NAME` as `-o name` prints it, or `NAME` alone.
pub fn parse_archive(text: &str) -> Result<String, String> {
    let kinds = ["nfsa/", "nfsarchive/", "nfsarchives/", "nfsarchive.nfs-operator.io/"];
    parse_name(without_kind(text, kinds))
}

/// Parses the name of an NfsBackup: `nfsbk/NAME`, `nfsbackup/NAME` as `-o name` prints it, or `NAME` alone.
pub fn parse_backup(text: &str) -> Result<String, String> {
    let kinds = ["nfsbk/", "nfsbackup/", "nfsbackups/", "nfsbackup.nfs-operator.io/"];
    parse_name(without_kind(text, kinds))
}

/// Parses the name of a backend: `nfsb/NAME`, `nfsbackend/NAME`, or `NAME` alone.
pub fn parse_backend(text: &str) -> Result<String, String> {
    let kinds = ["nfsb/", "nfsbackend/", "nfsbackends/", "nfsbackend.nfs-operator.io/"];
    parse_name(without_kind(text, kinds))
}

/// Returns the name behind the kind of an object, if one of these is before it.
fn without_kind<'a>(text: &'a str, kinds: [&str; 4]) -> &'a str {
    kinds.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text)
}

fn parse_name(name: &str) -> Result<String, String> {
    match is_object_name(name) {
        true => Ok(name.to_owned()),
        false => Err("not a valid name of an object: lower case letters, digits, `-` and `.`".to_owned()),
    }
}

/// Returns a condition by its type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if there is a condition of this type, and it is `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Returns the time since `time` as kubectl shows it, such as `5m` or `3d`.
pub fn age(time: &Time, now: Timestamp) -> String {
    seconds_as_age(now.as_second() - time.0.as_second())
}

/// Returns the time until `time`, or `passed`.
pub fn until(time: &Time, now: Timestamp) -> String {
    match time.0.as_second() - now.as_second() {
        left if left <= 0 => "passed".to_owned(),
        left => format!("in {}", seconds_as_age(left)),
    }
}

/// Returns a duration as kubectl shows it.
pub fn seconds_as_age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_with_or_without_its_kind() {
        for text in ["pvc/data", "data", "persistentvolumeclaim/data"] {
            assert_eq!(parse_claim(text).unwrap(), "data");
        }
        assert_eq!(parse_archive("nfsarchive.nfs-operator.io/a").unwrap(), "a");
        assert_eq!(parse_backend("nfsb/main").unwrap(), "main");
        for text in ["pv/data", "default/data", "pvc/", "a?limit=0", "../a"] {
            assert!(parse_claim(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, expected) in [(-5, "0s"), (119, "119s"), (300, "5m"), (7_200, "2h"), (259_200, "3d")] {
            assert_eq!(seconds_as_age(seconds), expected);
        }
    }
}
