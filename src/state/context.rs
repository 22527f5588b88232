//! Shared state of all reconcilers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource as _, ResourceExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::parameters::{ClassParameters, ParameterError};
use crate::api::{NfsArchive, NfsBackend, NfsBackup, NfsBackupSchedule};
use crate::decide::restore_source::RestoreSource;
use crate::decide::storage_capacity::is_csi_driver_name;
use crate::runtime::burst_limit::BurstLimit;
use crate::runtime::clients::Clients;
use crate::runtime::clock::{Clock, ServerClock};
use crate::runtime::concurrency_limiter::{ConcurrencyLimiter, Priority, Slot};
use crate::runtime::events::{Events, Severity};
use crate::runtime::fair_semaphore::FairSemaphore;
use crate::runtime::lease_renewal::Leadership;
use crate::runtime::metrics::Metrics;
use crate::runtime::readiness::Readiness;
use crate::runtime::retry::Backoff;
use crate::runtime::waiting::{ClaimRef, VolumeRef, WaitSet};
use crate::runtime::watchdog::Watchdog;
use crate::runtime::write_fence::WriteFence;
use crate::state::backends::{Backend, BackendRegistry};
use crate::state::backup_admissions::BackupAdmissions;
use crate::state::backups::BackupBackends;
use crate::state::cached_claim::CachedClaim;
use crate::state::capacity::CapacityTracker;
use crate::state::changed_backends::ChangedBackends;
use crate::state::copy_jobs::CopyJobs;
use crate::state::last_reported::LastReported;
use crate::state::last_written::LastWritten;
use crate::state::missing_directories::MissingDirectories;
use crate::state::recently_reclaimed::RecentlyReclaimed;
use crate::state::recorded_ids::LiveRecordedIds;
use crate::state::recovery::RecoveryHolds;
use crate::state::reschedules::RescheduleBackoff;
use crate::state::server_addresses::ServerAddresses;
use crate::state::usage::UsageStore;
use export_store::{Beacons, PathReservations, RecordsKey};
use nfs_client::Transport;
use tokio_util::sync::CancellationToken;

/// Provisioner names that an operator serves.
#[derive(Debug, Clone, Default)]
pub struct Provisioners {
    /// Provisioner names whose classes use all backends.
    pub names: Vec<String>,
    /// Provisioner names whose classes use one backend, each with that backend.
    pub aliases: BTreeMap<String, String>,
}

impl Provisioners {
    /// Returns true if the operator serves the provisioner name.
    pub fn serves(&self, provisioner: &str) -> bool {
        self.names.iter().any(|name| name == provisioner) || self.aliases.contains_key(provisioner)
    }

    /// Parses the parameters of a class. Under an alias, they have the same semantics as in nfs-subdir.
    pub fn class_parameters(&self, class: &StorageClass) -> Result<ClassParameters, ParameterError> {
        let parameters = class.parameters.clone().unwrap_or_default();
        if self.aliases.contains_key(&class.provisioner) {
            ClassParameters::parse_as_nfs_subdir(&parameters)
        } else {
            ClassParameters::parse(&parameters)
        }
    }

    /// Restricts a class under an alias to the backend of the alias.
    pub fn restrict(&self, provisioner: &str, class: &mut ClassParameters) -> Result<(), PlannedCondition> {
        let Some(backend) = self.aliases.get(provisioner) else {
            return Ok(());
        };
        if class.backends.iter().any(|name| name != backend) {
            return Err(PlannedCondition::fails(
                Reason::InvalidParameter,
                format!(
                    "classes of provisioner {provisioner} are restricted to backend {backend}: remove the parameter `backend`"
                ),
            ));
        }
        class.backends = vec![backend.clone()];
        Ok(())
    }
}

