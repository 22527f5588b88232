//! One count of all: the volumes by name, then the archives that were never counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use tokio::time::{Interval, MissedTickBehavior};

use super::super::scan::speaks_of_the_export;
use super::judge::lies_at;
use super::tell;
use crate::api::archive::NfsArchive;
use crate::export::{Content, ExportError, ManagedExport, Pace, TreePlace};
use crate::operator::backends::{Backend, Known};
use crate::operator::context::Context;
use crate::operator::writes::WriteError;

/// Volumes begun in a second, however small they are: each is two reads of the API server and three calls on the export.
/// Ten thousand of them take 17 minutes.
const VOLUMES_A_SECOND: u32 = 10;
/// Volumes gone through at a time: bounds what a count has in memory.
const SOME: usize = 500;

/// Why a count did not come to its end: it goes on later.
#[derive(Debug, thiserror::Error)]
pub(super) enum CountError {
    /// There is no export to count on.
    #[error("the export is not confirmed to be the one that it was")]
    NotConfirmed,
    /// The backend is gone, has another connection, or its volumes are not to be counted any more.
    #[error("the backend changed meanwhile")]
    Unwanted,
    /// The export could not be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The API server could not be asked.
    #[error(transparent)]
    Api(#[from] WriteError),
}

/// A count on its way.
pub(super) struct Round<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    known: &'a Known,
    export: Arc<ManagedExport>,
    export_id: String,
    pace: Pace,
    each: Interval,
}

fn ticks() -> Interval {
    let mut each = tokio::time::interval(Duration::from_secs(1) / VOLUMES_A_SECOND);
    each.set_missed_tick_behavior(MissedTickBehavior::Delay);
    each
}

impl<'a> Round<'a> {
    pub(super) fn new(ctx: &'a Context, backend: &'a Backend, known: &'a Known) -> Result<Self, CountError> {
        let (Some(export), Some(identity)) = (known.export.clone(), &known.identity) else {
            return Err(CountError::NotConfirmed);
        };
        Ok(Self {
            ctx,
            backend,
            known,
            export,
            export_id: identity.id.clone(),
            pace: Pace::of(ctx.settings.count_rate),
            each: ticks(),
        })
    }

    /// Goes on where the last one stopped, or begins.
    pub(super) async fn run(mut self) -> Result<(), CountError> {
        let began = Instant::now();
        let mut after = self.backend.progress().after.unwrap_or_else(|| {
            self.backend.set_progress(|progress| {
                (progress.after, progress.skipped, progress.asked) = (Some(String::new()), 0, false);
            });
            String::new()
        });
        loop {
            let some = self.ctx.inventory.volumes_after(&self.backend.name, &after, SOME);
            if some.is_empty() {
                break;
            }
            for volume in some {
                self.volume(&volume).await?;
                after.clone_from(&volume);
                self.backend.set_progress(|progress| progress.after = Some(volume));
            }
        }
        let archived = self.archives().await?;
        self.backend.set_progress(|progress| {
            progress.after = None;
            progress.archived = archived;
            // What is written has whole seconds.
            progress.last_completed = Timestamp::from_second(Timestamp::now().as_second()).ok();
        });
        let total = self.ctx.usages.total(&self.backend.name);
        tracing::info!(
            backend = self.backend.name,
            volumes = total.volumes,
            bytes = total.bytes,
            files = total.files,
            skipped = self.backend.progress().skipped,
            seconds = began.elapsed().as_secs_f64(),
            "counted what volumes hold"
        );
        Ok(())
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

    /// Counts those that were not counted yet; answers what all of them take, as far as it is known.
    async fn archives(&mut self) -> Result<u64, CountError> {
        let mut sum = 0_u64;
        for archive in self.ctx.stores.archives.state() {
            if archive.spec.backend != self.backend.name || archive.spec.export_id != self.export_id {
                continue;
            }
            let known = archive.status.as_ref().and_then(|status| status.usage.as_ref());
            let bytes = match known {
                Some(usage) => u64::try_from(usage.bytes).unwrap_or_default(),
                None => self.archive(&archive).await?,
            };
            sum = sum.saturating_add(bytes);
        }
        Ok(sum)
    }

    async fn archive(&mut self, archive: &NfsArchive) -> Result<u64, CountError> {
        self.each.tick().await;
        let Ok(file_id) = archive.spec.file_id.parse() else {
            return Ok(0);
        };
        let place = TreePlace::Archive(&archive.spec.directory);
        let Some(content) = self.count(&archive.name_any(), (place, Some(file_id))).await? else {
            return Ok(0);
        };
        tell::archive(self.ctx, archive, &content).await?;
        Ok(content.used)
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
        self.backend.set_progress(|progress| progress.skipped += 1);
        tracing::warn!(backend = self.backend.name, volume, "not counted: {why}");
        Ok(None)
    }
}

fn is_wanted(ctx: &Context, backend: &Backend, export: &Arc<ManagedExport>) -> bool {
    let known = backend.known();
    ctx.backends
        .get(&backend.name)
        .is_some_and(|now| now.uid == backend.uid)
        && known.object.spec.usage.is_some()
        && backend.link().is_some_and(|link| Arc::ptr_eq(&link.export, export))
}

async fn read(ctx: &Context, name: &str) -> Result<Option<PersistentVolume>, WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    api.get_opt(name).await.map_err(|cause| WriteError::Api {
        action: "read a volume to count it",
        cause: Box::new(cause),
    })
}

/// Takes off what was told of volumes that are not counted any more: figures that nobody renews are worse than none.
pub(super) async fn clear(ctx: &Context, backend: &Backend) -> Result<(), CountError> {
    let mut each = ticks();
    for name in ctx.usages.volumes_of(&backend.name) {
        if backend.known().object.spec.usage.is_some() {
            return Err(CountError::Unwanted);
        }
        each.tick().await;
        if let Some(volume) = read(ctx, &name).await? {
            tell::nothing(ctx, &volume).await?;
        }
        ctx.usages.forget(&name);
    }
    Ok(())
}
