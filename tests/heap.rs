//! Memory per claim and volume for which there is no work left, of which there may be tens of thousands, and per backend.
//!
//! Measured by the allocator for the test's thread, in size classes: one more byte may need the next size class.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Request, header};
use export_store::{CopyError, CopyLimits, CopyProgress, Holder, PathReservations};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use futures::{FutureExt as _, Stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Resource as _, ResourceExt as _};
use nfs_operator::app::run::{self, ApiAccess, Environment, Options};
use nfs_operator::controllers::claim;
use nfs_operator::runtime::clock::Clock;
use nfs_operator::runtime::election::Election;
use nfs_operator::runtime::retry::BackoffLimits;
use nfs_operator::runtime::waiting::{Blockers, CapacityDemand, ClaimRef, WaitSet, claim_ref};
use nfs_operator::runtime::watch_filters::{applied_if_changed, drop_settled, map_event};
use nfs_operator::runtime::writes::WriteError;
use nfs_operator::state::cached_claim::CachedClaim;
use nfs_operator::state::capacity::CapacityTracker;
use nfs_operator::state::context::{Provisioners, Settings};
use nfs_operator::state::copy_jobs::{CopyBackend, CopyJobs, CopyLabels, SlotRequest};
use nfs_operator::state::last_written::{Cached, LastWritten};
use nfs_operator::state::recovery::{LostVolume, RecoveryHolds};
use nfs_operator::state::volume_indexer::index_volume;
use serde_json::{Value, json};
use sim::api_server::{ApiServer, NoFaults};
use sim::clock::SimulatedClock;
use sim::life::Life;
use sim::nfs_server::{Export, FileSystem, FileSystemOptions, NfsServer, ServerOptions};
use tikv_jemalloc_ctl::thread;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A number that fills a hash table, so that it has few empty slots.
const MANY: usize = 3584;
/// Number of volumes for which the program is made.
const VOLUMES: usize = 100_000;
/// Name, path and sizes of a volume, and the tables that find it.
const OF_A_VOLUME: usize = 150;
/// Name of the volume, and the names and the UID of its claim, and the tables that find it by volume and by claim: after the
/// loss of a cluster, all volumes are lost.
const OF_A_LOST_VOLUME: usize = 420;
/// Its empty entries in the tables of lost volumes, which keep their capacity.
const OF_A_TABLE: usize = 100;
/// No memory, except for the capacity of tables for current work.
const OF_A_CLAIM: usize = 10;
/// A claim that waits for capacity, with a condition of usual length: 2.8 kB. Decoded, it needs 7 kB.
const OF_A_WAITING_CLAIM: usize = 3000;
/// The names of the claim, and what the copy captures.
const OF_A_WAITING_COPY: usize = 1500;
/// The object as it is and as it was at the last probe, its tasks, its connection and its metrics; and its share of the
/// connections to the API server that the first probes needed.
const OF_A_BACKEND: usize = 36_000;

/// Returns the bytes that this thread has allocated and not freed.
fn held() -> u64 {
    let allocated = thread::allocatedp::read().unwrap().get();
    allocated - thread::deallocatedp::read().unwrap().get()
}

/// Returns the bytes that are held between probes, once they are the same for seconds: on a busy machine, what follows the
/// first probes takes longer than it changes objects.
async fn held_at_rest() -> u64 {
    const SAMPLES: usize = 30;
    const ROUNDS: usize = 40;
    let mut last = u64::MAX;
    for _ in 0..ROUNDS {
        let mut least = held();
        for _ in 0..SAMPLES {
            tokio::time::sleep(Duration::from_millis(100)).await;
            least = least.min(held());
        }
        if least.abs_diff(last) <= last / 1000 {
            return least;
        }
        last = least;
    }
    panic!("the memory changes without end, last {last} bytes");
}

