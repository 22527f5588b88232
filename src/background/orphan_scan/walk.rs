//! One scan: first the records without a volume, then the volumes, a few at a time.
//!
//! Whatever looks alone is looked at once more after a while, and then beside the volume and the claim as the API server
//! has them: a claim that is just being provisioned or reclaimed is no orphan.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::{Interval, MissedTickBehavior};

use super::judge::{Volume, classify};
use crate::api::backend::OnDelete;
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID};
use crate::api::{NfsBackend, Orphan, OrphanKind, OrphansStatus, Reason};
use crate::compat::nfs_subdir::location::{alias_backend, directory_on};
use crate::decide::policy::{Decision, decide};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::naming::DirectoryPath;
use export_store::{ClaimRef, ExportError, ExportStore, Found, Holder, Inspection, State};

/// Looks a second, one at a time: each is two or three calls, so a single disk with nothing cached, which makes about a
/// hundred seeks a second, has most of them for its users. Ten thousand volumes take 17 minutes.
const LOOKS_A_SECOND: u32 = 10;
/// What looks alone is looked at again after this long, or half the interval if that is less: longer than one attempt
/// to provision, to save or to reclaim takes, and than the sweep of claims that are gone.
const GRACE: Duration = Duration::from_secs(60);
/// Volumes gone through at a time: bounds what a scan has in memory, and, where all are alone, how long it takes.
const SOME: usize = 500;
/// Orphans that a scan names in the log; the count tells of all.
const LOGGED: i64 = 1000;

/// Why a scan did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    /// There is no export to scan.
    #[error("the export is not confirmed to be the one that it was")]
    NotConfirmed,
    /// The export could not be read.
    #[error("{0}")]
    Export(#[from] ExportError),
    /// The API server could not be asked.
    #[error("cannot read a volume or its claim: {0}")]
    Api(#[from] Box<kube::Error>),
}

/// A scan on its way.
pub(crate) struct OrphanScan<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) backend: &'a Backend,
    object: &'a NfsBackend,
    pub(crate) export: &'a ExportStore,
    export_id: &'a str,
    pace: Interval,
    looked: u64,
    found: OrphansStatus,
}

