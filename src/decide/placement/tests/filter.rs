//! Checks of backends.

use super::*;

#[test]
fn a_backend_that_fails_a_check_is_refused() {
    let limits = |limit: Option<&str>, percent, reserve: Option<&str>| CapacityLimits {
        limit: limit.map(StorageAmount::from),
        overcommit_percent: percent,
        reserve: reserve.map(StorageAmount::from),
    };
    for (what, change, expected) in [
        (
            "deleting",
            (|b| b.deleting = true) as fn(&mut Backend),
            Reason::Deleting,
        ),
        ("suspended", |b| b.suspended = true, Reason::Suspended),
        (
            "not ready",
            |b| b.ready = PlannedCondition::fails(Reason::ConnectionRefused, "x"),
            Reason::ConnectionRefused,
        ),
        (
            "unknown",
            |b| b.ready = PlannedCondition::unknown(Reason::NotProbed, "x"),
            Reason::NotProbed,
        ),
        (
            "no namespace",
            |b| b.allowed = Some(AllowedNamespaces::default()),
            Reason::NamespaceNotAllowed,
        ),
    ] {
        assert_eq!(reason(Backend::with("a", change)), expected, "{what}");
    }
    let ten = TestClaim {
        requested: 10 * GI,
        ..TestClaim::default()
    };
    for (what, limits, serves) in [
        ("limit with room", limits(Some("100Gi"), None, None), true),
        ("limit too small", limits(Some("99.9Gi"), None, None), false),
        ("limit unreadable", limits(Some("many"), None, None), false),
        ("overcommit with room", limits(None, Some(21), None), true),
        ("overcommit too small", limits(None, Some(20), None), false),
        ("reserve met", limits(None, None, Some("50Gi")), true),
        ("reserve not met", limits(None, None, Some("50.1Gi")), false),
    ] {
        let backend = Backend::with("a", |backend| {
            backend.limits = limits;
            backend.provisioned = 90 * GI;
            backend.on_export = 200 * GI;
            backend.available = Some(50 * GI);
        });
        let placement = placed(&ten, std::slice::from_ref(&backend));
        assert_eq!(placement.is_ok(), serves, "{what}: {placement:?}");
    }
    for limits in [limits(None, Some(100), None), limits(None, None, Some("1"))] {
        let silent = Backend::with("a", |backend| {
            backend.limits = limits;
            (backend.total, backend.available) = (None, None);
        });
        assert_eq!(reason(silent), Reason::CapacityExceeded);
    }
}

#[test]
fn a_claim_that_needs_a_group_waits_for_one_and_names_the_range() {
    let range = GroupRange { min: 20000, max: 20009 };
    let claim = |needs_group| TestClaim {
        needs_group,
        ..TestClaim::default()
    };
    let with = |free| Backend::with("a", |backend| backend.groups = Some((range, free)));
    assert_eq!(on(&claim(true), &[with(1)]), ["a"]);
    assert_eq!(
        on(&claim(false), &[with(0)]),
        ["a"],
        "it has one, or restores an archive"
    );
    let (refusals, summary) = nowhere(&claim(true), &[with(0)]);
    assert_eq!(summary.reason, Reason::GroupsExhausted);
    assert!(
        summary.message.contains("directory.gidRange 20000-20009"),
        "{}",
        summary.message
    );
    assert_eq!(backends_without_capacity(&refusals), BTreeSet::from(["a".to_owned()]));
    assert_eq!(on(&claim(true), &[with(0), Backend::new("b")]), ["b"]);
}

#[test]
fn sums_beyond_64_bits_are_exact() {
    let huge = Backend::with("a", |backend| {
        backend.total = Some(u128::from(u64::MAX) * 1000);
        backend.on_export = u128::from(u64::MAX) * 999;
        backend.limits.overcommit_percent = Some(100);
        backend.limits.limit = Some("9223372036854775807".into());
        backend.provisioned = (1 << 63) - 2;
    });
    let claim = |requested| TestClaim {
        requested,
        ..TestClaim::default()
    };
    assert_eq!(on(&claim(1), std::slice::from_ref(&huge)), ["a"]);
    nowhere(&claim(2), std::slice::from_ref(&huge));
    nowhere(&claim(u128::MAX), &[huge]);
}

