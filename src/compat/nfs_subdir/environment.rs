//! Environment variables of nfs-subdir-external-provisioner, with the same semantics.

use super::backend::NfsSubdirExport;
use crate::api::parameters::parse_go_bool;

/// Settings from the environment.
#[derive(Debug, PartialEq)]
pub struct Environment {
    /// Export of NFS_SERVER and NFS_PATH.
    pub export: NfsSubdirExport,
    /// Provisioner name of PROVISIONER_NAME.
    pub provisioner: String,
    /// Value of ENABLE_LEADER_ELECTION; true if unset.
    pub leader_election: bool,
}

const NAMES: [&str; 3] = ["NFS_SERVER", "NFS_PATH", "PROVISIONER_NAME"];

impl Environment {
    /// Reads the variables. Returns `None` if none of the three is set; an empty variable counts as unset.
    ///
    /// # Errors
    /// Only some of the three variables are set, or ENABLE_LEADER_ELECTION is invalid.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match NAMES.map(set) {
            [None, None, None] => Ok(None),
            [Some(server), Some(path), Some(provisioner)] => Ok(Some(Self {
                export: NfsSubdirExport::new(&server, &path),
                provisioner,
                leader_election: set("ENABLE_LEADER_ELECTION").map_or(Ok(true), |value| {
                    parse_go_bool(&value)
                        .ok_or_else(|| format!("ENABLE_LEADER_ELECTION={value:?}: expected true or false"))
                })?,
            })),
            values => {
                let missing = NAMES.iter().zip(&values).filter(|(_, value)| value.is_none());
                let present = NAMES.iter().zip(&values).filter(|(_, value)| value.is_some());
                let list = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(" and ");
                Err(format!(
                    "{} missing from the environment: with {}, this operator replaces nfs-subdir-external-provisioner, which \
                     requires all of {}; set all or none of them",
                    list(&mut missing.map(|(name, _)| *name)),
                    list(&mut present.map(|(name, _)| *name)),
                    NAMES.join(", ")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, String> {
        Environment::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const ALL: [(&str, &str); 3] = [("NFS_SERVER", "nfs"), ("NFS_PATH", "/a"), ("PROVISIONER_NAME", "x/y")];

    #[test]
    fn all_three_variables_or_none_are_set() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("NFS_SERVER", ""), ("ENABLE_LEADER_ELECTION", "x")]), Ok(None));
        assert_eq!(read(&ALL).unwrap().unwrap().provisioner, "x/y");
        for (missing, _) in ALL {
            let others: Vec<_> = ALL.into_iter().filter(|(name, _)| *name != missing).collect();
            let error = read(&others).unwrap_err();
            assert!(error.starts_with(&format!("{missing} missing")), "{error}");
        }
    }

    #[test]
    fn leader_election_is_on_unless_disabled_with_a_boolean_of_go() {
        for (value, elects) in [("", true), ("true", true), ("1", true), ("F", false), ("False", false)] {
            let environment = read(&[&ALL[..], &[("ENABLE_LEADER_ELECTION", value)]].concat());
            assert_eq!(environment.unwrap().unwrap().leader_election, elects, "{value}");
        }
        assert!(read(&[&ALL[..], &[("ENABLE_LEADER_ELECTION", "yes")]].concat()).is_err());
    }
}