impl<'a> OrphanScan<'a> {
    pub(crate) fn new(
        ctx: &'a Context,
        backend: &'a Backend,
        object: &'a NfsBackend,
        export: &'a ExportStore,
        export_id: &'a str,
    ) -> Self {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / LOOKS_A_SECOND);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            ctx,
            backend,
            object,
            export,
            export_id,
            pace,
            looked: 0,
            found: OrphansStatus::default(),
        }
    }

    /// Answers what is alone, and how many looks that took.
    pub(crate) async fn run(mut self) -> Result<(OrphansStatus, u64), ScanError> {
        let (ctx, backend, id) = (self.ctx, &self.backend.name, self.export_id);
        let known = |volume: &str| remembered(ctx, backend, id, volume) != Volume::Gone;
        let records = self.export.recorded_volumes(&known).await?;
        for some in records.chunks(SOME) {
            self.scan_batch(some).await?;
        }
        drop(records);
        let mut after = String::new();
        loop {
            let some = ctx.capacity.volumes_after(backend, &after, SOME);
            let Some(last) = some.last() else { break };
            after.clone_from(last);
            self.scan_batch(&some).await?;
        }
        Ok((self.found, self.looked))
    }

    /// Looks at some, and after a while again at those that seem alone.
    async fn scan_batch(&mut self, volumes: &[String]) -> Result<(), ScanError> {
        let (began, mut suspects) = (Instant::now(), Vec::new());
        for volume in volumes {
            if self.is_suspect(volume).await? {
                suspects.push(volume);
            }
        }
        if suspects.is_empty() {
            return Ok(());
        }
        let interval = self.ctx.settings.scan_interval;
        tokio::time::sleep(if interval.is_zero() {
            GRACE
        } else {
            GRACE.min(interval / 2)
        })
        .await;
        for volume in suspects {
            if let Some((kind, orphan)) = self.is_orphan(volume, began).await? {
                self.note(kind, orphan);
            }
        }
        Ok(())
    }

    /// The first look, beside what is in memory: that costs the API server nothing.
    async fn is_suspect(&mut self, volume: &str) -> Result<bool, ScanError> {
        let remembered = remembered(self.ctx, &self.backend.name, self.export_id, volume);
        let path = match remembered {
            Volume::Theirs => return Ok(false),
            // Nothing but the object itself says where its directory is.
            Volume::Inherited => path_of(self.volume(volume).await?.as_ref(), self.object),
            Volume::Here { .. } | Volume::Gone => None,
        };
        let look = self.look(volume, path.as_ref()).await?;
        if matches!(remembered, Volume::Here { .. })
            && let Some(look) = &look
        {
            self.keep_believable(volume, look).await?;
        }
        Ok(look.is_some_and(|look| classify(&look, remembered, false).is_some()))
    }

    /// The second look, between two of the API server.
    async fn is_orphan(&mut self, volume: &str, suspected: Instant) -> Result<Option<(OrphanKind, Orphan)>, ScanError> {
        let before = self.volume(volume).await?;
        let path = path_of(before.as_ref(), self.object);
        let Some(look) = self.look(volume, path.as_ref()).await? else {
            return Ok(None);
        };
        let now = self.volume(volume).await?;
        let uid = |volume: &Option<PersistentVolume>| volume.as_ref().and_then(ResourceExt::uid);
        if uid(&before) != uid(&now) {
            return Ok(None);
        }
        let waited_for = match &look.record {
            Found::Record(record, _) => self.is_waiting(&record.claim).await?,
            _ => false,
        };
        let seen = self.seen(now.as_ref());
        let kind = classify(&look, seen, waited_for).filter(|_| seen != Volume::Gone || self.is_ours(&look));
        let Some(kind) = kind.filter(|_| !self.is_under_way(volume, suspected)) else {
            return Ok(None);
        };
        let orphan = Orphan {
            volume: volume.to_owned(),
            directory: directory(&look, kind).or(path.map(|path| path.to_string())),
        };
        Ok(Some((kind, orphan)))
    }

    /// Whether somebody is at it, or the sweep has not had the time to take it back since it was suspected.
    fn is_under_way(&self, volume: &str, suspected: Instant) -> bool {
        let unswept = || self.backend.has_pending(volume) && !self.backend.has_gc_run_since(suspected);
        self.backend.is_in_work(volume) || unswept()
    }

    /// A look at the export. None: this one could not be looked at, and that says nothing of the others.
    async fn look(&mut self, volume: &str, path: Option<&DirectoryPath>) -> Result<Option<Inspection>, ScanError> {
        self.pace.tick().await;
        self.looked += 1;
        match self.export.inspect(volume, path).await {
            Ok(look) => Ok(Some(look)),
            Err(error) if speaks_of_the_export(&error) => Err(error.into()),
            Err(error) => {
                self.found.skipped += 1;
                tracing::warn!(backend = self.backend.name, volume, reason = ?error.kind(), "cannot be looked at: {error}");
                Ok(None)
            }
        }
    }

    /// The volume as it is now.
    pub(crate) async fn volume(&mut self, name: &str) -> Result<Option<PersistentVolume>, ScanError> {
        self.pace.tick().await;
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        api.get_opt(name).await.map_err(|error| Box::new(error).into())
    }

    /// Whether a claim is there that may yet get its volume.
    async fn is_waiting(&mut self, claim: &ClaimRef) -> Result<bool, ScanError> {
        self.pace.tick().await;
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.ctx.clients.calls.clone(), &claim.namespace);
        let found = api.get_opt(&claim.name).await.map_err(Box::new)?;
        let found = found.filter(|found| found.uid().as_ref() == Some(&claim.uid));
        Ok(found.is_some_and(|found| found.status.and_then(|status| status.phase).as_deref() != Some("Lost")))
    }

    /// What a volume, read just now, is to this backend.
    fn seen(&self, volume: Option<&PersistentVolume>) -> Volume {
        let Some(volume) = volume else { return Volume::Gone };
        let settings = &self.ctx.settings;
        let decision = decide(volume, &settings.provisioners(), OnDelete::Archive);
        if matches!(decision, Decision::Reclaim(_) | Decision::Refuse(_)) {
            // Its reclaim has it in hand, and tells what it meets.
            return Volume::Theirs;
        }
        if alias_backend(volume, &settings.aliases) == Some(self.backend.name.as_str()) {
            return Volume::Inherited;
        }
        let annotation = |name: &str| volume.annotations().get(name).map(String::as_str);
        if !annotation(PROVISIONED_BY).is_some_and(|by| settings.serves(by)) {
            return Volume::Theirs;
        }
        let file_id = annotation(VOLUME_FILE_ID).and_then(|text| text.parse().ok());
        place(
            self.export_id,
            annotation(VOLUME_EXPORT_ID),
            annotation(VOLUME_BACKEND) == Some(&self.backend.name),
            file_id,
        )
    }

    /// Whether a record without a volume is this backend's to report: it made it, or the one that did is gone and this one
    /// is the first of those on the export.
    fn is_ours(&self, look: &Inspection) -> bool {
        let Found::Record(record, _) = &look.record else {
            // Nobody can tell whose it is.
            return self.is_first();
        };
        record.backend == self.backend.name || (!self.exists(&record.backend) && self.is_first())
    }

    fn exists(&self, backend: &str) -> bool {
        self.ctx.stores.backends.get(&ObjectRef::new(backend)).is_some()
    }

    fn is_first(&self) -> bool {
        let here = |backend: &Backend| {
            let known = backend.known();
            known
                .identity
                .as_ref()
                .is_some_and(|identity| identity.id == self.export_id)
        };
        // By name.
        let all = self.ctx.backends.all();
        let first = all.iter().find(|backend| here(backend));
        first.is_none_or(|first| first.name == self.backend.name)
    }

    fn note(&mut self, kind: OrphanKind, orphan: Orphan) {
        if self.found.total < LOGGED {
            tracing::warn!(
                backend = self.backend.name,
                volume = orphan.volume,
                directory = orphan.directory,
                %kind,
                "orphan: {}",
                kind.remedy()
            );
        }
        self.found.add(kind, orphan);
    }
}

