//! Parameters of a StorageClass.

use std::collections::BTreeMap;

use kube::core::Selector;

use super::backend::{Existing, OnDelete};

/// Parsed parameters of a StorageClass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClassParameters {
    /// `backend`: names of the permitted backends; empty if not restricted by name.
    pub backends: Vec<String>,
    /// `backendSelector`: label selector of the permitted backends.
    pub backend_selector: Option<Selector>,
    /// `onDelete`, or the equivalent of `archiveOnDelete`. If unset, the policy of the backend applies.
    pub on_delete: Option<OnDelete>,
    /// `pathPattern`. If unset, that of the backend applies.
    pub pattern: Option<String>,
    /// `existing`. If unset, that of the backend applies.
    pub existing: Option<Existing>,
    /// `mode`, the low 12 bits. If unset, that of the backend applies.
    pub mode: Option<u32>,
    /// `uid`. If unset, that of the backend applies.
    pub uid: Option<u32>,
    /// `gid`. If unset, that of the backend applies.
    pub gid: Option<u32>,
    /// Warnings about ignored parameters; only for classes under a provisioner alias.
    pub ignored: Vec<String>,
}

/// Error in a parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The parameter does not exist.
    #[error("unknown parameter {name:?}: known are {}", ClassParameters::NAMES.join(", "))]
    Unknown {
        /// Name of the parameter.
        name: String,
    },
    /// The value is invalid.
    #[error("parameter {name}: {value:?} is not {expected}")]
    Value {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
}

impl ClassParameters {
    /// Names of all parameters.
    pub const NAMES: &[&str] = &[
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

    /// Parses the parameters of a class.
    ///
    /// # Errors
    /// The first parameter that is unknown or has an invalid value.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut parsed = Self::default();
        let mut archive_on_delete = None;
        for (name, value) in parameters {
            let invalid = |name: &'static str, expected| ParameterError::Value {
                name,
                value: value.clone(),
                expected,
            };
            match name.as_str() {
                "backend" => {
                    let names = parse_names(value);
                    parsed.backends =
                        names.ok_or_else(|| invalid("backend", "a list of backend names separated by commas"))?;
                }
                "backendSelector" => {
                    let expected = "a label selector such as `tier=fast,zone in (a,b)`";
                    let selector = super::selector::parse(value);
                    parsed.backend_selector = Some(selector.ok_or_else(|| invalid("backendSelector", expected))?);
                }
                "onDelete" => {
                    let policy = parse_on_delete(value);
                    parsed.on_delete =
                        Some(policy.ok_or_else(|| invalid("onDelete", "one of archive, delete, retain"))?);
                }
                "archiveOnDelete" => {
                    let archive = parse_go_bool(value).ok_or_else(|| invalid("archiveOnDelete", "true or false"))?;
                    archive_on_delete = Some(if archive { OnDelete::Archive } else { OnDelete::Delete });
                }
                "pathPattern" => parsed.pattern = Some(value.clone()).filter(|pattern| !pattern.is_empty()),
                "existing" => {
                    let existing = parse_existing(value);
                    parsed.existing = Some(existing.ok_or_else(|| invalid("existing", "one of Refuse, Adopt, Share"))?);
                }
                "mode" => {
                    let mode = parse_mode(value);
                    parsed.mode = Some(mode.ok_or_else(|| invalid("mode", "an octal mode such as 0777 or 2770"))?);
                }
                "uid" => parsed.uid = Some(parse_owner(value).ok_or_else(|| invalid("uid", OWNER))?),
                "gid" => parsed.gid = Some(parse_owner(value).ok_or_else(|| invalid("gid", OWNER))?),
                _ => return Err(ParameterError::Unknown { name: name.clone() }),
            }
        }
        parsed.on_delete = parsed.on_delete.or(archive_on_delete);
        Ok(parsed)
    }

    /// Parses the parameters of a class under a provisioner alias, with the semantics of nfs-subdir-external-provisioner.
    ///
    /// Differences to [`Self::parse`]: data is archived unless the class specifies otherwise, whatever the policy of
    /// the backend; an existing directory is adopted; unknown parameters are not errors, but are listed in
    /// [`Self::ignored`].
    ///
    /// # Errors
    /// The first parameter with an invalid value.
    pub fn parse_as_nfs_subdir(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let (mut known, mut ignored) = (BTreeMap::new(), Vec::new());
        for (name, value) in parameters {
            match name.as_str() {
                // nfs-subdir treats an empty value as unset.
                "onDelete" if value.is_empty() => {}
                // nfs-subdir never deleted data because of `Delete`, so data that was kept for years stays kept.
                "onDelete" if !NFS_SUBDIR_POLICIES.contains(&value.as_str()) => ignored.push(format!(
                    "parameter onDelete: {value:?} is not one of {} (case-sensitive)",
                    NFS_SUBDIR_POLICIES.join(", ")
                )),
                known_name if Self::NAMES.contains(&known_name) => {
                    known.insert(name.clone(), value.clone());
                }
                _ => ignored.push(format!("unknown parameter {name:?}")),
            }
        }
        let parsed = Self::parse(&known)?;
        Ok(Self {
            // A shared directory is always retained.
            on_delete: match parsed.existing {
                Some(Existing::Share) => parsed.on_delete,
                _ => parsed.on_delete.or(Some(OnDelete::Archive)),
            },
            existing: parsed.existing.or(Some(Existing::Adopt)),
            ignored,
            ..parsed
        })
    }
}

