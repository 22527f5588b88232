//! Queries about archives, answered from the watch caches.

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

use crate::api::NfsArchive;
use crate::api::backend::ArchivePolicy;
use crate::decide::retention;
use crate::state::context::Context;

/// Returns the archives of a backend.
pub fn archives_of(ctx: &Context, backend: &str) -> Vec<ObjectRef<NfsArchive>> {
    let all = ctx.stores.archives.state();
    let named = all.iter().filter(|archive| archive.spec.backend == backend);
    named.map(|archive| ObjectRef::from_obj(archive.as_ref())).collect()
}

/// Returns the maximum number of archives if the namespace has as many on the backend, not counting that of `volume`. The
/// watch cache may not have the archives of the reclaims in progress yet.
pub fn reached_limit(
    ctx: &Context,
    policy: &ArchivePolicy,
    backend: &str,
    namespace: &str,
    volume: &str,
) -> Option<usize> {
    let all = ctx.stores.archives.state();
    retention::reached_limit(policy, (backend, namespace, volume), all.iter().map(AsRef::as_ref))
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
