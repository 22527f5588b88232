//! The watch caches of kinds that no controller reconciles: StorageClasses, Namespaces and Nodes.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{WatchStreamExt, predicates, watcher};
use kube::{Api, ResourceExt};

use crate::compat::nfs_subdir;
use crate::runtime::readiness::Cache;
use crate::runtime::watch_filters::{WatchEvent, applied_if_changed, applied_or_deleted, log_errors};
use crate::state::context::Context;
use crate::state::recovery::MissingDependency;

/// Returns a callback that reports a cache as filled. It must come after the cache in the stream.
pub fn report_filled<K>(ctx: &Arc<Context>, cache: Cache) -> impl Fn(&WatchEvent<K>) + use<K> {
    let readiness = ctx.readiness.clone();
    move |event| {
        if matches!(event, Ok(watcher::Event::InitDone)) {
            readiness.set_filled(cache);
        }
    }
}

/// Returns the configuration of all watches. The client limits the size of their pages (`runtime/list_pages.rs`).
pub fn watch_config() -> watcher::Config {
    watcher::Config::default()
}

/// Maintains the cache of StorageClasses. Returns only if the watch ends.
pub async fn watch_classes(ctx: Arc<Context>, writer: Writer<StorageClass>, api: Api<StorageClass>) {
    let stream = watcher(api, watch_config())
        .default_backoff()
        .reflect(writer)
        .inspect(report_filled(&ctx, Cache::StorageClasses));
    wake_on_change("storage classes", applied_or_deleted(stream), |class| {
        // Claims of other provisioners' classes do not wait here.
        if ctx.settings.serves(&class.provisioner) {
            // A claim may have failed because of the class.
            ctx.waiting_claims.wake_all();
            ctx.metrics.register_class(&class.name_any());
            ctx.storage_capacity_changed.notify_one();
        }
        nfs_subdir::volume::class_changed(&ctx, class);
    })
    .await;
}

/// Maintains the cache of Namespaces: names, UIDs and labels. A change of labels wakes the claims of the namespace.
/// Returns only if the watch ends.
pub async fn watch_namespaces(
    ctx: Arc<Context>,
    writer: Writer<PartialObjectMeta<Namespace>>,
    api: Api<PartialObjectMeta<Namespace>>,
) {
    let stream = watcher(api, watch_config())
        .default_backoff()
        .modify(|namespace| {
            namespace.metadata.managed_fields = None;
            namespace.metadata.annotations = None;
        })
        .reflect(writer)
        .inspect(report_filled(&ctx, Cache::Namespaces));
    wake_on_change(
        "namespaces",
        applied_if_changed(stream, PartialObjectMeta::uid, predicates::labels),
        |namespace| {
            let name = namespace.name_any();
            ctx.waiting_claims
                .wake_if(|claim, _| claim.namespace.as_ref() == Some(&name));
            ctx.backends.object_appeared(&MissingDependency::Namespace(name));
        },
    )
    .await;
}

/// Maintains the cache of Nodes: names and labels. A change of labels wakes the claims for which the Node is selected.
/// Returns only if the watch ends.
pub async fn watch_nodes(
    ctx: Arc<Context>,
    writer: Writer<PartialObjectMeta<Node>>,
    api: Api<PartialObjectMeta<Node>>,
) {
    let stream = watcher(api, watch_config())
        .default_backoff()
        .modify(|node| {
            node.metadata.managed_fields = None;
            node.metadata.annotations = None;
        })
        .reflect(writer)
        .inspect(report_filled(&ctx, Cache::Nodes));
    wake_on_change(
        "nodes",
        applied_if_changed(stream, PartialObjectMeta::uid, predicates::labels),
        |node| {
            let name = node.name_any();
            ctx.waiting_claims
                .wake_if(|_, blockers| blockers.node.as_ref() == Some(&name));
        },
    )
    .await;
}

/// Calls `wake` for every change, because a claim may be waiting for the object.
async fn wake_on_change<K>(
    what: &'static str,
    stream: impl Stream<Item = Result<K, watcher::Error>>,
    wake: impl Fn(&K),
) {
    let mut objects = std::pin::pin!(log_errors(what, stream));
    while let Some(Ok(object)) = objects.next().await {
        wake(&object);
    }
}
