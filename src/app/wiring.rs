//! Builds the context that all controllers share, and the watches and queues that input them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use kube::{Api, Client, Resource};
use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::caches;
use super::controllers::{self, ControllerInput};
use super::run::{ClusterAccess, Endpoints, Environment, Options};
use crate::api::names::DEFAULT_PROVISIONER;
use crate::api::{NfsArchive, NfsBackend, NfsBackup, NfsBackupSchedule};
use crate::background::volume_counts;
use crate::controllers::{claim, storage_capacity};
use crate::runtime::burst_limit::BurstLimit;
use crate::runtime::clock::ServerClock;
use crate::runtime::concurrency_limiter::ConcurrencyLimiter;
use crate::runtime::events::Events;
use crate::runtime::fair_semaphore::FairSemaphore;
use crate::runtime::lease_renewal::Leadership;
use crate::runtime::retry::Backoff;
use crate::runtime::waiting::{ClaimRef, VolumeRef, WaitSet};
use crate::runtime::watchdog::Watchdog;
use crate::state::backends::BackendRegistry;
use crate::state::backup_admissions::BackupAdmissions;
use crate::state::backups::BackupBackends;
use crate::state::cached_claim::CachedClaim;
use crate::state::candidates::wake_fitting_claims;
use crate::state::capacity::CapacityTracker;
use crate::state::changed_backends::ChangedBackends;
use crate::state::context::{Context, Provisioners, Settings, Stores};
use crate::state::last_reported::LastReported;
use crate::state::last_written::LastWritten;
use crate::state::missing_directories::MissingDirectories;
use crate::state::recently_reclaimed::RecentlyReclaimed;
use crate::state::recorded_ids::LiveRecordedIds;
use crate::state::recovery::RecoveryHolds;
use crate::state::reschedules::RescheduleBackoff;
use crate::state::schedules::figures;
use crate::state::server_addresses::ServerAddresses;
use export_store::PathReservations;

/// Maximum duration of a call on an export, including a reconnection. It is long enough that a server only appears slow
/// if it restarts with a short grace period, and short enough that a server that hangs is reported within a probe
/// interval.
const EXPORT_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum number of concurrent writes that report why a claim waits. They are few compared to the writes that provision
/// claims, so that thousands of waiting claims do not delay those (docs/security.md, Budget).
const CONDITION_WRITES: usize = 8;

/// Maximum number of backups that request their archive concurrently: few, because any tenant may create thousands of
/// backups, each of which costs several requests (docs/security.md, Budget).
const BACKUP_REQUESTS: usize = 4;
/// Maximum number of backends that are probed at the same time, without those that do not respond.
const PROBES: usize = 16;

/// The streams and queues that the watches and controllers consume when they start.
pub(super) struct Wiring {
    claims: Writer<CachedClaim>,
    volumes: Writer<PersistentVolume>,
    classes: Writer<StorageClass>,
    namespaces: Writer<PartialObjectMeta<Namespace>>,
    nodes: Writer<PartialObjectMeta<Node>>,
    backends: Writer<NfsBackend>,
    archives: Writer<NfsArchive>,
    backups: Writer<NfsBackup>,
    schedules: Writer<NfsBackupSchedule>,
    claim_requests: mpsc::UnboundedReceiver<ClaimRef>,
    volume_requests: mpsc::UnboundedReceiver<VolumeRef>,
    backend_requests: mpsc::UnboundedReceiver<ObjectRef<NfsBackend>>,
    archive_requests: mpsc::UnboundedReceiver<ObjectRef<NfsArchive>>,
    backup_requests: mpsc::UnboundedReceiver<ObjectRef<NfsBackup>>,
    schedule_requests: mpsc::UnboundedReceiver<ObjectRef<NfsBackupSchedule>>,
}

