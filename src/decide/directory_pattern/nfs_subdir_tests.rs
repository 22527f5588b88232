#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
//! Patterns of classes that were written for nfs-subdir-external-provisioner.

use std::collections::BTreeMap;

use super::*;

fn expand(pattern: &str) -> Result<String, PatternError> {
    let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    Pattern::parse_as_nfs_subdir(pattern)?
        .expand(&PatternValues {
            namespace: "shop",
            claim: "data",
            claim_uid: "u",
            volume: "pvc-u",
            labels: &map("team", "red"),
            annotations: &map("nfs.io/storage-path", "here"),
        })
        .map(|directory| directory.to_string())
}

#[test]
fn both_spellings_and_needless_separators_mean_what_they_meant() {
    for (pattern, directory) in [
        ("${.PVC.namespace}/${.PVC.name}", "shop/data"),
        ("${pvc.namespace}/${pv.name}", "shop/pvc-u"),
        (
            "/${.PVC.namespace}//${.PVC.annotations.nfs.io/storage-path}/",
            "shop/here",
        ),
        ("./${.PVC.labels.team}/./x", "red/x"),
    ] {
        assert_eq!(expand(pattern).as_deref(), Ok(directory), "{pattern}");
    }
}

#[test]
fn variables_without_a_value_and_nothing_else_expand_to_nothing() {
    for pattern in [
        "${.PVC.annotations.absent}",
        "${.PVC.labels.a}${.PVC.labels.b}",
        "${.PVC.uid}",
        "${.PVC.labels}",
    ] {
        let error = expand(pattern).unwrap_err();
        assert!(
            matches!(error, PatternError::ExpandsToNothing { .. }),
            "{pattern}: {error}"
        );
    }
}

#[test]
fn a_missing_value_inside_a_longer_pattern_is_refused() {
    for pattern in [
        "${.PVC.namespace}/${.PVC.annotations.absent}",
        "${.PVC.labels.a}/${.PVC.labels.b}",
        "${.PVC.namespace}-${.PVC.uid}",
        "x${.PVC.labels.a}",
    ] {
        let error = expand(pattern).unwrap_err();
        assert!(matches!(error, PatternError::MissingValue { .. }), "{pattern}: {error}");
    }
}

#[test]
fn what_led_out_of_the_export_or_to_its_root_is_refused() {
    for pattern in [
        "",
        "/",
        "./",
        "..",
        "a/../b",
        "../${.PVC.name}",
        "archived-${.PVC.name}",
    ] {
        assert!(expand(pattern).is_err(), "{pattern}");
    }
}
