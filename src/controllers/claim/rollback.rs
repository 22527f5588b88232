//! Rollback of a volume that is not created: its directory, its record, and what the operator keeps in memory.

use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ExportError, ExportStore, RollbackOutcome};

/// Removes the directory and the record of a volume that is not created. The directory is removed only with rmdir, and
/// never if a volume names the path. Returns true if nothing of the claim is left, so that another backend may be tried.
pub(super) async fn roll_back(
    ctx: &Context,
    backend: &Backend,
    export: &ExportStore,
    volume: &str,
    claim_uid: &str,
) -> Result<bool, ExportError> {
    match export.rollback(volume, claim_uid).await {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
            backend.remove_pending(volume);
            ctx.capacity.release(volume);
            // An incomplete copy is in the trash now.
            backend.purge_requested.notify_one();
            Ok(true)
        }
        // The directory has data and its record: it keeps its capacity, and the claim stays on the backend.
        Ok(RollbackOutcome::NotEmpty) => Ok(false),
        Err(error) => {
            tracing::warn!(
                backend = backend.name,
                volume,
                "failed to roll back a volume that is not created: {error}"
            );
            Err(error)
        }
    }
}
