//! What a backend's last probe found, and for how long that is believed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::NfsBackend;
use crate::api::conditions::{Reason, Verdict};
use export_store::{Identity, ManagedExport};
use nfs_client::Statistics;

/// A backend is believed for this many probe intervals (design 6.13).
const INTERVALS_BELIEVED: u32 = 3;

/// What the last probe found.
#[derive(Clone)]
pub struct Known {
    /// The object as the probe saw it.
    pub object: Arc<NfsBackend>,
    /// The export, once its identity was confirmed.
    pub export: Option<Arc<ManagedExport>>,
    /// The identity found.
    pub identity: Option<Identity>,
    /// Whether claims can be provisioned here.
    pub ready: Verdict,
    /// When the probe ended.
    pub probed: Instant,
    /// How often it is probed.
    pub interval: Duration,
    /// Space and inodes.
    pub statistics: Option<Statistics>,
    /// What volumes and promises took when the statistics were read, in bytes.
    pub provisioned: u128,
}

impl Known {
    /// Whether the probe found that claims can be provisioned here, however long ago.
    pub fn is_ready(&self) -> bool {
        self.ready.status == Some(true)
    }

    /// Whether claims can be provisioned here, and not while the probe is too old to be believed.
    pub fn ready_now(&self, now: Instant) -> Verdict {
        let age = now.saturating_duration_since(self.probed);
        if self.is_ready() && age > self.interval * INTERVALS_BELIEVED {
            return Verdict::unknown(Reason::ProbeOutdated, "its last probe is too old to be believed");
        }
        self.ready.clone()
    }
}
