//! Work that may proceed after a probe. Pure.

use crate::api::conditions::Reason;
use crate::api::{AbandonedVolumes, RecoveryRequest};
use crate::state::backends::ProbeSnapshot;

/// Work that a probe unblocks, besides the claims that wait for capacity of the backend: after each probe, as many of those
/// are woken as fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unblocks {
    /// Nothing.
    Nothing,
    /// Claims that found no probe, or one that was too old. Failing claims stay blocked: otherwise thousands would be retried at
    /// once whenever the operator is too busy to probe in time, and would delay the next probe again.
    StaleProbe,
    /// Like [`StaleProbe`](Self::StaleProbe), and the backups to this backend. A tenant who fills an export and frees it
    /// again causes this with each probe, so nothing that waits for another backend is woken, and no failing claim.
    Space,
    /// Everything that could not be served before.
    Anything,
}

/// Returns the work that may proceed after a probe and could not proceed before.
///
/// Otherwise, each probe of each backend would reconcile every waiting claim of the cluster.
pub(super) fn unblocks(previous: &ProbeSnapshot, current: &ProbeSnapshot) -> Unblocks {
    if may_serve_more(previous, current) {
        Unblocks::Anything
    } else if current.is_ready() && !previous.is_ready() {
        Unblocks::Space
    } else if was_missing(previous, current) {
        // Also if this probe failed: a claim that reports a missing probe gets a better reason.
        Unblocks::StaleProbe
    } else {
        Unblocks::Nothing
    }
}

/// Returns true if claims had to wait for the current probe: it is the first one, or the previous one was too old.
fn was_missing(previous: &ProbeSnapshot, current: &ProbeSnapshot) -> bool {
    let outdated = previous.is_ready() && previous.ready_now(current.probed_at).status != Some(true);
    outdated || previous.ready.reason == Reason::NotProbed
}

/// Returns true for a change that tenants cannot cause. A larger export is none: that of some servers grows with the space
/// that the users of others free.
fn may_serve_more(previous: &ProbeSnapshot, current: &ProbeSnapshot) -> bool {
    let requests = |known: &ProbeSnapshot| RecoveryRequest::of(&known.object).is_some();
    let given_up = |known: &ProbeSnapshot| AbandonedVolumes::of(&known.object);
    (works(current) && !works(previous))
        // The request to recover volumes was handled or withdrawn; claims waited for them.
        || (requests(previous) && !requests(current))
        // Claims wait for the records of such a backend.
        || (previous.awaits_identity() && !current.awaits_identity())
        || (!given_up(current).is_empty() && given_up(previous) != given_up(current))
        || previous.object.spec != current.object.spec
        || previous.object.metadata.labels != current.object.metadata.labels
        || previous.object.metadata.deletion_timestamp != current.object.metadata.deletion_timestamp
        || (current.identity.is_some()
            && previous.identity.as_ref().map(|identity| &identity.id)
                != current.identity.as_ref().map(|identity| &identity.id))
}

/// Returns true if the backend is ready, or would be with more space.
fn works(known: &ProbeSnapshot) -> bool {
    known.is_ready() || known.ready.reason.is_lack_of_space()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use nfs_client::FsStat;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::api::conditions::PlannedCondition;
    use crate::api::names::{ABANDON_LOST_VOLUMES, READOPT_REQUESTED_AT};

    fn ready() -> ProbeSnapshot {
        let spec = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        ProbeSnapshot {
            object: Arc::new(serde_json::from_value(spec).unwrap()),
            store: None,
            identity: None,
            writable: false,
            ready: PlannedCondition::holds(Reason::AllChecksPassed, ""),
            probed_at: Instant::now(),
            interval: Duration::from_secs(30),
            statistics: None,
            provisioned: 0,
        }
    }

    fn unready(reason: Reason) -> ProbeSnapshot {
        ProbeSnapshot {
            ready: PlannedCondition::fails(reason, ""),
            ..ready()
        }
    }

    #[test]
    fn a_probe_after_an_outdated_one_wakes_waiting_claims_but_not_failed_ones() {
        let previous = ready();
        let after = |seconds| ProbeSnapshot {
            probed_at: previous.probed_at + Duration::from_secs(seconds),
            ..previous.clone()
        };
        assert_eq!(unblocks(&previous, &after(90)), Unblocks::Nothing);
        assert_eq!(unblocks(&previous, &after(91)), Unblocks::StaleProbe);
        let failed = |seconds| ProbeSnapshot {
            ready: PlannedCondition::fails(Reason::ServerUnreachable, ""),
            ..after(seconds)
        };
        assert_eq!(unblocks(&previous, &failed(90)), Unblocks::Nothing);
        assert_eq!(unblocks(&previous, &failed(91)), Unblocks::StaleProbe);
        let mut requesting = previous.clone();
        let annotations = [(READOPT_REQUESTED_AT.to_owned(), "now".to_owned())];
        Arc::make_mut(&mut requesting.object).metadata.annotations = Some(annotations.into());
        assert_eq!(unblocks(&requesting, &previous), Unblocks::Anything);
        assert_eq!(unblocks(&previous, &requesting), Unblocks::Nothing);
        let unreachable = unready(Reason::ServerUnreachable);
        let mut given_up = unreachable.clone();
        let annotations = [(ABANDON_LOST_VOLUMES.to_owned(), "pvc-1".to_owned())];
        Arc::make_mut(&mut given_up.object).metadata.annotations = Some(annotations.into());
        assert_eq!(unblocks(&unreachable, &given_up), Unblocks::Anything);
        assert_eq!(unblocks(&given_up, &given_up), Unblocks::Nothing);
        let mismatch = unready(Reason::BeaconMismatch);
        assert_eq!(unblocks(&mismatch, &unreachable), Unblocks::Anything);
        assert_eq!(unblocks(&unreachable, &mismatch), Unblocks::Nothing);
        assert_eq!(unblocks(&unready(Reason::NotProbed), &mismatch), Unblocks::StaleProbe);
    }

    #[test]
    fn space_that_tenants_use_and_free_wakes_nothing_that_waits_for_another_backend() {
        for lack in [
            Reason::NoSpace,
            Reason::NoInodes,
            Reason::QuotaExceeded,
            Reason::CapacityExceeded,
        ] {
            assert_eq!(unblocks(&ready(), &unready(lack)), Unblocks::Nothing);
            assert_eq!(unblocks(&unready(lack), &ready()), Unblocks::Space, "{lack}");
        }
        let of_size = |total| ProbeSnapshot {
            statistics: Some(FsStat {
                total,
                ..FsStat::default()
            }),
            ..ready()
        };
        assert_eq!(
            unblocks(&of_size(1), &of_size(2)),
            Unblocks::Nothing,
            "other users freed space"
        );
    }

    #[test]
    fn a_backend_that_works_again_wakes_everything_even_if_it_lacks_space_at_first() {
        let unreachable = unready(Reason::ServerUnreachable);
        assert_eq!(unblocks(&unreachable, &ready()), Unblocks::Anything);
        assert_eq!(unblocks(&unreachable, &unready(Reason::NoSpace)), Unblocks::Anything);
        assert_eq!(unblocks(&unready(Reason::NoSpace), &unreachable), Unblocks::Nothing);
    }
}
