//! The export of a backend, if it is the one that an object names.

use std::sync::Arc;

use crate::api::conditions::PlannedCondition;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::ExportStore;

/// A backend, and its export with the expected identity.
pub(crate) struct ConfirmedExport {
    /// The backend.
    pub(crate) backend: Arc<Backend>,
    /// Its export.
    pub(crate) export: Arc<ExportStore>,
}

/// Reason why an export cannot be used.
pub(crate) enum Unconfirmed {
    /// The backend does not exist, is not probed yet, or is not ready: the condition that explains it.
    NotReady(PlannedCondition),
    /// The backend uses another export.
    OtherExport,
}

impl ConfirmedExport {
    /// Returns the export of the backend with this name if it has the identity `export_id`.
    pub(crate) fn find(ctx: &Context, name: &str, export_id: &str) -> Result<Self, Unconfirmed> {
        let backend = ctx.registered_backend(name).map_err(Unconfirmed::NotReady)?;
        let snapshot = backend.last_probe();
        let Some(export) = snapshot.store.clone() else {
            return Err(Unconfirmed::NotReady(snapshot.ready.clone()));
        };
        if snapshot.export_id() != Some(export_id) {
            return Err(Unconfirmed::OtherExport);
        }
        Ok(Self { backend, export })
    }
}
