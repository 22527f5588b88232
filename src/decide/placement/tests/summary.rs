//! Condition of a claim that cannot be placed.

use super::*;

#[test]
fn the_condition_reports_why_each_backend_was_refused() {
    let full = |name| Backend::with(name, |backend| backend.limits.limit = Some("1".into()));
    let one = |class_backends: &str, backends: &[Backend]| {
        let claim = TestClaim {
            class: class(&[("backend", class_backends)]),
            requested: 10 * GI,
            ..TestClaim::default()
        };
        let (_, summary) = nowhere(&claim, backends);
        (summary.reason, summary.message)
    };
    let (a, b) = (
        Backend::broken("a", Reason::ConnectionRefused),
        Backend::broken("b", Reason::NoSpace),
    );
    let text = "2 of 3 backends not ready: a (ConnectionRefused), b (NoSpace); c: namespace not allowed";
    let all = [a.clone(), b.clone(), Backend::elsewhere("c")];
    assert_eq!(one("a,b,c", &all), (Reason::NoBackendAvailable, text.into()));
    let reversed: Vec<Backend> = all.iter().rev().cloned().collect();
    assert_eq!(one("c,b,a", &reversed), (Reason::NoBackendAvailable, text.into()));
    assert_eq!(
        one("a,c,gone", &[a.clone(), Backend::elsewhere("c")]),
        (
            Reason::ConnectionRefused,
            "backend a: a is broken; c: namespace not allowed; gone: not found".into()
        )
    );
    assert_eq!(
        one("a,b", &[Backend::elsewhere("a"), Backend::elsewhere("b")]),
        (Reason::NamespaceNotAllowed, "a, b: namespace not allowed".into())
    );
    assert_eq!(
        one("a,b,c", &[full("a"), full("b"), Backend::elsewhere("c")]),
        (
            Reason::CapacityExceeded,
            "a, b: capacity exceeded; c: namespace not allowed".into()
        )
    );
    assert_eq!(
        one("a", &[full("a")]),
        (
            Reason::CapacityExceeded,
            "backend a: 10Gi requested, which is more than capacity.limit 1 has left: request less, delete archives (with deletionPolicy: Delete), or raise the limit"
                .into()
        )
    );
    let same = |name| {
        Backend::with(name, |backend| {
            backend.ready =
                PlannedCondition::fails(Reason::OverrideRefused, "annotation x is not allowed here: remove it")
        })
    };
    assert_eq!(
        one("a,b,c", &[same("a"), same("b"), Backend::elsewhere("c")]),
        (
            Reason::OverrideRefused,
            "backends a, b: annotation x is not allowed here: remove it; c: namespace not allowed".into()
        )
    );
    let many: Vec<Backend> = (0..500)
        .map(|number| Backend::broken(&format!("{number:0200}"), Reason::NoSpace))
        .collect();
    let (refusals, summary) = nowhere(&TestClaim::default(), &many);
    assert_eq!(refusals.len(), 500);
    assert!(
        summary.message.ends_with("and 490 more") && summary.message.len() < 4096,
        "{}",
        summary.message
    );
    let (_, summary) = nowhere(
        &TestClaim::default(),
        &[Backend::with("a", |backend| {
            backend.ready = PlannedCondition::fails(Reason::NoSpace, "\u{e9}".repeat(5000))
        })],
    );
    assert!(summary.message.len() < 1100);
}
