//! One scan: the volumes in the order of their names, then the archives that were never counted. What is large comes last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::{Instant, Interval};

use super::plan::{advance, begin_attempt, deferred_to, is_halted, location};
use super::publish;
use crate::api::archive::NfsArchive;
use crate::api::names;
use crate::api::requests::BackendRequest;
use crate::background::orphan_scan::is_export_error;
use crate::background::runner;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use crate::state::quota::accounted_usage;
use crate::state::usage::{ScanPart, ScanPosition, VolumeUsage};
use export_store::naming::DirectoryPath;
use export_store::{CountTarget, ExportError, ExportStore, RateLimiter, TreeUsage, quota};

/// Maximum number of volumes counted per second, however small they are. Each takes two reads from the API server and
/// three calls on the export. Ten thousand volumes take 17 minutes.
const VOLUMES_PER_SECOND: u32 = 10;
/// Number of volumes per batch. Limits the memory of a scan.
const BATCH: usize = 500;

/// Reason why a scan was interrupted; it resumes later.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsageScanError {
    /// The export is not ready to be scanned.
    #[error("the identity of the export is not confirmed")]
    NotConfirmed,
    /// The backend was removed or suspended, has another connection, or no longer requests the scan.
    #[error("the usage scan was canceled: the backend changed, or no longer requests it")]
    Unwanted,
    /// The export cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A request to the API server failed.
    #[error(transparent)]
    Api(#[from] WriteError),
}

/// Result of counting a volume or archive.
#[derive(Clone, Copy)]
enum Counted {
    Content(TreeUsage),
    /// It is large: a later part of the scan counts it.
    Later,
    /// It cannot be counted.
    Skipped,
}

/// A scan in progress.
pub(super) struct UsageScan<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    known: &'a ProbeSnapshot,
    export: Arc<ExportStore>,
    export_id: String,
    rate: RateLimiter,
    ticks: Interval,
    /// Usage of the volumes as the quota agent reports it. These volumes are not counted.
    accounted: BTreeMap<String, quota::VolumeUsage>,
    /// The shared directories that were counted, or are counted later.
    shared: HashMap<DirectoryPath, Counted>,
}

impl<'a> UsageScan<'a> {
    pub(super) fn new(
        ctx: &'a Context,
        backend: &'a Backend,
        known: &'a ProbeSnapshot,
    ) -> Result<Self, UsageScanError> {
        let (Some(export), Some(identity)) = (known.store.clone(), &known.identity) else {
            return Err(UsageScanError::NotConfirmed);
        };
        if is_halted(&known.object, &known.ready) {
            return Err(UsageScanError::Unwanted);
        }
        Ok(Self {
            ctx,
            backend,
            known,
            export,
            export_id: identity.id.clone(),
            rate: RateLimiter::of(ctx.settings.count_rate),
            ticks: runner::ticks(VOLUMES_PER_SECOND),
            accounted: BTreeMap::new(),
            shared: HashMap::new(),
        })
    }

    /// Resumes the scan or starts a new one.
    pub(super) async fn run(mut self) -> Result<(), UsageScanError> {
        let started = Instant::now();
        self.accounted = accounted_usage(self.backend, &self.export).await?;
        let mut at = self
            .backend
            .usage_scan
            .progress()
            .under_way
            .unwrap_or_else(|| self.begin());
        loop {
            let batch = self.next_batch(&at);
            if batch.is_empty() {
                let Some(part) = at.part.next() else { break };
                at = ScanPosition {
                    part,
                    ..ScanPosition::default()
                };
            }
            for name in batch {
                at = self.count_next(&at, &name).await?;
            }
        }
        self.backend.usage_scan.update(|progress| {
            progress.under_way = None;
            progress.large.clear();
            // The API has whole seconds.
            progress.last_completed = Timestamp::from_second(self.ctx.clock.now().as_second()).ok();
        });
        let total = self.ctx.usage.total(&self.backend.name);
        tracing::info!(
            backend = self.backend.name,
            volumes = total.volumes,
            bytes = total.bytes,
            files = total.files,
            skipped = self.backend.usage_scan.progress().skipped,
            seconds = started.elapsed().as_secs_f64(),
            "counted what volumes hold"
        );
        Ok(())
    }

