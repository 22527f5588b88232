//! One scan: first the records without a volume, then the volumes, in batches.
//!
//! A suspect is checked again after a while, together with its volume and claim as read from the API server: a volume
//! that is being provisioned or reclaimed is not an orphan.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::{Instant, Interval};

use super::classify::{VolumeView, classify};
use super::missing_directory::{self, StoppedReclaim};
use crate::api::backend::OnDelete;
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID};
use crate::api::{NfsBackend, Orphan, OrphanKind, OrphansStatus, Reason};
use crate::background::runner;
use crate::compat::nfs_subdir::location::{alias_backend, directory_on};
use crate::decide::quantity::bytes;
use crate::decide::reclaim::{ReclaimDecision, decide};
use crate::decide::volume_directory::has_other_address;
use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::volume_metadata;
use export_store::naming::DirectoryPath;
use export_store::{
    ClaimRef, ExportError, ExportStore, Holder, Inspection, PathState, ReadRecord, SignatureStatus, State,
};

/// Number of checks per second, one at a time. Each check takes two or three calls, so that a single disk with a cold
/// cache and about a hundred seeks per second has most of them available for its users. Ten thousand volumes take 17
/// minutes.
pub const CHECKS_PER_SECOND: u32 = 10;
/// Time until a suspect is checked again, at most half the scan interval. This is longer than an attempt to provision,
/// save or reclaim a volume, and longer than a garbage collection.
const GRACE: Duration = Duration::from_secs(60);
/// Number of volumes per batch. Limits the memory of a scan and, if all are suspects, its duration.
const BATCH: usize = 500;
/// Maximum number of orphans that a scan logs; the count includes all.
const MAX_LOGGED: i64 = 1000;

/// Reason why a scan was interrupted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    /// The export is not ready to be scanned.
    #[error("the identity of the export is not confirmed")]
    NotConfirmed,
    /// The export cannot be read.
    #[error("{0}")]
    Export(#[from] ExportError),
    /// A request to the API server failed.
    #[error("failed to read a volume or its claim: {}", api_error_text(.0))]
    Api(#[from] Box<kube::Error>),
}

/// A scan in progress.
pub(super) struct OrphanScan<'a> {
    ctx: &'a Context,
    backend: &'a Backend,
    object: &'a NfsBackend,
    export: &'a ExportStore,
    export_id: &'a str,
    ticks: Interval,
    checked: u64,
    found: OrphansStatus,
}

impl<'a> OrphanScan<'a> {
    pub(super) fn new(
        ctx: &'a Context,
        backend: &'a Backend,
        object: &'a NfsBackend,
        export: &'a ExportStore,
        export_id: &'a str,
    ) -> Self {
        Self {
            ctx,
            backend,
            object,
            export,
            export_id,
            ticks: runner::ticks(CHECKS_PER_SECOND),
            checked: 0,
            found: OrphansStatus::default(),
        }
    }

    /// Returns the orphans and the number of checks.
    pub(super) async fn run(mut self) -> Result<(OrphansStatus, u64), ScanError> {
        let (ctx, backend, id) = (self.ctx, &self.backend.name, self.export_id);
        let known = |volume: &str| cached_view(ctx, backend, id, volume) != VolumeView::Absent;
        let records = self.export.recorded_volumes(&known).await?;
        for batch in records.chunks(BATCH) {
            self.scan_batch(batch).await?;
        }
        drop(records);
        let mut after = String::new();
        loop {
            let batch = ctx.capacity.volumes_after(backend, &after, BATCH);
            let Some(last) = batch.last() else { break };
            after.clone_from(last);
            self.scan_batch(&batch).await?;
        }
        if let Err(error) = self.remove_empty_parents().await {
            tracing::warn!(backend = backend, "empty parent directories may be left: {error}");
        }
        Ok((self.found, self.checked))
    }

    /// Removes the parents of former directories that something else was in until now.
    async fn remove_empty_parents(&mut self) -> Result<(), ExportError> {
        for parent in self.export.recorded_parents().await? {
            self.ticks.tick().await;
            self.export.remove_parent_if_empty(&parent).await?;
        }
        Ok(())
    }

