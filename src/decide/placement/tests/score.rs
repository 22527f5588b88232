//! Order of the backends.

use proptest::prelude::*;

use super::*;

#[test]
fn backends_are_ordered_by_free_space_and_then_by_number_of_volumes() {
    let with = |name: &str, available: u128, on_export: u128, volumes| {
        Backend::with(name, |backend| {
            backend.available = Some(available * GI);
            backend.on_export = on_export * GI;
            backend.volumes = volumes;
        })
    };
    for (what, backends, expected) in [
        ("more free space", [with("a", 100, 0, 0), with("b", 500, 0, 9)], "b a"),
        ("nearly the same", [with("a", 460, 0, 9), with("b", 500, 0, 10)], "a b"),
        ("not nearly", [with("a", 440, 0, 9), with("b", 500, 0, 10)], "b a"),
        ("less committed", [with("a", 500, 900, 0), with("b", 300, 0, 9)], "b a"),
        (
            "overcommitted last",
            [with("a", 900, 1000, 0), with("b", 1, 999, 9)],
            "b a",
        ),
        (
            "both overcommitted",
            [with("a", 100, 5000, 0), with("b", 500, 9000, 9)],
            "b a",
        ),
        ("full", [with("a", 0, 0, 1), with("b", 0, 0, 0)], "b a"),
    ] {
        assert_eq!(on(&TestClaim::default(), &backends).join(" "), expected, "{what}");
    }
    let silent = Backend::with("a", |backend| (backend.total, backend.available) = (None, None));
    assert_eq!(on(&TestClaim::default(), &[silent, with("b", 1, 0, 9)]), ["b", "a"]);
    let since = Backend::with("a", |backend| backend.since_probe = 900 * GI);
    assert_eq!(on(&TestClaim::default(), &[since, with("b", 500, 0, 9)]), ["b", "a"]);
}

/// Places `count` claims one after the other. Returns the number of claims per backend.
fn spread(mut backends: Vec<Backend>, count: u32, counted: bool, requested: impl Fn(u32) -> u128) -> Vec<u64> {
    let mut got = vec![0; backends.len()];
    for number in 0..count {
        let claim = TestClaim {
            uid: format!("00000000-0000-4000-8000-{number:012}"),
            requested: requested(number),
            ..TestClaim::default()
        };
        let first = on(&claim, &backends).into_iter().next();
        let places = backends.iter_mut().zip(&mut got);
        for (backend, got) in places.filter(|(backend, _)| Some(&backend.name) == first.as_ref()) {
            *got += 1;
            if counted {
                backend.take(claim.requested);
            }
        }
    }
    got
}

#[test]
fn three_hundred_claims_spread_over_three_equal_backends() {
    let equal = || ["a", "b", "c"].map(Backend::new).to_vec();
    let wobbling: Vec<Backend> = [("a", 950), ("b", 1000), ("c", 980)]
        .into_iter()
        .map(|(name, available)| Backend::with(name, |backend| backend.available = Some(available * GI)))
        .collect();
    for (what, got) in [
        ("small", spread(equal(), 300, true, |_| GI)),
        ("together more than there is", spread(equal(), 300, true, |_| 100 * GI)),
        ("without a size", spread(equal(), 300, true, |_| 0)),
        ("probes differ", spread(wobbling, 300, true, |_| GI / 2)),
        (
            "different sizes",
            spread(equal(), 300, true, |number| u128::from(number % 7) * GI),
        ),
    ] {
        assert!(got.iter().all(|got| (90..=110).contains(got)), "{what}: {got:?}");
    }
    // Placed from the same state, as if all at the same time: only the hash distributes them.
    let got = spread(equal(), 3000, false, |_| GI);
    assert!(got.iter().all(|got| (900..=1100).contains(got)), "{got:?}");
}

#[test]
fn of_fifty_claims_for_capacity_for_twenty_twenty_are_placed() {
    let mut backends = vec![Backend::with("a", |backend| backend.limits.limit = Some("20Gi".into()))];
    let claim = TestClaim {
        requested: GI,
        ..TestClaim::default()
    };
    let mut served = 0;
    for _ in 0..50 {
        if placed(&claim, &backends).is_ok() {
            served += 1;
            backends.iter_mut().for_each(|backend| backend.take(GI));
        }
    }
    assert_eq!(served, 20);
}

proptest! {
    #[test]
    fn every_backend_is_either_tried_once_or_refused_once(
        figures in proptest::collection::vec(
            (any::<Option<u128>>(), any::<Option<u128>>(), any::<u128>(), any::<u128>(), 0_i32..3, any::<u64>()),
            1..8,
        ),
        requested in any::<u128>(),
    ) {
        let backends: Vec<Backend> = figures
            .iter()
            .enumerate()
            .map(|(number, &(total, available, since, provisioned, percent, volumes))| {
                Backend::with(&format!("b{number}"), |backend| {
                    (backend.total, backend.available) = (total, available);
                    (backend.since_probe, backend.provisioned, backend.on_export) = (since, provisioned, provisioned);
                    backend.limits.overcommit_percent = (percent > 0).then_some(percent * 50_000);
                    backend.volumes = volumes;
                })
            })
            .collect();
        let claim = TestClaim { requested, ..TestClaim::default() };
        let mut reversed = backends.clone();
        reversed.reverse();
        let placement = placed(&claim, &backends);
        prop_assert_eq!(&placement, &placed(&claim, &reversed));
        match placement {
            Ok(mut names) => {
                prop_assert!(!names.is_empty() && names.len() <= backends.len());
                names.sort();
                names.dedup();
                prop_assert!(names.iter().all(|name| backends.iter().any(|backend| backend.name == *name)));
            }
            Err(NoBackend { refusals, .. }) => prop_assert_eq!(refusals.len(), backends.len()),
        }
    }
}