#[test]
fn a_namespace_is_allowed_by_name_or_by_selector() {
    let some = |value| Some(value);
    for (what, allowed, expected) in [
        ("absent", None, None),
        (
            "empty object",
            Some(namespaces(&[], None)),
            Some(Reason::NamespaceNotAllowed),
        ),
        ("its name", Some(namespaces(&["x", "shop"], None)), None),
        (
            "another name",
            Some(namespaces(&["SHOP"], None)),
            Some(Reason::NamespaceNotAllowed),
        ),
        ("all", Some(namespaces(&[], some(serde_json::json!({})))), None),
        (
            "its labels",
            Some(namespaces(
                &["x"],
                some(serde_json::json!({"matchLabels": {"team": "red"}})),
            )),
            None,
        ),
        (
            "other labels",
            Some(namespaces(
                &[],
                some(serde_json::json!({"matchLabels": {"team": "blue"}})),
            )),
            Some(Reason::NamespaceNotAllowed),
        ),
        (
            "its name beside other labels",
            Some(namespaces(
                &["shop"],
                some(serde_json::json!({"matchLabels": {"team": "blue"}})),
            )),
            None,
        ),
        (
            "NotIn without values",
            Some(namespaces(
                &[],
                some(serde_json::json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": []}]})),
            )),
            Some(Reason::InvalidSpec),
        ),
        (
            "unknown operator",
            Some(namespaces(
                &[],
                some(serde_json::json!({"matchExpressions": [{"key": "team", "operator": "Like", "values": ["r"]}]})),
            )),
            Some(Reason::InvalidSpec),
        ),
        (
            "Exists with values",
            Some(namespaces(
                &[],
                some(serde_json::json!({"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["r"]}]})),
            )),
            Some(Reason::InvalidSpec),
        ),
    ] {
        let backend = Backend::with("a", |backend| backend.allowed = allowed);
        match expected {
            None => assert_eq!(on(&TestClaim::default(), &[backend]), ["a"], "{what}"),
            Some(expected) => assert_eq!(reason(backend), expected, "{what}"),
        }
    }
}

#[test]
fn a_class_chooses_by_name_by_labels_or_by_both() {
    let labelled = |name: &str, tier: &str| {
        Backend::with(name, |backend| {
            backend.labels.insert("tier".into(), tier.into());
        })
    };
    let backends = [labelled("a", "fast"), labelled("b", "slow"), labelled("c", "fast")];
    let sorted = |parameters: &[(&str, &str)]| {
        let claim = TestClaim {
            class: class(parameters),
            ..TestClaim::default()
        };
        let mut names = on(&claim, &backends);
        names.sort();
        names.join(" ")
    };
    assert_eq!(sorted(&[]), "a b c");
    assert_eq!(sorted(&[("backend", "b,a,zz")]), "a b");
    assert_eq!(sorted(&[("backendSelector", "tier=fast")]), "a c");
    assert_eq!(sorted(&[("backend", "a,b"), ("backendSelector", "tier=fast")]), "a");
    for (parameters, expected, says) in [
        (&[("backend", "x,y")] as &[_], Reason::BackendNotFound, "x, y"),
        (
            &[("backendSelector", "tier=none")],
            Reason::NoBackendAvailable,
            "tier=none",
        ),
        (
            &[("backend", "b"), ("backendSelector", "tier=fast")],
            Reason::BackendNotFound,
            "tier=fast",
        ),
    ] {
        let claim = TestClaim {
            class: class(parameters),
            ..TestClaim::default()
        };
        let (_, summary) = nowhere(&claim, &backends);
        assert_eq!(summary.reason, expected);
        assert!(summary.message.contains(says), "{}", summary.message);
    }
    let (refusals, summary) = nowhere(&TestClaim::default(), &[]);
    assert_eq!((refusals.len(), summary.reason), (0, Reason::NoBackendAvailable));
    assert!(summary.message.contains("create one"), "{}", summary.message);
}

#[test]
fn annotations_of_a_tenant_select_no_backend_that_the_claim_may_not_use() {
    let open = Backend::new("open");
    let chosen = Backend::with("chosen", |backend| backend.overrides = vec![ClaimOverride::Backend]);
    let backends = [
        open.clone(),
        chosen.clone(),
        Backend::elsewhere("elsewhere"),
        Backend::with("walled", |backend| {
            backend.overrides = vec![ClaimOverride::Backend];
            backend.allowed = Some(AllowedNamespaces::default());
        }),
        Backend::with("other-class", |backend| {
            backend.overrides = vec![ClaimOverride::Backend]
        }),
    ];
    let claim = |requested_backend, placed_on| TestClaim {
        class: class(&[("backend", "open,chosen,elsewhere,walled")]),
        requested_backend,
        placed_on,
        ..TestClaim::default()
    };
    for (requested, expected) in [
        ("open", Reason::OverrideRefused),
        ("elsewhere", Reason::OverrideRefused),
        ("other-class", Reason::OverrideRefused),
        ("absent", Reason::OverrideRefused),
        ("", Reason::OverrideRefused),
        ("walled", Reason::NamespaceNotAllowed),
    ] {
        assert_eq!(
            nowhere(&claim(Some(requested), None), &backends).1.reason,
            expected,
            "{requested}"
        );
    }
    assert_eq!(on(&claim(Some("chosen"), None), &backends), ["chosen"]);
    for placed_on in ["elsewhere", "walled", "other-class", "absent", ""] {
        let mut names = on(&claim(None, Some(placed_on)), &backends);
        names.sort();
        assert_eq!(names, ["chosen", "open"], "{placed_on}");
        assert_eq!(
            on(&claim(Some("chosen"), Some(placed_on)), &backends),
            ["chosen"],
            "{placed_on}"
        );
    }
}

#[test]
fn only_the_previous_placement_is_considered() {
    let claim = TestClaim {
        placed_on: Some("b"),
        ..TestClaim::default()
    };
    let full = Backend::with("b", |backend| backend.available = Some(1));
    assert_eq!(on(&claim, &[Backend::new("a"), full]), ["b"]);
    let (refusals, summary) = nowhere(
        &claim,
        &[Backend::new("a"), Backend::broken("b", Reason::ServerNotResponding)],
    );
    assert_eq!((refusals.len(), summary.reason), (1, Reason::ServerNotResponding));
    assert_eq!(summary.message, "backend b: b is broken");
    let unreadable = Backend::with("b", |backend| {
        backend.allowed = Some(namespaces(
            &[],
            Some(serde_json::json!({"matchExpressions": [{"key": "a", "operator": "x"}]})),
        ));
    });
    assert_eq!(
        nowhere(&claim, &[Backend::new("a"), unreadable]).1.reason,
        Reason::InvalidSpec
    );
}

/// Only these claims are woken when a tenant frees the space that a tenant used.
#[test]
fn a_claim_waits_for_the_space_of_a_backend_that_only_lacks_space() {
    let backends = [
        Backend::broken("full", Reason::NoSpace),
        Backend::broken("no-inodes", Reason::NoInodes),
        Backend::broken("over-quota", Reason::QuotaExceeded),
        Backend::broken("unreachable", Reason::ServerUnreachable),
    ];
    let (refusals, _) = nowhere(&TestClaim::default(), &backends);
    let names: Vec<String> = backends_without_capacity(&refusals).into_iter().collect();
    assert_eq!(names, ["full", "no-inodes", "over-quota"]);
}

#[test]
fn room_is_the_largest_request_that_fits() {
    let full = Backend::with("a", |backend| {
        backend.ready = PlannedCondition::fails(Reason::NoSpace, "the export has no space left");
    });
    assert_eq!(
        room(&full.candidate()),
        0,
        "a claim that is woken would find it not ready"
    );
    for (what, limit, percent, reserve, expected) in [
        ("no limits", None, None, None, u128::MAX),
        ("limit", Some("100Gi"), None, None, 10 * GI),
        ("limit exceeded", Some("80Gi"), None, None, 0),
        ("invalid limit", Some("many"), None, None, 0),
        ("overcommit", None, Some(50), None, 300 * GI),
        ("both", Some("100Gi"), Some(50), Some("1Gi"), 10 * GI),
        ("reserve", None, None, Some("51Gi"), 0),
    ] {
        let backend = Backend::with("a", |backend| {
            backend.limits.limit = limit.map(StorageAmount::from);
            backend.limits.overcommit_percent = percent;
            backend.limits.reserve = reserve.map(StorageAmount::from);
            backend.provisioned = 90 * GI;
            backend.on_export = 200 * GI;
            backend.available = Some(50 * GI);
        });
        let room = room(&backend.candidate());
        assert_eq!(room, expected, "{what}");
        assert!(
            room == 0 || check_capacity(room, &backend.candidate()).is_ok(),
            "{what}"
        );
        assert!(
            room == u128::MAX || check_capacity(room + 1, &backend.candidate()).is_err(),
            "{what}"
        );
    }
}

/// Otherwise, each volume that is created or deleted would cause a write for each waiting claim.
#[test]
fn a_refusal_for_capacity_does_not_change_with_other_claims() {
    let limits: [fn(&mut CapacityLimits); 3] = [
        |limits| limits.limit = Some("100Gi".into()),
        |limits| limits.overcommit_percent = Some(10),
        |limits| limits.reserve = Some("500Gi".into()),
    ];
    for limit in limits {
        let condition = |used| {
            let backend = Backend::with("a", |backend| {
                limit(&mut backend.limits);
                backend.take(used);
                backend.available = Some(400 * GI - used);
                backend.total = Some(1000 * GI - used);
            });
            let claim = TestClaim {
                requested: 95 * GI,
                ..TestClaim::default()
            };
            nowhere(&claim, &[backend]).1
        };
        assert_eq!(condition(90 * GI), condition(80 * GI));
    }
}

#[test]
fn a_backend_is_the_only_choice_if_class_and_namespaces_permit_no_other_in_whatever_state() {
    let is_only_choice = |class, backends: &[Backend]| {
        let claim = TestClaim {
            class,
            ..TestClaim::default()
        };
        with_claim(&claim, backends, has_only_choice)
    };
    let with_namespaces = |allowed| Backend::with("b", |backend| backend.allowed = Some(allowed));
    let unreadable = namespaces(
        &[],
        Some(serde_json::json!({"matchExpressions": [{"key": "team", "operator": "In"}]})),
    );
    for (what, other, expected) in [
        ("none", None, true),
        ("another", Some(Backend::new("b")), false),
        (
            "not ready",
            Some(Backend::broken("b", Reason::ServerNotResponding)),
            false,
        ),
        (
            "suspended",
            Some(Backend::with("b", |backend| backend.suspended = true)),
            false,
        ),
        (
            "full",
            Some(Backend::with("b", |backend| backend.available = Some(0))),
            false,
        ),
        (
            "closed to the namespace",
            Some(with_namespaces(namespaces(&["nobody"], None))),
            true,
        ),
        ("a selector to correct", Some(with_namespaces(unreadable)), false),
    ] {
        let backends: Vec<Backend> = std::iter::once(Backend::new("a")).chain(other).collect();
        assert_eq!(
            is_only_choice(ClassParameters::default(), &backends),
            expected,
            "{what}"
        );
        assert!(
            is_only_choice(class(&[("backend", "a")]), &backends),
            "{what}, not in the class"
        );
    }
    assert!(!is_only_choice(class(&[("backend", "c")]), &[Backend::new("a")]));
}
