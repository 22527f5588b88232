//! A probe of a backend: checks that the export can be reached, has the expected identity and can be written, and reads
//! its space.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::expected_identity::{OwnCluster, Unconfirmed, expected_identity, explain_acceptance, secret_mismatch};
use super::reconcile::probe_interval;
use super::target::{LeaseOwner, ObservedState, is_compatible, roots, target};
use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::requests::BackendRequest;
use crate::decide::quantity;
use crate::decide::reclaim::{is_available, is_released};
use crate::runtime::api_error::api_error_text;
use crate::state::archives;
use crate::state::backends::{Backend, BackendConnection};
use crate::state::context::Context;
use crate::state::recorded_ids::RecordedIds;
use crate::state::recovery::{ClaimName, LostVolume};
use export_store::{
    ErrorHints, ErrorKind, ExpectedIdentity, ExportError, ExportStore, Holder, Identity, KnownBeacon, OpenRecord,
    RecoveryReport, ReservedPath, StoreConfig, UnsignedRecord, UnsignedRecords, WriteProbe,
};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use nfs_client::{self, FsStat, Target};

/// Number of volumes, and of archives, by whose records it is checked which cluster recorded them.
const RECORDS_CHECKED: usize = 8;

/// The result of a probe. Checks after the first failed one are unset.
#[derive(Clone)]
pub struct Probe {
    /// The connection.
    pub export: Option<Arc<ExportStore>>,
    /// Result of the check that the server responds and the export exists.
    pub reachable: PlannedCondition,
    /// The identity of the export, or why it is not confirmed.
    pub identity: Option<Result<Identity, Unconfirmed>>,
    /// Result of the check that directories can be created and removed.
    pub writable: Option<PlannedCondition>,
    /// Why nothing can be created on the export, if it is full.
    pub full: Option<PlannedCondition>,
    /// Space and inodes.
    pub statistics: Option<FsStat>,
    /// Where the server exposes snapshots; unset if this probe did not find out.
    pub snapshot_directory: Option<Option<&'static str>>,
    /// Result of the check that the server creates snapshots, if it is to do so.
    pub snapshots_creatable: Option<PlannedCondition>,
    /// Number of archives.
    pub archives: Option<u64>,
    /// Records that this cluster did not sign.
    pub unsigned_records: Option<UnsignedRecords>,
}

impl Probe {
    fn unreachable(reachable: PlannedCondition) -> Self {
        Self {
            export: None,
            reachable,
            identity: None,
            writable: None,
            full: None,
            statistics: None,
            snapshot_directory: None,
            snapshots_creatable: None,
            archives: None,
            unsigned_records: None,
        }
    }

    fn reached(reached: Reached, identity: Result<Identity, Unconfirmed>) -> Self {
        Self {
            export: Some(reached.export),
            statistics: Some(reached.statistics),
            identity: Some(identity),
            ..Self::unreachable(PlannedCondition::holds(
                Reason::ServerAnswers,
                "the server responds and the export exists",
            ))
        }
    }

    fn is_fenced(&self) -> bool {
        let conditions = [Some(&self.reachable), self.unconfirmed(), self.writable.as_ref()];
        conditions
            .into_iter()
            .flatten()
            .any(|planned| planned.reason == Reason::Fenced)
    }

    /// Returns why the identity is not confirmed, if it was checked.
    pub fn unconfirmed(&self) -> Option<&PlannedCondition> {
        let unconfirmed = self.identity.as_ref()?.as_ref().err()?;
        Some(&unconfirmed.planned)
    }

    /// Returns the identity, if it was confirmed.
    pub fn confirmed(&self) -> Option<&Identity> {
        self.identity.as_ref()?.as_ref().ok()
    }
}

