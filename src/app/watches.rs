//! The watches, and the controllers that they feed.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{Predicate, PredicateConfig, WatchStreamExt, predicates, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc;

use crate::api::{NfsArchive, NfsBackend};
use crate::controllers::{archive, backend, claim, volume};
use crate::runtime::stop::Stop;
use crate::runtime::watch_filters::{Seen, applied, concerning, pending, touched};
use crate::state::context::Context;
use crate::state::recovery::Missing;
use crate::state::volume_indexer::VolumeIndexer;
use crate::state::waiting::{ClaimRef, VolumeRef};

/// Reports a cache as ready once it is filled; to be put behind the cache.
fn report_filled<K>(ctx: &Arc<Context>, part: &'static str) -> impl Fn(&Seen<K>) + use<K> {
    let readiness = ctx.readiness.clone();
    move |event| {
        if matches!(event, Ok(watcher::Event::InitDone)) {
            readiness.ready(part);
        }
    }
}

/// Lists in pages that are small beside the program itself: what a start needs stays with the process.
fn listed() -> watcher::Config {
    watcher::Config::default().page_size(100)
}

/// Follows the classes. Answers what ended, if it ever does.
pub async fn follow_classes(ctx: Arc<Context>, writer: Writer<StorageClass>, api: Api<StorageClass>) -> &'static str {
    let stream = watcher(api, listed())
        .default_backoff()
        .reflect(writer)
        .inspect(report_filled(&ctx, "storage classes"));
    wake_on_change("storage classes", touched(stream), |class| {
        // What a class asks for may be what failed.
        ctx.waiting_claims.wake_all();
        if ctx.settings.serves(&class.provisioner) {
            ctx.metrics.class_seen(&class.name_any());
        }
        crate::compat::nfs_subdir::volume::class_changed(&ctx, class);
    })
    .await
}

/// Follows the namespaces: names, uids and labels.
pub async fn follow_namespaces(
    ctx: Arc<Context>,
    writer: Writer<PartialObjectMeta<Namespace>>,
    api: Api<PartialObjectMeta<Namespace>>,
) -> &'static str {
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|namespace| {
            namespace.metadata.managed_fields = None;
            namespace.metadata.annotations = None;
        })
        .reflect(writer)
        .inspect(report_filled(&ctx, "namespaces"));
    wake_on_change("namespaces", touched(stream), |namespace| {
        ctx.waiting_claims.wake_soon();
        ctx.backends.seen(&Missing::Namespace(namespace.name_any()));
    })
    .await
}

/// Follows the nodes: names and labels. Their kubelets write to them all the time; only a change of labels wakes claims.
pub async fn follow_nodes(
    ctx: Arc<Context>,
    writer: Writer<PartialObjectMeta<Node>>,
    api: Api<PartialObjectMeta<Node>>,
) -> &'static str {
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|node| {
            node.metadata.managed_fields = None;
            node.metadata.annotations = None;
        })
        .reflect(writer)
        .inspect(report_filled(&ctx, "nodes"));
    let stream = touched(stream).predicate_filter(predicates::labels, PredicateConfig::default());
    wake_on_change("nodes", stream, |_| ctx.waiting_claims.wake_soon()).await
}

/// Claims that wait may wait for just this object.
async fn wake_on_change<K>(
    what: &'static str,
    stream: impl Stream<Item = Result<K, watcher::Error>>,
    ring: impl Fn(&K),
) -> &'static str {
    let mut stream = std::pin::pin!(stream);
    while let Some(change) = stream.next().await {
        match change {
            Ok(changed) => ring(&changed),
            Err(error) => tracing::warn!("watch of {what}: {error}"),
        }
    }
    what
}

/// Runs the controller of backends until the operator stops.
pub async fn backends(
    ctx: Arc<Context>,
    writer: Writer<NfsBackend>,
    doubted: mpsc::UnboundedReceiver<ObjectRef<NfsBackend>>,
    api: Api<NfsBackend>,
    stop: Stop,
) -> &'static str {
    let reader = writer.as_reader();
    let mut follower = backend::Follower::default();
    let following = Arc::clone(&ctx);
    // Our own status writes must not be probed again at once.
    let changes = predicates::generation
        .combine(predicates::annotations)
        .combine(predicates::finalizers)
        .combine(predicates::labels);
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|backend| backend.metadata.managed_fields = None)
        .inspect(move |event| {
            if let Ok(event) = event {
                follower.observe(event, &following);
            }
        })
        .reflect(writer)
        .inspect(report_filled(&ctx, "backends"));
    let stream = applied(stream).predicate_filter(changes, PredicateConfig::default());
    Controller::for_stream(stream, reader)
        .reconcile_on(from_channel(doubted))
        .graceful_shutdown_on(stop.wait())
        .run(backend::reconcile, backend::on_error, Arc::clone(&ctx))
        .for_each(|done| async move { log_queue("backend", done.err()) })
        .await;
    "the controller of backends"
}