    /// Starts a new scan.
    fn begin(&self) -> ScanPosition {
        let request = self.backend.requests.submitted(BackendRequest::Count);
        self.backend.usage_scan.update(|progress| {
            progress.skipped = 0;
            progress.large.clear();
            progress.requested = false;
            progress.request = request;
        });
        ScanPosition::default()
    }

    /// Returns the next volumes or archives of a part, by name.
    fn next_batch(&self, at: &ScanPosition) -> Vec<String> {
        let mut names: Vec<String> = match at.part {
            ScanPart::Volumes => return self.ctx.capacity.volumes_after(&self.backend.name, &at.after, BATCH),
            ScanPart::Archives => {
                let archives = self.ctx.stores.archives.state();
                let uncounted = archives.iter().filter(|archive| self.is_uncounted(archive));
                uncounted.map(|archive| archive.name_any()).collect()
            }
            ScanPart::LargeVolumes | ScanPart::LargeArchives => {
                let large = self.backend.usage_scan.progress().large.into_iter();
                let of_part = large.filter(|(part, _)| *part == at.part);
                of_part.map(|(_, name)| name).collect()
            }
        };
        names.retain(|name| *name > at.after);
        names.sort_unstable();
        // A large one is found again if the scan was interrupted before the next one.
        names.dedup();
        names.truncate(BATCH);
        names
    }

    /// Reports whether an archive is on this backend and was not counted yet.
    fn is_uncounted(&self, archive: &NfsArchive) -> bool {
        let observed = archive.observed();
        archive.is_complete()
            && observed.backend_name == self.backend.name
            && observed.export_id == self.export_id
            && archive.metadata.deletion_timestamp.is_none()
            && observed.usage.is_none()
    }

    /// Counts one volume or archive and returns the new progress. The attempt is recorded first, because this volume
    /// may cause the process to fail.
    async fn count_next(&mut self, at: &ScanPosition, name: &str) -> Result<ScanPosition, UsageScanError> {
        let (next, allowed) = begin_attempt(at);
        self.backend
            .usage_scan
            .update(|progress| progress.under_way = Some(next));
        match at.part {
            _ if !allowed => self.skip(name, "several attempts were interrupted"),
            ScanPart::Volumes | ScanPart::LargeVolumes => self.count_volume(at.part, name).await?,
            ScanPart::Archives | ScanPart::LargeArchives => self.count_archive(at.part, name).await?,
        }
        let next = advance(at, name);
        self.backend
            .usage_scan
            .update(|progress| progress.under_way = Some(next.clone()));
        Ok(next)
    }

    async fn count_volume(&mut self, part: ScanPart, name: &str) -> Result<(), UsageScanError> {
        self.ticks.tick().await;
        let Some(volume) = read(self.ctx, name).await? else {
            return Ok(());
        };
        let here = (self.backend.name.as_str(), &*self.known.object, self.export_id.as_str());
        let Some((directory, file_id)) = location(&volume, &self.ctx.settings, here) else {
            return Ok(());
        };
        if let Some(accounted) = self.accounted.get(name) {
            publish::volume(self.ctx, self.backend, &volume, VolumeUsage::from(*accounted)).await?;
            return Ok(());
        }
        // A scan counts a shared directory once.
        let is_shared = names::is_shared(&volume);
        let known = self.shared.get(&directory).copied().filter(|_| is_shared);
        let names = match known {
            Some(Counted::Later) => u64::MAX,
            // Most that were large still are.
            _ => self.ctx.usage.files(name).unwrap_or_default(),
        };
        let counted = match known {
            Some(counted @ Counted::Content(_)) => counted,
            _ if self.defer(part, name, names) => return Ok(()),
            _ => {
                let place = CountTarget::Directory(&directory);
                self.count(part, name, (place, file_id)).await?
            }
        };
        if is_shared && !matches!(counted, Counted::Skipped) {
            self.shared.insert(directory, counted);
        }
        match counted {
            Counted::Content(content) => {
                publish::volume(self.ctx, self.backend, &volume, VolumeUsage::from(&content)).await?;
            }
            Counted::Later | Counted::Skipped => {}
        }
        Ok(())
    }

