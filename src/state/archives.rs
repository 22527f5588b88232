//! The archives of the archive watch: the capacity that they use, and queries about them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::NfsArchive;
use crate::api::backend::ArchivePolicy;
use crate::decide::archive_object::agrees_with_record;
use crate::decide::restore_source::RestoreSource;
use crate::decide::retention::ReachedLimit;
use crate::decide::{quantity, retention};
use crate::state::context::Context;
use crate::state::relist_diff::RelistDiff;
use export_store::{ArchivePhase, ExportError, ExportStore, ReleasedArchive, SignatureStatus};

/// Returns the archives of a backend.
pub fn archives_of(ctx: &Context, backend: &str) -> Vec<ObjectRef<NfsArchive>> {
    let all = ctx.stores.archives.state();
    let named = all.iter().filter(|archive| archive.backend_name() == backend);
    named.map(|archive| ObjectRef::from_obj(archive.as_ref())).collect()
}

/// Returns the requested backups of a backend that are not complete.
pub fn backups_of(ctx: &Context, backend: &str) -> Vec<ObjectRef<NfsArchive>> {
    let all = ctx.stores.archives.state();
    let named = all
        .iter()
        .filter(|archive| archive.observed().backend_name == backend && !archive.is_complete());
    named.map(|archive| ObjectRef::from_obj(archive.as_ref())).collect()
}

/// Returns the identities of exports that the archives of a backend record. A requested backup has none until it begins.
pub fn export_ids(ctx: &Context, backend: &str) -> BTreeSet<String> {
    let all = ctx.stores.archives.state();
    let named = all.iter().filter(|archive| archive.backend_name() == backend);
    named
        .map(|archive| archive.export_id().to_owned())
        .filter(|export_id| !export_id.is_empty())
        .collect()
}

/// Returns the maximum number of archives that is reached for the namespace on the backend, not counting that of `volume`.
/// The watch cache may not have the archives of the reclaims in progress yet.
pub fn reached_limit(
    ctx: &Context,
    policy: &ArchivePolicy,
    backend: &str,
    namespace: &str,
    volume: &str,
) -> Option<ReachedLimit> {
    let all = ctx.stores.archives.state();
    let export = ctx
        .backends
        .get(backend)
        .and_then(|backend| backend.last_probe().store.clone());
    let released = export.map(|export| trusted(&export).map(|archive| archive.namespace).collect());
    let counted = (all.iter().map(AsRef::as_ref), released.unwrap_or_default());
    retention::reached_limit(policy, (backend, namespace, volume), counted)
}

/// Returns the request of the claim that the data belonged to, in bytes.
pub fn requested_bytes(archive: &NfsArchive) -> Option<u128> {
    quantity::bytes(&archive.observed().requested_size.as_ref()?.0)
}

/// Returns the capacity that an archive uses, in bytes: the request of its claim. Zero if it is unknown.
pub fn archived_bytes(archive: &NfsArchive) -> u128 {
    requested_bytes(archive).unwrap_or(0)
}

/// Counts an archive toward the capacity of its backend. A requested backup counts once its data exist. An archive whose
/// status is not written yet, or was lost, stays counted as it was.
pub fn count_archive(ctx: &Context, archive: &NfsArchive) {
    if !archive.is_complete() {
        return;
    }
    ctx.capacity.record_archive(
        &archive.name_any(),
        &archive.observed().backend_name,
        archived_bytes(archive),
    );
}

/// Keeps the capacity in sync with the archives of the archive watch.
#[derive(Default)]
pub struct ArchiveIndexer {
    relist: RelistDiff,
}