fn settings() -> Settings {
    Settings {
        served: Provisioners {
            names: vec!["nfs-operator.io/nfs".into()],
            aliases: BTreeMap::new(),
        },
        slots: 1,
        purge_pause: Duration::ZERO,
        verifier: [0; 8],
        deadline: Duration::from_secs(1),
        scan_interval: Duration::ZERO,
        count_rate: 1,
        leads_since: tokio::time::Instant::now(),
    }
}

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// Returns a volume of this operator.
fn volume(number: usize) -> PersistentVolume {
    let (uid, backend) = (uid(number), format!("backend-{}", number % 5));
    let directory = format!("namespace-claim-{number}-pvc-{uid}");
    let object = json!({
        "metadata": {"name": format!("pvc-{uid}"), "uid": uid, "annotations": {
            "pv.kubernetes.io/provisioned-by": "nfs-operator.io/nfs",
            "nfs-operator.io/backend": backend,
            "nfs-operator.io/export-id": format!("{}-{backend}", "0".repeat(24)),
            "nfs-operator.io/directory": directory,
            "nfs-operator.io/file-id": number.to_string(),
        }},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "nfs": {"server": "nfs.example.com", "path": format!("/{backend}/{directory}")},
        },
    });
    serde_json::from_value(object).unwrap()
}

/// Returns the states of a claim: pending, provisioned, and bound.
fn claims(number: usize) -> [PersistentVolumeClaim; 3] {
    let uid = uid(number);
    let claim = |statuses: &[&str], bound: bool| -> PersistentVolumeClaim {
        let conditions = statuses
            .iter()
            .map(|status| json!({"type": "nfs-operator.io/Provisioned", "status": status, "reason": "Provisioned"}));
        let conditions: Vec<Value> = conditions.collect();
        let phase = if bound { "Bound" } else { "Pending" };
        let object = json!({
            "metadata": {"namespace": "namespace", "name": format!("claim-{number}"), "uid": uid, "annotations": {
                "volume.kubernetes.io/storage-provisioner": "nfs-operator.io/nfs",
                "nfs-operator.io/placed-on": "backend",
            }},
            "spec": {
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": bound.then(|| format!("pvc-{uid}")),
            },
            "status": {"phase": phase, "capacity": bound.then(|| json!({"storage": "1Gi"})), "conditions": conditions},
        });
        serde_json::from_value(object).unwrap()
    };
    [claim(&[], false), claim(&["True"], false), claim(&["True"], true)]
}

/// Returns a message of usual length, of which no two claims have the same.
fn message(number: usize) -> String {
    let backend = |name: &str, free: usize| format!("backend {name} has {free} MiB left of its capacity limit of 2Ti");
    let request = format!(
        "the claim requests {} MiB; waiting until volumes are deleted",
        10_000 + number
    );
    format!(
        "{}; {}; {request}",
        backend("fast", number * 7 % 9973),
        backend("large", number * 13 % 9967)
    )
}