    async fn count_archive(&mut self, part: ScanPart, name: &str) -> Result<(), UsageScanError> {
        self.ticks.tick().await;
        let Some(archive) = self.ctx.stores.archives.get(&ObjectRef::new(name)) else {
            return Ok(());
        };
        let Some(file_id) = archive.file_id() else {
            return Ok(());
        };
        let place = CountTarget::Archive(&archive.observed().directory);
        match self.count(part, name, (place, Some(file_id))).await? {
            Counted::Content(content) => Ok(publish::archive(self.ctx, &archive, &content).await?),
            Counted::Later | Counted::Skipped => Ok(()),
        }
    }

    /// Counts a tree, unless it is large. Fails only if nothing on the export can be counted.
    async fn count(
        &mut self,
        part: ScanPart,
        name: &str,
        of: (CountTarget<'_>, Option<u64>),
    ) -> Result<Counted, UsageScanError> {
        let (ctx, backend, export) = (self.ctx, self.backend, &self.export);
        let requested = || is_requested(ctx, backend, export);
        let mut names = 0;
        let go_on = |content: &TreeUsage| {
            names = content.names;
            requested() && deferred_to(part, names).is_none()
        };
        let counted = self.export.count(of, &mut self.rate, go_on).await;
        if !requested() {
            return Err(UsageScanError::Unwanted);
        }
        let why = match counted {
            Ok(Some(content)) => return Ok(Counted::Content(content)),
            Ok(None) if self.defer(part, name, names) => return Ok(Counted::Later),
            Ok(None) => "its directory does not exist, or was replaced in the meantime".to_owned(),
            Err(error) if is_export_error(&error) => return Err(error.into()),
            Err(error) => error.to_string(),
        };
        self.skip(name, &why);
        Ok(Counted::Skipped)
    }

    /// Returns true if a volume or archive with this many names is counted later.
    fn defer(&self, part: ScanPart, name: &str, names: u64) -> bool {
        let later = deferred_to(part, names);
        self.backend
            .usage_scan
            .update(|progress| progress.large.extend(later.map(|later| (later, name.to_owned()))));
        later.is_some()
    }

    fn skip(&self, volume: &str, why: &str) {
        self.backend.usage_scan.update(|progress| progress.skipped += 1);
        tracing::warn!(backend = self.backend.name, volume, "not counted: {why}");
    }
}

fn is_requested(ctx: &Context, backend: &Backend, export: &Arc<ExportStore>) -> bool {
    let known = backend.last_probe();
    ctx.backends.is_current(backend)
        && known.object.spec.usage.is_some()
        && !is_halted(&known.object, &known.ready)
        && backend
            .connection()
            .is_some_and(|connection| Arc::ptr_eq(&connection.store, export))
}

async fn read(ctx: &Context, name: &str) -> Result<Option<PersistentVolume>, WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    reads::get_opt(&api, name)
        .await
        .map_err(WriteError::action("read a volume to count it"))
}

/// Removes the results from volumes that are no longer counted: outdated numbers are worse than none.
pub(super) async fn remove_results(ctx: &Context, backend: &Backend) -> Result<(), UsageScanError> {
    let mut ticks = runner::ticks(VOLUMES_PER_SECOND);
    for name in ctx.usage.volumes_of(&backend.name) {
        if backend.last_probe().object.spec.usage.is_some() {
            return Err(UsageScanError::Unwanted);
        }
        ticks.tick().await;
        if let Some(volume) = read(ctx, &name).await? {
            publish::remove(ctx, &volume).await?;
        }
        ctx.usage.forget(&name);
    }
    Ok(())
}
