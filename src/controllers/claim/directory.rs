//! The directory of a claim, by the pattern of its class or its backend. Pure.

use crate::api::backend::DEFAULT_PATTERN;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::directory_pattern::{Pattern, PatternError, PatternValues};
use export_store::naming::DirectoryPath;

/// A directory that a pattern expands to.
#[derive(Debug, PartialEq)]
pub struct DirectoryChoice {
    /// The directory.
    pub directory: DirectoryPath,
    /// No claim of another namespace can have the same directory, so an existing one may be adopted.
    pub adoptable: bool,
    /// No tenant can choose the directory of another namespace, so existing ones may be shared.
    pub shareable: bool,
}

impl DirectoryChoice {
    /// Expands the class's pattern, or else the backend's. With `under_alias`, the class's pattern is nfs-subdir's, and
    /// counts as unset if it expands to nothing. With `single_namespace`, the backend serves no other namespace.
    ///
    /// # Errors
    /// [`Reason::InvalidDirectoryName`], with the pattern and its error.
    pub fn of(
        class: Option<&str>,
        backend: &str,
        under_alias: bool,
        single_namespace: bool,
        values: &PatternValues<'_>,
    ) -> Result<Self, PlannedCondition> {
        let expand = |pattern| expand(pattern, single_namespace, values);
        match class {
            Some(text) if under_alias => match expand(Pattern::parse_as_nfs_subdir(text)) {
                Err(PatternError::ExpandsToNothing { .. }) => {
                    expand(Pattern::parse(DEFAULT_PATTERN)).map_err(|error| invalid(DEFAULT_PATTERN, &error))
                }
                chosen => chosen.map_err(|error| invalid(text, &error)),
            },
            other => {
                let text = other.unwrap_or(backend);
                expand(Pattern::parse(text)).map_err(|error| invalid(text, &error))
            }
        }
    }
}

fn expand(
    pattern: Result<Pattern, PatternError>,
    single_namespace: bool,
    values: &PatternValues<'_>,
) -> Result<DirectoryChoice, PatternError> {
    let pattern = pattern?;
    let adoptable = !pattern.uses_tenant_values() && (single_namespace || pattern.separates_namespaces());
    Ok(DirectoryChoice {
        directory: pattern.expand(values)?,
        adoptable,
        shareable: adoptable || pattern.depends_only_on_namespace(),
    })
}

fn invalid(pattern: &str, error: &PatternError) -> PlannedCondition {
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

    fn values<'a>(labels: &'a BTreeMap<String, String>, none: &'a BTreeMap<String, String>) -> PatternValues<'a> {
        PatternValues {
            namespace: "shop",
            claim: "data",
            claim_uid: "u",
            volume: "pvc-u",
            labels,
            annotations: none,
        }
    }

    fn choose(class: Option<&str>, under_alias: bool) -> Result<(String, bool), Reason> {
        let none = BTreeMap::new();
        let values = values(&none, &none);
        DirectoryChoice::of(class, "all/${pvc.name}", under_alias, false, &values)
            .map(|chosen| (chosen.directory.to_string(), chosen.adoptable))
            .map_err(|condition| condition.reason)
    }

    #[test]
    fn a_pattern_that_expands_to_nothing_counts_as_none_under_an_alias_and_fails_otherwise() {
        let pattern = Some("${.PVC.annotations.nfs.io/storage-path}");
        let default = "shop-data-pvc-u".to_owned();
        assert_eq!(choose(pattern, true), Ok((default, true)));
        assert_eq!(choose(pattern, false), Err(Reason::InvalidDirectoryName));
        for under_alias in [true, false] {
            assert_eq!(choose(None, under_alias), Ok(("all/data".to_owned(), false)));
            let partly = Some("${.PVC.namespace}/${.PVC.labels.team}");
            assert_eq!(choose(partly, under_alias), Err(Reason::InvalidDirectoryName));
        }
    }

    #[test]
    fn a_directory_that_another_namespace_could_have_too_is_not_adopted() {
        for (pattern, shared, alone) in [
            ("${pvc.namespace}-${pvc.name}", false, true),
            ("${.PVC.namespace}-${.PVC.name}", false, true),
            ("x${pvc.namespace}/${pvc.name}", false, true),
            ("${pvc.name}", false, true),
            ("data", false, true),
            ("${pvc.namespace}", true, true),
            ("${.PVC.namespace}/${.PVC.name}", true, true),
            ("${pvc.namespace}-${pvc.name}-${pv.name}", true, true),
            ("${pvc.name}/${pvc.uid}", true, true),
            ("${pvc.namespace}/${pvc.labels.team}", false, false),
        ] {
            for under_alias in [true, false] {
                let labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
                let none = BTreeMap::new();
                let values = values(&labels, &none);
                let adoptable = |single_namespace| {
                    let chosen = DirectoryChoice::of(Some(pattern), "data", under_alias, single_namespace, &values);
                    chosen.unwrap().adoptable
                };
                assert_eq!((adoptable(false), adoptable(true)), (shared, alone), "{pattern}");
            }
        }
    }

    #[test]
    fn a_directory_that_a_tenant_can_choose_is_not_shared() {
        let labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
        let none = BTreeMap::new();
        let values = values(&labels, &none);
        for (pattern, of_any, of_one) in [
            ("data/common", true, true),
            ("team-${pvc.namespace}", true, true),
            ("${pvc.namespace}/common", true, true),
            ("${pvc.namespace}/${pvc.name}", true, true),
            ("data/${pvc.name}", false, true),
            ("${pvc.namespace}-${pvc.name}", false, true),
            ("data/${pvc.labels.team}", false, false),
        ] {
            for (single_namespace, expected) in [(false, of_any), (true, of_one)] {
                let chosen = DirectoryChoice::of(Some(pattern), "data", false, single_namespace, &values);
                assert_eq!(chosen.unwrap().shareable, expected, "{pattern} {single_namespace}");
            }
        }
    }
}
