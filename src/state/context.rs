//! What every reconciler is handed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::parameters::{ClassParameters, ParameterError};
use crate::api::{NfsArchive, NfsBackend};
use crate::decide::restore_source::requested_archive;
use crate::runtime::clients::Clients;
use crate::runtime::events::Events;
use crate::runtime::lease_renewal::Leadership;
use crate::runtime::metrics::Metrics;
use crate::runtime::readiness::Readiness;
use crate::runtime::retry::Backoff;
use crate::runtime::waiting::{ClaimRef, VolumeRef, WaitSet};
use crate::runtime::write_fence::WriteFence;
use crate::state::backends::BackendRegistry;
use crate::state::capacity::CapacityTracker;
use crate::state::copy_jobs::CopyJobs;
use crate::state::last_reported::LastReported;
use crate::state::recovery::RecoveryHolds;
use crate::state::reschedules::RescheduleBackoff;
use crate::state::usage::UsageStore;
use export_store::{PathReservations, RecordsKey};
use tokio_util::sync::CancellationToken;

/// How this operator was started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The provisioner name that we serve.
    pub provisioner: String,
    /// Other provisioner names that we serve, each with the one backend that its classes reach.
    pub aliases: BTreeMap<String, String>,
    /// Claims worked on at the same time, for each backend on its own.
    pub slots: usize,
    /// New for each start: a server ends the session of a former life (design 6.11).
    pub verifier: [u8; 8],
    /// Of each backend, one archive whose time is over is purged in this time.
    pub purge_pause: Duration,
    /// The longest time that a call on an export may take.
    pub deadline: Duration,
    /// How often each export is scanned for orphans; zero: only when somebody asks.
    pub scan_interval: Duration,
    /// How many names are counted in a second of each backend whose volumes are.
    pub count_rate: u32,
    /// When this life began.
    pub started_at: Instant,
}

impl Settings {
    /// All the provisioner names that we serve.
    pub fn provisioners(&self) -> Vec<&str> {
        std::iter::once(&self.provisioner)
            .chain(self.aliases.keys())
            .map(String::as_str)
            .collect()
    }

    /// When the calls of a former life have come to their deadlines. Where no fence ends them at once (NFSv3), nothing
    /// is changed before that (design 6.11).
    pub fn previous_process_deadline(&self) -> Instant {
        self.started_at + self.deadline
    }

    /// Parses a class's parameters; under an alias, they have the meaning that nfs-subdir gives them.
    pub fn class_parameters(&self, class: &StorageClass) -> Result<ClassParameters, ParameterError> {
        let parameters = class.parameters.clone().unwrap_or_default();
        if self.aliases.contains_key(&class.provisioner) {
            ClassParameters::parse_as_nfs_subdir(&parameters)
        } else {
            ClassParameters::parse(&parameters)
        }
    }

    /// Whether a provisioner name is ours.
    pub fn serves(&self, provisioner: &str) -> bool {
        self.provisioner == provisioner || self.aliases.contains_key(provisioner)
    }
}

#[cfg(test)]
impl Settings {
    /// Those of an operator that serves `provisioner`, and each alias with its backend, in a unit test.
    pub fn for_tests(provisioner: &str, aliases: &[(&str, &str)]) -> Self {
        let owned = |(alias, backend): &(&str, &str)| ((*alias).to_owned(), (*backend).to_owned());
        Self {
            provisioner: provisioner.to_owned(),
            aliases: aliases.iter().map(owned).collect(),
            slots: 1,
            purge_pause: Duration::ZERO,
            verifier: [0; 8],
            deadline: Duration::from_secs(1),
            scan_interval: Duration::ZERO,
            count_rate: 1,
            started_at: Instant::now(),
        }
    }
}

/// The watch caches.
pub struct Stores {
    /// All claims.
    pub claims: Store<PersistentVolumeClaim>,
    /// All volumes.
    pub volumes: Store<PersistentVolume>,
    /// All classes.
    pub classes: Store<StorageClass>,
    /// All namespaces: names, uids and labels.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// All nodes: names and labels.
    pub nodes: Store<PartialObjectMeta<Node>>,
    /// All backends.
    pub backends: Store<NfsBackend>,
    /// All archives.
    pub archives: Store<NfsArchive>,
}

