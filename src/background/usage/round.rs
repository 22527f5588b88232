//! One count of all: the volumes by name, then the archives that were never counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::{Interval, MissedTickBehavior};

use super::judge::{begun, is_halted, lies_at, past};
use super::tell;
use crate::api::archive::NfsArchive;
use crate::api::usage::CountUnderWay;
use crate::background::orphan_scan::speaks_of_the_export;
use crate::runtime::writes::WriteError;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use export_store::{Content, ExportError, ExportStore, RateLimiter, TreePlace};

/// Volumes begun in a second, however small they are: each is two reads of the API server and three calls on the export.
/// Ten thousand of them take 17 minutes.
const VOLUMES_A_SECOND: u32 = 10;
/// Volumes gone through at a time: bounds what a count has in memory.
const SOME: usize = 500;

/// Why a count did not come to its end: it goes on later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CountError {
    /// There is no export to count on.
    #[error("the export is not confirmed to be the one that it was")]
    NotConfirmed,
    /// The backend is gone, suspended, or has another connection, or its volumes are not to be counted any more.
    #[error("nothing is to be counted on the backend now, or it changed meanwhile")]
    Unwanted,
    /// The export could not be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The API server could not be asked.
    #[error(transparent)]
    Api(#[from] WriteError),
}

/// A count on its way.
pub(crate) struct UsageScan<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    known: &'a ProbeSnapshot,
    export: Arc<ExportStore>,
    export_id: String,
    pace: RateLimiter,
    each: Interval,
}

fn ticks() -> Interval {
    let mut each = tokio::time::interval(Duration::from_secs(1) / VOLUMES_A_SECOND);
    each.set_missed_tick_behavior(MissedTickBehavior::Delay);
    each
}

impl<'a> UsageScan<'a> {
    pub(crate) fn new(ctx: &'a Context, backend: &'a Backend, known: &'a ProbeSnapshot) -> Result<Self, CountError> {
        let (Some(export), Some(identity)) = (known.store.clone(), &known.identity) else {
            return Err(CountError::NotConfirmed);
        };
        if is_halted(&known.object, &known.ready) {
            return Err(CountError::Unwanted);
        }
        Ok(Self {
            ctx,
            backend,
            known,
            export,
            export_id: identity.id.clone(),
            pace: RateLimiter::of(ctx.settings.count_rate),
            each: ticks(),
        })
    }

    /// Goes on where the last one stopped, or begins.
    pub(crate) async fn run(mut self) -> Result<(), CountError> {
        let began = Instant::now();
        let mut at = self
            .backend
            .usage_scan
            .progress()
            .under_way
            .unwrap_or_else(|| self.first());
        loop {
            let some = self.next(&at);
            if some.is_empty() && at.archives {
                break;
            }
            if some.is_empty() {
                at = CountUnderWay {
                    archives: true,
                    ..CountUnderWay::default()
                };
            }
            for name in some {
                at = self.one(&at, &name).await?;
            }
        }
        self.backend.usage_scan.update(|progress| {
            progress.under_way = None;
            // What is written has whole seconds.
            progress.last_completed = Timestamp::from_second(Timestamp::now().as_second()).ok();
        });
        let total = self.ctx.usage.total(&self.backend.name);
        tracing::info!(
            backend = self.backend.name,
            volumes = total.volumes,
            bytes = total.bytes,
            files = total.files,
            skipped = self.backend.usage_scan.progress().skipped,
            seconds = began.elapsed().as_secs_f64(),
            "counted what volumes hold"
        );
        Ok(())
    }

    /// The beginning.
    fn first(&self) -> CountUnderWay {
        self.backend
            .usage_scan
            .update(|progress| (progress.skipped, progress.asked) = (0, false));
        CountUnderWay::default()
    }

    /// The volumes, or archives without figures, that come next, by name.
    fn next(&self, at: &CountUnderWay) -> Vec<String> {
        if !at.archives {
            return self.ctx.capacity.volumes_after(&self.backend.name, &at.after, SOME);
        }
        let archives = self.ctx.stores.archives.state();
        let left = archives.iter().filter(|archive| self.is_left(archive));
        let mut names: Vec<String> = left.map(|archive| archive.name_any()).collect();
        names.retain(|name| *name > at.after);
        names.sort_unstable();
        names.truncate(SOME);
        names
    }