    /// Checks a batch of volumes, and checks its suspects again after a while.
    async fn scan_batch(&mut self, volumes: &[String]) -> Result<(), ScanError> {
        let (started, mut suspects) = (Instant::now(), Vec::new());
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
            if let Some((kind, orphan)) = self.find_orphan(volume, started).await? {
                self.add(kind, orphan);
            }
        }
        Ok(())
    }

    /// Runs the first check, with the volume as it is in the caches. It reads a volume from the API server only if
    /// nfs-subdir created the volume, or to complete its record.
    async fn is_suspect(&mut self, volume: &str) -> Result<bool, ScanError> {
        let view = cached_view(self.ctx, &self.backend.name, self.export_id, volume);
        let path = match view {
            VolumeView::Foreign => return Ok(false),
            // Only the volume object has the path of the directory.
            VolumeView::Legacy => path_of(self.read_volume(volume).await?.as_ref(), self.object),
            VolumeView::Here { .. } | VolumeView::OnOtherExport | VolumeView::Absent => None,
        };
        let inspection = self.inspect(volume, path.as_ref()).await?;
        if matches!(view, VolumeView::Here { .. })
            && let Some(inspection) = &inspection
        {
            self.complete_record(volume, inspection).await?;
        }
        let Some(inspection) = inspection else { return Ok(false) };
        let suspect = self.classify(&inspection, view, false).is_some();
        if !suspect && inspection.directory != PathState::Unknown && self.ctx.missing_directories.contains(volume) {
            self.clear_missing_directory(volume).await?;
        }
        Ok(suspect)
    }

    /// Removes the condition from the claim of a volume whose directory exists again.
    async fn clear_missing_directory(&mut self, volume: &str) -> Result<(), ScanError> {
        let Some(object) = self.read_volume(volume).await? else {
            return Ok(());
        };
        if let Err(error) = missing_directory::clear(self.ctx, &object).await {
            tracing::warn!(backend = self.backend.name, volume, "{error}; the next scan retries it");
        }
        Ok(())
    }

    /// Runs the second check, between two reads of the volume from the API server.
    async fn find_orphan(
        &mut self,
        volume: &str,
        suspected: Instant,
    ) -> Result<Option<(OrphanKind, Orphan)>, ScanError> {
        let before = self.read_volume(volume).await?;
        let path = path_of(before.as_ref(), self.object);
        let Some(inspection) = self.inspect(volume, path.as_ref()).await? else {
            return Ok(None);
        };
        let claim_waits = match &inspection.record {
            ReadRecord::Record(record, _) => self.claim_waits(&record.claim).await?,
            _ => false,
        };
        // Work that ended after the inspection shows in the volume that is read next, or is noticed here.
        if self.is_in_progress(volume, suspected) {
            return Ok(None);
        }
        let now = self.read_volume(volume).await?;
        let uid = |volume: &Option<PersistentVolume>| volume.as_ref().and_then(ResourceExt::uid);
        if uid(&before) != uid(&now) {
            return Ok(None);
        }
        let view = self.view(now.as_ref());
        let kind = self
            .classify(&inspection, view, claim_waits)
            .filter(|_| view != VolumeView::Absent || self.is_ours(&inspection));
        let Some(kind) = kind.filter(|_| !self.is_in_progress(volume, suspected)) else {
            return Ok(None);
        };
        let orphan = Orphan {
            volume: volume.to_owned(),
            directory: directory(&inspection, kind).or(path.map(|path| path.to_string())),
        };
        if let (Some(object), Some(directory)) = (&now, &orphan.directory)
            && let Err(error) = {
                let reclaimed = stopped_reclaim(&inspection);
                missing_directory::report(self.ctx, &self.backend.name, object, directory, kind, reclaimed).await
            }
        {
            tracing::warn!(backend = self.backend.name, volume, "{error}; the next scan retries it");
        }
        Ok(Some((kind, orphan)))
    }

    /// Reports whether the volume's directory is being worked on, or no garbage collection has run since the first check.
    fn is_in_progress(&self, volume: &str, suspected: Instant) -> bool {
        let awaits_gc = || self.backend.has_pending(volume) && !self.backend.has_gc_run_since(suspected);
        self.backend.is_in_work(volume) || awaits_gc()
    }

    /// Inspects a volume's record and directory. Returns `None` if only this volume cannot be inspected.
    async fn inspect(&mut self, volume: &str, path: Option<&DirectoryPath>) -> Result<Option<Inspection>, ScanError> {
        self.ticks.tick().await;
        self.checked += 1;
        match self.export.inspect(volume, path).await {
            Ok(inspection) => Ok(Some(inspection)),
            Err(error) if is_export_error(&error) => Err(error.into()),
            // Another backend on the export reports what belongs to none of them.
            Err(_) if !self.reports_failure_of(volume) => Ok(None),
            Err(error) => {
                self.found.skipped += 1;
                tracing::warn!(backend = self.backend.name, volume, reason = ?error.kind(), "failed to inspect the volume: {error}");
                Ok(None)
            }
        }
    }

    /// Reads a volume from the API server.
    async fn read_volume(&mut self, name: &str) -> Result<Option<PersistentVolume>, ScanError> {
        self.ticks.tick().await;
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        reads::get_opt(&api, name).await.map_err(|error| Box::new(error).into())
    }

    /// Reports whether the claim exists and may still get its volume.
    async fn claim_waits(&mut self, claim: &ClaimRef) -> Result<bool, ScanError> {
        self.ticks.tick().await;
        let found = reads::get_claim(&self.ctx.clients.calls, &claim.namespace, &claim.name).await;
        let found = found.map_err(Box::new)?;
        let found = found.filter(|found| found.uid().as_ref() == Some(&claim.uid));
        Ok(found.is_some_and(|found| found.status.and_then(|status| status.phase).as_deref() != Some("Lost")))
    }

    /// Returns the relation of a volume to this backend, from the volume object.
    fn view(&self, volume: Option<&PersistentVolume>) -> VolumeView {
        let Some(volume) = volume else {
            return VolumeView::Absent;
        };
        let settings = &self.ctx.settings;
        let decision = decide(volume, &settings.provisioners(), OnDelete::Archive);
        if matches!(decision, ReclaimDecision::Reclaim(_) | ReclaimDecision::Refuse(_)) {
            // The reclaim reports its own problems.
            return VolumeView::Foreign;
        }
        if alias_backend(volume, &settings.served.aliases) == Some(self.backend.name.as_str()) {
            return VolumeView::Legacy;
        }
        let annotation = |name: &str| volume.annotations().get(name).map(String::as_str);
        if !annotation(PROVISIONED_BY).is_some_and(|by| settings.serves(by)) {
            return VolumeView::Foreign;
        }
        let file_id = annotation(VOLUME_FILE_ID).and_then(|text| text.parse().ok());
        view_by_export(
            self.export_id,
            annotation(VOLUME_EXPORT_ID),
            annotation(VOLUME_BACKEND) == Some(&self.backend.name),
            file_id,
            || has_other_address(volume, self.object),
        )
    }

    /// Returns true if this backend reports a record without a volume.
    fn is_ours(&self, inspection: &Inspection) -> bool {
        let recorded = recorded_backend(inspection);
        self.ctx.reports_record_of(self.backend, self.export_id, recorded)
    }

    /// Returns true if this backend reports that a volume or its record cannot be inspected.
    fn reports_failure_of(&self, volume: &str) -> bool {
        cached_view(self.ctx, &self.backend.name, self.export_id, volume) != VolumeView::Absent
            || self.ctx.reports_record_of(self.backend, self.export_id, None)
    }

    /// Classifies an inspected volume.
    fn classify(&self, inspection: &Inspection, view: VolumeView, claim_waits: bool) -> Option<OrphanKind> {
        let backends = &self.ctx.stores.backends;
        let has_backend = recorded_backend(inspection).is_none_or(|name| backends.get(&ObjectRef::new(name)).is_some());
        classify(inspection, view, claim_waits, has_backend)
    }

    fn add(&mut self, kind: OrphanKind, orphan: Orphan) {
        if self.found.total < MAX_LOGGED {
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

    /// Ensures that the record of a volume in use is signed and complete, so that the volume can be recovered if its
    /// object is lost. A record is unsigned if an earlier release wrote it, or if the key was lost.
    async fn complete_record(&mut self, volume: &str, inspection: &Inspection) -> Result<(), ScanError> {
        let unsigned = matches!(
            inspection.record,
            ReadRecord::Record(_, SignatureStatus::Unsigned | SignatureStatus::Forged)
        );
        if unsigned {
            self.sign_record(volume).await?;
        }
        if (unsigned || lacks_metadata(inspection, self.ctx.capacity.size_of(volume)))
            && let Some(object) = self.read_volume(volume).await?
        {
            volume_metadata::save(self.ctx, &object).await;
        }
        Ok(())
    }

    /// Signs the record of a volume if the volume's object agrees with it.
    async fn sign_record(&mut self, volume: &str) -> Result<(), ScanError> {
        let Some(object) = self.read_volume(volume).await? else {
            return Ok(());
        };
        let backend = &self.backend.name;
        let directory = match self.backend.last_probe().volume_directory(&object) {
            Ok(directory) => directory,
            Err(cause) => {
                tracing::warn!(backend, volume, reason = %cause.reason, "its record is not signed: {}", cause.message);
                return Ok(());
            }
        };
        match self.export.sign_confirmed(&directory).await {
            Ok(()) => tracing::info!(
                backend,
                volume = object.name_any(),
                "signed the record of a volume, which agrees with it"
            ),
            Err(error) if is_export_error(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(backend, volume, reason = ?error.kind(), "its record is not signed: {error}");
            }
        }
        Ok(())
    }
}

/// Reports whether the record of a live volume of this size lacks what a recovery needs: its writer was interrupted, or
/// it was signed because the volume agreed with it, which omits everything that the volume does not confirm.
fn lacks_metadata(inspection: &Inspection, size: Option<u128>) -> bool {
    let ReadRecord::Record(record, _) = &inspection.record else {
        return false;
    };
    let recorded = record.metadata.as_ref().and_then(|metadata| bytes(&metadata.size));
    record.state == State::Live && recorded != size
}

/// Returns the relation of a volume to a backend, from the caches.
fn cached_view(ctx: &Context, backend: &str, export_id: &str, volume: &str) -> VolumeView {
    let holder = || Holder::Volume(volume.to_owned());
    match ctx.capacity.location_of(volume) {
        Some((on, None)) if on == backend => VolumeView::Legacy,
        Some((on, id)) => {
            let file_id = ctx.path_reservations.file_of(&holder()).map(|(_, file_id)| file_id);
            let has_other_address = || ctx.path_reservations.is_outside(&holder(), backend);
            view_by_export(export_id, id.as_deref(), on == backend, file_id, has_other_address)
        }
        // Not provisioned by this operator, but the directory may belong to it.
        None if ctx.path_reservations.knows(&holder()) => VolumeView::Foreign,
        None => VolumeView::Absent,
    }
}

/// Returns the relation of a volume of this operator to a backend, from the export ID in its annotation.
fn view_by_export(
    export_id: &str,
    annotated: Option<&str>,
    on_backend: bool,
    file_id: Option<u64>,
    has_other_address: impl FnOnce() -> bool,
) -> VolumeView {
    match annotated {
        Some(annotated) if annotated != export_id && on_backend => VolumeView::OnOtherExport,
        Some(annotated) if annotated != export_id => VolumeView::Absent,
        Some(_) if on_backend => VolumeView::Here {
            file_id,
            has_other_address: has_other_address(),
        },
        // Without an export ID, its reclaim fails and reports what is missing.
        _ => VolumeView::Foreign,
    }
}

/// Returns the path of a volume's directory on this backend.
fn path_of(volume: Option<&PersistentVolume>, backend: &NfsBackend) -> Option<DirectoryPath> {
    let volume = volume?;
    let named = volume.annotations().get(VOLUME_DIRECTORY).map(String::as_str);
    DirectoryPath::parse(named.or_else(|| directory_on(volume, backend))?).ok()
}

/// Returns the name of the backend in a record.
fn recorded_backend(inspection: &Inspection) -> Option<&str> {
    match &inspection.record {
        ReadRecord::Record(record, _) => Some(&record.backend),
        ReadRecord::Nothing | ReadRecord::Unreadable(_) => None,
    }
}

/// Returns the directory to report for an orphan.
fn directory(inspection: &Inspection, kind: OrphanKind) -> Option<String> {
    let ReadRecord::Record(record, _) = &inspection.record else {
        return None;
    };
    match &record.state {
        State::Archiving(note) | State::Archived(note)
            if matches!(
                kind,
                OrphanKind::ArchiveWithoutDirectory | OrphanKind::ArchiveWithOtherDirectory
            ) =>
        {
            Some(note.target.clone())
        }
        _ => Some(record.directory.to_string()),
    }
}

/// Returns what a reclaim did to a directory that is not at its path.
fn stopped_reclaim(inspection: &Inspection) -> Option<StoppedReclaim<'_>> {
    let ReadRecord::Record(record, _) = &inspection.record else {
        return None;
    };
    match (&record.state, inspection.archive) {
        (State::Archiving(archive) | State::Archived(archive), PathState::Directory { .. }) => {
            Some(StoppedReclaim::Archived(&archive.target))
        }
        (State::RemovingEmpty | State::Deleting { .. } | State::Tombstone { .. }, _) => Some(StoppedReclaim::Deleted),
        _ => None,
    }
}

/// Reports whether an error concerns the whole export rather than one name on it.
pub(crate) fn is_export_error(error: &ExportError) -> bool {
    let reason = Reason::from(error.kind());
    reason.is_connectivity()
        || matches!(
            reason,
            Reason::Fenced | Reason::IdentityMismatch | Reason::IdentityNotConfirmed | Reason::StaleHandle
        )
}
