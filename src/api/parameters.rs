//! The parameters of a StorageClass.

use std::collections::BTreeMap;

use kube::core::Selector;

use super::backend::{Existing, OnDelete};

/// What a StorageClass asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClassParameters {
    /// `backend`: any of these by name; empty = not asked by name.
    pub backends: Vec<String>,
    /// `backendSelector`: by labels.
    pub backend_selector: Option<Selector>,
    /// `onDelete`, or what `archiveOnDelete` means; absent = the backend's policy.
    pub on_delete: Option<OnDelete>,
    /// `pathPattern`; absent = the backend's.
    pub pattern: Option<String>,
    /// `existing`; absent = the backend's.
    pub existing: Option<Existing>,
    /// `mode`, the low 12 bits; absent = the backend's.
    pub mode: Option<u32>,
    /// `uid`; absent = the backend's.
    pub uid: Option<u32>,
    /// `gid`; absent = the backend's.
    pub gid: Option<u32>,
    /// What means nothing here and does no harm, for a warning; only under an alias.
    pub ignored: Vec<String>,
}

/// Why a parameter cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// Not one of ours.
    #[error("unknown parameter {name:?}: known are {}", KNOWN.join(", "))]
    Unknown {
        /// The parameter.
        name: String,
    },
    /// A value that the parameter can't have.
    #[error("parameter {name}: {value:?} is not {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

const KNOWN: &[&str] = &[
    "backend",
    "backendSelector",
    "onDelete",
    "archiveOnDelete",
    "pathPattern",
    "existing",
    "mode",
    "uid",
    "gid",
];

impl ClassParameters {
    /// Reads a class's parameters; the first that can't be used is the error.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut parsed = Self::default();
        let mut archive_on_delete = None;
        for (name, value) in parameters {
            match name.as_str() {
                "backend" => parsed.backends = backend_names(value)?,
                "backendSelector" => parsed.backend_selector = Some(selector(value)?),
                "onDelete" => {
                    parsed.on_delete = Some(
                        on_delete(value).ok_or_else(|| invalid("onDelete", value, "one of archive, delete, retain"))?,
                    )
                }
                "archiveOnDelete" => archive_on_delete = Some(go_bool(value)?),
                "pathPattern" => parsed.pattern = Some(value.clone()).filter(|pattern| !pattern.is_empty()),
                "existing" => parsed.existing = Some(existing(value)?),
                "mode" => {
                    parsed.mode = Some(
                        octal_mode(value)
                            .ok_or_else(|| invalid("mode", value, "an octal mode such as 0777 or 2770"))?,
                    )
                }
                "uid" => parsed.uid = Some(owner(value).ok_or_else(|| invalid("uid", value, OWNER))?),
                "gid" => parsed.gid = Some(owner(value).ok_or_else(|| invalid("gid", value, OWNER))?),
                _ => return Err(ParameterError::Unknown { name: name.clone() }),
            }
        }
        parsed.on_delete = parsed.on_delete.or(archive_on_delete);
        Ok(parsed)
    }
}

const OWNER: &str = "a number from 0 to 4294967294";

fn invalid(name: &'static str, value: &str, expected: &'static str) -> ParameterError {
    ParameterError::Value {
        name,
        value: value.to_owned(),
        expected,
    }
}

fn backend_names(value: &str) -> Result<Vec<String>, ParameterError> {
    let names: Vec<String> = value.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err(invalid("backend", value, "a list of backend names separated by commas"));
    }
    Ok(names)
}

fn selector(value: &str) -> Result<Selector, ParameterError> {
    super::selector::parse(value).ok_or_else(|| {
        invalid(
            "backendSelector",
            value,
            "a label selector such as `tier=fast,zone in (a,b)`",
        )
    })
}

/// Reads a policy in any case; `None` when it is none.
pub fn on_delete(value: &str) -> Option<OnDelete> {
    match value.to_ascii_lowercase().as_str() {
        "archive" => Some(OnDelete::Archive),
        "delete" => Some(OnDelete::Delete),
        "retain" => Some(OnDelete::Retain),
        _ => None,
    }
}

/// Exactly what Go's `strconv.ParseBool` takes: true archives, false deletes, as in nfs-subdir.
fn go_bool(value: &str) -> Result<OnDelete, ParameterError> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(OnDelete::Archive),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(OnDelete::Delete),
        _ => Err(invalid("archiveOnDelete", value, "true or false")),
    }
}

fn existing(value: &str) -> Result<Existing, ParameterError> {
    match value.to_ascii_lowercase().as_str() {
        "refuse" => Ok(Existing::Refuse),
        "adopt" => Ok(Existing::Adopt),
        _ => Err(invalid("existing", value, "one of Refuse, Adopt")),
    }
}

/// Reads permission bits in octal, three or four digits with a leading zero or without.
pub fn octal_mode(value: &str) -> Option<u32> {
    let digits = value.strip_prefix('0').filter(|rest| rest.len() >= 3).unwrap_or(value);
    if !(3..=4).contains(&digits.len()) || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'7')) {
        return None;
    }
    u32::from_str_radix(digits, 8).ok()
}

/// Reads a user or group number: 32 bits without the one that means "nobody asked" on the wire.
pub fn owner(value: &str) -> Option<u32> {
    if !value.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    value.parse().ok().filter(|&number| number != u32::MAX)
}

mod nfs_subdir;
#[cfg(test)]
mod tests;