/// Returns a claim that waits, as the API server stores it.
fn waiting_claim(number: usize) -> PersistentVolumeClaim {
    let object = json!({
        "metadata": {
            "namespace": "namespace", "name": format!("claim-{number}"), "uid": uid(number),
            "resourceVersion": format!("{}", 1_000_000 + number), "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["kubernetes.io/pvc-protection"],
            "labels": {"app": "database", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "volume.beta.kubernetes.io/storage-provisioner": "nfs-operator.io/nfs",
                "volume.kubernetes.io/storage-provisioner": "nfs-operator.io/nfs",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "nfs", "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending", "conditions": [{
            "type": "nfs-operator.io/Provisioned", "status": "False", "reason": "CapacityExceeded",
            "message": message(number), "lastTransitionTime": "2026-01-01T00:00:00Z",
            "lastProbeTime": "2026-01-01T00:00:00Z",
        }]},
    });
    serde_json::from_value(object).unwrap()
}

/// Returns what a claim waits for that no backend has capacity for.
fn blockers() -> Blockers<ClaimRef> {
    let demand = CapacityDemand {
        namespace: "namespace".to_owned(),
        backends: ["backend".to_owned()].into(),
        bytes: 1 << 30,
    };
    Blockers {
        capacity: Some(demand),
        ..Blockers::default()
    }
}

/// Consumes all items that are ready, and returns their number.
fn drain<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> usize {
    std::iter::from_fn(|| stream.next().now_or_never()?).count()
}

#[test]
fn of_a_volume_150_bytes_are_kept_and_nothing_once_it_is_deleted() {
    let (settings, inventory, reservations) = (settings(), CapacityTracker::default(), PathReservations::default());
    let before = held();
    for number in 0..VOLUMES {
        index_volume(&volume(number), &settings, &inventory, &reservations);
        if number + 1 == MANY {
            println!("{} bytes a volume of {MANY}", (held() - before) as usize / MANY);
        }
    }
    let each = (held() - before) as usize / VOLUMES;
    println!("{each} bytes a volume");
    let counted = |name: &str| inventory.totals(name).volumes as usize;
    let counted: usize = (0..5).map(|number| counted(&format!("backend-{number}"))).sum();
    assert_eq!(counted, VOLUMES);
    assert!(each <= OF_A_VOLUME, "{each} bytes a volume");
    for number in 0..VOLUMES {
        let name = format!("pvc-{}", uid(number));
        assert!(inventory.remove(&name));
        reservations.remove(&Holder::Volume(name));
    }
    let left = (held() - before) as usize;
    println!("{left} bytes without volumes");
    assert!(left <= 64 << 10, "{left} bytes without volumes");
}

#[test]
fn of_a_lost_volume_its_names_are_kept_and_nothing_once_it_exists_again() {
    let lost = |number: usize| {
        let volume = LostVolume {
            volume: format!("pvc-{}", uid(number)),
            backend: "backend-1".into(),
            claim_uid: uid(number),
        };
        (("namespace".to_owned(), format!("claim-{number}")), volume)
    };
    let before = held();
    let holds = RecoveryHolds::default();
    holds.set_lost("backend-1", (0..MANY).map(lost));
    let each = (held() - before) as usize / MANY;
    println!("{each} bytes of a lost volume");
    assert!(each <= OF_A_LOST_VOLUME, "{each} bytes");
    holds.set_lost("backend-1", []);
    let left = (held() - before) as usize / MANY;
    assert!(left <= OF_A_TABLE, "{left} bytes");
}

#[test]
fn of_a_claim_that_has_its_volume_nothing_is_kept_be_it_bound_or_not_yet() {
    for states in [2, 3] {
        let (settings, inventory) = (settings(), CapacityTracker::default());
        for number in 0..MANY {
            inventory.record_volume(&format!("pvc-{}", uid(number)), "backend", 1, None);
        }
        let (cache, writer) = reflector::store();
        let came = (0..MANY).flat_map(|number| claims(number).into_iter().take(states).map(Event::Apply));
        let events = stream::iter([Event::Init, Event::InitDone].into_iter().chain(came));
        let events = events.map(Ok).chain(stream::pending());
        let settled = |claim: &PersistentVolumeClaim| claim::is_settled(claim, &settings, &inventory, |_| true);
        let before = held();
        let reconciles = applied_if_changed(
            events.filter_map(drop_settled(settled)).reflect(writer),
            PersistentVolumeClaim::uid,
            claim::change_fingerprint,
        );
        let mut reconciles = Box::pin(reconciles);
        assert_eq!(drain(&mut reconciles), MANY, "each pending claim is reconciled");
        let each = (held() - before) as usize / MANY;
        println!("{each} bytes a claim after {states} states");
        assert_eq!(cache.len(), 0, "claims in the cache");
        assert!(each <= OF_A_CLAIM, "{each} bytes a claim");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_waiting_claim_a_few_kilobytes_are_kept_and_as_much_while_it_is_listed() {
    let (store, writer) = reflector::store();
    let (waiting, requests) = WaitSet::<ClaimRef>::new();
    let (waiting, written) = (Arc::new(waiting), Arc::new(LastWritten::default()));
    let listed = (0..MANY).map(|number| Event::InitApply(waiting_claim(number)));
    let events = std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]);
    let events = stream::iter(events).map(Ok).chain(stream::pending());
    let reconciled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reconciled);
    let before = held();
    let changes = applied_if_changed(
        events
            .map_ok(|event| {
                let event = event.modify(claim::retain_cached_fields);
                map_event(event, |claim| {
                    CachedClaim::new(&claim, claim::change_fingerprint(&claim))
                })
            })
            .reflect(writer),
        CachedClaim::uid,
        CachedClaim::fingerprint,
    );
    let controller = Controller::for_stream(changes, store.clone());
    let controller = controller.run(
        move |claim: Arc<CachedClaim>, _| {
            count.fetch_add(1, Ordering::Relaxed);
            let (waiting, written) = (Arc::clone(&waiting), Arc::clone(&written));
            async move {
                let claim = claim.decode().unwrap();
                let own_ref = claim_ref(&claim);
                let epoch = waiting.begin_check(&own_ref);
                assert!(waiting.add(own_ref, blockers(), epoch));
                let cached = Cached::<()>::new(claim.meta(), "manager", None);
                written
                    .write_unless_current(&cached, &(), std::future::ready(Ok(())))
                    .await?;
                Ok::<_, WriteError>(Action::requeue(Duration::from_secs(300)))
            }
        },
        |_, _, _| Action::await_change(),
        Arc::new(()),
    );
    let mut controller = Box::pin(controller);
    for _ in 0..MANY {
        controller.next().await;
    }
    let each = (held() - before) as usize / MANY;
    println!("{each} bytes a waiting claim");
    assert_eq!(reconciled.load(Ordering::Relaxed), MANY);
    assert!(each <= OF_A_WAITING_CLAIM, "{each} bytes a waiting claim");
    drop((controller, requests));
}