/// Settings from the command line and the environment.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Provisioner names that this operator serves.
    pub served: Provisioners,
    /// Maximum number of claims processed concurrently, per backend.
    pub slots: usize,
    /// Client verifier, new for each start: the server ends the session of the previous process (data-safety rule 11).
    pub verifier: [u8; 8],
    /// Minimum interval between purges of expired archives on one backend.
    pub purge_pause: Duration,
    /// Maximum duration of a call on an export.
    pub deadline: Duration,
    /// Interval between orphan scans of an export; zero if scans only run on request.
    pub scan_interval: Duration,
    /// Maximum number of files that a usage scan reads per second, per backend.
    pub count_rate: u32,
    /// Time at which this process began to lead.
    pub leads_since: Instant,
}

impl Settings {
    /// Returns all provisioner names that this operator serves.
    pub fn provisioners(&self) -> Vec<&str> {
        let names = self.served.names.iter().chain(self.served.aliases.keys());
        names.map(String::as_str).collect()
    }

    /// Returns the time at which all calls of the previous process have exceeded their deadline. Without fencing
    /// (NFSv3), nothing is changed before that time (data-safety rule 11).
    pub fn previous_process_deadline(&self) -> Instant {
        self.leads_since + self.deadline
    }

    /// Parses the parameters of a class.
    pub fn class_parameters(&self, class: &StorageClass) -> Result<ClassParameters, ParameterError> {
        self.served.class_parameters(class)
    }

    /// Returns the provisioner names that can be those of a CSIDriver. Storage capacity is published for their classes. The
    /// classes of an alias are those of an older provisioner, for which nobody creates a CSIDriver.
    pub fn csi_driver_names(&self) -> impl Iterator<Item = &str> {
        let names = self.served.names.iter().map(String::as_str);
        names.filter(|name| is_csi_driver_name(name))
    }

    /// Returns true if this operator serves the provisioner name.
    pub fn serves(&self, provisioner: &str) -> bool {
        self.served.serves(provisioner)
    }
}

#[cfg(test)]
impl Settings {
    /// Returns the settings of an operator with these provisioner names, separated by commas, and these aliases, each with its
    /// backend.
    pub fn for_tests(provisioners: &str, aliases: &[(&str, &str)]) -> Self {
        let owned = |(alias, backend): &(&str, &str)| ((*alias).to_owned(), (*backend).to_owned());
        Self {
            served: Provisioners {
                names: provisioners.split(',').map(str::to_owned).collect(),
                aliases: aliases.iter().map(owned).collect(),
            },
            slots: 1,
            purge_pause: Duration::ZERO,
            verifier: [0; 8],
            deadline: Duration::from_secs(1),
            scan_interval: Duration::ZERO,
            count_rate: 1,
            leads_since: Instant::now(),
        }
    }
}

/// Watch caches.
pub struct Stores {
    /// PersistentVolumeClaims.
    pub claims: Store<CachedClaim>,
    /// PersistentVolumes.
    pub volumes: Store<PersistentVolume>,
    /// StorageClasses.
    pub classes: Store<StorageClass>,
    /// Namespaces: names, UIDs and labels.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Nodes: names and labels.
    pub nodes: Store<PartialObjectMeta<Node>>,
    /// NfsBackends.
    pub backends: Store<NfsBackend>,
    /// NfsArchives.
    pub archives: Store<NfsArchive>,
    /// NfsBackups.
    pub backups: Store<NfsBackup>,
    /// NfsBackupSchedules.
    pub schedules: Store<NfsBackupSchedule>,
}

