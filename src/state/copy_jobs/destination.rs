//! The backend that gets a backup.

use std::sync::Arc;

use tokio::time::Instant;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::backends::ProbeSnapshot;
use crate::state::context::Context;
use export_store::ExportStore;

/// A backend that takes a copy now.
pub(crate) struct Destination {
    /// Result of the backend's last probe.
    pub(crate) snapshot: Arc<ProbeSnapshot>,
    /// Export of the backend.
    pub(crate) export: Arc<ExportStore>,
    /// Identity of the export.
    pub(crate) export_id: String,
}

impl Destination {
    /// Returns the backend with this name if it is ready for a new volume, because a copy needs space like a volume.
    pub(crate) fn find(ctx: &Context, name: &str) -> Result<Self, PlannedCondition> {
        let waits = |condition: PlannedCondition| {
            let message = format!(
                "waits for backend {name}, which takes no copies now: {}",
                condition.message
            );
            PlannedCondition::fails(condition.reason, message)
        };
        let backend = ctx.backends.get(name).ok_or_else(|| {
            let message = format!(
                "waits for backend {name}, where the backup is to be stored: create it, or request another backup with another \
                 destination (spec.destination of an NfsArchive, spec.backups.destination of the NfsBackend of the claim)"
            );
            PlannedCondition::fails(Reason::BackendNotFound, message)
        })?;
        let snapshot = backend.last_probe();
        let ready = snapshot.ready_now(Instant::now()).into_owned();
        match (&snapshot.store, snapshot.export_id(), ready.status) {
            (Some(export), Some(export_id), Some(true)) => Ok(Self {
                export: Arc::clone(export),
                export_id: export_id.to_owned(),
                snapshot,
            }),
            _ => Err(waits(ready)),
        }
    }
}
