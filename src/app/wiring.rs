//! What the operator consists of when it works: the context that all share, and the watches and queues that feed its controllers.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use rand::RngExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::{NfsArchive, NfsBackend};
use crate::app::run::{ClusterAccess, Endpoints, Options};
use crate::app::watches;
use crate::controllers::claim;
use crate::runtime::events::Events;
use crate::runtime::lease_renewal::Leadership;
use crate::runtime::metrics::Metrics;
use crate::runtime::retry::Backoff;
use crate::runtime::stop::Stop;
use crate::state::backends::BackendRegistry;
use crate::state::capacity::CapacityTracker;
use crate::state::context::{Context, Settings, Stores};
use crate::state::last_reported::LastReported;
use crate::state::recovery::Reserved;
use crate::state::reschedules::RescheduleBackoff;
use crate::state::usage::UsageStore;
use crate::state::waiting::{ClaimRef, VolumeRef, WaitSet};
use export_store::PathReservations;

/// The longest time that a call on an export may take, a reconnection included: long enough for a server's restart
/// with a short grace period to be noticed as slow, short enough that a hung server is named within a probe interval.
const EXPORT_DEADLINE: Duration = Duration::from_secs(10);
/// Streams and queues that are consumed when the controllers start.
pub(crate) struct Wiring {
    claims: Writer<PersistentVolumeClaim>,
    volumes: Writer<PersistentVolume>,
    classes: Writer<StorageClass>,
    namespaces: Writer<PartialObjectMeta<Namespace>>,
    nodes: Writer<PartialObjectMeta<Node>>,
    backends: Writer<NfsBackend>,
    archives: Writer<NfsArchive>,
    woken: mpsc::UnboundedReceiver<ClaimRef>,
    woken_volumes: mpsc::UnboundedReceiver<VolumeRef>,
    doubted: mpsc::UnboundedReceiver<ObjectRef<NfsBackend>>,
    called: mpsc::UnboundedReceiver<ObjectRef<NfsArchive>>,
}

/// All that the controllers share, and what feeds them.
pub(crate) fn wire(
    options: Options,
    front: Endpoints,
    here: ClusterAccess,
    leadership: Leadership,
    stop: Stop,
) -> (Wiring, Arc<Context>) {
    let (claims, claim_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let (classes, class_writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (backends, backend_writer) = reflector::store();
    let (archives, archive_writer) = reflector::store();
    let (waiting, woken) = WaitSet::new();
    let (waiting_volumes, woken_volumes) = WaitSet::new();
    let (probe_bell, doubted) = mpsc::unbounded_channel();
    let (archive_bell, called) = mpsc::unbounded_channel();
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| "nfs-operator".to_owned());
    let unsettled = claims.clone();
    front
        .metrics
        .count_waiting(move || claim::waiting(unsettled.state().iter().map(Arc::as_ref)));
    let ctx = Context {
        events: Events::start(here.clients.calls.clone(), &options.provisioner, &instance),
        clients: here.clients,
        cluster_id: here.records.cluster_id,
        records_key: here.records.key,
        settings: Settings {
            provisioner: options.provisioner,
            aliases: options.aliases,
            slots: options.slots,
            purge_pause: options.purge_pause,
            verifier: rand::rng().random(),
            deadline: EXPORT_DEADLINE,
            scan_interval: options.scan_interval,
            count_rate: options.count_rate,
            started_at: tokio::time::Instant::now(),
        },
        stores: Stores {
            claims,
            volumes,
            classes,
            namespaces,
            nodes,
            backends,
            archives,
        },
        backends: BackendRegistry::default(),
        capacity: CapacityTracker::default(),
        path_reservations: Arc::new(PathReservations::default()),
        waiting_claims: Arc::new(waiting),
        waiting_volumes,
        readiness: front.readiness,
        write_fence: front.guard,
        leadership,
        stop,
        copy_jobs: front.metrics.copies(),
        usage: usages(&front.metrics, options.volume_metrics),
        metrics: front.metrics,
        claim_retries: Backoff::new(options.retries),
        volume_retries: Backoff::new(options.retries),
        archive_retries: Backoff::new(options.retries),
        recovery_holds: Reserved::default(),
        reschedules: RescheduleBackoff::default(),
        last_reported: LastReported::default(),
        probe_requests: probe_bell,
        archive_requests: archive_bell,
    };
    let parts = Wiring {
        claims: claim_writer,
        volumes: volume_writer,
        classes: class_writer,
        namespaces: namespace_writer,
        nodes: node_writer,
        backends: backend_writer,
        archives: archive_writer,
        woken,
        woken_volumes,
        doubted,
        called,
    };
    (parts, Arc::new(ctx))
}

/// What volumes hold, with a series for each if that is wanted.
fn usages(metrics: &Metrics, of_each_volume: bool) -> UsageStore {
    let usages = metrics.usages();
    if of_each_volume {
        usages.tell_of_each_volume();
    }
    usages
}

impl Wiring {
    /// Starts watches and controllers.
    pub(crate) fn start(self, ctx: &Arc<Context>) -> JoinSet<&'static str> {
        let waiting = Arc::clone(&ctx.waiting_claims);
        tokio::spawn(async move { waiting.keep_ringing().await });
        let api = || ctx.clients.watches.clone();
        let shared = || Arc::clone(ctx);
        let mut running = JoinSet::new();
        running.spawn(watches::follow_classes(shared(), self.classes, Api::all(api())));
        running.spawn(watches::follow_namespaces(shared(), self.namespaces, Api::all(api())));
        running.spawn(watches::follow_nodes(shared(), self.nodes, Api::all(api())));
        let backends = Api::all(api());
        running.spawn(watches::backends(
            shared(),
            self.backends,
            self.doubted,
            backends,
            ctx.stop.clone(),
        ));
        let volumes = Api::all(api());
        running.spawn(watches::volumes(
            shared(),
            self.volumes,
            self.woken_volumes,
            volumes,
            ctx.stop.clone(),
        ));
        let archives = Api::all(api());
        running.spawn(watches::archives(
            shared(),
            self.archives,
            self.called,
            archives,
            ctx.stop.clone(),
        ));
        let claims = Api::all(api());
        running.spawn(watches::claims(
            shared(),
            self.claims,
            self.woken,
            claims,
            ctx.stop.clone(),
        ));
        running
    }
}
