//! Which directory a claim is to have, by the patterns of its class and its backend. Pure.

use crate::api::conditions::{PlannedCondition, Reason};
use export_store::naming::{DEFAULT_PATTERN, DirectoryPath, NamingError, Pattern, PatternValues};

/// A directory that a pattern led to.
#[derive(Debug, PartialEq)]
pub struct Chosen {
    /// The directory.
    pub directory: DirectoryPath,
    /// Its name holds nothing that a tenant chooses freely.
    pub adoptable: bool,
}

impl Chosen {
    /// The directory by the class's pattern, or else the backend's. `under_alias`: the class's is nfs-subdir's, for which
    /// one that expands to nothing is as good as none.
    ///
    /// # Errors
    /// [`Reason::InvalidDirectoryName`], with the pattern and what is wrong with it.
    pub fn of(
        class: Option<&str>,
        backend: &str,
        under_alias: bool,
        values: &PatternValues<'_>,
    ) -> Result<Self, PlannedCondition> {
        match class {
            Some(text) if under_alias => match by(Pattern::parse_as_nfs_subdir(text), values) {
                Err(NamingError::ExpandsToNothing { .. }) => {
                    by(Pattern::parse(DEFAULT_PATTERN), values).map_err(|error| unusable(DEFAULT_PATTERN, &error))
                }
                chosen => chosen.map_err(|error| unusable(text, &error)),
            },
            other => {
                let text = other.unwrap_or(backend);
                by(Pattern::parse(text), values).map_err(|error| unusable(text, &error))
            }
        }
    }
}

fn by(pattern: Result<Pattern, NamingError>, values: &PatternValues<'_>) -> Result<Chosen, NamingError> {
    let pattern = pattern?;
    Ok(Chosen {
        directory: pattern.expand(values)?,
        adoptable: !pattern.uses_tenant_values(),
    })
}

fn unusable(pattern: &str, error: &NamingError) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::InvalidDirectoryName,
        format!("directory pattern {pattern:?}: {error}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::collections::BTreeMap;

    use super::*;

    fn choose(class: Option<&str>, under_alias: bool) -> Result<(String, bool), Reason> {
        let nothing = BTreeMap::new();
        let values = PatternValues {
            namespace: "shop",
            claim: "data",
            claim_uid: "u",
            volume: "pvc-u",
            labels: &nothing,
            annotations: &nothing,
        };
        Chosen::of(class, "all/${pvc.name}", under_alias, &values)
            .map(|chosen| (chosen.directory.to_string(), chosen.adoptable))
            .map_err(|verdict| verdict.reason)
    }

    #[test]
    fn a_pattern_that_expands_to_nothing_is_none_under_an_alias_and_an_error_elsewhere() {
        let pattern = Some("${.PVC.annotations.nfs.io/storage-path}");
        let default = "shop-data-pvc-u".to_owned();
        assert_eq!(choose(pattern, true), Ok((default, true)));
        assert_eq!(choose(pattern, false), Err(Reason::InvalidDirectoryName));
        for under_alias in [true, false] {
            assert_eq!(choose(None, under_alias), Ok(("all/data".to_owned(), true)));
            let partly = Some("${.PVC.namespace}/${.PVC.labels.team}");
            assert_eq!(choose(partly, under_alias), Err(Reason::InvalidDirectoryName));
        }
    }
}
