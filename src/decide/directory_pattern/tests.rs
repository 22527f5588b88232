#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::BTreeMap;

use export_store::hostile_names::any_name;
use export_store::naming::archive_name;
use proptest::prelude::*;

use super::*;

const UID: &str = "3f2b1c9e-9f64-4f0e-8a53-0d9c1f7a2b11";
/// Number of bytes that a shortened name leaves free: `archived-`, `-` and eight digits, `-` and two digits.
const ARCHIVE_ROOM: usize = "archived-".len() + 1 + 8 + 1 + 2;

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|&(k, v)| (k.into(), v.into())).collect()
}

fn expand(pattern: &str, annotations: &[(&str, &str)]) -> Result<String, PatternError> {
    Pattern::parse(pattern)?
        .expand(&PatternValues {
            namespace: "shop",
            claim: "data",
            claim_uid: UID,
            volume: &format!("pvc-{UID}"),
            labels: &map(&[("team", "red"), ("empty", "")]),
            annotations: &map(annotations),
        })
        .map(|directory| directory.to_string())
}

#[test]
fn errors_of_values_are_escaped_and_bounded() {
    let message = expand("${pvc.annotations.x}", &[("x", &"\u{1b}".repeat(500))])
        .unwrap_err()
        .to_string();
    assert!(!message.contains('\u{1b}') && message.len() < 700, "{message}");
}

#[test]
fn both_spellings_expand() {
    let path = [("nfs.io/storage-path", "here")];
    for (pattern, expected) in [
        ("${pvc.namespace}/${pvc.name}", "shop/data"),
        ("${.PVC.namespace}/${.PVC.name}", "shop/data"),
        ("${pvc.labels.team}-${pvc.uid}", &format!("red-{UID}")),
        ("${.PVC.labels.team}", "red"),
        ("x/${.PVC.annotations.nfs.io/storage-path}/y", "x/here/y"),
        ("${pvc.annotations.nfs.io/storage-path}", "here"),
        (
            "${pvc.namespace}-${pvc.name}-${pv.name}",
            &format!("shop-data-pvc-{UID}"),
        ),
        ("volumes", "volumes"),
    ] {
        assert_eq!(expand(pattern, &path).unwrap(), expected, "{pattern}");
    }
}