    /// Whether an archive is here and was not counted yet.
    fn is_left(&self, archive: &NfsArchive) -> bool {
        let counted = archive.status.as_ref().is_some_and(|status| status.usage.is_some());
        archive.is_complete()
            && archive.spec.backend == self.backend.name
            && archive.spec.export_id == self.export_id
            && archive.metadata.deletion_timestamp.is_none()
            && !counted
    }

    /// Counts one; answers how far the count is then. That it was begun is said first: it may be the one that ends us.
    async fn one(&mut self, at: &CountUnderWay, name: &str) -> Result<CountUnderWay, CountError> {
        let (begun, once_more) = begun(at);
        self.backend
            .usage_scan
            .update(|progress| progress.under_way = Some(begun));
        match (once_more, at.archives) {
            (false, _) => self.skip(name, "it was begun several times, and cut off each time"),
            (true, false) => self.volume(name).await?,
            (true, true) => self.archive(name).await?,
        }
        let past = past(at, name);
        self.backend
            .usage_scan
            .update(|progress| progress.under_way = Some(past.clone()));
        Ok(past)
    }

    async fn volume(&mut self, name: &str) -> Result<(), CountError> {
        self.each.tick().await;
        let Some(volume) = read(self.ctx, name).await? else {
            return Ok(());
        };
        let here = (self.backend.name.as_str(), &*self.known.object, self.export_id.as_str());
        let Some((directory, file_id)) = lies_at(&volume, &self.ctx.settings, here) else {
            return Ok(());
        };
        let place = TreePlace::Directory(&directory);
        match self.count(name, (place, file_id)).await? {
            Some(content) => Ok(tell::volume(self.ctx, self.backend, &volume, &content).await?),
            None => Ok(()),
        }
    }

    async fn archive(&mut self, name: &str) -> Result<(), CountError> {
        self.each.tick().await;
        let Some(archive) = self.ctx.stores.archives.get(&ObjectRef::new(name)) else {
            return Ok(());
        };
        let file_id = archive.spec.file_id.as_ref().and_then(|id| id.parse().ok());
        let Some(file_id) = file_id else {
            return Ok(());
        };
        let place = TreePlace::Archive(&archive.spec.directory);
        match self.count(name, (place, Some(file_id))).await? {
            Some(content) => Ok(tell::archive(self.ctx, &archive, &content).await?),
            None => Ok(()),
        }
    }

    /// None: this one could not be counted, and that says nothing of the others.
    async fn count(&mut self, volume: &str, of: (TreePlace<'_>, Option<u64>)) -> Result<Option<Content>, CountError> {
        let (ctx, backend, export) = (self.ctx, self.backend, &self.export);
        let wanted = || is_wanted(ctx, backend, export);
        let counted = self.export.count(of, &mut self.pace, |_| wanted()).await;
        if !wanted() {
            return Err(CountError::Unwanted);
        }
        let why = match counted {
            Ok(Some(content)) => return Ok(Some(content)),
            Ok(None) => "its directory is not there, or was replaced meanwhile".to_owned(),
            Err(error) if speaks_of_the_export(&error) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        self.skip(volume, &why);
        Ok(None)
    }

    fn skip(&self, volume: &str, why: &str) {
        self.backend.usage_scan.update(|progress| progress.skipped += 1);
        tracing::warn!(backend = self.backend.name, volume, "not counted: {why}");
    }
}

fn is_wanted(ctx: &Context, backend: &Backend, export: &Arc<ExportStore>) -> bool {
    let known = backend.known();
    ctx.backends
        .get(&backend.name)
        .is_some_and(|now| now.uid == backend.uid)
        && known.object.spec.usage.is_some()
        && !is_halted(&known.object, &known.ready)
        && backend
            .connection()
            .is_some_and(|connection| Arc::ptr_eq(&connection.store, export))
}

async fn read(ctx: &Context, name: &str) -> Result<Option<PersistentVolume>, WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    api.get_opt(name)
        .await
        .map_err(WriteError::action("read a volume to count it"))
}

/// Takes off what was told of volumes that are not counted any more: figures that nobody renews are worse than none.
pub(crate) async fn clear(ctx: &Context, backend: &Backend) -> Result<(), CountError> {
    let mut each = ticks();
    for name in ctx.usage.volumes_of(&backend.name) {
        if backend.known().object.spec.usage.is_some() {
            return Err(CountError::Unwanted);
        }
        each.tick().await;
        if let Some(volume) = read(ctx, &name).await? {
            tell::nothing(ctx, &volume).await?;
        }
        ctx.usage.forget(&name);
    }
    Ok(())
}
