//! Result of the last probe of a backend, and how long it is valid.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use tokio::time::Instant;

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::volume_directory::volume_directory;
use export_store::{ExportStore, Identity, VolumeDirectory};
use nfs_client::FsStat;

/// Number of probe intervals for which a probe result is valid (data-safety rule 13).
const VALID_INTERVALS: u32 = 3;

/// Result of the last probe.
#[derive(Clone)]
pub struct ProbeSnapshot {
    /// Object at the time of the probe.
    pub object: Arc<NfsBackend>,
    /// Export; present once its identity is confirmed.
    pub store: Option<Arc<ExportStore>>,
    /// Identity found on the export.
    pub identity: Option<Identity>,
    /// True if the export could be written.
    pub writable: bool,
    /// Condition that shows if claims can be provisioned on the backend.
    pub ready: PlannedCondition,
    /// Time when the probe ended.
    pub probed_at: Instant,
    /// Interval between probes.
    pub interval: Duration,
    /// Space and inodes of the export.
    pub statistics: Option<FsStat>,
    /// Bytes used by volumes and reservations when the statistics were read.
    pub provisioned: u128,
}

impl ProbeSnapshot {
    /// Returns the snapshot of a backend before its first probe.
    pub(super) fn not_probed(object: Arc<NfsBackend>, now: Instant) -> Self {
        Self {
            object,
            store: None,
            identity: None,
            writable: false,
            ready: PlannedCondition::unknown(Reason::NotProbed, "not probed yet"),
            probed_at: now,
            interval: Duration::ZERO,
            statistics: None,
            provisioned: 0,
        }
    }

    /// Returns true if the probe found the backend ready, regardless of its age.
    pub fn is_ready(&self) -> bool {
        self.ready.status == Some(true)
    }

    /// Returns true if it is not decided yet whether the export is that of the backend: the backend was not probed, or an
    /// administrator has to accept the export, or has to replace it.
    pub fn awaits_identity(&self) -> bool {
        matches!(
            self.ready.reason,
            Reason::NotProbed | Reason::BeaconMismatch | Reason::BeaconObserved | Reason::IdentityMismatch
        )
    }

    /// Returns the ID of the export's identity, once confirmed.
    pub fn export_id(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| identity.id.as_str())
    }

    /// Returns the directory of a volume on this backend.
    ///
    /// # Errors
    /// The condition that describes the mismatch; the data is retained.
    pub fn volume_directory(&self, volume: &PersistentVolume) -> Result<VolumeDirectory, PlannedCondition> {
        volume_directory(volume, &self.object, self.export_id())
    }

    /// Returns the current Ready condition; Unknown if the probe found the backend ready but is outdated.
    pub fn ready_now(&self, now: Instant) -> Cow<'_, PlannedCondition> {
        let age = now.saturating_duration_since(self.probed_at);
        if self.is_ready() && age > self.interval * VALID_INTERVALS {
            let outdated = PlannedCondition::unknown(Reason::ProbeOutdated, "its last probe is outdated");
            return Cow::Owned(outdated);
        }
        Cow::Borrowed(&self.ready)
    }

    /// Returns why new volumes have to wait for the next probe of the backend, which is `object` now: volumes are planned with
    /// the spec that was probed.
    pub fn outdated(&self, object: &NfsBackend, now: Instant) -> Option<PlannedCondition> {
        match self.ready_now(now) {
            Cow::Owned(outdated) => Some(outdated),
            Cow::Borrowed(_) if self.is_ready() && self.object.metadata.generation != object.metadata.generation => {
                let message = "its spec changed since its last probe";
                Some(PlannedCondition::unknown(Reason::ProbeOutdated, message))
            }
            Cow::Borrowed(_) => None,
        }
    }
}