#[test]
fn what_no_value_could_cure_is_refused_before_any_claim() {
    for pattern in [
        "",
        "/",
        "/${pvc.name}",
        "${pvc.name}/",
        "a//${pvc.name}",
        "${pvc.name",
        "${}",
        "${pvc.}",
        "${pvc.labels.}",
        "${.PVC.annotations.}",
        "${.PVC.uid}",
        "${.PV.name}",
        "${PVC.name}",
        "${pvc.Name}",
        "${ pvc.name }",
        "$pvc.name",
        "${${pvc.name}}",
        "a b/${pvc.name}",
        ".${pvc.name}",
        "${pvc.name}.",
        "archived-${pvc.name}",
        "ARCHIVED-${pvc.name}",
        "${pvc.name}/archived-x",
        "${pvc.name}}",
        &"a".repeat(256),
        &"a/".repeat(600),
    ] {
        assert!(Pattern::parse(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn values_that_are_missing_are_named() {
    let missing = |variable: &str| PatternError::MissingValue {
        variable: variable.into(),
    };
    assert_eq!(
        expand("x-${pvc.labels.zone}", &[]).unwrap_err(),
        missing("${pvc.labels.zone}")
    );
    assert_eq!(
        expand("x-${pvc.labels.empty}", &[]).unwrap_err(),
        missing("${pvc.labels.empty}")
    );
    assert_eq!(
        expand("${.PVC.annotations.a}/${.PVC.annotations.b}", &[("a", "x")]).unwrap_err(),
        missing("${.PVC.annotations.b}")
    );
    assert!(matches!(
        expand("${.PVC.annotations.a}/${.PVC.annotations.b}", &[]).unwrap_err(),
        PatternError::MissingValue { .. }
    ));
    assert!(matches!(
        expand("${.PVC.annotations.a}${.PVC.annotations.b}", &[]).unwrap_err(),
        PatternError::ExpandsToNothing { .. }
    ));
}

#[test]
fn a_value_never_adds_a_segment() {
    assert!(matches!(
        expand("${pvc.namespace}/${pvc.annotations.a}", &[("a", "b/c")]).unwrap_err(),
        PatternError::SlashInValue { .. }
    ));
    // Parts that are valid individually but not in combination.
    for (pattern, value) in [
        ("${pvc.annotations.a}-x", "archived"),
        ("x${pvc.annotations.a}", "y."),
        ("${pvc.annotations.a}${pvc.annotations.a}", "."),
        // Invalid only in the part that shortening would cut off.
        ("${pvc.annotations.a}", &format!("{} b", "x".repeat(300))),
    ] {
        assert!(expand(pattern, &[("a", value)]).is_err(), "{pattern} {value}");
    }
}

#[test]
fn only_labels_and_annotations_are_tenant_values() {
    for (pattern, expected) in [
        ("${pvc.namespace}-${pvc.name}-${pvc.uid}-${pv.name}", false),
        ("a/x-${pvc.labels.team}", true),
        ("${.PVC.annotations.a/b}", true),
    ] {
        assert_eq!(
            Pattern::parse(pattern).unwrap().uses_tenant_values(),
            expected,
            "{pattern}"
        );
    }
}

#[test]
fn the_longest_default_name_is_shortened_and_leaves_room_for_its_archive() {
    let pattern = Pattern::parse("${pvc.namespace}-${pvc.name}-${pv.name}").unwrap();
    let (namespace, volume) = ("n".repeat(63), format!("pvc-{UID}"));
    let expanded = |claim: &str| {
        let none = BTreeMap::new();
        let values = PatternValues {
            namespace: &namespace,
            claim,
            claim_uid: UID,
            volume: &volume,
            labels: &none,
            annotations: &none,
        };
        pattern.expand(&values).unwrap()
    };
    let directory = expanded(&"c".repeat(253));
    assert_eq!(directory, expanded(&"c".repeat(253)));
    assert_ne!(directory, expanded(&"c".repeat(252)));
    // These digits are part of names on exports, so they must never change.
    assert!(
        directory.last_segment().ends_with("-f3cafe5ba10ee351"),
        "{}",
        directory.last_segment()
    );
    for name_max in [255, 143, 64] {
        let fitting = directory.clone().fit(name_max).unwrap();
        assert!(fitting.last_segment().len() <= name_max - ARCHIVE_ROOM);
        for attempt in [0, 1, 99] {
            let archive = archive_name(fitting.last_segment(), UID, attempt, name_max);
            assert!(
                archive.len() <= name_max && archive.contains(fitting.last_segment()),
                "{archive}"
            );
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_expanded_obeys_the_rules(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("${pvc.labels.l}".to_owned()),
                Just("${pvc.annotations.a/b}".to_owned()),
                Just("${.PVC.name}".to_owned()),
                Just("${pvc.namespace}".to_owned()),
                Just("/".to_owned()),
                "[a-z.-]{0,9}",
                any_name(),
            ],
            1..8,
        ),
        label in any_name(), annotation in any_name(), claim in any_name(), namespace in any_name(), name_max in 0_usize..300,
    ) {
        let source = pieces.concat();
        let (labels, annotations) = (map(&[("l", &label)]), map(&[("a/b", &annotation)]));
        let values = PatternValues {
            namespace: &namespace, claim: &claim, claim_uid: UID, volume: "pvc-1",
            labels: &labels, annotations: &annotations,
        };
        if let Ok(pattern) = Pattern::parse(&source)
            && let Ok(directory) = pattern.expand(&values)
        {
            prop_assert_eq!(directory.segments().len(), source_segments(&pattern));
            // The parser enforces the rules: see the tests of `export_store::naming`.
            prop_assert_eq!(DirectoryPath::parse(&directory.to_string()), Ok(directory.clone()));
            if let Ok(fitting) = directory.fit(name_max) {
                prop_assert_eq!(DirectoryPath::parse(&fitting.to_string()), Ok(fitting.clone()));
            }
        }
    }
}

/// Returns the number of segments in the source of the pattern. The `/` in the key of the annotation is not a
/// separator.
fn source_segments(pattern: &Pattern) -> usize {
    pattern
        .to_string()
        .replace("annotations.a/b}", "annotations.ab}")
        .split('/')
        .count()
}
