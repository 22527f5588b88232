//! Removal of a backend: what blocks its deletion, and the cleanup after its object is deleted.

use std::collections::{HashMap, HashSet};

use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use super::probe::{Probe, remaining_beacons};
use super::reconcile::{api, probe_interval};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ABANDON_VOLUMES, BACKEND_FINALIZER};
use crate::api::requests::ids;
use crate::api::{NfsBackend, RecoveryRequest};
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::archives_of;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::text::counted;
use export_store::{Beacon, ClaimRef, Holder};

/// Returns the reason why a backend that is being deleted cannot be removed yet.
pub(super) async fn deletion_blocker(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    probe: &Probe,
) -> Option<PlannedCondition> {
    object.metadata.deletion_timestamp.as_ref()?;
    // The UID, so that the annotation does not release another backend of this name.
    let abandoned = object.annotations().get(ABANDON_VOLUMES);
    if abandoned.is_some_and(|value| ids(value).any(|id| id == backend.uid)) {
        return None;
    }
    let content = content_blocker(ctx, object, backend, probe);
    let message = match content.or_else(|| unfinished_blocker(ctx, object, backend, probe)) {
        None => beacon_blocker(ctx, object, backend, probe).await,
        blocker => blocker,
    };
    message.map(|message| PlannedCondition::fails(Reason::Deleting, message))
}

fn content_blocker(ctx: &Context, object: &NfsBackend, backend: &Backend, probe: &Probe) -> Option<String> {
    let volumes = ctx.capacity.totals(&backend.name).volumes;
    let last_known = || {
        object
            .status
            .as_ref()
            .and_then(|status| u64::try_from(status.archives?).ok())
    };
    // An archive that the probe did not count, for example because its record is damaged, counts if it has an object. So do
    // those in the status, until it reports none: if this process ends during the removal, the next one may not be able to
    // count.
    let objects = archives_of(ctx, &backend.name).len() as u64;
    let archives = probe.archives.max(last_known()).unwrap_or(0).max(objects);
    (volumes > 0 || archives > 0).then(|| {
        format!(
            "waits for {} and {}: delete them (archives with deletionPolicy: Delete), or annotate the backend with \
             {ABANDON_VOLUMES}={} to remove it and leave them on the export",
            counted(volumes, "volume"),
            counted(archives, "archive"),
            backend.uid
        )
    })
}

/// Garbage collection removes the directories that no claim needs any more. Without the backend, nothing does: they would be
/// reported as orphans by the other backends on the export, and their paths stay reserved. An export that cannot be used
/// delays nothing.
fn unfinished_blocker(ctx: &Context, object: &NfsBackend, backend: &Backend, probe: &Probe) -> Option<String> {
    // Nothing is collected while volumes may be recovered.
    probe.confirmed().filter(|_| RecoveryRequest::of(object).is_none())?;
    let mut pending = backend.pending();
    pending.retain(|(volume, claim)| ctx.capacity.has_volume(volume) || !is_there(ctx, claim));
    (!pending.is_empty()).then(|| {
        format!(
            "waits until its unfinished work for {} is removed; or annotate the backend with \
             {ABANDON_VOLUMES}={} to remove it now",
            counted(pending.len(), "claim"),
            backend.uid
        )
    })
}

/// Returns true if a claim is in the watch cache.
fn is_there(ctx: &Context, claim: &ClaimRef) -> bool {
    let found = ctx
        .stores
        .claims
        .get(&ObjectRef::new(&claim.name).within(&claim.namespace));
    found.is_some_and(|found| found.uid().as_ref() == Some(&claim.uid))
}

/// The status of a backend must stay if it alone has the present beacon: the other backends on the export would report a
/// mismatch after a restart. Each probe hands the beacon over.
async fn beacon_blocker(ctx: &Context, object: &NfsBackend, backend: &Backend, probe: &Probe) -> Option<String> {
    let reported = object.status.as_ref().and_then(|status| status.export.id.clone());
    let export_id = probe.confirmed().map(|identity| identity.id.clone()).or(reported)?;
    let others = remaining_beacons(ctx, backend, &export_id);
    if others.is_empty() {
        return None;
    }
    let confirmed = probe.export.as_ref().filter(|_| probe.confirmed().is_some());
    let Some(export) = confirmed else {
        // The others may know an earlier beacon only.
        return Some(format!(
            "waits until its export is confirmed again, because other backends are on it; or annotate the backend with \
             {ABANDON_VOLUMES}={} to remove it now",
            backend.uid
        ));
    };
    let beacon = export.beacon().await?;
    let is_left = others.iter().any(|known| known.accepts(Some(&beacon)));
    (!is_left).then(|| {
        format!(
            "waits until another backend on the export has its beacon in the status: see the conditions of the others, \
             or annotate the backend with {ABANDON_VOLUMES}={} to remove it now",
            backend.uid
        )
    })
}

