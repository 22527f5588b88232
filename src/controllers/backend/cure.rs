//! Whether a probe found something that claims and volumes may have waited for. Pure.

use crate::api::RecoveryRequest;
use crate::state::backends::ProbeSnapshot;

/// What a probe may have cured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unblocks {
    /// Nothing that is known of.
    Nothing,
    /// That the former probe was too old to be believed: who looked meanwhile waits for this one. It cures no failure, or
    /// thousands of failing claims would be tried at once whenever the operator is too busy to probe in time, and would
    /// make it late again.
    Doubt,
    /// Whatever could not be served before.
    Anything,
}

/// What may be served by what is known now, and could not be before.
///
/// Waking everybody at every probe would make each backend's probe a look at every waiting claim of the cluster.
pub fn of(former: &ProbeSnapshot, now: &ProbeSnapshot) -> Unblocks {
    if may_serve_more(former, now) {
        Unblocks::Anything
    } else if now.is_ready() && former.ready_now(now.probed_at).status != Some(true) {
        Unblocks::Doubt
    } else {
        Unblocks::Nothing
    }
}

fn may_serve_more(former: &ProbeSnapshot, now: &ProbeSnapshot) -> bool {
    let turned_ready = now.is_ready() && !former.is_ready();
    let total = |known: &ProbeSnapshot| known.statistics.map(|statistics| statistics.total);
    let asks = |known: &ProbeSnapshot| RecoveryRequest::of(&known.object).is_some();
    turned_ready
        // Claims waited for its volumes, and nobody asks for them any more.
        || (asks(former) && !asks(now))
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
        assert_eq!(of(&former, &after(90)), Unblocks::Nothing);
        assert_eq!(of(&former, &after(91)), Unblocks::Doubt);
        let unready = ProbeSnapshot {
            ready: PlannedCondition::fails(Reason::NoSpace, ""),
            ..former.clone()
        };
        assert_eq!(of(&unready, &after(1)), Unblocks::Anything);
        assert_eq!(of(&former, &unready), Unblocks::Nothing);
        let mut asking = former.clone();
        let annotations = [(READOPT.to_owned(), "true".to_owned())];
        Arc::make_mut(&mut asking.object).metadata.annotations = Some(annotations.into());
        assert_eq!(of(&asking, &former), Unblocks::Anything);
        assert_eq!(of(&former, &asking), Unblocks::Nothing);
    }
}