#[tokio::test]
async fn of_a_waiting_copy_only_the_request_is_kept() {
    let copies = CopyJobs::default();
    let before = held();
    for number in 0..MANY {
        let labels = CopyLabels {
            uid: uid(number),
            namespace: "namespace".to_owned(),
            claim: format!("claim-{number}"),
            archive: String::new(),
        };
        let slot = SlotRequest {
            namespace: "namespace".to_owned(),
            backends: ["fast"; 2].map(|name| CopyBackend {
                name: name.to_owned(),
                max_copies: 5,
            }),
            is_of_administrator: false,
        };
        let copy = move |_: CopyLimits, _: Arc<CopyProgress>| async move {
            let state = [0_u8; 8192];
            std::future::pending::<()>().await;
            std::hint::black_box(state);
            Err(CopyError::ExportChanged)
        };
        copies.start(labels, slot, copy, || ());
    }
    let each = (held() - before) as usize / MANY;
    println!("{each} bytes a waiting copy");
    assert!(each <= OF_A_WAITING_COPY, "{each} bytes a waiting copy");
}

/// Namespace of the operator.
const NAMESPACE: &str = "nfs-operator-system";

/// An API server and an NFS server. They have a thread of their own, so that the test's thread counts only the operator.
struct Servers {
    api: ApiServer,
    nfs: NfsServer,
    api_address: SocketAddr,
    nfs_address: SocketAddr,
    clock: SimulatedClock,
    handle: Handle,
}

