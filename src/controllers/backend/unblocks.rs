//! Work that may proceed after a probe. Pure.

use crate::api::RecoveryRequest;
use crate::state::backends::ProbeSnapshot;

/// Work that a probe unblocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unblocks {
    /// Nothing.
    Nothing,
    /// Claims that found the previous probe too old. Failing claims stay blocked: otherwise thousands would be retried at
    /// once whenever the operator is too busy to probe in time, and would delay the next probe again.
    StaleProbe,
    /// Everything that could not be served before.
    Anything,
}

/// Returns the work that may proceed after a probe and could not proceed before.
///
/// Otherwise, each probe of each backend would reconcile every waiting claim of the cluster.
pub(super) fn unblocks(previous: &ProbeSnapshot, current: &ProbeSnapshot) -> Unblocks {
    if may_serve_more(previous, current) {
        Unblocks::Anything
    } else if current.is_ready() && previous.ready_now(current.probed_at).status != Some(true) {
        Unblocks::StaleProbe
    } else {
        Unblocks::Nothing
    }
}

fn may_serve_more(previous: &ProbeSnapshot, current: &ProbeSnapshot) -> bool {
    let became_ready = current.is_ready() && !previous.is_ready();
    let total = |known: &ProbeSnapshot| known.statistics.map(|statistics| statistics.total);
    let requests = |known: &ProbeSnapshot| RecoveryRequest::of(&known.object).is_some();
    became_ready
        // The request to recover volumes was withdrawn; claims waited for them.
        || (requests(previous) && !requests(current))
        || previous.object.spec != current.object.spec
        || previous.object.metadata.labels != current.object.metadata.labels
        || previous.object.metadata.deletion_timestamp != current.object.metadata.deletion_timestamp
        || (current.identity.is_some()
            && previous.identity.as_ref().map(|identity| &identity.id)
                != current.identity.as_ref().map(|identity| &identity.id))
        || total(previous) < total(current)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::api::conditions::{PlannedCondition, Reason};
    use crate::api::names::READOPT;

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn a_probe_after_an_outdated_one_wakes_waiting_claims_but_not_failed_ones() {
        let spec = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        let previous = ProbeSnapshot {
            object: Arc::new(serde_json::from_value(spec).unwrap()),
            store: None,
            identity: None,
            writable: false,
            ready: PlannedCondition::holds(Reason::Ready, ""),
            probed_at: Instant::now(),
            interval: Duration::from_secs(30),
            statistics: None,
            provisioned: 0,
        };
        let after = |seconds| ProbeSnapshot {
            probed_at: previous.probed_at + Duration::from_secs(seconds),
            ..previous.clone()
        };
        assert_eq!(unblocks(&previous, &after(90)), Unblocks::Nothing);
        assert_eq!(unblocks(&previous, &after(91)), Unblocks::StaleProbe);
        let unready = ProbeSnapshot {
            ready: PlannedCondition::fails(Reason::NoSpace, ""),
            ..previous.clone()
        };
        assert_eq!(unblocks(&unready, &after(1)), Unblocks::Anything);
        assert_eq!(unblocks(&previous, &unready), Unblocks::Nothing);
        let mut requesting = previous.clone();
        let annotations = [(READOPT.to_owned(), "true".to_owned())];
        Arc::make_mut(&mut requesting.object).metadata.annotations = Some(annotations.into());
        assert_eq!(unblocks(&requesting, &previous), Unblocks::Anything);
        assert_eq!(unblocks(&previous, &requesting), Unblocks::Nothing);
    }
}
