//! The environment variables of nfs-subdir-external-provisioner, with the meaning that they have there.

use nfs_operator::compat::nfs_subdir::backend::InheritedExport;

/// What the environment says, where it says anything.
#[derive(Debug, PartialEq)]
pub struct Environment {
    /// NFS_SERVER and NFS_PATH.
    pub export: InheritedExport,
    /// PROVISIONER_NAME.
    pub provisioner: String,
    /// ENABLE_LEADER_ELECTION; it elects when nobody says otherwise.
    pub leader_election: bool,
}

const NAMES: [&str; 3] = ["NFS_SERVER", "NFS_PATH", "PROVISIONER_NAME"];

impl Environment {
    /// Reads it: all three variables or none. An empty one is missing.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match NAMES.map(set) {
            [None, None, None] => Ok(None),
            [Some(server), Some(path), Some(provisioner)] => Ok(Some(Self {
                export: InheritedExport::new(&server, &path),
                provisioner,
                leader_election: leader_election(set("ENABLE_LEADER_ELECTION").as_deref())?,
            })),
            some => {
                let missing = NAMES.iter().zip(&some).filter(|(_, value)| value.is_none());
                let there = NAMES.iter().zip(&some).filter(|(_, value)| value.is_some());
                let list = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(" and ");
                Err(format!(
                    "{} missing from the environment: with {} the place of an nfs-subdir-external-provisioner is taken, which \
                     needs all of {}; set all or none of them",
                    list(&mut missing.map(|(name, _)| *name)),
                    list(&mut there.map(|(name, _)| *name)),
                    NAMES.join(", ")
                ))
            }
        }
    }
}

/// Exactly what Go's `strconv.ParseBool` takes.
fn leader_election(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Ok(true),
        Some("0" | "f" | "F" | "FALSE" | "false" | "False") => Ok(false),
        Some(other) => Err(format!("ENABLE_LEADER_ELECTION={other:?}: expected true or false")),
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
    fn all_three_or_none() {
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
    fn leaders_are_elected_unless_it_says_otherwise_as_go_spells_it() {
        for (value, elects) in [("", true), ("true", true), ("1", true), ("F", false), ("False", false)] {
            let environment = read(&[&ALL[..], &[("ENABLE_LEADER_ELECTION", value)]].concat());
            assert_eq!(environment.unwrap().unwrap().leader_election, elects, "{value}");
        }
        assert!(read(&[&ALL[..], &[("ENABLE_LEADER_ELECTION", "yes")]].concat()).is_err());
    }
}
