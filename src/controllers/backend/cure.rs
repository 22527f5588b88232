//! Whether a probe found something that claims and volumes may have waited for. Pure.

use crate::operator::backends::Known;

/// Whether what is known now may serve what could not be served before.
///
/// Waking everybody at every probe would make each backend's probe a look at every waiting claim of the cluster.
pub fn may_have_come(former: &Known, now: &Known) -> bool {
    let turned_ready = now.ready.status == Some(true) && former.ready.status != Some(true);
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