/// Shared state of all reconcilers.
pub struct Context {
    /// API clients.
    pub clients: Clients,
    /// Name of the cluster on exports.
    pub cluster_id: String,
    /// Key that signs the records on exports.
    pub records_key: RecordsKey,
    /// Settings from the command line and the environment.
    pub settings: Settings,
    /// Watch caches.
    pub stores: Stores,
    /// Exports that volumes and archives record in the API server.
    pub live_recorded_ids: LiveRecordedIds,
    /// Runtime state of the backends.
    pub backends: BackendRegistry,
    /// Capacity used by volumes and reserved for claims.
    pub capacity: CapacityTracker,
    /// Volumes that were reclaimed last.
    pub recently_reclaimed: RecentlyReclaimed,
    /// Reserved directories.
    pub path_reservations: Arc<PathReservations>,
    /// Beacons that this process verified or wrote.
    pub beacons: Arc<Beacons>,
    /// Addresses of servers that have different names.
    pub server_addresses: Arc<ServerAddresses>,
    /// Waiting claims.
    pub waiting_claims: Arc<WaitSet<ClaimRef>>,
    /// Limits the concurrent requests about claims that are not being provisioned: conditions of claims that wait,
    /// and reads that precede them or a new size.
    pub condition_writes: ConcurrencyLimiter<ClaimRef>,
    /// Volumes whose reclaim is waiting.
    pub waiting_volumes: WaitSet<VolumeRef>,
    /// Recorder of Kubernetes events.
    pub events: Events,
    /// Background copies.
    pub copy_jobs: CopyJobs,
    /// Measured storage usage of volumes.
    pub usage: UsageStore,
    /// Prometheus metrics.
    pub metrics: Arc<Metrics>,
    /// Backoff of failed claims.
    pub claim_retries: Backoff,
    /// Backoff of volumes whose reclaim failed.
    pub volume_retries: Backoff,
    /// Backoff of archives that failed, or wait for users.
    pub archive_retries: Backoff,
    /// Backoff of backups that wait.
    pub backup_retries: Backoff,
    /// The backends that refused backups depend on.
    pub backup_backends: BackupBackends,
    /// Limits the backends that are probed at the same time: at a start, all are due at once.
    pub backend_probes: BurstLimit,
    /// Held while a backend is removed.
    pub backend_removals: tokio::sync::Mutex<()>,
    /// Limits the backups that request an archive concurrently.
    pub backup_slots: FairSemaphore,
    /// Quota of the backups that tenants request.
    pub backup_admissions: BackupAdmissions,
    /// Recovered volumes that are reserved for their claims.
    pub recovery_holds: RecoveryHolds,
    /// Volumes whose claims report a missing directory.
    pub missing_directories: MissingDirectories,
    /// Backoff of selected nodes that no backend serves.
    pub reschedules: RescheduleBackoff,
    /// Conditions last reported for volumes that could not be reclaimed.
    pub last_reported: LastReported,
    /// The clock of this process.
    pub clock: Clock,
    /// Connects to NFS servers.
    pub transport: Arc<dyn Transport>,
    /// The API server's clock.
    pub server_clock: ServerClock,
    /// Statuses last written, which the caches may not have yet.
    pub last_written: LastWritten,
    /// Watch caches that are not synced yet.
    pub readiness: Readiness,
    /// Allows writes only while this process is the leader.
    pub write_fence: WriteFence,
    /// Watches the loops of the operator.
    pub watchdog: Watchdog,
    /// Checks with the API server that this process is the leader.
    pub leadership: Leadership,
    /// Cancelled when the operator shuts down.
    pub shutdown: CancellationToken,
    /// Sends requests to probe a backend now.
    pub probe_requests: mpsc::UnboundedSender<ObjectRef<NfsBackend>>,
    /// Sends requests to reconcile an archive now.
    pub archive_requests: mpsc::UnboundedSender<ObjectRef<NfsArchive>>,
    /// Sends requests to reconcile a backup now.
    pub backup_requests: mpsc::UnboundedSender<ObjectRef<NfsBackup>>,
    /// Sends requests to reconcile a schedule now.
    pub schedule_requests: mpsc::UnboundedSender<ObjectRef<NfsBackupSchedule>>,
    /// Backends whose number of volumes may differ from the one in their status.
    pub changed_backends: ChangedBackends,
    /// Notified when the storage capacity of a class may have changed.
    pub storage_capacity_changed: Notify,
}

