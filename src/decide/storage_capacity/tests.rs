#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;
use crate::api::backend::CapacityLimits;
use crate::api::conditions::{PlannedCondition, Reason};

const GI: u64 = 1 << 30;

/// Backend that a test converts to a [`Candidate`].
struct Backend {
    name: &'static str,
    labels: BTreeMap<String, String>,
    ready: PlannedCondition,
    suspended: bool,
    limits: CapacityLimits,
    affinity: Option<VolumeNodeAffinity>,
    provisioned: u128,
}

impl Backend {
    /// A backend in these zones with a limit of 100Gi.
    fn new(name: &'static str, zones: &[&str]) -> Self {
        let affinity = (!zones.is_empty())
            .then(|| affinity(json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": zones}]}])));
        Self {
            name,
            labels: BTreeMap::from([("tier".to_owned(), name.to_owned())]),
            ready: PlannedCondition::holds(Reason::AllChecksPassed, ""),
            suspended: false,
            limits: serde_json::from_value(json!({"limit": "100Gi"})).unwrap(),
            affinity,
            provisioned: 0,
        }
    }

    fn failing(self, reason: Reason) -> Self {
        Self {
            ready: PlannedCondition::fails(reason, ""),
            ..self
        }
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            name: self.name,
            labels: &self.labels,
            ready: &self.ready,
            suspended: self.suspended,
            deleting: false,
            allowed_namespaces: None,
            limits: Some(&self.limits),
            claim_overrides: &[],
            node_affinity: self.affinity.as_ref(),
            total: None,
            available: None,
            provisioned_since_probe: 0,
            provisioned: self.provisioned,
            provisioned_on_export: self.provisioned,
            groups: None,
            volumes: 0,
        }
    }
}

fn affinity(terms: Value) -> VolumeNodeAffinity {
    serde_json::from_value(json!({"required": {"nodeSelectorTerms": terms}})).unwrap()
}

fn of_class(parameters: Option<&ClassParameters>, topologies: &Value, backends: &[Backend]) -> Option<Vec<Segment>> {
    let topologies: Vec<TopologySelectorTerm> = serde_json::from_value(topologies.clone()).unwrap();
    let class = LateClass {
        name: "late",
        driver: "nfs.example.com",
        parameters,
        topologies: &topologies,
    };
    let candidates: Vec<Candidate<'_>> = backends.iter().map(Backend::candidate).collect();
    segments(&class, &candidates)
}

/// Returns the selectors and capacities.
fn published(backends: &[Backend]) -> Vec<(Value, u64)> {
    let segments = of_class(Some(&ClassParameters::default()), &json!([]), backends).unwrap();
    let pair = |segment: Segment| (serde_json::to_value(segment.nodes).unwrap(), segment.capacity);
    segments.into_iter().map(pair).collect()
}

fn zones(names: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": names}]})
}

/// Returns the selectors of an affinity.
fn translated(terms: Value) -> Value {
    json!(selectors(Some(&affinity(terms))))
}

#[test]
fn a_provisioner_name_is_a_csi_driver_name_only_without_a_slash() {
    for name in ["nfs.nfs-operator.io", "nfs", "a".repeat(63).as_str()] {
        assert!(is_csi_driver_name(name), "{name}");
    }
    for name in [
        "nfs-operator.io/nfs",
        "",
        "Nfs",
        "a".repeat(64).as_str(),
        "nfs.",
        "-nfs",
    ] {
        assert!(!is_csi_driver_name(name), "{name}");
    }
}

#[test]
fn each_topology_has_an_object_with_the_largest_volume_that_fits() {
    let mut used = Backend::new("b", &["b"]);
    used.provisioned = u128::from(60 * GI);
    let mut twin = Backend::new("c", &["b"]);
    twin.provisioned = u128::from(70 * GI);
    let found = published(&[Backend::new("a", &["a"]), used, twin]);
    assert_eq!(found, [(zones(&["a"]), 100 * GI), (zones(&["b"]), 40 * GI)]);
}

#[test]
fn a_backend_without_affinity_or_limit_serves_all_nodes_with_any_size() {
    let mut backend = Backend::new("a", &[]);
    backend.limits = CapacityLimits::default();
    assert_eq!(published(&[backend]), [(json!({}), UNLIMITED)]);
}

#[test]
fn only_the_backends_of_the_class_count() {
    let parameters = BTreeMap::from([("backend".to_owned(), "b".to_owned())]);
    let parameters = ClassParameters::parse(&parameters).unwrap();
    let backends = [Backend::new("a", &["a"]), Backend::new("b", &["b"])];
    let segments = of_class(Some(&parameters), &json!([]), &backends).unwrap();
    assert_eq!(segments.len(), 1);
    assert_eq!(json!(segments[0].nodes), zones(&["b"]));
    assert_eq!(
        (segments[0].class.as_str(), segments[0].driver.as_str()),
        ("late", "nfs.example.com")
    );
}

#[test]
fn a_backend_that_accepts_no_volumes_has_no_capacity_while_another_one_does() {
    let suspended = Backend {
        suspended: true,
        ..Backend::new("c", &["c"])
    };
    let down = Backend::new("b", &["b"]).failing(Reason::ServerUnreachable);
    let found = published(&[Backend::new("a", &["a"]), down, suspended]);
    assert_eq!(
        found,
        [(zones(&["a"]), 100 * GI), (zones(&["b"]), 0), (zones(&["c"]), 0)]
    );
}

#[test]
fn claims_are_scheduled_and_show_the_reason_if_no_backend_accepts_volumes() {
    let down = |zone: &'static str| Backend::new(zone, &[zone]).failing(Reason::ServerUnreachable);
    let found = published(&[down("a"), down("b")]);
    assert_eq!(found, [(zones(&["a"]), UNLIMITED), (zones(&["b"]), UNLIMITED)]);
    assert_eq!(published(&[]), [(json!({}), UNLIMITED)], "no backend exists");
    let everywhere = of_class(None, &json!([]), &[Backend::new("a", &["a"])]).unwrap();
    assert_eq!(
        (json!(everywhere[0].nodes), everywhere[0].capacity),
        (json!({}), UNLIMITED)
    );
    let apart = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["z"]}]}]);
    let parameters = ClassParameters::default();
    let apart = of_class(Some(&parameters), &apart, &[Backend::new("a", &["a"])]).unwrap();
    assert_eq!((json!(apart[0].nodes), apart[0].capacity), (json!({}), UNLIMITED));
}