/// Probes a backend. If another client took its lease, the connection is closed.
pub async fn probe(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Probe {
    let mut probe = run_checks(ctx, object, backend).await;
    let accepted = backend.requests.due(object, BackendRequest::AcceptIdentity);
    probe.identity = probe
        .identity
        .map(|identity| identity.map_err(|unconfirmed| explain_acceptance(unconfirmed, object, accepted)));
    // While the Lease is not renewed, this process itself refuses to write.
    if probe.is_fenced() && ctx.write_fence.may_write() {
        // The next probe reconnects if the API server confirms the leadership. Nothing is written until then.
        tracing::error!(
            backend = backend.name,
            "fenced off: another operator took the NFS lease of this backend"
        );
        backend.set_connection(None);
    }
    probe
}

async fn run_checks(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Probe {
    if must_observe(ctx, object, backend)
        && let Err(probe) = observe(ctx, object, backend).await
    {
        return probe;
    }
    let probe = check_identity(ctx, object, backend).await;
    let (Some(export), Some(confirmed)) = (probe.export.clone(), probe.confirmed().cloned()) else {
        return probe;
    };
    let export_id = confirmed.id.clone();
    backend.set_confirmed(confirmed);
    export.limit_copies(copy_bandwidth(object));
    export.set_orders_limits(object.spec.quota.is_some() || backend.quota.is_withdrawing());
    let written = check_writable(ctx, backend, &export, &export_id).await;
    let snapshot_directory = match backend.snapshots.is_due() {
        true => export.snapshot_directory().await.ok(),
        false => None,
    };
    if snapshot_directory.is_some() {
        backend.snapshots.set_passed();
    }
    Probe {
        full: written.as_ref().ok().and_then(|written| written.full).map(full),
        writable: Some(match written {
            Ok(written) => writable(object, &written),
            Err(error) => failed(&error),
        }),
        // After a failure, the next probe looks again.
        snapshot_directory,
        snapshots_creatable: check_snapshots(object, &export).await,
        // Before the records were read, no archive is known.
        archives: backend.is_recovered_on(&export).then(|| export.count_archives() as u64),
        unsigned_records: backend
            .is_recovered_on(&export)
            .then(|| unsigned_records(ctx, backend, &export, &export_id)),
        ..probe
    }
}

/// Checks that the server creates snapshots, if it is to do so.
async fn check_snapshots(object: &NfsBackend, export: &ExportStore) -> Option<PlannedCondition> {
    object.spec.snapshots.as_ref().filter(|settings| settings.create)?;
    Some(match export.maintain_snapshots().await {
        Ok(0) => PlannedCondition::holds(Reason::SnapshotCreated, "the server creates snapshots for backups"),
        Ok(left) => PlannedCondition::holds(
            Reason::SnapshotCreated,
            format!("the server creates snapshots for backups; {left} are removed once it no longer uses them"),
        ),
        Err(error) => failed(&error),
    })
}

/// Returns the maximum content of copies in a second.
fn copy_bandwidth(object: &NfsBackend) -> Option<u64> {
    let limit = object.spec.copies.as_ref()?.max_bytes_per_second.as_deref()?;
    quantity::bytes(limit).map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Reports whether the export is checked by an observer first: before each new connection as the writer, whose NFS client
/// owner ends the session of any process of this cluster or of a clone, and after the last probe found an unexpected beacon.
fn must_observe(ctx: &Context, object: &NfsBackend, backend: &Backend) -> bool {
    let beacon = [Reason::BeaconMismatch, Reason::BeaconObserved].contains(&backend.last_probe().ready.reason);
    let address = Address::of(ctx, object, backend, Role::Writer);
    beacon || address.is_ok_and(|address| address.current(backend).is_none())
}

/// Checks identity and beacon of the export as an observer, and changes nothing. Fails with the result of the probe if they
/// are not the expected ones.
async fn observe(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Result<(), Probe> {
    let reached = reach(ctx, object, backend, Role::Observer).await?;
    let checked = match expected(ctx, object, backend, &reached.export).await {
        Ok(expected) => {
            let checked = reached.export.check_identity(&expected).await;
            checked.map_err(|error| unconfirmed(&error))
        }
        Err(unconfirmed) => Err(unconfirmed),
    };
    checked.map_err(|unconfirmed| Probe::reached(reached, Err(unconfirmed)))
}

/// Connects to the export, and confirms its identity.
async fn check_identity(ctx: &Context, object: &NfsBackend, backend: &Backend) -> Probe {
    let reached = match reach(ctx, object, backend, Role::Writer).await {
        Ok(reached) => reached,
        Err(probe) => return probe,
    };
    if !reached.export.nfs().negotiated().protocol.supports_fencing() {
        // Calls of the previous process may still be in flight, and the identity is the first change. Later probes do not wait.
        tokio::time::sleep_until(ctx.settings.previous_process_deadline()).await;
    }
    let identity = match expected(ctx, object, backend, &reached.export).await {
        Ok(expected) => confirm(ctx, object, backend, &reached.export, expected).await,
        Err(unconfirmed) => Err(unconfirmed),
    };
    Probe::reached(reached, identity)
}

/// A server that responds, and an export that exists.
struct Reached {
    export: Arc<ExportStore>,
    statistics: FsStat,
}

async fn reach(ctx: &Context, object: &NfsBackend, backend: &Backend, role: Role) -> Result<Reached, Probe> {
    let connected = connection(ctx, object, backend, role).await;
    let export = connected.map_err(Probe::unreachable)?;
    match export.nfs().statistics().await {
        Ok(statistics) => Ok(Reached { export, statistics }),
        Err(error) => Err(Probe::unreachable(failed(&unusable(object, error)))),
    }
}

/// Returns the identity and the beacons that the export must have.
async fn expected(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    export: &ExportStore,
) -> Result<ExpectedIdentity, Unconfirmed> {
    let has_data =
        || ctx.capacity.totals(&backend.name).volumes > 0 || !archives::archives_of(ctx, &backend.name).is_empty();
    let cluster = OwnCluster {
        id: &ctx.cluster_id,
        has_data: &has_data,
    };
    let accepted = backend.requests.due(object, BackendRequest::AcceptIdentity);
    let confirmed = backend.confirmed();
    let confirmed = confirmed.as_ref();
    // The caches are synchronized: they have every object that a previous process created.
    let cached = || RecordedIds::cached(ctx, &backend.name);
    let mut expected = expected_identity(object, accepted, confirmed, cached, cluster)?;
    if expected.may_create && !expected.accepted {
        let uncached = uncached_ids(ctx, backend).await?;
        expected = expected_identity(object, accepted, confirmed, || uncached, cluster)?;
    }
    if expected.may_create {
        may_create(ctx, object).await?;
    }
    // Then the beacon is compared with what this process verified or wrote last, not with statuses.
    let beacons = match &expected.export_id {
        Some(id) if export.has_verified_beacon(id).await => Vec::new(),
        id => known_beacons(ctx, id.as_deref()),
    };
    Ok(ExpectedIdentity {
        beacons: Some(beacons),
        ..expected
    })
}

/// Returns the identities that the API server has although the caches do not: the watches may lag behind a tool that restores
/// backends, volumes and archives together.
async fn uncached_ids(ctx: &Context, backend: &Backend) -> Result<RecordedIds, PlannedCondition> {
    if backend.has_no_records.load(Ordering::Relaxed) {
        return Ok(RecordedIds::default());
    }
    let read = ctx.live_recorded_ids.read(&ctx.clients, &backend.name).await;
    let recorded = read.map_err(|error| {
        let message = format!(
            "the API server does not list all volumes and archives, one of which may know the identity of the export: none is \
             created until it does: {}",
            api_error_text(&error)
        );
        PlannedCondition::fails(Reason::IdentityNotConfirmed, message)
    })?;
    backend.has_no_records.store(recorded.is_empty(), Ordering::Relaxed);
    Ok(recorded)
}

/// Confirms the identity of the export and its beacon, renews the beacon, and checks that the volumes and archives of the
/// backend are recorded for this cluster.
async fn confirm(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    export: &ExportStore,
    expected: ExpectedIdentity,
) -> Result<Identity, Unconfirmed> {
    let accepted = expected.accepted;
    let confirmed = export
        .confirm_identity(expected)
        .await
        .map_err(|error| unconfirmed(&error))?;
    // The status of a backend that is being deleted goes, and the others on the export have to recognize the beacon
    // after a restart.
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    let handed_over = is_deleting
        .then(|| ctx.backends.next_beacon_beside(&backend.name, &confirmed.id))
        .flatten();
    let next = handed_over.or_else(|| backend.next_beacon());
    match export.renew_beacon(next.as_ref(), probe_interval(object)).await {
        Err(error @ ExportError::BeaconMismatch { .. }) => return Err(unconfirmed(&error)),
        // For example, on a full export. The next probe repeats it.
        Err(error) => tracing::debug!(backend = backend.name, "{error}"),
        Ok(()) => {}
    }
    // The status has the ID of the cluster unless an earlier release wrote it, or it was lost with the object.
    let known = object
        .status
        .as_ref()
        .is_some_and(|status| status.export.cluster_id.is_some());
    if known || accepted {
        return Ok(confirmed);
    }
    let mut recorded = ctx.capacity.volumes_after(&backend.name, "", RECORDS_CHECKED);
    let archives = archives::archives_of(ctx, &backend.name)
        .into_iter()
        .take(RECORDS_CHECKED);
    recorded.extend(archives.map(|archive| archive.name));
    match export.cluster_with_records_of(&recorded).await {
        Ok(None) => Ok(confirmed),
        Ok(Some(other)) => Err(secret_mismatch(&other, &ctx.cluster_id, &confirmed.id)),
        Err(error) => Err(unconfirmed(&error)),
    }
}

/// Returns the beacons in the statuses of the backends on an export, or of all backends if it is not known which one is
/// expected: those on one export share the beacon in the folder of this cluster.
fn known_beacons(ctx: &Context, export_id: Option<&str>) -> Vec<KnownBeacon> {
    let backends = ctx.stores.backends.state();
    let is_there = |object: &&Arc<NfsBackend>| {
        let status = object.status.as_ref();
        export_id.is_none() || status.and_then(|status| status.export.id.as_deref()) == export_id
    };
    backends
        .iter()
        .filter(is_there)
        .filter_map(|object| beacons_in_status(ctx, object))
        .collect()
}

/// Returns the beacons in the status of a backend. A status of another Secret has that of another folder.
fn beacons_in_status(ctx: &Context, object: &NfsBackend) -> Option<KnownBeacon> {
    let status = object.status.as_ref()?;
    let own = status.export.cluster_id.as_deref() == Some(&ctx.cluster_id);
    let status = own.then_some(status)?;
    let parsed = |beacon: &Option<String>| beacon.as_ref().and_then(|beacon| beacon.parse().ok());
    let known = KnownBeacon {
        export_id: status.export.id.clone()?,
        current: parsed(&status.export.beacon),
        next: parsed(&status.export.next_beacon),
    };
    (known.current.is_some() || known.next.is_some()).then_some(known)
}

/// Returns the beacons that the statuses of the other backends on an export have for certain, one entry for each
/// backend that is not being deleted.
pub(super) fn remaining_beacons(ctx: &Context, backend: &Backend, export_id: &str) -> Vec<KnownBeacon> {
    let objects = ctx.stores.backends.state();
    let others = objects.iter().filter(|other| {
        let is_other = other.name_any() != backend.name;
        is_other && other.metadata.deletion_timestamp.is_none()
    });
    let known = others.filter_map(|other| {
        let running = ctx.backends.get(&other.name_any());
        let announced =
            running.and_then(|found| Some((found.confirmed()?.id, found.announcement()?, found.next_beacon())));
        let Some((export_id, announced, written)) = announced else {
            // What an earlier process wrote. This one has not written anything else.
            return beacons_in_status(ctx, other);
        };
        // While the status is being written, it has either these beacons or the former ones.
        let certain = Some(announced).filter(|announced| written.as_ref() == Some(&announced.next));
        Some(KnownBeacon {
            export_id,
            current: certain.as_ref().and_then(|announced| announced.current.clone()),
            next: certain.map(|announced| announced.next),
        })
    });
    known.filter(|known| known.export_id == export_id).collect()
}

/// Checks that the export can be written, and recovers what the previous process left, once for each connection.
async fn check_writable(
    ctx: &Context,
    backend: &Backend,
    export: &Arc<ExportStore>,
    export_id: &str,
) -> Result<WriteProbe, ExportError> {
    let written = export.probe_write().await?;
    if backend.is_recovered_on(export) && !backend.has_unread_lost_volumes() {
        return Ok(written);
    }
    let lost = backend.lost_volumes();
    let has_volume = |name: &str| has_volume(ctx, &backend.name, name);
    let found = export.recover(&has_volume).await?;
    export.recover_archives(&released_volumes(ctx, &backend.name)).await?;
    // A directory that was in use in an earlier cluster is not unfinished: its claim may still be recovered, so that even an
    // empty directory and its record have to stay.
    let unfinished = found
        .open
        .iter()
        .filter(|record| may_be_unfinished(record, &ctx.cluster_uid()));
    for record in unfinished {
        backend.add_pending(&record.volume, &record.claim);
        if record.restores {
            backend.mark_as_move(&record.volume);
        }
    }
    for record in &found.stuck {
        tracing::warn!(backend = backend.name, volume = record.volume, directory = %record.directory, "a reclaim was interrupted and its volume is gone: the directory stays until an administrator decides");
    }
    let logged = ctx.backends.damaged_records_changed(export_id, &found.damaged);
    for (name, fault) in found.damaged.iter().filter(|_| logged) {
        tracing::warn!(
            backend = backend.name,
            name,
            "a damaged record was left unchanged: {fault}"
        );
    }
    if logged && found.further_damaged > 0 {
        tracing::warn!(
            backend = backend.name,
            "{} further damaged records were left unchanged",
            found.further_damaged
        );
    }
    ctx.recovery_holds
        .set_lost(&backend.name, lost_volumes(ctx, backend, found));
    backend.set_recovered(export);
    if backend.has_unread_lost_volumes() {
        backend.set_lost_volumes_read(lost);
        ctx.waiting_claims.wake_all();
    }
    backend.purge_requested.notify_one();
    Ok(written)
}

/// Returns the records that this cluster did not sign, without those that another backend on the export reports.
fn unsigned_records(ctx: &Context, backend: &Backend, export: &ExportStore, export_id: &str) -> UnsignedRecords {
    let mut unsigned_records = export.unsigned_records();
    let is_ours = |record: &UnsignedRecord| ctx.reports_record_of(backend, export_id, Some(&record.backend));
    unsigned_records.own.retain(is_ours);
    unsigned_records
}

/// Returns the volumes in use that have a signed record and no object. A record of another backend belongs to that one, if
/// it exists.
fn lost_volumes(
    ctx: &Context,
    backend: &Backend,
    found: RecoveryReport,
) -> impl Iterator<Item = (ClaimName, LostVolume)> {
    let backend: Arc<str> = backend.name.as_str().into();
    let exists = |name: &str| ctx.stores.backends.get(&ObjectRef::new(name)).is_some();
    let lone = found
        .elsewhere
        .into_iter()
        .filter(move |record| !exists(&record.backend));
    let lost = found.open.into_iter().filter(|record| record.is_lost).chain(lone);
    lost.map(move |record| {
        let lost = LostVolume {
            volume: record.volume,
            backend: Arc::clone(&backend),
            claim_uid: record.claim.uid,
        };
        ((record.claim.namespace, record.claim.name), lost)
    })
}

/// Returns true if a directory without a volume may be one that this cluster began and never created a volume for. A
/// complete directory that was recorded by another or an unknown cluster was in use. So may be an adopted one, whose record
/// the removal of an unfinished directory would remove although the directory is not empty.
fn may_be_unfinished(record: &OpenRecord, cluster_uid: &str) -> bool {
    let made_here = record.cluster.as_deref() == Some(cluster_uid);
    record.is_creating || (made_here && !record.is_adopted)
}

/// Returns the condition CapacityAvailable of an export that refused a new file.
fn full(kind: ErrorKind) -> PlannedCondition {
    let message = match kind {
        ErrorKind::QuotaExceeded => {
            "the quota of the operator's user is exceeded: raise it, or delete data; deletions continue"
        }
        ErrorKind::NoInodes => "the export has no inodes left: remove files, or grow it; deletions continue",
        _ => "the export has no space left: free some, or grow it; deletions continue",
    };
    PlannedCondition::fails(Reason::from(kind), message)
}

/// Returns the condition Writable. Setting the owner that the backend requests needs root.
fn writable(object: &NfsBackend, written: &WriteProbe) -> PlannedCondition {
    let directory = &object.spec.directory;
    let effective = |number: Option<u32>| number.map(i64::from);
    let other = |requested: Option<i64>, actual: Option<u32>| requested.is_some() && requested != effective(actual);
    let gives_away = other(directory.uid, written.effective_uid)
        || other(directory.gid, written.effective_gid)
        || directory.gid_range.is_some();
    if !(written.squashed && gives_away) {
        return PlannedCondition::holds(Reason::WritesSucceed, "files can be created and removed");
    }
    let text = |number: Option<u32>| number.map_or_else(|| "another user".to_owned(), |number| number.to_string());
    PlannedCondition::fails(
        Reason::RootSquashed,
        format!(
            "spec.directory asks for an owner that only root can set, and the server maps the operator to {}:{}: \
             export with no_root_squash for the operator's address, remove uid, gid and gidRange from spec.directory, or, \
             for groups only, set spec.nfs.auth.sys to the user that owns the export",
            text(written.effective_uid),
            text(written.effective_gid)
        ),
    )
}

/// Reports whether a volume object of this name may be on this backend.
fn has_volume(ctx: &Context, backend: &str, name: &str) -> bool {
    match ctx.capacity.backend_of(name) {
        Some(on) => on == backend,
        // Another provisioner created it, or it does not name its backend: it may be on this one.
        None => ctx.path_reservations.knows(&Holder::Volume(name.to_owned())),
    }
}

/// Returns the volumes of a backend that no claim has: those whose claim was deleted, also if an administrator removed it
/// from `spec.claimRef` since.
fn released_volumes(ctx: &Context, backend: &str) -> Vec<String> {
    let volumes = ctx.stores.volumes.state();
    let released = volumes
        .iter()
        .filter(|volume| is_released(volume) || is_available(volume));
    released
        .map(|volume| volume.name_any())
        .filter(|name| ctx.capacity.backend_of(name).is_some_and(|on| on == backend))
        .collect()
}

/// How this process connects to an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// With the NFS client owner of the cluster, which ends the session of any other process that has it (data-safety rule
    /// 11).
    Writer,
    /// With an owner of its own, which disturbs nobody.
    Observer,
}

/// Address of an export, with everything else that a connection depends on.
struct Address {
    target: Target,
    roots: Vec<ReservedPath>,
}

impl Address {
    fn of(ctx: &Context, object: &NfsBackend, backend: &Backend, role: Role) -> Result<Self, PlannedCondition> {
        let owner = LeaseOwner {
            cluster_id: &ctx.cluster_id,
            backend_uid: &backend.uid,
            verifier: ctx.settings.verifier,
        };
        let observed = ObservedState {
            version: object.status.as_ref().and_then(|status| status.nfs_version.as_deref()),
            has_volumes: ctx.capacity.totals(&backend.name).volumes > 0,
        };
        let mut target = target(&object.spec, &observed, &owner, ctx.settings.deadline)?;
        if role == Role::Observer {
            let suffix = format!("/observer-{:02x?}", ctx.settings.verifier);
            target.owner.owner.extend(suffix.into_bytes());
        }
        let roots = roots(&object.spec);
        Ok(Self { target, roots })
    }

    /// Returns the backend's connection, if it is to this address.
    fn current(&self, backend: &Backend) -> Option<Arc<ExportStore>> {
        let connection = backend.connection()?;
        let protocol = connection.store.nfs().negotiated().protocol;
        let same = is_compatible(&connection.target, protocol, &self.target) && connection.roots == self.roots;
        same.then_some(connection.store)
    }
}

/// Returns the connection to the backend's address: the existing one, or a new one if the spec or the role changed.
async fn connection(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    role: Role,
) -> Result<Arc<ExportStore>, PlannedCondition> {
    let address = Address::of(ctx, object, backend, role)?;
    if let Some(current) = address.current(backend) {
        return Ok(current);
    }
    let Address { target, roots } = address;
    let keeper = StoreConfig {
        cluster_id: ctx.cluster_id.clone(),
        records_key: ctx.records_key.clone(),
        backend: backend.name.clone(),
        backend_uid: backend.uid.clone(),
        credential: target.credential,
        roots: roots.clone(),
    };
    if let Some(previous) = backend.set_connection(None) {
        previous.store.nfs().clone().close().await;
    }
    may_connect(ctx, backend).await?;
    let observer = ctx.metrics.nfs_calls.observer(&backend.name);
    let export = nfs_client::Client::connect_observed(Arc::clone(&ctx.transport), observer, target.clone())
        .await
        .map_err(|error| failed(&unusable(object, error)))?;
    let guard = ctx.write_fence.clone();
    let export = ExportStore::new(export, keeper, Arc::clone(&ctx.path_reservations))
        .with_leadership_check(move || guard.may_write())
        .with_server_comparison(Arc::clone(&ctx.server_addresses) as _)
        .with_beacons(Arc::clone(&ctx.beacons))
        .with_clock(ctx.clock.clone());
    let export = Arc::new(export);
    backend.set_connection(Some(BackendConnection {
        target,
        roots,
        store: Arc::clone(&export),
        recovered: false,
    }));
    Ok(export)
}

/// Checks that this process may take the backend's NFS lease. After it was fenced, the API server has to confirm the
/// leadership first: two processes that reconnect automatically would evict each other forever.
async fn may_connect(ctx: &Context, backend: &Backend) -> Result<(), PlannedCondition> {
    if backend.last_probe().ready.reason != Reason::Fenced || ctx.leadership.confirm(ctx.settings.deadline).await {
        return Ok(());
    }
    Err(PlannedCondition::fails(
        Reason::Fenced,
        "another operator took the NFS lease of this backend, and the API server does not confirm that this one is \
         still the leader: nothing is changed until it does",
    ))
}

fn unusable(object: &NfsBackend, source: nfs_client::NfsError) -> ExportError {
    let doing = format!("cannot use {}:{}", object.spec.server, object.spec.path);
    ExportError::Nfs {
        doing,
        source: Box::new(source),
        hints: ErrorHints::default(),
    }
}

/// Checks that the export is not in the directory of a volume, which belongs to its user: the operator's own folder is
/// not created there.
async fn may_create(ctx: &Context, object: &NfsBackend) -> Result<(), PlannedCondition> {
    let (roots, servers) = (roots(&object.spec), &*ctx.server_addresses);
    let Some((holder, same_server)) = ctx.path_reservations.enclosing_holder(&roots, servers).await else {
        return Ok(());
    };
    let why = same_server.map_or_else(String::new, |why| format!(" ({why})"));
    Err(PlannedCondition::fails(
        Reason::DirectoryOverlaps,
        format!(
            "{}:{} is or lies inside {holder}{why}: choose another path",
            object.spec.server, object.spec.path
        ),
    ))
}

fn failed(error: &ExportError) -> PlannedCondition {
    PlannedCondition::fails(Reason::from(error.kind()), error.to_string())
}

fn unconfirmed(error: &ExportError) -> Unconfirmed {
    Unconfirmed {
        planned: failed(error),
        acceptable: error.acceptable_identity().map(str::to_owned),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use export_store::ClaimRef;

    #[test]
    fn a_record_that_another_cluster_may_use_is_not_unfinished() {
        for (is_creating, cluster, is_adopted, unfinished) in [
            (false, Some("home"), false, true),
            (false, Some("home"), true, false),
            (false, Some("lost"), false, false),
            (false, None, false, false),
            (true, Some("home"), false, true),
            (true, Some("home"), true, true),
            (true, Some("lost"), false, true),
            (true, None, false, true),
        ] {
            let record = OpenRecord {
                volume: "pvc-1".into(),
                backend: "main".into(),
                claim: ClaimRef::default(),
                cluster: cluster.map(str::to_owned),
                is_creating,
                is_adopted,
                restores: false,
                is_lost: false,
            };
            assert_eq!(may_be_unfinished(&record, "home"), unfinished, "{record:?}");
        }
    }
}