impl Context {
    /// Requests an immediate probe of a backend.
    pub fn request_probe(&self, backend: &str) {
        // The receiver is dropped only at shutdown.
        let _ = self.probe_requests.send(ObjectRef::new(backend));
    }

    /// Logs what became of a request of an administrator, and publishes it as an event about the backend.
    pub fn publish_about_backend(
        &self,
        object: &NfsBackend,
        severity: Severity,
        reason: Reason,
        action: &str,
        note: &str,
    ) {
        tracing::info!(backend = object.name_any(), %reason, "{note}");
        self.events
            .publish(object.object_ref(&()), severity, reason, action, note);
    }

    /// Requests an immediate reconciliation of an archive.
    pub fn requeue_archive(&self, archive: ObjectRef<NfsArchive>) {
        // The receiver is dropped only at shutdown.
        let _ = self.archive_requests.send(archive);
    }

    /// Requests an immediate reconciliation of a backup.
    pub fn requeue_backup(&self, backup: ObjectRef<NfsBackup>) {
        // The receiver is dropped only at shutdown.
        let _ = self.backup_requests.send(backup);
    }

    /// Requests an immediate reconciliation of a schedule.
    pub fn requeue_schedule(&self, schedule: ObjectRef<NfsBackupSchedule>) {
        // The receiver is dropped only at shutdown.
        let _ = self.schedule_requests.send(schedule);
    }

    /// Wakes the claims whose data source changed. `changed` gets the namespace of a claim and its source.
    pub fn wake_restores(&self, changed: impl Fn(&str, &RestoreSource) -> bool) {
        for claim in self.stores.claims.state() {
            let namespace = claim.namespace().unwrap_or_default();
            if claim.restore().is_some_and(|source| changed(&namespace, source)) {
                self.waiting_claims
                    .wake(ObjectRef::new(&claim.name_any()).within(&namespace));
            }
        }
    }

    /// Returns a claim of the watch cache.
    pub fn cached_claim(&self, claim: &ClaimRef) -> Option<PersistentVolumeClaim> {
        let key = ObjectRef::new(&claim.name).within(claim.namespace.as_deref().unwrap_or_default());
        // The reconciliation of a claim that cannot be decoded reports it.
        self.stores.claims.get(&key)?.decode().ok()
    }