/// Runs the controller of volumes until the operator stops.
pub async fn volumes(
    ctx: Arc<Context>,
    writer: Writer<PersistentVolume>,
    woken: mpsc::UnboundedReceiver<VolumeRef>,
    api: Api<PersistentVolume>,
    stop: Stop,
) -> &'static str {
    let reader = writer.as_reader();
    let mut follower = VolumeIndexer::default();
    let (following, settled) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|volume| volume.metadata.managed_fields = None)
        .inspect(move |event| {
            if let Ok(event) = event {
                follower.observe(event, &following);
            }
        })
        .filter_map(pending(move |volume| volume::is_settled(volume, &settled.settings)))
        .reflect(writer)
        .inspect(report_filled(&ctx, "volumes"));
    Controller::for_stream(applied(stream), reader)
        .reconcile_on(from_channel(woken))
        .graceful_shutdown_on(stop.wait())
        .run(volume::reconcile, volume::on_error, Arc::clone(&ctx))
        .for_each(|done| async move { log_queue("volume", done.err()) })
        .await;
    "the controller of volumes"
}

/// Runs the controller of archives until the operator stops.
pub async fn archives(
    ctx: Arc<Context>,
    writer: Writer<NfsArchive>,
    called: mpsc::UnboundedReceiver<ObjectRef<NfsArchive>>,
    api: Api<NfsArchive>,
    stop: Stop,
) -> &'static str {
    let reader = writer.as_reader();
    // Our own status writes are not to be looked at again.
    let changes = predicates::generation.combine(predicates::finalizers);
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|archive| archive.metadata.managed_fields = None)
        .reflect(writer)
        .inspect(report_filled(&ctx, "archives"));
    let stream = applied(stream).predicate_filter(changes, PredicateConfig::default());
    Controller::for_stream(stream, reader)
        .reconcile_on(from_channel(called))
        .graceful_shutdown_on(stop.wait())
        .run(archive::reconcile, archive::on_error, Arc::clone(&ctx))
        .for_each(|done| async move { log_queue("archive", done.err()) })
        .await;
    "the controller of archives"
}

/// Runs the controller of claims until the operator stops.
pub async fn claims(
    ctx: Arc<Context>,
    writer: Writer<PersistentVolumeClaim>,
    woken: mpsc::UnboundedReceiver<ClaimRef>,
    api: Api<PersistentVolumeClaim>,
    stop: Stop,
) -> &'static str {
    let reader = writer.as_reader();
    let (following, settled) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let stream = watcher(api, listed())
        .default_backoff()
        .modify(|claim| claim.metadata.managed_fields = None)
        .inspect(move |event| {
            if let Ok(watcher::Event::Delete(claim)) = event {
                claim::gone(claim, &following);
            }
        })
        .filter_map(pending(move |claim| {
            claim::settled(claim, &settled.settings, &settled.capacity)
        }))
        .reflect(writer)
        .inspect(report_filled(&ctx, "claims"));
    let stream = concerning(stream, claim::concern);
    // How many are worked on is bounded for each backend (its slots), so that a hanging one holds up no other.
    Controller::for_stream(stream, reader)
        .reconcile_on(from_channel(woken))
        .graceful_shutdown_on(stop.wait())
        .run(claim::reconcile, claim::on_error, Arc::clone(&ctx))
        .for_each(|done| async move { log_queue("claim", done.err()) })
        .await;
    "the controller of claims"
}

fn from_channel<T: Send + 'static>(receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> + Send + 'static {
    futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
}

/// Outcomes are logged where they arise; what is left are watches that broke and objects that are gone.
fn log_queue<E: std::error::Error, Q: std::error::Error>(
    kind: &str,
    error: Option<kube::runtime::controller::Error<E, Q>>,
) {
    match error {
        Some(kube::runtime::controller::Error::QueueError(error)) => tracing::warn!("watch of {kind}s: {error}"),
        Some(error) => tracing::debug!("{kind}: {error}"),
        None => {}
    }
}
