//! Selected node and topologies.

use super::*;

fn in_zone(name: &str, zone: &str) -> Backend {
    Backend::with(name, |backend| {
        backend.affinity = serde_json::from_value(serde_json::json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        ]}}))
        .ok();
    })
}

fn topologies(zone: &str) -> Vec<TopologySelectorTerm> {
    let terms = serde_json::json!([{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]}]);
    serde_json::from_value(terms).unwrap_or_default()
}

fn on_node(zone: Option<&'static str>) -> TestClaim {
    TestClaim {
        node: Some(("n1", zone)),
        ..TestClaim::default()
    }
}

#[test]
fn only_backends_that_serve_the_selected_node_are_tried() {
    let backends = [in_zone("a", "a"), in_zone("b", "b"), Backend::new("everywhere")];
    assert_eq!(on(&on_node(Some("b")), &backends[1..2]), ["b"]);
    let mut both = on(&on_node(Some("b")), &backends);
    both.sort();
    assert_eq!(both, ["b", "everywhere"]);
    // Immediate binding needs no node; a node that does not exist is in no zone.
    assert_eq!(on(&TestClaim::default(), &backends).len(), 3);
    assert_eq!(on(&on_node(None), &backends), ["everywhere"]);
}

#[test]
fn a_node_that_no_backend_serves_is_reported_with_the_missing_topologies() {
    let alone = [in_zone("a", "a")];
    let (refusals, summary) = nowhere(&on_node(Some("b")), &alone);
    assert!(other_node_possible(&refusals));
    assert_eq!(summary.reason, Reason::NodeNotServed);
    for part in ["backend a: node n1", "nodeAffinity", "no allowedTopologies"] {
        assert!(summary.message.contains(part), "{}", summary.message);
    }
    let mut claim = on_node(Some("b"));
    claim.topologies = topologies("a");
    let (_, summary) = nowhere(&claim, &[in_zone("a", "a"), Backend::new("c")]);
    assert_eq!(summary.message, "a, c: selected node not served");
    let (_, summary) = nowhere(&claim, &[Backend::new("c")]);
    assert!(
        summary.message.contains("does not match allowedTopologies"),
        "{}",
        summary.message
    );
    let (_, summary) = nowhere(&on_node(None), &alone);
    assert!(summary.message.contains("does not exist"), "{}", summary.message);
}

#[test]
fn another_node_is_requested_only_if_a_backend_serves_one() {
    let full = Backend::with("a", |backend| {
        *backend = in_zone("a", "a");
        backend.limits.limit = Some("1".into());
    });
    let broken = Backend::with("b", |backend| {
        *backend = in_zone("b", "a");
        backend.ready = PlannedCondition::fails(Reason::ConnectionRefused, "down");
    });
    let mut claim = on_node(Some("b"));
    claim.requested = GI;
    let (refusals, summary) = nowhere(&claim, &[full.clone(), broken.clone()]);
    assert!(!other_node_possible(&refusals), "{}", summary.message);
    assert!(!summary.message.contains("allowedTopologies"), "{}", summary.message);
    let (refusals, summary) = nowhere(&claim, &[full, broken, in_zone("c", "a")]);
    assert!(other_node_possible(&refusals));
    assert_eq!(summary.reason, Reason::NodeNotServed);
}

#[test]
fn topologies_also_apply_to_immediate_binding() {
    let claim = TestClaim {
        topologies: topologies("a"),
        ..TestClaim::default()
    };
    let backends = [in_zone("a", "a"), in_zone("b", "b"), Backend::new("everywhere")];
    let mut names = on(&claim, &backends);
    names.sort();
    assert_eq!(names, ["a", "everywhere"]);
    let (refusals, summary) = nowhere(&claim, &backends[1..2]);
    assert!(!other_node_possible(&refusals));
    assert_eq!(summary.reason, Reason::TopologyMismatch);
    let unreadable = Backend::with("a", |backend| {
        backend.affinity = serde_json::from_value(serde_json::json!({"required": {"nodeSelectorTerms": []}})).ok();
    });
    assert_eq!(reason(unreadable), Reason::InvalidSpec);
}
