#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;

fn affinity(terms: Value) -> VolumeNodeAffinity {
    serde_json::from_value(json!({"required": {"nodeSelectorTerms": terms}})).unwrap()
}

fn expressions(list: Value) -> Value {
    json!([{ "matchExpressions": list }])
}

fn zones(names: &[&str]) -> Value {
    expressions(json!([{"key": "zone", "operator": "In", "values": names}]))
}

fn topologies(list: Value) -> Vec<TopologySelectorTerm> {
    serde_json::from_value(list).unwrap()
}

fn in_zones(names: &[&str]) -> Vec<TopologySelectorTerm> {
    topologies(json!([{"matchLabelExpressions": [{"key": "zone", "values": names}]}]))
}

fn labels() -> BTreeMap<String, String> {
    [("zone", "a"), ("disks", "8"), ("empty", "")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn selected(terms: Value) -> bool {
    let labels = labels();
    let node = SelectedNode {
        name: "n1",
        labels: Some(&labels),
    };
    selects(Some(&affinity(terms)), &node)
}

#[test]
fn each_operator_has_the_semantics_of_kubernetes() {
    for (key, operator, values, expected) in [
        ("zone", "In", json!(["b", "a"]), true),
        ("zone", "In", json!(["A"]), false),
        ("rack", "In", json!(["a"]), false),
        ("zone", "NotIn", json!(["b"]), true),
        ("zone", "NotIn", json!(["a", "b"]), false),
        ("rack", "NotIn", json!(["a"]), true),
        ("zone", "Exists", json!([]), true),
        ("empty", "Exists", json!([]), true),
        ("rack", "Exists", json!([]), false),
        ("zone", "DoesNotExist", json!([]), false),
        ("rack", "DoesNotExist", json!([]), true),
        ("disks", "Gt", json!(["7"]), true),
        ("disks", "Gt", json!(["8"]), false),
        ("disks", "Lt", json!(["10"]), true),
        ("disks", "Lt", json!(["8"]), false),
        ("zone", "Gt", json!(["0"]), false),
        ("rack", "Lt", json!(["9"]), false),
        ("disks", "Gt", json!(["many"]), false),
        ("zone", "Like", json!(["a"]), false),
    ] {
        let terms = expressions(json!([{"key": key, "operator": operator, "values": values}]));
        assert_eq!(selected(terms.clone()), expected, "{terms}");
    }
}

#[test]
fn terms_are_ored_and_their_requirements_anded() {
    let here = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let away = json!({"key": "zone", "operator": "In", "values": ["b"]});
    let named = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
    for (terms, expected) in [
        (json!([{"matchExpressions": [here, away]}]), false),
        (
            json!([{"matchExpressions": [away]}, {"matchExpressions": [here]}]),
            true,
        ),
        (json!([{"matchFields": [named("n1")]}]), true),
        (json!([{"matchFields": [named("n2")]}]), false),
        (
            json!([{"matchExpressions": [here], "matchFields": [named("n2")]}]),
            false,
        ),
        (
            json!([{"matchExpressions": [here], "matchFields": [named("n1")]}]),
            true,
        ),
        (json!([{}]), false),
        (json!([{}, {"matchExpressions": [here]}]), true),
        (json!([]), false),
    ] {
        assert_eq!(selected(terms.clone()), expected, "{terms}");
    }
}

#[test]
fn a_node_that_does_not_exist_is_selected_by_no_restriction() {
    let deleted = SelectedNode {
        name: "n1",
        labels: None,
    };
    assert!(selects(None, &deleted));
    assert!(selects(Some(&VolumeNodeAffinity::default()), &deleted));
    let anywhere_but = expressions(json!([{"key": "zone", "operator": "NotIn", "values": ["x"]}]));
    assert!(!selects(Some(&affinity(anywhere_but)), &deleted));
}

#[test]
fn a_volume_has_the_intersection_of_backend_and_class() {
    let rack = json!({"key": "rack", "operator": "Exists"});
    for (what, own, allowed, expected) in [
        ("neither", None, vec![], None),
        ("the backend alone", Some(zones(&["a"])), vec![], Some(zones(&["a"]))),
        ("the class alone", None, in_zones(&["a", "b"]), Some(zones(&["a", "b"]))),
        (
            "one label in both",
            Some(zones(&["a", "b"])),
            in_zones(&["b", "c"]),
            Some(zones(&["b"])),
        ),
        (
            "two labels",
            Some(expressions(json!([rack]))),
            in_zones(&["a"]),
            Some(expressions(
                json!([rack, {"key": "zone", "operator": "In", "values": ["a"]}]),
            )),
        ),
        (
            "every pair that can be, once",
            Some(json!([zones(&["a"])[0], zones(&["b"])[0]])),
            topologies(json!([
                {"matchLabelExpressions": [{"key": "zone", "values": ["b", "x"]}]},
                {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]},
                {"matchLabelExpressions": []},
            ])),
            Some(zones(&["b"])),
        ),
    ] {
        let own = own.map(affinity);
        assert_eq!(
            intersect(own.as_ref(), &allowed),
            Ok(expected.map(affinity).map(Cow::Owned)),
            "{what}"
        );
    }
}

#[test]
fn contradictions_and_invalid_affinities_are_detected() {
    let but_a = expressions(json!([{"key": "zone", "operator": "NotIn", "values": ["a"]}]));
    let none = expressions(json!([{"key": "zone", "operator": "DoesNotExist"}]));
    for own in [zones(&["b"]), but_a, none] {
        let backend = affinity(own.clone());
        let found = intersect(Some(&backend), &in_zones(&["a"]));
        assert_eq!(found, Err(TopologyError::Disjoint), "{own}");
    }
    let nowhere = topologies(json!([{}]));
    assert_eq!(intersect(None, &nowhere), Err(TopologyError::Disjoint));
    for terms in [
        json!([]),
        json!([{}]),
        zones(&[]),
        expressions(json!([{"key": "zone", "operator": "Like", "values": ["a"]}])),
        expressions(json!([{"key": "zone", "operator": "Exists", "values": ["a"]}])),
        expressions(json!([{"key": "disks", "operator": "Gt", "values": ["1", "2"]}])),
        expressions(json!([{"key": "disks", "operator": "Lt", "values": ["few"]}])),
        json!([{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["x"]}]}]),
        json!([{"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}]),
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x", "y"]}]}]),
    ] {
        for allowed in [vec![], in_zones(&["a"])] {
            let backend = affinity(terms.clone());
            let found = intersect(Some(&backend), &allowed);
            assert!(matches!(found, Err(TopologyError::Invalid(_))), "{terms}: {found:?}");
        }
    }
    let many = affinity(json!(vec![zones(&["a"])[0].clone(); 400]));
    let allowed = vec![in_zones(&["a"]).remove(0); 3];
    assert_eq!(intersect(Some(&many), &allowed), Err(TopologyError::TooMany));
}
