//! A class's parameters with the meaning that nfs-subdir-external-provisioner gives them: for classes under an alias.

use std::collections::BTreeMap;

use super::{ClassParameters, Existing, KNOWN, OnDelete, ParameterError};

/// The policies that `onDelete` names, spelled as it wants them. `archive` is ours: there is no other way to say so
/// once `archiveOnDelete` says false.
const POLICIES: [&str; 3] = ["archive", "delete", "retain"];

impl ClassParameters {
    /// Reads a class's parameters as nfs-subdir reads them; the first that refuses a claim is the error.
    ///
    /// What differs from [`ClassParameters::parse`]: data is archived unless the class says otherwise, whatever the backend
    /// says; a directory that is there is used; what is not known is no error, but one of [`ClassParameters::ignored`].
    pub fn parse_as_nfs_subdir(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let (mut meant, mut ignored) = (BTreeMap::new(), Vec::new());
        for (name, value) in parameters {
            match name.as_str() {
                // As good as absent, there as here.
                "onDelete" if value.is_empty() => {}
                // `Delete` was never a reason to delete there, and data that was kept for years stays kept.
                "onDelete" if !POLICIES.contains(&value.as_str()) => ignored.push(format!(
                    "parameter onDelete: {value:?} is none of {} in just this spelling",
                    POLICIES.join(", ")
                )),
                known if KNOWN.contains(&known) => {
                    meant.insert(name.clone(), value.clone());
                }
                _ => ignored.push(format!("unknown parameter {name:?}")),
            }
        }
        let parsed = Self::parse(&meant)?;
        Ok(Self {
            on_delete: parsed.on_delete.or(Some(OnDelete::Archive)),
            existing: parsed.existing.or(Some(Existing::Adopt)),
            ignored,
            ..parsed
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<ClassParameters, ParameterError> {
        let parameters = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        ClassParameters::parse_as_nfs_subdir(&parameters)
    }

    #[test]
    fn data_is_archived_unless_the_class_says_otherwise() {
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
            // Not spelled as nfs-subdir wants it: as if it were not there.
            (&[("onDelete", "Delete")], Archive),
            (&[("onDelete", "DELETE"), ("archiveOnDelete", "false")], Delete),
            (&[("onDelete", "Retain")], Archive),
        ];
        for (parameters, policy) in cases {
            assert_eq!(parse(parameters).unwrap().on_delete, Some(*policy), "{parameters:?}");
        }
    }

    #[test]
    fn what_parse_bool_does_not_take_refuses_even_where_on_delete_wins() {
        for bad in ["", "yes", "tRUE", " true", "on"] {
            assert!(parse(&[("archiveOnDelete", bad)]).is_err(), "{bad:?}");
            assert!(parse(&[("archiveOnDelete", bad), ("onDelete", "retain")]).is_err());
        }
    }

    #[test]
    fn what_is_not_known_is_named_and_does_no_harm() {
        let parsed = parse(&[("server", "a"), ("onDelete", "Delete"), ("pathPattern", "x")]).unwrap();
        assert_eq!(parsed.ignored.len(), 2);
        assert!(parsed.ignored.iter().any(|note| note.contains("server")));
        assert!(parsed.ignored.iter().any(|note| note.contains("onDelete")));
        assert_eq!(parsed.pattern.as_deref(), Some("x"));
        assert!(parse(&[("mode", "rwx")]).is_err(), "what is ours is read as ours");
    }

    #[test]
    fn a_directory_that_is_there_is_used_unless_the_class_says_otherwise() {
        assert_eq!(parse(&[]).unwrap().existing, Some(Existing::Adopt));
        assert_eq!(
            parse(&[("existing", "refuse")]).unwrap().existing,
            Some(Existing::Refuse)
        );
    }
}