impl ArchiveIndexer {
    /// Handles one event of the watch.
    pub fn observe(&mut self, event: &Event<NfsArchive>, ctx: &Context) {
        match event {
            Event::Init => {
                self.relist = RelistDiff::default();
                ctx.capacity.for_each_archive(|name| self.relist.expect(name));
            }
            Event::InitApply(archive) => {
                self.relist.insert(archive.metadata.name.as_deref().unwrap_or_default());
                count_archive(ctx, archive);
            }
            Event::InitDone => {
                for name in self.relist.deleted() {
                    remove(&name, ctx);
                }
            }
            Event::Apply(archive) => count_archive(ctx, archive),
            Event::Delete(archive) => remove(&archive.name_any(), ctx),
        }
    }
}

/// Counts the archives of a backend that are kept without an object toward its capacity.
pub fn count_released(ctx: &Context, backend: &str, export: &ExportStore) {
    for archive in trusted(export) {
        let bytes = archive.size.as_deref().and_then(quantity::bytes).unwrap_or(0);
        ctx.capacity.record_archive(&archive.name, backend, bytes);
    }
}

/// Returns the archives of an export that are kept without an object. Anybody who can write to the export can add unsigned
/// records.
fn trusted(export: &ExportStore) -> impl Iterator<Item = ReleasedArchive> {
    let released = export.released_archives().into_iter();
    released.filter(|archive| !export.is_unsigned(&archive.name))
}

/// Reports whether the record and the directory of an archive exist as its object describes them. Read from the export, before
/// older ones are deleted.
///
/// # Errors
/// The export cannot be read.
pub async fn is_intact(archive: &NfsArchive, (backend, export): (&str, &ExportStore)) -> Result<bool, ExportError> {
    let recorded = export.find_archive(&archive.name_any()).await?;
    Ok(recorded.is_some_and(|recorded| {
        recorded.trust == SignatureStatus::Signed
            && recorded.phase == ArchivePhase::Archived
            && recorded.exists
            && agrees_with_record(archive, &recorded, backend)
    }))
}

/// Returns true if the data of an archive without an object are kept, and use capacity.
fn is_kept(archive: &str, ctx: &Context) -> bool {
    let backends = ctx.backends.all();
    let exports = backends.iter().filter_map(|backend| backend.last_probe().store.clone());
    exports.into_iter().any(|export| export.is_released(archive))
}

/// Forgets a deleted archive, and wakes the claims that may wait for its capacity.
fn remove(archive: &str, ctx: &Context) {
    if is_kept(archive, ctx) {
        return;
    }
    if ctx.capacity.remove_archive(archive) {
        ctx.waiting_claims.capacity_freed();
    }
}

/// Handles a change of the cache: wakes the claims whose archive was changed, by whomever, or deleted.
pub fn observe_cached(event: &Event<NfsArchive>, ctx: &Context) {
    match event {
        Event::Apply(archive) | Event::Delete(archive) => {
            let name = archive.name_any();
            if matches!(event, Event::Delete(_))
                && let Some(backend) = ctx.backends.get(&archive.observed().backend_name)
            {
                backend.forget_purge(&name);
            }
            ctx.wake_restores(|_, source| matches!(source, RestoreSource::Archive(archive) if *archive == name));
        }
        // The watch broke: any archive may have changed or gone meanwhile.
        Event::InitDone => ctx.wake_restores(|_, source| matches!(source, RestoreSource::Archive(_))),
        Event::Init | Event::InitApply(_) => {}
    }
}

/// Returns why an archive has expired at `now`, or `None` if it has not. Nothing is removed because of this alone.
pub fn expiry_reason(ctx: &Context, archive: &NfsArchive, now: Timestamp) -> Option<String> {
    let backend = ctx
        .stores
        .backends
        .get(&ObjectRef::new(&archive.observed().backend_name))?;
    let policy = &backend.spec.archive_policy;
    retention::expired(archive, policy, count_newer(ctx, archive, policy), now)
}

/// Returns the number of newer archives of the claim if the policy counts them.
pub fn count_newer(ctx: &Context, archive: &NfsArchive, policy: &ArchivePolicy) -> usize {
    policy.keep_last.map_or(0, |_| {
        let all = ctx.stores.archives.state();
        retention::count_newer(archive, all.iter().map(AsRef::as_ref))
    })
}
