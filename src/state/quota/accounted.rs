//! What the quota agent of a backend accounts for its volumes and archives.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::state::backends::Backend;
use export_store::quota::VolumeUsage;
use export_store::{ExportError, ExportStore};

/// Reads what the agent accounts, by volume. Empty if the backend has no limits, or its agent does not run. It is at most
/// a few minutes old.
pub async fn accounted_usage(
    backend: &Backend,
    export: &ExportStore,
) -> Result<BTreeMap<String, VolumeUsage>, ExportError> {
    let known = backend.last_probe();
    let Some(settings) = &known.object.spec.quota else {
        return Ok(BTreeMap::new());
    };
    // The file of a large export has megabytes, and a tenant can create any number of clones.
    let _reading = backend.quota.usage_reader.lock().await;
    let usage = export.quota_usage().await?;
    let current = usage.filter(|usage| backend.quota.confirms(usage, settings, Instant::now()));
    Ok(current.map(|usage| usage.volumes).unwrap_or_default())
}

/// Returns what the agent accounts for one volume or archive. `None` if nobody knows: the backend has no limits, its agent does
/// not run, or the export cannot be read, which a copy reports.
pub async fn accounted_volume(backend: &Backend, export: &ExportStore, volume: &str) -> Option<VolumeUsage> {
    accounted_usage(backend, export).await.ok()?.remove(volume)
}
