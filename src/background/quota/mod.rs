//! Limits of volumes on the server (`spec.quota`, ADR 17).
//!
//! [`watch`] reads the heartbeat of the quota agent, and its reports about the limits that are not in force yet. [`sync`]
//! compares the orders of all volumes and archives with them, slowly: it writes those of volumes that existed before
//! `spec.quota` was set, and completes what an earlier process began.

mod sync;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::runner;
use crate::api::NfsBackend;
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::runtime::backend_metrics::QuotaFigures;
use crate::state::backends::Backend;
use crate::state::context::Context;
use sync::QuotaSync;
use watch::QuotaWatcher;

/// Starts the tasks of a backend. Without `spec.quota`, they only wait until it is set.
pub fn start(ctx: &Arc<Context>, backend: &Arc<Backend>, object: &NfsBackend) {
    let reported = BackendCondition::QuotasEnforced.to_string();
    let had_quota = object.status.as_ref().is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.type_ == reported)
    });
    backend.quota.set_withdrawing(had_quota && object.spec.quota.is_none());
    runner::spawn(ctx, backend, QuotaWatcher::default(), Duration::ZERO);
    runner::spawn(ctx, backend, QuotaSync::default(), Duration::ZERO);
}

/// Handles a change of the settings, and a probe, which may have found the export for the first time.
pub fn probed(backend: &Backend, previous: &NfsBackend, object: &NfsBackend) {
    match (&previous.spec.quota, &object.spec.quota) {
        (Some(_), None) => backend.quota.set_withdrawing(true),
        (None, None) => return,
        (_, Some(_)) => backend.quota.set_withdrawing(false),
    }
    backend.quota.watch_requested.notify_one();
    if previous.spec.quota != object.spec.quota {
        backend.quota.sync_requested.notify_one();
    }
}

/// Returns the condition QuotasEnforced of a backend. `None` if there is nothing to report.
pub fn condition(backend: &Backend, object: &NfsBackend) -> Option<PlannedCondition> {
    match &object.spec.quota {
        Some(settings) => Some(backend.quota.condition(settings, Instant::now())),
        None if backend.quota.is_withdrawing() => Some(PlannedCondition::fails(
            Reason::QuotaBeingRemoved,
            "spec.quota is unset: the limits of the volumes are being removed",
        )),
        None => None,
    }
}

/// Returns the values of the metrics about enforced sizes. `None` without `spec.quota`.
pub fn figures(backend: &Backend, object: &NfsBackend) -> Option<QuotaFigures> {
    let settings = object.spec.quota.as_ref()?;
    Some(QuotaFigures {
        enforce: settings.enforce,
        reason: backend.quota.condition(settings, Instant::now()).reason,
        pending: backend.quota.count_pending(),
    })
}