/// Values of `onDelete` in the exact case that nfs-subdir requires. `archive` is an addition: there is no other way to request
/// it if `archiveOnDelete` is false.
const NFS_SUBDIR_POLICIES: [&str; 3] = ["archive", "delete", "retain"];

const OWNER: &str = "a number from 0 to 4294967294";

fn parse_names(value: &str) -> Option<Vec<String>> {
    let names: Vec<String> = value.split(',').map(|name| name.trim().to_owned()).collect();
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

/// Parses an `onDelete` policy, case-insensitive.
pub fn parse_on_delete(value: &str) -> Option<OnDelete> {
    match value.to_ascii_lowercase().as_str() {
        "archive" => Some(OnDelete::Archive),
        "delete" => Some(OnDelete::Delete),
        "retain" => Some(OnDelete::Retain),
        _ => None,
    }
}

/// Parses exactly the values that `strconv.ParseBool` of Go accepts.
pub fn parse_go_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn parse_existing(value: &str) -> Option<Existing> {
    match value.to_ascii_lowercase().as_str() {
        "refuse" => Some(Existing::Refuse),
        "adopt" => Some(Existing::Adopt),
        "share" => Some(Existing::Share),
        _ => None,
    }
}

/// Parses permissions in octal: three or four digits, optionally after a leading zero.
pub fn parse_mode(value: &str) -> Option<u32> {
    let digits = value.strip_prefix('0').filter(|rest| rest.len() >= 3).unwrap_or(value);
    if !(3..=4).contains(&digits.len()) || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'7')) {
        return None;
    }
    u32::from_str_radix(digits, 8).ok()
}

