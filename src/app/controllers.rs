//! The controllers: which watch, which filter and which requests input each reconciler.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::{Predicate, PredicateConfig, WatchStreamExt, predicates, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::caches::{report_filled, watch_config};
use crate::api::{NfsArchive, NfsBackend, NfsBackup, NfsBackupSchedule};
use crate::background::orphan_scan::DIRECTORY_MISSING;
use crate::controllers::{archive, backend, backup, claim, schedule, volume};
use crate::decide::archive_object::drop_unused_annotations;
use crate::runtime::readiness::Cache;
use crate::runtime::watch_filters::{applied, applied_if_changed, drop_settled, log_errors, map_event, read_ahead};
use crate::state::archives::{self, ArchiveIndexer};
use crate::state::backups::{self, BackupPolicies};
use crate::state::cached_claim::CachedClaim;
use crate::state::context::Context;
use crate::state::schedules;
use crate::state::volume_indexer::VolumeIndexer;

/// Input of one controller: the cache that its watch fills, and requests to reconcile an object now.
pub struct ControllerInput<K, C = K>
where
    K: Resource<DynamicType = ()>,
    C: Resource<DynamicType = ()> + Clone + 'static,
{
    /// Fills the cache.
    pub writer: Writer<C>,
    /// Objects to reconcile without a change of their own.
    pub requests: mpsc::UnboundedReceiver<ObjectRef<K>>,
    /// The API of the kind.
    pub api: Api<K>,
}

/// Runs the controller of backends until the operator shuts down.
pub async fn run_backends(ctx: Arc<Context>, input: ControllerInput<NfsBackend>) {
    let (mut removals, mut policies) = (backend::BackendRemovalWatcher::default(), BackupPolicies::default());
    let cached = Arc::clone(&ctx);
    // The operator's own status writes must not cause a probe.
    let changes = predicates::generation
        .combine(predicates::annotations)
        .combine(predicates::finalizers)
        .combine(predicates::labels);
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        .modify(|backend| backend.metadata.managed_fields = None)
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Backends))
        // After the cache, which everything that is woken reads.
        .inspect(move |event| {
            if let Ok(event) = event {
                removals.observe(event, &cached);
                policies.observe(event, &cached);
            }
        });
    let stream = applied(stream).predicate_filter(changes, PredicateConfig::default());
    run(
        ctx,
        "backend",
        (stream, reader),
        from_channel(input.requests),
        backend::reconcile,
        backend::on_error,
    )
    .await;
}

/// Runs the controller of volumes until the operator shuts down.
pub async fn run_volumes(ctx: Arc<Context>, input: ControllerInput<PersistentVolume>) {
    let mut indexer = VolumeIndexer::default();
    let (indexed, settled) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        .modify(|volume| volume.metadata.managed_fields = None);
    let stream = read_ahead(stream)
        .inspect(move |event| {
            if let Ok(event) = event {
                indexer.observe(event, &indexed);
            }
        })
        .filter_map(drop_settled(move |volume| {
            volume::is_settled(volume, &settled.settings)
        }))
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Volumes));
    run(
        ctx,
        "volume",
        (applied(stream), reader),
        from_channel(input.requests),
        volume::reconcile,
        volume::on_error,
    )
    .await;
}

/// Runs the controller of archives until the operator shuts down.
pub async fn run_archives(ctx: Arc<Context>, input: ControllerInput<NfsArchive>) {
    let mut indexer = ArchiveIndexer::default();
    let (indexed, cached) = (Arc::clone(&ctx), Arc::clone(&ctx));
    // The operator's own status writes need no reconciliation, but a status that was lost is written again.
    let described = |archive: &NfsArchive| archive.file_id();
    let changes = predicates::generation
        .combine(predicates::finalizers)
        .combine(described);
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        // Whoever may delete claims can create any number of archives.
        .modify(|archive| {
            archive.metadata.managed_fields = None;
            archive.metadata.labels = None;
            drop_unused_annotations(archive);
            archive.metadata.owner_references = None;
        });
    let stream = read_ahead(stream)
        .inspect(move |event| {
            if let Ok(event) = event {
                indexer.observe(event, &indexed);
            }
        })
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Archives))
        // After the cache, which the claims that are woken read.
        .inspect(move |event| {
            if let Ok(event) = event {
                archives::observe_cached(event, &cached);
                backups::observe_archive(event, &cached);
            }
        });
    let stream = applied(stream).predicate_filter(changes, PredicateConfig::default());
    run(
        ctx,
        "archive",
        (stream, reader),
        from_channel(input.requests),
        archive::reconcile,
        archive::on_error,
    )
    .await;
}