    /// Returns a slot for requests to the API server about a claim that is not being provisioned: reads, and the report of
    /// a condition. If no slot is free, the claim is queued fairly by namespace and reconciled again when it has one, so
    /// that it does not hold anything and does not act on an outdated state.
    pub fn report_slot(&self, claim: &PersistentVolumeClaim) -> Option<Slot<'_, ClaimRef>> {
        self.enter(&self.condition_writes, claim, Priority::New)
    }

    /// Like [`report_slot`](Self::report_slot), for work that may also call the export of a backend: one that does not respond
    /// delays only its own claims.
    pub fn work_slot<'a>(
        &'a self,
        claim: &PersistentVolumeClaim,
        backend: Option<&'a Backend>,
        priority: Priority,
    ) -> Option<Slot<'a, ClaimRef>> {
        let slots = backend.map_or(&self.condition_writes, |backend| &backend.claims);
        self.enter(slots, claim, priority)
    }

    fn enter<'a>(
        &'a self,
        slots: &'a ConcurrencyLimiter<ClaimRef>,
        claim: &PersistentVolumeClaim,
        priority: Priority,
    ) -> Option<Slot<'a, ClaimRef>> {
        let (object, namespace) = (ObjectRef::from_obj(claim), claim.namespace().unwrap_or_default());
        slots.enter(&object, &namespace, priority, &self.waiting_claims)
    }

    /// Forgets that a claim waits, because it was deleted or there is nothing left to do.
    pub fn forget_claim(&self, claim: &ClaimRef) {
        self.waiting_claims.forget(claim);
        self.condition_writes.forget(claim, &self.waiting_claims);
        self.backends
            .for_each(|backend| backend.claims.forget(claim, &self.waiting_claims));
    }

    /// Releases the slots that are reserved for a claim that was woken and does not need them.
    pub fn release_claim_slots(&self, claim: &ClaimRef) {
        self.condition_writes.release_reservation(claim, &self.waiting_claims);
        self.backends
            .for_each(|backend| backend.claims.release_reservation(claim, &self.waiting_claims));
    }

    /// Forgets that a volume waits, because it was deleted.
    pub fn forget_volume(&self, volume: &VolumeRef) {
        self.waiting_volumes.forget(volume);
        self.backends
            .for_each(|backend| backend.reclaims.forget(volume, &self.waiting_volumes));
    }

    /// Releases the slots that are reserved for a volume that was woken and does not need them.
    pub fn release_volume_slots(&self, volume: &VolumeRef) {
        self.backends
            .for_each(|backend| backend.reclaims.release_reservation(volume, &self.waiting_volumes));
    }

    /// Waits until all watch caches are synced and this process may write. Before that, an object that is missing in a
    /// cache may exist, and nothing that is decided can be done.
    ///
    /// Returns false if the operator shuts down first; the caller must then make no decision.
    pub async fn wait_for_sync(&self) -> bool {
        let synced = async {
            self.readiness.wait_until_ready().await;
            self.leadership.wait_until_writable().await
        };
        self.shutdown.run_until_cancelled(synced).await == Some(true)
    }

    /// Returns the backend of this name. It is registered by its first reconciliation, which may come after that of the
    /// objects on it.
    ///
    /// # Errors
    /// The condition that shows if the backend does not exist or is not registered yet. Valid only once all caches are
    /// synced.
    pub fn registered_backend(&self, name: &str) -> Result<Arc<Backend>, PlannedCondition> {
        self.backends.get(name).ok_or_else(|| {
            let exists = self.stores.backends.get(&ObjectRef::new(name)).is_some();
            unregistered_backend(name, exists)
        })
    }

    /// Returns true if this backend reports a record on the export that has no volume: the record is its own, or it names
    /// no backend that exists and this backend is the first one on the export.
    pub fn reports_record_of(&self, backend: &Backend, export_id: &str, recorded: Option<&str>) -> bool {
        let owner = recorded.filter(|owner| self.stores.backends.get(&ObjectRef::new(owner)).is_some());
        match owner {
            Some(owner) => owner == backend.name,
            None => {
                let first = self.backends.first_on_export(export_id);
                first.is_none_or(|first| first.name == backend.name)
            }
        }
    }

    /// Returns the UID of the kube-system namespace, which identifies the cluster regardless of its name on exports.
    /// Empty until the caches are synced.
    pub fn cluster_uid(&self) -> String {
        let namespace = self.namespace("kube-system");
        namespace
            .and_then(|namespace| namespace.metadata.uid.clone())
            .unwrap_or_default()
    }

    /// Returns the name and labels of a node.
    pub fn node(&self, name: &str) -> Option<Arc<PartialObjectMeta<Node>>> {
        self.stores.nodes.get(&ObjectRef::new(name))
    }

    /// Returns the UID and labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<Arc<PartialObjectMeta<Namespace>>> {
        self.stores.namespaces.get(&ObjectRef::new(name))
    }
}

/// Returns the condition of an object whose backend is not registered.
fn unregistered_backend(name: &str, exists: bool) -> PlannedCondition {
    if exists {
        return PlannedCondition::fails(Reason::NotProbed, format!("backend {name} is not probed yet"));
    }
    PlannedCondition::fails(
        Reason::ReclaimBackendMissing,
        format!(
            "backend {name:?} does not exist: create it again with its server and path; until then, nothing is changed on its \
             export"
        ),
    )
}