/// What every reconciler is handed.
pub struct Context {
    /// Access to the API.
    pub clients: Clients,
    /// The cluster's name on exports.
    pub cluster_id: String,
    /// The key that records on exports are signed with.
    pub records_key: RecordsKey,
    /// How this operator was started.
    pub settings: Settings,
    /// The watch caches.
    pub stores: Stores,
    /// What is known of each backend now.
    pub backends: BackendRegistry,
    /// Which volumes lie where, and what is promised.
    pub capacity: CapacityTracker,
    /// Which directories are taken.
    pub path_reservations: Arc<PathReservations>,
    /// Claims that wait.
    pub waiting_claims: Arc<WaitSet<ClaimRef>>,
    /// Volumes whose reclaim waits.
    pub waiting_volumes: WaitSet<VolumeRef>,
    /// Events.
    pub events: Events,
    /// Copies that are being made.
    pub copy_jobs: CopyJobs,
    /// What volumes hold, as far as they were counted.
    pub usage: UsageStore,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Pauses of claims that failed.
    pub claim_retries: Backoff,
    /// Pauses of volumes whose reclaim failed.
    pub volume_retries: Backoff,
    /// Pauses of archives whose copy failed.
    pub archive_retries: Backoff,
    /// Volumes that were made again and are kept for their claims.
    pub recovery_holds: RecoveryHolds,
    /// Selected nodes that no backend serves, and when they are given back.
    pub reschedules: RescheduleBackoff,
    /// What was last said of volumes that could not be reclaimed.
    pub last_reported: LastReported,
    /// Which watch caches are not filled yet.
    pub readiness: Readiness,
    /// Whether this process may write now.
    pub write_fence: WriteFence,
    /// Asks the API server whether this process leads.
    pub leadership: Leadership,
    /// The word that the operator is to stop.
    pub shutdown: CancellationToken,
    /// Asks for a backend to be probed now.
    pub probe_requests: mpsc::UnboundedSender<ObjectRef<NfsBackend>>,
    /// Asks for an archive to be looked at now.
    pub archive_requests: mpsc::UnboundedSender<ObjectRef<NfsArchive>>,
}

impl Context {
    /// Asks for a backend to be probed now.
    pub fn request_probe(&self, backend: &str) {
        // The receiver ends only with the operator.
        let _ = self.probe_requests.send(ObjectRef::new(backend));
    }

    /// Asks for an archive to be looked at now.
    pub fn requeue_archive(&self, archive: ObjectRef<NfsArchive>) {
        // As above.
        let _ = self.archive_requests.send(archive);
    }

    /// Wakes the claims that request an archive as their data source: it changed.
    pub fn wake_restores(&self, archive: &str) {
        for claim in self.stores.claims.state() {
            if requested_archive(&claim) == Some(archive) {
                self.waiting_claims.wake(ObjectRef::from_obj(claim.as_ref()));
            }
        }
    }

    /// Ends when every watch cache was filled once: what is missing in one of them before that may well exist.
    ///
    /// False: the operator stops before that, and nothing may be decided.
    pub async fn wait_for_sync(&self) -> bool {
        self.shutdown
            .run_until_cancelled(self.readiness.wait_until_ready())
            .await
            .is_some()
    }

    /// The uid of the kube-system namespace: which cluster this is, whatever it is called on exports. Known once the caches
    /// are filled.
    pub fn cluster_uid(&self) -> String {
        let namespace = self.namespace("kube-system");
        namespace
            .and_then(|namespace| namespace.metadata.uid.clone())
            .unwrap_or_default()
    }

    /// A node's labels.
    pub fn node(&self, name: &str) -> Option<Arc<PartialObjectMeta<Node>>> {
        self.stores.nodes.get(&ObjectRef::new(name))
    }

    /// A namespace's uid and labels.
    pub fn namespace(&self, name: &str) -> Option<Arc<PartialObjectMeta<Namespace>>> {
        self.stores.namespaces.get(&ObjectRef::new(name))
    }
}