impl Servers {
    fn start() -> Self {
        let (started, servers) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let clock = SimulatedClock::new(tokio::time::Instant::now());
                let api = ApiServer::new(1, Arc::new(clock.clone()));
                let nfs = NfsServer::start(IpAddr::V4(Ipv4Addr::LOCALHOST), ServerOptions::default(), 1);
                let (http, connections) = (listen().await, listen().await);
                let servers = Self {
                    api_address: http.local_addr().unwrap(),
                    nfs_address: connections.local_addr().unwrap(),
                    handle: Handle::current(),
                    clock,
                    api,
                    nfs,
                };
                let service = servers.api.service("operator", Life::default(), Arc::new(NoFaults));
                let answer = async move |request: Request<Body>| {
                    let (head, body) = request.into_parts();
                    let body = to_bytes(body, usize::MAX).await.unwrap();
                    let request = Request::from_parts(head, kube::client::Body::from(body));
                    let mut response = service.clone().oneshot(request).await.unwrap();
                    // How many connections are kept for later requests depends on how busy the machine is.
                    response
                        .headers_mut()
                        .insert(header::CONNECTION, HeaderValue::from_static("close"));
                    response
                };
                tokio::spawn(async { axum::serve(http, axum::Router::new().fallback(answer)).await });
                let nfs = servers.nfs.clone();
                servers.create("/api/v1/namespaces", json!({"metadata": {"name": "kube-system"}}));
                servers.create("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}}));
                let lock = json!({"metadata": {"name": "nfs-operator-cluster-lock"}, "spec": {}});
                servers.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lock);
                started.send(servers).unwrap();
                loop {
                    let (stream, peer) = connections.accept().await.unwrap();
                    nfs.accept(peer, stream);
                }
            });
        });
        servers.recv().unwrap()
    }

    fn create(&self, path: &str, object: Value) {
        self.api.call("test", "POST", path, &object).unwrap();
    }

    /// Creates the backends with these numbers, each with an export of its own, and waits until all are Ready.
    async fn add_backends(&self, numbers: std::ops::Range<usize>) {
        let (api, nfs, address) = (self.api.clone(), self.nfs.clone(), self.nfs_address);
        let count = numbers.end;
        let create = move || {
            for number in numbers {
                let name = format!("backend-{number}");
                nfs.insert_disk(&name, FileSystem::new(FileSystemOptions::default()));
                nfs.export(Export::new(format!("/{name}"), &name));
                let backend = json!({
                    "metadata": {"name": name, "labels": {"tier": "standard"}},
                    "spec": {
                        "server": address.ip().to_string(), "path": format!("/{name}"),
                        "nfs": {"port": address.port(), "sourcePort": "Any"},
                    },
                });
                let path = "/apis/nfs-operator.io/v1alpha1/nfsbackends";
                api.call("test", "POST", path, &backend).unwrap();
            }
        };
        self.handle.spawn(async { create() }).await.unwrap();
        let api = self.api.clone();
        let ready = async move {
            let is_ready = |backend: &Arc<Value>| {
                let conditions = backend["status"]["conditions"].as_array().into_iter().flatten();
                let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
                ready.any(|condition| condition["status"] == "True")
            };
            while api
                .all("nfsbackends")
                .iter()
                .filter(|backend| is_ready(backend))
                .count()
                < count
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        self.handle.spawn(ready).await.unwrap();
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

/// The settings of the simulation, for a single process that does nothing in addition.
fn options() -> Options {
    let options = sim::options();
    Options {
        retries: BackoffLimits {
            shortest: Duration::from_secs(1),
            ..options.retries
        },
        scan_interval: Duration::from_secs(6 * 3600),
        election: Election {
            elect: false,
            ..options.election
        },
        ..options
    }
}

/// The first backends need everything that is needed only once, such as the connections to the API server.
#[tokio::test]
async fn of_an_idle_backend_some_ten_kilobytes_are_kept() {
    // Both fill a hash table, so that it has few empty slots.
    const FEW: usize = 112;
    const MORE: usize = 224;
    let servers = Servers::start();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kubeconfig = folder.join("heap-kubeconfig");
    let cluster = json!({"server": format!("http://{}", servers.api_address)});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}], "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": NAMESPACE}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let environment = Environment {
        api: ApiAccess::Kubeconfig(Some(kubeconfig)),
        transport: Arc::new(nfs_client::Tcp),
        clock: Clock::new(servers.clock.clone()),
        host: "test".to_owned(),
    };
    let shutdown = CancellationToken::new();
    let operator = tokio::spawn(run::run_until_cancelled(options(), environment, shutdown.clone()));
    servers.add_backends(0..FEW).await;
    let before = held_at_rest().await;
    servers.add_backends(FEW..MORE).await;
    let each = (held_at_rest().await - before) as usize / (MORE - FEW);
    println!("{each} bytes an idle backend");
    assert!(each <= OF_A_BACKEND, "{each} bytes an idle backend");
    shutdown.cancel();
    operator.await.unwrap().unwrap();
}