/// What a volume is to a backend, by what the watch said of it.
fn remembered(ctx: &Context, backend: &str, export_id: &str, volume: &str) -> Volume {
    let holder = || Holder::Volume(volume.to_owned());
    match ctx.capacity.location_of(volume) {
        Some((on, None)) if on == backend => Volume::Inherited,
        Some((on, id)) => {
            let file_id = ctx.path_reservations.file_of(&holder()).map(|(_, file_id)| file_id);
            place(export_id, id.as_deref(), on == backend, file_id)
        }
        // Not made by us, and there: it may have the directory.
        None if ctx.path_reservations.knows(&holder()) => Volume::Theirs,
        None => Volume::Gone,
    }
}

/// A volume of ours, by the export that it says it is on.
fn place(export_id: &str, says: Option<&str>, on_backend: bool, file_id: Option<u64>) -> Volume {
    match says {
        Some(says) if says != export_id => Volume::Gone,
        Some(_) if on_backend => Volume::Here { file_id },
        // It does not say where: its reclaim will refuse, and name what is missing.
        _ => Volume::Theirs,
    }
}

/// The directory that a volume names, on this backend.
fn path_of(volume: Option<&PersistentVolume>, backend: &NfsBackend) -> Option<DirectoryPath> {
    let volume = volume?;
    let named = volume.annotations().get(VOLUME_DIRECTORY).map(String::as_str);
    DirectoryPath::parse(named.or_else(|| directory_on(volume, backend))?).ok()
}

fn directory(look: &Inspection, kind: OrphanKind) -> Option<String> {
    let Found::Record(record, _) = &look.record else {
        return None;
    };
    match &record.state {
        State::Archiving(note) | State::Archived(note) if kind == OrphanKind::ArchiveWithoutDirectory => {
            Some(note.target.clone())
        }
        _ => Some(record.directory.to_string()),
    }
}

/// Whether an error speaks of the export and not of one name on it.
pub(crate) fn speaks_of_the_export(error: &ExportError) -> bool {
    let reason = Reason::from(error.kind());
    reason.is_connectivity()
        || matches!(
            reason,
            Reason::Fenced | Reason::IdentityMismatch | Reason::IdentityNotConfirmed | Reason::StaleHandle
        )
}