/// Runs the controller of backups until the operator shuts down.
pub async fn run_backups(ctx: Arc<Context>, input: ControllerInput<NfsBackup>) {
    let cached = Arc::clone(&ctx);
    // The operator's own status writes need no reconciliation.
    let changes = predicates::generation.combine(predicates::finalizers);
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        // A tenant can create any number of backups.
        .modify(|backup| {
            backup.metadata.managed_fields = None;
            backup.metadata.labels = None;
            backup.metadata.annotations = None;
            backup.metadata.owner_references = None;
        });
    let stream = read_ahead(stream)
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Backups))
        // After the cache, which the claims that are woken read.
        .inspect(move |event| {
            if let Ok(event) = event {
                backups::observe_cached(event, &cached);
            }
        });
    let stream = applied(stream).predicate_filter(changes, PredicateConfig::default());
    run(
        ctx,
        "backup",
        (stream, reader),
        from_channel(input.requests),
        backup::reconcile,
        backup::on_error,
    )
    .await;
}

/// Runs the controller of schedules until the operator shuts down.
pub async fn run_schedules(ctx: Arc<Context>, input: ControllerInput<NfsBackupSchedule>) {
    let cached = Arc::clone(&ctx);
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        // A tenant can create any number of schedules.
        .modify(|schedule| {
            schedule.metadata.managed_fields = None;
            schedule.metadata.labels = None;
            schedule.metadata.annotations = None;
            schedule.metadata.owner_references = None;
        });
    let stream = read_ahead(stream)
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Schedules))
        .inspect(move |event| {
            if let Ok(event) = event {
                schedules::observe_cached(event, &cached);
            }
        });
    // The operator's own status writes need no reconciliation.
    let stream = applied(stream).predicate_filter(predicates::generation, PredicateConfig::default());
    run(
        ctx,
        "schedule",
        (stream, reader),
        from_channel(input.requests),
        schedule::reconcile,
        schedule::on_error,
    )
    .await;
}

/// Runs the controller of claims until the operator shuts down.
pub async fn run_claims(ctx: Arc<Context>, input: ControllerInput<PersistentVolumeClaim, CachedClaim>) {
    let (observer, deleted) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let (settled, cached) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let reader = input.writer.as_reader();
    let stream = watcher(input.api, watch_config())
        .default_backoff()
        .inspect(move |event| {
            let (claim, exists) = match event {
                Ok(watcher::Event::InitApply(claim) | watcher::Event::Apply(claim)) => (claim, true),
                Ok(watcher::Event::Delete(claim)) => (claim, false),
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => return,
            };
            let reports = exists && DIRECTORY_MISSING.find(claim).is_some();
            observer.missing_directories.observe(claim, reports);
        })
        .modify(claim::retain_cached_fields);
    let stream = read_ahead(stream)
        .inspect(move |event| {
            if let Ok(watcher::Event::Delete(claim)) = event {
                claim::forget(claim, &deleted);
            }
        })
        .filter_map(drop_settled(move |claim| {
            let may_have_created = |volume: &str| claim::may_have_created(&settled, volume);
            claim::is_settled(claim, &settled.settings, &settled.capacity, may_have_created)
        }))
        .map_ok(|event| {
            map_event(event, |claim| {
                CachedClaim::new(&claim, claim::change_fingerprint(&claim))
            })
        })
        .reflect(input.writer)
        .inspect(report_filled(&ctx, Cache::Claims))
        // After the cache, which the claims that are woken read.
        .inspect(move |event| {
            if let Ok(event) = event {
                claim::observe_cached(event, &cached);
            }
        });
    let stream = applied_if_changed(stream, CachedClaim::uid, CachedClaim::fingerprint);
    // Each backend limits the number of claims in progress (its slots), so that a backend that hangs does not delay the
    // others.
    run(
        ctx,
        "claim",
        (stream, reader),
        from_channel(input.requests)
            .map(|claim| ObjectRef::new(&claim.name).within(claim.namespace.as_deref().unwrap_or_default())),
        claim::reconcile,
        claim::on_error,
    )
    .await;
}

/// Runs a controller until the operator shuts down.
///
/// Each outcome is logged where it occurs. Here, only the errors of the controller itself are logged, such as objects that no
/// longer exist.
async fn run<K, R, E>(
    ctx: Arc<Context>,
    kind: &'static str,
    (objects, reader): (impl Stream<Item = Result<K, watcher::Error>> + Send + 'static, Store<K>),
    requests: impl Stream<Item = ObjectRef<K>> + Send + 'static,
    mut reconcile: impl FnMut(Arc<K>, Arc<Context>) -> R,
    on_error: impl Fn(Arc<K>, &E, Arc<Context>) -> Action,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
    R: Future<Output = Result<Action, E>> + Send + 'static,
    E: std::error::Error + Send + 'static,
{
    Controller::for_stream(log_errors(format!("{kind}s"), objects), reader)
        .reconcile_on(requests)
        .graceful_shutdown_on(ctx.shutdown.clone().cancelled_owned())
        // In a box before it is passed on: the future of a reconciliation has tens of KiB, which each move copies.
        .run(move |object, ctx| Box::pin(reconcile(object, ctx)), on_error, ctx)
        .for_each(|done| async move {
            if let Err(error) = done {
                tracing::debug!("{kind}: {error}");
            }
        })
        .await;
}

fn from_channel<T: Send + 'static>(receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> + Send + 'static {
    futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
}