#[test]
fn a_full_backend_has_no_capacity_even_if_it_is_the_only_one() {
    let mut full = Backend::new("a", &["a"]);
    full.provisioned = u128::from(200 * GI);
    assert_eq!(published(&[full]), [(zones(&["a"]), 0)]);
    let full = Backend::new("a", &["a"]).failing(Reason::NoSpace);
    assert_eq!(published(&[full]), [(zones(&["a"]), 0)]);
}

#[test]
fn nothing_changes_until_each_backend_of_the_class_was_probed() {
    let unknown = Backend {
        ready: PlannedCondition::unknown(Reason::NotProbed, ""),
        ..Backend::new("b", &["b"])
    };
    let backends = [Backend::new("a", &["a"]), unknown];
    assert_eq!(of_class(Some(&ClassParameters::default()), &json!([]), &backends), None);
}

#[test]
fn requirements_that_selectors_have_too_are_translated() {
    let terms = json!([
        {"matchExpressions": [
            {"key": "zone", "operator": "NotIn", "values": ["c", "b"]},
            {"key": "disk", "operator": "Exists"},
            {"key": "example.com/spot", "operator": "DoesNotExist"},
        ]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]},
    ]);
    let expected = json!([
        {"matchExpressions": [
            {"key": "disk", "operator": "Exists"},
            {"key": "example.com/spot", "operator": "DoesNotExist"},
            {"key": "zone", "operator": "NotIn", "values": ["b", "c"]},
        ]},
        zones(&["z"]),
    ]);
    assert_eq!(translated(terms), expected);
}

#[test]
fn requirements_without_an_equivalent_select_more_nodes_never_fewer() {
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let number = json!({"key": "disks", "operator": "Gt", "values": ["4"]});
    let name = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    for (what, terms, expected) in [
        (
            "a comparison needs the label",
            json!([{"matchExpressions": [zone, number]}]),
            json!([{"matchExpressions": [{"key": "disks", "operator": "Exists"}, zone]}]),
        ),
        ("a name alone", json!([{"matchFields": name}]), json!([{}])),
        (
            "a name and a zone",
            json!([{"matchFields": name, "matchExpressions": [zone]}]),
            json!([zones(&["a"])]),
        ),
        (
            "an empty term selects no node",
            json!([{}, {"matchExpressions": [zone]}]),
            json!([zones(&["a"])]),
        ),
        (
            "a value that no label has",
            json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b c"]}]}]),
            json!([zones(&["a"])]),
        ),
        (
            "only values that no label has",
            json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b c"]}]}]),
            json!([]),
        ),
        (
            "none of the values that no label has",
            json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b c"]}]}]),
            json!([{}]),
        ),
        (
            "a key that no label has",
            json!([{"matchExpressions": [{"key": "-zone", "operator": "Exists"}]}]),
            json!([]),
        ),
        (
            "not a key that no label has",
            json!([{"matchExpressions": [{"key": "a/b/c", "operator": "DoesNotExist"}]}]),
            json!([{}]),
        ),
    ] {
        assert_eq!(translated(terms), expected, "{what}");
    }
}

#[test]
fn a_class_with_very_many_topologies_has_one_object() {
    let terms: Vec<Value> = (0..=MAX_SEGMENTS)
        .map(|zone| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [format!("z{zone}")]}]}))
        .collect();
    let backend = Backend {
        affinity: Some(affinity(json!(terms))),
        ..Backend::new("a", &[])
    };
    assert_eq!(published(&[backend]), [(json!({}), 100 * GI)]);
}

#[test]
fn sizes_are_rounded_up_so_that_small_changes_are_no_writes() {
    for (bytes, expected) in [
        (0, 0),
        (1, 1),
        (127, 127),
        (129, 130),
        (u128::from(100 * GI), 100 * GI),
        (u128::from(100 * GI) + 1, 101 * GI),
        (u128::from(UNLIMITED) - 1, UNLIMITED),
        (u128::MAX, UNLIMITED),
    ] {
        assert_eq!(round_up(bytes), expected, "{bytes}");
    }
}

#[test]
fn objects_are_named_after_what_cannot_change_in_them() {
    let segment = |zone: &str, capacity| Segment {
        class: "late".into(),
        driver: "nfs.example.com".into(),
        nodes: serde_json::from_value(zones(&[zone])).unwrap(),
        capacity,
    };
    assert_eq!(segment("a", 1).object_name(), segment("a", 2).object_name());
    assert_ne!(segment("a", 1).object_name(), segment("b", 1).object_name());
    assert!(is_object_name(&segment("a", 1).object_name()));
}
