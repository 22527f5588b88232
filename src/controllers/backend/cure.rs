//! Whether a probe found something that claims and volumes may have waited for. Pure.

use crate::operator::backends::Known;

/// Whether what is known now may serve what could not be served before.
///
/// Waking everybody at every probe would make each backend's probe a look at every waiting claim of the cluster.
pub fn may_have_come(former: &Known, now: &Known) -> bool {
    // Who looked between the two may have found the former too old to be believed.
    let turned_ready = now.ready.status == Some(true) && former.ready_now(now.probed).status != Some(true);
    let total = |known: &Known| known.statistics.map(|statistics| statistics.total);
    turned_ready
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
    use crate::api::conditions::{Reason, Verdict};

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn a_probe_that_comes_too_late_cures_those_who_found_the_former_outdated() {
        let spec = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        let former = Known {
            object: Arc::new(serde_json::from_value(spec).unwrap()),
            export: None,
            identity: None,
            ready: Verdict::yes(Reason::Ready, ""),
            probed: Instant::now(),
            interval: Duration::from_secs(30),
            statistics: None,
            provisioned: 0,
        };
        let after = |seconds| Known {
            probed: former.probed + Duration::from_secs(seconds),
            ..former.clone()
        };
        assert!(!may_have_come(&former, &after(90)));
        assert!(may_have_come(&former, &after(91)));
    }
}
