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
use crate::app::run::{Front, Here, Options};
use crate::app::watches;
use crate::controllers::claim;
use crate::runtime::events::Events;
use crate::runtime::lease_renewal::Leadership;
use crate::runtime::metrics::Metrics;
use crate::runtime::retry::Backoff;
use crate::runtime::stop::Stop;
use crate::state::backends::Backends;
use crate::state::capacity::Inventory;
use crate::state::context::{Context, Settings, Stores};
use crate::state::last_reported::Told;
use crate::state::recovery::Reserved;
use crate::state::reschedules::Reschedules;
use crate::state::usage::Usages;
use crate::state::waiting::{ClaimRef, VolumeRef, Waiting};
use export_store::Ledger;

/// The longest time that a call on an export may take, a reconnection included: long enough for a server's restart
/// with a short grace period to be noticed as slow, short enough that a hung server is named within a probe interval.
const EXPORT_DEADLINE: Duration = Duration::from_secs(10);
/// Streams and queues that are consumed when the controllers start.
pub(crate) struct Parts {
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
pub(crate) fn assemble(
    options: Options,
    front: Front,
    here: Here,
    leadership: Leadership,
    stop: Stop,
) -> (Parts, Arc<Context>) {
    let (claims, claim_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let (classes, class_writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (backends, backend_writer) = reflector::store();
    let (archives, archive_writer) = reflector::store();
    let (waiting, woken) = Waiting::new();
    let (waiting_volumes, woken_volumes) = Waiting::new();
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
            began: tokio::time::Instant::now(),
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
        backends: Backends::default(),
        inventory: Inventory::default(),
        ledger: Arc::new(Ledger::default()),
        waiting: Arc::new(waiting),
        waiting_volumes,
        readiness: front.readiness,
        guard: front.guard,
        leadership,
        stop,
        copies: front.metrics.copies(),
        usages: usages(&front.metrics, options.volume_metrics),
        metrics: front.metrics,
        claim_retries: Backoff::new(options.retries),
        volume_retries: Backoff::new(options.retries),
        archive_retries: Backoff::new(options.retries),
        reserved: Reserved::default(),
        reschedules: Reschedules::default(),
        told: Told::default(),
        probe_bell,
        archive_bell,
    };
    let parts = Parts {
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
fn usages(metrics: &Metrics, of_each_volume: bool) -> Usages {
    let usages = metrics.usages();
    if of_each_volume {
        usages.tell_of_each_volume();
    }
    usages
}

impl Parts {
    /// Starts watches and controllers.
    pub(crate) fn start(self, ctx: &Arc<Context>) -> JoinSet<&'static str> {
        let waiting = Arc::clone(&ctx.waiting);
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
