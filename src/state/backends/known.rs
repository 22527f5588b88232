//! What a backend's last probe found, and for how long that is believed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::reclaim_request::reclaim_request;
use export_store::{ExportStore, Identity, ReclaimRequest};
use nfs_client::Statistics;

/// A backend is believed for this many probe intervals (design 6.13).
const INTERVALS_BELIEVED: u32 = 3;

/// What the last probe found.
#[derive(Clone)]
pub struct ProbeSnapshot {
    /// The object as the probe saw it.
    pub object: Arc<NfsBackend>,
    /// The export, once its identity was confirmed.
    pub store: Option<Arc<ExportStore>>,
    /// The identity found.
    pub identity: Option<Identity>,
    /// Whether claims can be provisioned here.
    pub ready: PlannedCondition,
    /// When the probe ended.
    pub probed_at: Instant,
    /// How often it is probed.
    pub interval: Duration,
    /// Space and inodes.
    pub statistics: Option<Statistics>,
    /// What volumes and promises took when the statistics were read, in bytes.
    pub provisioned: u128,
}

impl ProbeSnapshot {
    /// Whether the probe found that claims can be provisioned here, however long ago.
    pub fn is_ready(&self) -> bool {
        self.ready.status == Some(true)
    }

    /// The ID of the export's identity, once confirmed.
    pub fn export_id(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| identity.id.as_str())
    }

    /// Returns the request to reclaim a volume on this backend.
    ///
    /// # Errors
    /// The condition that explains what does not agree; the data stays.
    pub fn reclaim_request(&self, volume: &PersistentVolume) -> Result<ReclaimRequest, PlannedCondition> {
        reclaim_request(volume, &self.object, self.export_id())
    }

    /// Whether claims can be provisioned here, and not while the probe is too old to be believed.
    pub fn ready_now(&self, now: Instant) -> PlannedCondition {
        let age = now.saturating_duration_since(self.probed_at);
        if self.is_ready() && age > self.interval * INTERVALS_BELIEVED {
            return PlannedCondition::unknown(Reason::ProbeOutdated, "its last probe is too old to be believed");
        }
        self.ready.clone()
    }
}