/// Parses a numeric user or group ID: 32 bits, except the maximum, which means "unchanged" in `chown`.
pub fn parse_owner(value: &str) -> Option<u32> {
    if !value.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    value.parse().ok().filter(|&number| number != u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<ClassParameters, ParameterError> {
        let parameters: BTreeMap<String, String> = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        ClassParameters::parse(&parameters)
    }

    #[test]
    fn a_class_without_parameters_has_no_settings() {
        assert_eq!(parse(&[]).unwrap(), ClassParameters::default());
    }

    #[test]
    fn archive_on_delete_accepts_exactly_the_booleans_of_go() {
        for yes in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(
                parse(&[("archiveOnDelete", yes)]).unwrap().on_delete,
                Some(OnDelete::Archive)
            );
        }
        for no in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(
                parse(&[("archiveOnDelete", no)]).unwrap().on_delete,
                Some(OnDelete::Delete)
            );
        }
        for bad in ["", "yes", "tRUE", " true", "2"] {
            assert!(parse(&[("archiveOnDelete", bad)]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn on_delete_takes_precedence_over_archive_on_delete_in_any_case() {
        let parsed = parse(&[("onDelete", "ReTain"), ("archiveOnDelete", "false")]).unwrap();
        assert_eq!(parsed.on_delete, Some(OnDelete::Retain));
        assert!(parse(&[("onDelete", "retain"), ("archiveOnDelete", "perhaps")]).is_err());
    }

    #[test]
    fn an_unknown_parameter_is_reported_with_the_known_ones() {
        let message = parse(&[("archiveOnDelte", "true")]).unwrap_err().to_string();
        assert!(
            message.contains("archiveOnDelte") && message.contains("archiveOnDelete"),
            "{message}"
        );
    }

    #[test]
    fn modes_are_octal_with_three_or_four_digits() {
        for (text, mode) in [
            ("777", 0o777),
            ("0777", 0o777),
            ("2770", 0o2770),
            ("02770", 0o2770),
            ("000", 0),
        ] {
            assert_eq!(parse_mode(text), Some(mode), "{text}");
        }
        for bad in ["", "7", "77", "888", "0o777", "-777", "77777", "12770", "+777", " 777"] {
            assert_eq!(parse_mode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn owners_are_plain_numbers_except_the_reserved_one() {
        assert_eq!(parse_owner("0"), Some(0));
        assert_eq!(parse_owner("4294967294"), Some(4_294_967_294));
        for bad in ["", "4294967295", "-1", "+1", "root", "1.0", "99999999999"] {
            assert_eq!(parse_owner(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn backends_are_listed_by_name_or_chosen_by_labels() {
        let parsed = parse(&[("backend", "fast, slow"), ("backendSelector", "tier in (fast,slow)")]).unwrap();
        assert_eq!(parsed.backends, ["fast", "slow"]);
        assert!(parsed.backend_selector.is_some());
        assert!(parse(&[("backend", "fast,,slow")]).is_err());
        assert!(parse(&[("backend", "")]).is_err());
    }

    fn parse_as_nfs_subdir(parameters: &[(&str, &str)]) -> Result<ClassParameters, ParameterError> {
        let parameters = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        ClassParameters::parse_as_nfs_subdir(&parameters)
    }

    #[test]
    fn data_is_archived_unless_the_class_specifies_otherwise() {
        use OnDelete::{Archive, Delete, Retain};
        let cases: &[(&[(&str, &str)], OnDelete)] = &[
            (&[], Archive),
            (&[("archiveOnDelete", "true")], Archive),
            (&[("archiveOnDelete", "F")], Delete),
            (&[("onDelete", "delete")], Delete),
            (&[("onDelete", "retain")], Retain),
            (&[("onDelete", "delete"), ("archiveOnDelete", "true")], Delete),
            (&[("onDelete", "retain"), ("archiveOnDelete", "false")], Retain),
            (&[("onDelete", "archive"), ("archiveOnDelete", "false")], Archive),
            (&[("onDelete", ""), ("archiveOnDelete", "false")], Delete),
            // In another case than nfs-subdir requires: ignored.
            (&[("onDelete", "Delete")], Archive),
            (&[("onDelete", "DELETE"), ("archiveOnDelete", "false")], Delete),
            (&[("onDelete", "Retain")], Archive),
        ];
        for (parameters, policy) in cases {
            assert_eq!(
                parse_as_nfs_subdir(parameters).unwrap().on_delete,
                Some(*policy),
                "{parameters:?}"
            );
        }
    }

    #[test]
    fn an_invalid_archive_on_delete_is_refused_even_if_on_delete_takes_precedence() {
        for bad in ["", "yes", "tRUE", " true", "on"] {
            assert!(parse_as_nfs_subdir(&[("archiveOnDelete", bad)]).is_err(), "{bad:?}");
            assert!(parse_as_nfs_subdir(&[("archiveOnDelete", bad), ("onDelete", "retain")]).is_err());
        }
    }

    #[test]
    fn unknown_parameters_are_reported_and_ignored() {
        let parsed = parse_as_nfs_subdir(&[("server", "a"), ("onDelete", "Delete"), ("pathPattern", "x")]).unwrap();
        assert_eq!(parsed.ignored.len(), 2);
        assert!(parsed.ignored.iter().any(|note| note.contains("server")));
        assert!(parsed.ignored.iter().any(|note| note.contains("onDelete")));
        assert_eq!(parsed.pattern.as_deref(), Some("x"));
        assert!(
            parse_as_nfs_subdir(&[("mode", "rwx")]).is_err(),
            "parameters of this operator are validated"
        );
    }

    #[test]
    fn an_existing_directory_is_adopted_unless_the_class_specifies_otherwise() {
        assert_eq!(parse_as_nfs_subdir(&[]).unwrap().existing, Some(Existing::Adopt));
        assert_eq!(
            parse_as_nfs_subdir(&[("existing", "refuse")]).unwrap().existing,
            Some(Existing::Refuse)
        );
    }

    #[test]
    fn a_shared_directory_has_no_policy_unless_the_class_sets_one() {
        let shared = parse_as_nfs_subdir(&[("existing", "SHARE")]).unwrap();
        assert_eq!((shared.existing, shared.on_delete), (Some(Existing::Share), None));
        assert_eq!(parse(&[("existing", "share")]).unwrap().existing, Some(Existing::Share));
        let unknown = parse(&[("existing", "both")]).unwrap_err().to_string();
        assert!(unknown.contains("Refuse, Adopt, Share"), "{unknown}");
    }
}
