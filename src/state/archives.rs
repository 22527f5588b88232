//! The archives of the archive watch: the capacity that they use, and queries about them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::NfsArchive;
use crate::api::backend::ArchivePolicy;
use crate::decide::retention::ReachedLimit;
use crate::decide::{quantity, retention};
use crate::state::context::Context;
use crate::state::relist_diff::RelistDiff;

/// Returns the archives of a backend.
pub fn archives_of(ctx: &Context, backend: &str) -> Vec<ObjectRef<NfsArchive>> {
    let all = ctx.stores.archives.state();
    let named = all.iter().filter(|archive| archive.spec.backend == backend);
    named.map(|archive| ObjectRef::from_obj(archive.as_ref())).collect()
}

/// Returns the requested backups of a backend that are not complete.
pub fn backups_of(ctx: &Context, backend: &str) -> Vec<ObjectRef<NfsArchive>> {
    let all = ctx.stores.archives.state();
    let named = all
        .iter()
        .filter(|archive| archive.spec.backend == backend && !archive.is_complete());
    named.map(|archive| ObjectRef::from_obj(archive.as_ref())).collect()
}

/// Returns the identities of exports that the archives of a backend record. A requested backup has none until it begins.
pub fn export_ids(ctx: &Context, backend: &str) -> BTreeSet<String> {
    let all = ctx.stores.archives.state();
    let named = all.iter().filter(|archive| archive.spec.backend == backend);
    named
        .map(|archive| archive.spec.export_id.clone())
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
    retention::reached_limit(policy, (backend, namespace, volume), all.iter().map(AsRef::as_ref))
}

/// Returns the capacity that an archive uses, in bytes: the request of its claim. Zero if it is unknown.
pub fn archived_bytes(archive: &NfsArchive) -> u128 {
    archive.spec.size.as_deref().and_then(quantity::bytes).unwrap_or(0)
}

/// Counts an archive toward the capacity of its backend. A requested backup counts once its data exist.
pub fn count_archive(ctx: &Context, archive: &NfsArchive) {
    ctx.capacity
        .record_archive(&archive.name_any(), &archive.spec.backend, archived_bytes(archive));
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
            Event::Init => self.relist = RelistDiff::begin(ctx.capacity.archives()),
            Event::InitApply(archive) => {
                self.relist.insert(archive.name_any());
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

/// Forgets a deleted archive, and wakes the claims that may wait for its capacity.
fn remove(archive: &str, ctx: &Context) {
    if ctx.capacity.remove_archive(archive) {
        ctx.waiting_claims.capacity_freed();
    }
}

/// Handles a change of the cache: wakes the claims whose archive was deleted. What was deleted is not reconciled; every
/// other change of an archive wakes its claims when its status is written.
pub fn observe_cached(event: &Event<NfsArchive>, ctx: &Context) {
    match event {
        Event::Delete(archive) => {
            let name = archive.name_any();
            ctx.wake_restores(|archive| archive == name);
        }
        // The watch broke: what is not listed any more was deleted meanwhile.
        Event::InitDone => ctx.wake_restores(|archive| ctx.stores.archives.get(&ObjectRef::new(archive)).is_none()),
        Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
    }
}

/// Returns why an archive has expired at `now`, or `None` if it has not. Nothing is removed because of this alone.
pub fn expiry_reason(ctx: &Context, archive: &NfsArchive, now: Timestamp) -> Option<String> {
    let backend = ctx.stores.backends.get(&ObjectRef::new(&archive.spec.backend))?;
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