/// Removes a backend that nothing blocks. One after the other: of the backends on an export, the last one retires its beacon.
pub(super) async fn remove(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    probe: &Probe,
) -> Result<Action, WriteError> {
    let _turn = ctx.backend_removals.lock().await;
    retire_beacon(ctx, object, backend, probe).await;
    writes::remove_finalizer_as_read(&api(ctx), object, BACKEND_FINALIZER).await?;
    forget(ctx, &backend.name, &backend.uid);
    tracing::info!(backend = backend.name, "removed the finalizer of a deleted backend");
    Ok(Action::await_change())
}

/// Renews the beacon with one that no status has, before the last backend on an export is removed: if etcd is restored from
/// a snapshot in which the backend still exists, nothing else shows that the state is an older one.
///
/// What fails delays nothing: an export that cannot be used may never return.
async fn retire_beacon(ctx: &Context, object: &NfsBackend, backend: &Backend, probe: &Probe) {
    let (Some(identity), Some(export)) = (probe.confirmed(), &probe.export) else {
        return;
    };
    if has_others(ctx, backend, &identity.id) {
        return;
    }
    let unknown = Beacon::after(export.beacon().await.as_ref());
    if let Err(error) = export.renew_beacon(Some(&unknown), probe_interval(object)).await {
        tracing::warn!(backend = backend.name, "its last beacon is not written: {error}");
    }
}

/// Returns true if another backend is on an export. One that is being deleted may still have to work there, until this
/// process has forgotten it; the cache may have it for longer.
fn has_others(ctx: &Context, backend: &Backend, export_id: &str) -> bool {
    let objects = ctx.stores.backends.state();
    objects.iter().any(|other| {
        let running = ctx.backends.get(&other.name_any());
        let is_forgotten = running.is_none() && other.metadata.deletion_timestamp.is_some();
        let confirmed = running.and_then(|running| running.confirmed());
        let reported = other.status.as_ref().and_then(|status| status.export.id.clone());
        let is_here = confirmed.map(|identity| identity.id).or(reported).as_deref() == Some(export_id);
        is_here && !is_forgotten && other.name_any() != backend.name
    })
}

/// Forgets a backend: releases its root and closes its connection.
fn forget(ctx: &Context, name: &str, uid: &str) {
    let Some(backend) = ctx.backends.remove(name, uid) else {
        return;
    };
    ctx.path_reservations.remove(&Holder::BackendRoot(name.to_owned()));
    ctx.recovery_holds.set_lost(name, []);
    ctx.metrics.remove_backend(name);
    ctx.usage.disable(name);
    ctx.last_written.forget(uid);
    // Nothing collects its unfinished directories anymore. An attempt in progress releases its own reservation.
    for (volume, _) in backend.abandoned() {
        // The claim may be on another backend by now.
        if ctx.backends.find(|other| other.has_pending(&volume)).is_none() {
            ctx.capacity.release(&volume);
        }
    }
    if let Some(connection) = backend.set_connection(None) {
        tokio::spawn(async move { connection.store.nfs().clone().close().await });
    }
}

/// Wakes everything that may wait for a backend whose object is gone. Once its finalizer is removed, it is still in the
/// cache for a moment, and looks as if it were not probed yet.
fn wake_waiting(ctx: &Context, name: &str) {
    ctx.storage_capacity_changed.notify_one();
    ctx.waiting_claims.backend_changed(name);
    ctx.waiting_volumes.backend_changed(name);
    archives_of(ctx, name)
        .into_iter()
        .for_each(|archive| ctx.requeue_archive(archive));
}

/// Forgets the backends whose objects vanish from the watch: a finalizer can be removed by force, and a watch that
/// lists again does not report deletions.
#[derive(Default)]
pub struct BackendRemovalWatcher {
    known: HashMap<String, String>,
    listed: HashSet<String>,
}

impl BackendRemovalWatcher {
    /// Processes one event of the watch, once the cache has it.
    pub fn observe(&mut self, event: &Event<NfsBackend>, ctx: &Context) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(object.uid().unwrap_or_default());
                self.known.insert(object.uid().unwrap_or_default(), object.name_any());
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.known
                    .iter()
                    .filter(|(uid, _)| !listed.contains(*uid))
                    .for_each(|(uid, name)| {
                        forget(ctx, name, uid);
                        wake_waiting(ctx, name);
                    });
                self.known.retain(|uid, _| listed.contains(uid));
            }
            Event::Apply(object) => {
                self.known.insert(object.uid().unwrap_or_default(), object.name_any());
            }
            Event::Delete(object) => {
                let uid = object.uid().unwrap_or_default();
                self.known.remove(&uid);
                forget(ctx, &object.name_any(), &uid);
                wake_waiting(ctx, &object.name_any());
            }
        }
    }
}
