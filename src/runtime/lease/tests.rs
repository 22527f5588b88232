#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;

const OWN: Duration = Duration::from_secs(15);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a Lease that `holder` renewed at `by_its_clock`, by the holder's clock.
fn lease(holder: &str, by_its_clock: i64) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        renew_time: Some(MicroTime(Timestamp::from_second(by_its_clock).unwrap())),
        ..LeaseSpec::default()
    }
}

fn me() -> HolderIdentity {
    HolderIdentity::new(None, "host", 1)
}

fn held(status: &LeaseStatus) -> (bool, Duration) {
    match status {
        LeaseStatus::Held { alive, runs_out_in, .. } => (*alive, *runs_out_in),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_runs_out_by_the_observers_clock_alone() {
    for holders_clock in [0, 4_000_000_000] {
        let mut observer = Observer::default();
        let mut observe = |lease: &LeaseSpec, now| observer.observe(Some(lease), &me(), OWN, at(now));
        assert_eq!(held(&observe(&lease("other", holders_clock), 100)), (false, at(15)));
        assert_eq!(held(&observe(&lease("other", holders_clock), 114)), (false, at(1)));
        assert_eq!(held(&observe(&lease("other", holders_clock + 2), 114)), (true, at(15)));
        assert_eq!(held(&observe(&lease("other", holders_clock + 2), 128)), (true, at(1)));
        assert_eq!(observe(&lease("other", holders_clock + 2), 129), LeaseStatus::Free);
    }
}

#[test]
fn a_renewal_that_sets_the_holders_clock_back_is_a_renewal() {
    let mut observer = Observer::default();
    observer.observe(Some(&lease("other", 1000)), &me(), OWN, at(1));
    let status = observer.observe(Some(&lease("other", 10)), &me(), OWN, at(15));
    assert_eq!(held(&status), (true, at(15)));
}

#[test]
fn a_holder_that_asked_for_longer_gets_it() {
    let mut observer = Observer::default();
    let mut long = lease("other", 0);
    long.lease_duration_seconds = Some(60);
    assert_eq!(held(&observer.observe(Some(&long), &me(), OWN, at(0))), (false, at(60)));
}

#[test]
fn nobodys_ours_and_a_former_lifes_lease_are_told_apart() {
    let own = HolderIdentity::new(Some("pod-uid"), "host", 7);
    let observe = |lease: Option<&LeaseSpec>, who: &HolderIdentity| Observer::default().observe(lease, who, OWN, at(0));
    assert_eq!(observe(None, &own), LeaseStatus::Free);
    assert_eq!(observe(Some(&LeaseSpec::default()), &own), LeaseStatus::Free);
    assert_eq!(observe(Some(&lease("", 0)), &own), LeaseStatus::Free);
    assert_eq!(observe(Some(&lease(&own.name, 0)), &own), LeaseStatus::Ours);
    let former = HolderIdentity::new(Some("pod-uid"), "host", 6);
    assert_eq!(observe(Some(&lease(&former.name, 0)), &own), LeaseStatus::Free);
    let neighbour = HolderIdentity::new(Some("pod-uid-2"), "host", 6);
    held(&observe(Some(&lease(&neighbour.name, 0)), &own));
    // Without an instance name, another process of this host may still be running.
    let nameless = HolderIdentity::new(None, "host", 6);
    held(&observe(Some(&lease(&nameless.name, 0)), &me()));
}

#[test]
fn times_that_contradict_each_other_are_refused_with_the_remedy() {
    let timings = |duration, renew_deadline, retry_period| LeaseTimings {
        duration: Duration::from_millis(duration),
        renew_deadline: Duration::from_millis(renew_deadline),
        retry_period: Duration::from_millis(retry_period),
    };
    assert!(LeaseTimings::default().validated().is_ok());
    assert!(timings(3000, 2000, 500).validated().is_ok());
    for (wrong, named) in [
        (timings(10_000, 10_000, 2000), "--renew-deadline"),
        (timings(15_000, 20_000, 2000), "--renew-deadline"),
        (timings(15_000, 10_000, 9000), "--retry-period"),
        (timings(15_000, 10_000, 0), "--retry-period"),
        (timings(500, 400, 100), "--lease-duration"),
    ] {
        let refusal = wrong.validated().unwrap_err();
        assert!(refusal.starts_with(named), "{refusal}");
    }
}

#[test]
fn what_is_written_keeps_count_of_leaders_and_gives_the_lease_back_at_once() {
    let now = Timestamp::from_second(5).unwrap();
    let timings = LeaseTimings {
        duration: Duration::from_millis(2500),
        ..LeaseTimings::default()
    };
    let first = acquire_spec(None, &me(), &timings, now);
    assert_eq!(
        (first.lease_transitions, first.lease_duration_seconds),
        (Some(0), Some(3))
    );
    let second = acquire_spec(Some(&first), &me(), &timings, now);
    assert_eq!(second.lease_transitions, Some(1));
    let later = Timestamp::from_second(7).unwrap();
    let renewed = renew_spec(Some(&second), &me(), &timings, later);
    assert_eq!(renewed.acquire_time, second.acquire_time);
    assert_eq!(renewed.renew_time, Some(MicroTime(later)));
    let released = release_spec(&renewed, later);
    assert_eq!(
        Observer::default().observe(Some(&released), &HolderIdentity::new(None, "b", 2), OWN, at(0)),
        LeaseStatus::Free
    );
}
