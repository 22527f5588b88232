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
pub(super) fn unblocks(former: &ProbeSnapshot, now: &ProbeSnapshot) -> Unblocks {
    if may_serve_more(former, now) {
        Unblocks::Anything
    } else if now.is_ready() && former.ready_now(now.probed_at).status != Some(true) {
        Unblocks::StaleProbe
    } else {
        Unblocks::Nothing
    }
}

fn may_serve_more(former: &ProbeSnapshot, now: &ProbeSnapshot) -> bool {
    let became_ready = now.is_ready() && !former.is_ready();
    let total = |known: &ProbeSnapshot| known.statistics.map(|statistics| statistics.total);
    let requests = |known: &ProbeSnapshot| RecoveryRequest::of(&known.object).is_some();
    became_ready
        // The request to recover volumes was withdrawn; claims waited for them.
        || (requests(former) && !requests(now))
        || former.object.spec != now.object.spec
        || former.object.metadata.labels != now.object.metadata.labels
        || former.object.metadata.deletion_timestamp != now.object.metadata.deletion_timestamp
        || (now.identity.is_some()
            && former.identity.as_ref().map(|identity| &identity.id)
                != now.identity.as_ref().map(|identity| &identity.id))
        || total(former) < total(now)
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
    fn a_probe_that_comes_too_late_cures_those_who_found_the_former_outdated_and_no_failure() {
        let spec = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        let former = ProbeSnapshot {
            object: Arc::new(serde_json::from_value(spec).unwrap()),
            store: None,
            identity: None,
            ready: PlannedCondition::holds(Reason::Ready, ""),
            probed_at: Instant::now(),
            interval: Duration::from_secs(30),
            statistics: None,
            provisioned: 0,
        };
        let after = |seconds| ProbeSnapshot {
            probed_at: former.probed_at + Duration::from_secs(seconds),
            ..former.clone()
        };
        assert_eq!(unblocks(&former, &after(90)), Unblocks::Nothing);
        assert_eq!(unblocks(&former, &after(91)), Unblocks::StaleProbe);
        let unready = ProbeSnapshot {
            ready: PlannedCondition::fails(Reason::NoSpace, ""),
            ..former.clone()
        };
        assert_eq!(unblocks(&unready, &after(1)), Unblocks::Anything);
        assert_eq!(unblocks(&former, &unready), Unblocks::Nothing);
        let mut asking = former.clone();
        let annotations = [(READOPT.to_owned(), "true".to_owned())];
        Arc::make_mut(&mut asking.object).metadata.annotations = Some(annotations.into());
        assert_eq!(unblocks(&asking, &former), Unblocks::Anything);
        assert_eq!(unblocks(&former, &asking), Unblocks::Nothing);
    }
}