/// Builds the context and the input of the controllers.
pub(super) fn wire(
    options: Options,
    environment: Environment,
    endpoints: Endpoints,
    access: ClusterAccess,
    leadership: Leadership,
    shutdown: CancellationToken,
) -> (Wiring, Arc<Context>) {
    let (claims, claim_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let (classes, class_writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (backends, backend_writer) = reflector::store();
    let (archives, archive_writer) = reflector::store();
    let (backups, backup_writer) = reflector::store();
    let (schedules, schedule_writer) = reflector::store();
    let (waiting_claims, claim_requests) = WaitSet::new();
    let (waiting_volumes, volume_requests) = WaitSet::new();
    let (probe_requests, backend_requests) = mpsc::unbounded_channel();
    let (archive_tx, archive_requests) = mpsc::unbounded_channel();
    let (backup_tx, backup_requests) = mpsc::unbounded_channel();
    let (schedule_tx, schedule_requests) = mpsc::unbounded_channel();
    let Environment {
        transport, clock, host, ..
    } = environment;
    let counted = claims.clone();
    endpoints
        .metrics
        .count_waiting(move || claim::waiting_by_reason(counted.state().iter().map(Arc::as_ref)));
    let (measured, measured_clock) = (schedules.clone(), clock.clone());
    let of_each_claim = options.volume_metrics.then(|| (archives.clone(), backups.clone()));
    endpoints.metrics.backups.read_with(move || {
        let of_each_claim = of_each_claim.as_ref();
        let of_each_claim = of_each_claim.map(|(archives, backups)| (archives.state(), backups.state()));
        let (archives, backups) = of_each_claim.unwrap_or_default();
        figures(&measured.state(), &archives, &backups, measured_clock.now())
    });
    let controller = options.provisioners.first().map_or(DEFAULT_PROVISIONER, String::as_str);
    let ctx = Context {
        events: Events::start(access.clients.calls.clone(), controller, &host, clock.clone()),
        clients: access.clients,
        cluster_id: access.records.cluster_id,
        records_key: access.records.key,
        settings: Settings {
            served: Provisioners {
                names: options.provisioners,
                aliases: options.aliases,
            },
            slots: options.slots,
            purge_pause: options.purge_pause,
            verifier: rand::rng().random(),
            deadline: EXPORT_DEADLINE,
            scan_interval: options.scan_interval,
            count_rate: options.count_rate,
            leads_since: tokio::time::Instant::now(),
        },
        stores: Stores {
            claims,
            volumes,
            classes,
            namespaces,
            nodes,
            backends,
            archives,
            backups,
            schedules,
        },
        live_recorded_ids: LiveRecordedIds::default(),
        backends: BackendRegistry::default(),
        capacity: CapacityTracker::default(),
        recently_reclaimed: RecentlyReclaimed::default(),
        path_reservations: Arc::new(PathReservations::default()),
        beacons: Arc::default(),
        server_addresses: Arc::new(ServerAddresses::new(Arc::clone(&transport))),
        clock,
        transport,
        waiting_claims: Arc::new(waiting_claims),
        condition_writes: ConcurrencyLimiter::new(CONDITION_WRITES),
        waiting_volumes,
        readiness: endpoints.readiness,
        write_fence: endpoints.write_fence,
        watchdog: endpoints.watchdog,
        leadership,
        shutdown,
        copy_jobs: endpoints.copy_jobs,
        usage: endpoints.usage,
        metrics: endpoints.metrics,
        claim_retries: Backoff::new(options.retries),
        volume_retries: Backoff::new(options.retries),
        archive_retries: Backoff::new(options.retries),
        backup_retries: Backoff::new(options.retries),
        backup_backends: BackupBackends::default(),
        backend_probes: BurstLimit::new(PROBES),
        backend_removals: tokio::sync::Mutex::default(),
        backup_slots: FairSemaphore::new(BACKUP_REQUESTS),
        backup_admissions: BackupAdmissions::default(),
        recovery_holds: RecoveryHolds::default(),
        missing_directories: MissingDirectories::default(),
        reschedules: RescheduleBackoff::default(),
        last_reported: LastReported::default(),
        server_clock: ServerClock::default(),
        last_written: LastWritten::default(),
        probe_requests,
        archive_requests: archive_tx,
        backup_requests: backup_tx,
        schedule_requests: schedule_tx,
        changed_backends: ChangedBackends::default(),
        storage_capacity_changed: Notify::new(),
    };
    let wiring = Wiring {
        claims: claim_writer,
        volumes: volume_writer,
        classes: class_writer,
        namespaces: namespace_writer,
        nodes: node_writer,
        backends: backend_writer,
        archives: archive_writer,
        backups: backup_writer,
        schedules: schedule_writer,
        claim_requests,
        volume_requests,
        backend_requests,
        archive_requests,
        backup_requests,
        schedule_requests,
    };
    let ctx = Arc::new(ctx);
    let observed = Arc::downgrade(&ctx);
    ctx.metrics.slots.read_with(move || {
        let backends = observed.upgrade().map(|ctx| ctx.backends.all()).unwrap_or_default();
        backends.iter().map(|backend| backend.slots()).collect()
    });
    (wiring, ctx)
}

/// Tasks that run until the operator shuts down. Each returns its name when it ends.
pub(super) struct Tasks {
    /// The watches of kinds without a controller. They do not end by themselves.
    pub(super) watches: JoinSet<&'static str>,
    /// The controllers, which complete the work in progress.
    pub(super) controllers: JoinSet<&'static str>,
}

impl Wiring {
    /// Starts the watches and controllers.
    pub(super) fn start(self, ctx: &Arc<Context>) -> Tasks {
        let (capacity, groups) = (Arc::clone(ctx), Arc::clone(ctx));
        tokio::spawn(
            ctx.watchdog
                .watch("the wakeup of claims that wait for capacity", async move {
                    loop {
                        capacity.waiting_claims.wait_for_capacity().await;
                        wake_fitting_claims(&capacity);
                    }
                }),
        );
        storage_capacity::start(ctx);
        volume_counts::start(ctx);
        tokio::spawn(
            ctx.watchdog
                .watch("the wakeup of claims that wait for a group", async move {
                    loop {
                        groups.path_reservations.groups.freed().await;
                        groups.waiting_claims.group_freed();
                    }
                }),
        );
        let (watchdog, client) = (&ctx.watchdog, &ctx.clients.watches);
        let ctx = || Arc::clone(ctx);
        let (mut watches, mut controllers) = (JoinSet::new(), JoinSet::new());
        spawn(
            &mut watches,
            watchdog,
            "the watch of StorageClasses",
            caches::watch_classes(ctx(), self.classes, Api::all(client.clone())),
        );
        spawn(
            &mut watches,
            watchdog,
            "the watch of Namespaces",
            caches::watch_namespaces(ctx(), self.namespaces, Api::all(client.clone())),
        );
        spawn(
            &mut watches,
            watchdog,
            "the watch of Nodes",
            caches::watch_nodes(ctx(), self.nodes, Api::all(client.clone())),
        );
        spawn(
            &mut controllers,
            watchdog,
            "the controller of backends",
            controllers::run_backends(ctx(), input(self.backends, self.backend_requests, client)),
        );
        spawn(
            &mut controllers,
            watchdog,
            "the controller of volumes",
            controllers::run_volumes(ctx(), input(self.volumes, self.volume_requests, client)),
        );
        spawn(
            &mut controllers,
            watchdog,
            "the controller of archives",
            controllers::run_archives(ctx(), input(self.archives, self.archive_requests, client)),
        );
        spawn(
            &mut controllers,
            watchdog,
            "the controller of backups",
            controllers::run_backups(ctx(), input(self.backups, self.backup_requests, client)),
        );
        spawn(
            &mut controllers,
            watchdog,
            "the controller of schedules",
            controllers::run_schedules(ctx(), input(self.schedules, self.schedule_requests, client)),
        );
        let claims = ControllerInput {
            writer: self.claims,
            requests: self.claim_requests,
            api: Api::all(client.clone()),
        };
        spawn(
            &mut controllers,
            watchdog,
            "the controller of claims",
            controllers::run_claims(ctx(), claims),
        );
        Tasks { watches, controllers }
    }
}

/// Starts a task that is watched, and returns its name when it ends.
fn spawn(
    tasks: &mut JoinSet<&'static str>,
    watchdog: &Watchdog,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let watched = watchdog.watch(name, work);
    tasks.spawn(async move {
        watched.await;
        name
    });
}

fn input<K>(writer: Writer<K>, requests: mpsc::UnboundedReceiver<ObjectRef<K>>, client: &Client) -> ControllerInput<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    ControllerInput {
        writer,
        requests,
        api: Api::all(client.clone()),
    }
}
