//! The conditions and status of a backend after a probe. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::probe::Probe;
use super::records;
use super::target::only_cluster_resolves;
use crate::api::backend::{
    CapacityStatus, ExportStatus, NfsBackend, NfsBackendStatus, QuotaSettings, SourcePort, TrashStatus,
};
use crate::api::conditions::{BackendCondition, PlannedCondition, Reason};
use crate::api::requests::HandledRequest;
use crate::api::{OrphansStatus, RecoveryRequest, UsageStatus};
use crate::background::orphan_scan;
use crate::decide::quantity;
use crate::recovery;
use crate::state::backends::Announcement;
use crate::state::capacity::Totals;
use crate::state::recovery::RecoveryProgress;
use export_store::text::counted;
use export_store::{Identity, PurgeReport};
use nfs_client::FsStat;

/// Minimum interval between writes of numbers that change constantly, in seconds.
const MIN_WRITE_INTERVAL: i64 = 60;

/// Input for the status of a backend.
pub(super) struct Observed<'a> {
    /// The backend's object at the probe.
    pub object: &'a NfsBackend,
    /// The result of the probe.
    pub probe: &'a Probe,
    /// The identity that this process confirmed last, by this probe or an earlier one.
    pub identity: Option<Identity>,
    /// The name of this cluster on exports.
    pub cluster_id: &'a str,
    /// The beacons that the status has, and those that it gets with its next write.
    pub beacon: BeaconPlan,
    /// The sum of volumes and reservations.
    pub totals: Totals,
    /// The result of the last purge.
    pub purged: &'a PurgeReport,
    /// The result of the last scan for orphans.
    pub orphans: Option<&'a OrphansStatus>,
    /// The progress of the recovery of its volumes.
    pub recovery: RecoveryProgress,
    /// Usage of its volumes, if it is counted.
    pub usage: Option<UsageStatus>,
    /// The condition QuotasEnforced, if sizes are to be enforced.
    pub quota: Option<PlannedCondition>,
    /// Reason why the deletion of the backend is blocked.
    pub blocker: Option<PlannedCondition>,
    /// The one-shot requests that were handled.
    pub handled_requests: Vec<HandledRequest>,
    /// The current time.
    pub now: Timestamp,
}

/// The beacons for a status, if the identity is confirmed: a write for another reason contains a new one.
#[derive(Debug, Clone, Default)]
pub(super) struct BeaconPlan {
    /// Those that this process announced last.
    pub announced: Option<Announcement>,
    /// Those to announce with the next write.
    pub fresh: Option<Announcement>,
}

/// Returns the condition Ready: the first obstacle that the probe found, if any.
pub(super) fn ready(observed: &Observed<'_>) -> PlannedCondition {
    let probe = observed.probe;
    let capacity = capacity_of(observed);
    let stages = [
        observed.blocker.clone(),
        Some(probe.reachable.clone()),
        probe.unconfirmed().cloned(),
        probe.writable.clone(),
        capacity,
        required_quota(observed),
    ];
    if let Some(obstacle) = stages
        .into_iter()
        .flatten()
        .find(|planned| planned.status != Some(true))
    {
        return obstacle;
    }
    if observed.object.spec.suspend {
        return PlannedCondition::fails(
            Reason::Suspended,
            "spec.suspend is true: no new volumes here; reclaim continues",
        );
    }
    PlannedCondition::holds(
        Reason::AllChecksPassed,
        std::iter::once("claims can be provisioned".to_owned())
            .chain(warnings(observed))
            .collect::<Vec<_>>()
            .join("; warning: "),
    )
}

/// Returns the condition QuotasEnforced, if no volume may be provisioned without it.
fn required_quota(observed: &Observed<'_>) -> Option<PlannedCondition> {
    let required = observed
        .object
        .spec
        .quota
        .as_ref()
        .is_some_and(QuotaSettings::is_required);
    observed.quota.clone().filter(|_| required)
}

/// Returns warnings for the administrator that do not prevent the provisioning of claims.
fn warnings(observed: &Observed<'_>) -> Vec<String> {
    let spec = &observed.object.spec;
    let mut warnings = Vec::new();
    if only_cluster_resolves(&spec.server) {
        warnings.push(format!(
            "{}: nodes may not resolve {}, which only the cluster's DNS knows",
            Reason::NodesMayNotResolve,
            spec.server
        ));
    }
    let unreserved = observed
        .probe
        .export
        .as_ref()
        .is_some_and(|export| !export.nfs().negotiated().reserved_port);
    if unreserved && spec.nfs.source_port == SourcePort::Reserved {
        warnings
            .push("no source port below 1024 was available; servers that require one refuse the connection".to_owned());
    }
    warnings.extend(
        observed
            .probe
            .confirmed()
            .into_iter()
            .flat_map(|identity| identity.warnings.clone()),
    );
    warnings
}

/// Returns the condition CapacityAvailable, if the export is the expected one: a file that it refused shows more than
/// its figures.
fn capacity_of(observed: &Observed<'_>) -> Option<PlannedCondition> {
    observed.probe.confirmed()?;
    let full = observed.probe.full.clone();
    full.or_else(|| Some(capacity(observed.object, &observed.probe.statistics?)))
}

/// Returns the condition CapacityAvailable by the figures of the export.
fn capacity(object: &NfsBackend, statistics: &FsStat) -> PlannedCondition {
    if statistics.available == 0 {
        return PlannedCondition::fails(Reason::NoSpace, "the export has no space left: free some, or grow it");
    }
    if statistics.inodes > 0 && statistics.inodes_free == 0 {
        return PlannedCondition::fails(
            Reason::NoInodes,
            "the export has no inodes left: remove files, or grow it",
        );
    }
    let reserve = object
        .spec
        .capacity
        .as_ref()
        .and_then(|limits| quantity::bytes(limits.reserve.as_deref()?));
    if reserve.is_some_and(|reserve| u128::from(statistics.available) < reserve) {
        return PlannedCondition::fails(
            Reason::CapacityExceeded,
            "the free space is below spec.capacity.reserve: free some, or lower it",
        );
    }
    PlannedCondition::holds(Reason::SpaceAvailable, "the export has space")
}

/// Returns the status to write; the previous one if only constantly changing numbers differ.
pub(super) fn status(observed: &Observed<'_>, ready: &PlannedCondition) -> NfsBackendStatus {
    let previous = observed.object.status.clone().unwrap_or_default();
    let probe = observed.probe;
    let generation = observed.object.metadata.generation;
    let confirmed = probe.confirmed();
    let unknown = || PlannedCondition::unknown(Reason::NotProbed, "not checked: an earlier check failed");
    let identity = match &probe.identity {
        Some(Ok(_)) => PlannedCondition::holds(Reason::IdentityVerified, "the export has the expected identity"),
        Some(Err(unconfirmed)) => unconfirmed.planned.clone(),
        None => unknown(),
    };
    let planned_conditions = [
        (BackendCondition::Ready, ready.clone()),
        (BackendCondition::Reachable, probe.reachable.clone()),
        (BackendCondition::IdentityConfirmed, identity),
        (
            BackendCondition::Writable,
            probe.writable.clone().unwrap_or_else(unknown),
        ),
        (
            BackendCondition::CapacityAvailable,
            capacity_of(observed).unwrap_or_else(unknown),
        ),
        (
            BackendCondition::TrashPurgeable,
            confirmed.map_or_else(unknown, |_| trash_condition(observed.purged)),
        ),
        (
            BackendCondition::Consistent,
            confirmed.map_or_else(unknown, |_| orphan_scan::condition(observed.orphans)),
        ),
        (
            BackendCondition::RecordsTrusted,
            probe.unsigned_records.as_ref().map_or_else(unknown, records::condition),
        ),
    ];
    let readopted = recovery::condition(
        RecoveryRequest::of(observed.object).as_ref(),
        &observed.recovery,
        &previous.conditions,
    );
    let creates = observed
        .object
        .spec
        .snapshots
        .as_ref()
        .is_some_and(|settings| settings.create);
    let creatable = creates.then(|| probe.snapshots_creatable.clone().unwrap_or_else(unknown));
    let planned_conditions = planned_conditions
        .into_iter()
        .chain([(BackendCondition::Readopted, readopted)])
        .chain(
            observed
                .quota
                .clone()
                .map(|quota| (BackendCondition::QuotasEnforced, quota)),
        )
        .chain(creatable.map(|creatable| (BackendCondition::SnapshotsCreatable, creatable)));
    let conditions = planned_conditions.map(|(type_, planned)| {
        planned.to_condition(&type_.to_string(), generation, &previous.conditions, Time(observed.now))
    });
    let negotiated = probe.export.as_ref().map(|export| export.nfs().negotiated());
    let planned = NfsBackendStatus {
        observed_generation: generation,
        conditions: conditions.collect(),
        export: export_status(observed, previous.export.clone()),
        nfs_version: negotiated
            .map(|negotiated| negotiated.protocol.to_string())
            .or(previous.nfs_version.clone()),
        snapshot_directory: match probe.snapshot_directory {
            Some(directory) => directory.map(str::to_owned),
            None => previous.snapshot_directory.clone(),
        },
        capacity: Some(figures(confirmed.and(probe.statistics), observed.totals)),
        volumes: Some(i64::try_from(observed.totals.volumes).unwrap_or(i64::MAX)),
        archives: probe
            .archives
            .and_then(|archives| i64::try_from(archives).ok())
            .or(previous.archives),
        trash: Some(trash(observed.purged)),
        orphans: observed.orphans.cloned(),
        usage: observed.usage.clone(),
        handled_requests: observed.handled_requests.clone(),
        last_probe_time: Some(Time(observed.now)),
    };
    let BeaconPlan { announced, fresh } = &observed.beacon;
    // The first announcement of a process is due at once.
    let first = announced.is_none() && fresh.is_some();
    let write = first || changed(&previous, &planned) || due(&previous, observed.now);
    let status = if write { planned } else { previous };
    let announcement = fresh.as_ref().filter(|_| write).or(announced.as_ref());
    // The cache may have an older status than the last one. The beacons must never become older.
    match announcement {
        Some(announcement) => NfsBackendStatus {
            export: ExportStatus {
                beacon: announcement.current.as_ref().map(ToString::to_string),
                next_beacon: Some(announcement.next.to_string()),
                ..status.export
            },
            ..status
        },
        None => status,
    }
}

/// Returns what identifies the export; the previous values until this process has confirmed it. The cache may have an
/// older status than the last one: without the identity, the next process would create a new one on an empty export.
fn export_status(observed: &Observed<'_>, previous: ExportStatus) -> ExportStatus {
    let identity = observed.probe.identity.as_ref();
    let unconfirmed = identity.and_then(|identity| identity.as_ref().err());
    let previous = ExportStatus {
        acceptable_id: unconfirmed.and_then(|unconfirmed| unconfirmed.acceptable.clone()),
        ..previous
    };
    let Some(identity) = &observed.identity else {
        return previous;
    };
    ExportStatus {
        id: Some(identity.id.clone()),
        root_file_id: Some(identity.root_file_id.to_string()),
        identity_file_id: Some(identity.own_file_ids.identity.to_string()),
        cluster_folder_file_id: Some(identity.own_file_ids.cluster.to_string()),
        cluster_id: Some(observed.cluster_id.to_owned()),
        ..previous
    }
}

fn figures(statistics: Option<FsStat>, totals: Totals) -> CapacityStatus {
    let counted = statistics.filter(|statistics| statistics.inodes > 0);
    CapacityStatus {
        total: statistics.map(|statistics| quantity::exact(statistics.total.into())),
        available: statistics.map(|statistics| quantity::exact(statistics.available.into())),
        provisioned: Some(quantity::exact(totals.bytes)),
        inodes: counted.map(|statistics| quantity::count(statistics.inodes)),
        inodes_free: counted.map(|statistics| quantity::count(statistics.inodes_free)),
    }
}

fn trash(purged: &PurgeReport) -> TrashStatus {
    TrashStatus {
        entries: i64::try_from(purged.left.entries).unwrap_or(i64::MAX),
        // The API has whole seconds; a fraction would be a change at every probe.
        oldest_time: purged
            .left
            .oldest
            .and_then(|oldest| Timestamp::from_second(oldest.as_second()).ok())
            .map(Time),
        last_error: match (&purged.error, purged.failures.first()) {
            (Some(error), _) => Some(error.to_string()),
            (None, failure) => failure.map(|failure| format!("{}: {}", failure.path, failure.reason)),
        },
    }
}

fn trash_condition(purged: &PurgeReport) -> PlannedCondition {
    if let Some(error) = &purged.error {
        let message = format!("the last purge stopped, and the next one continues it: {error}");
        return PlannedCondition::fails(Reason::TrashStuck, message);
    }
    match (purged.left.entries, purged.failures.first()) {
        (0, _) => PlannedCondition::holds(Reason::TrashEmpty, "the trash is empty"),
        (_, Some(failure)) => PlannedCondition::fails(
            Reason::TrashStuck,
            format!(
                "{} could not be removed, first {}: {}",
                counted(purged.failed, "name"),
                failure.path,
                failure.reason
            ),
        ),
        (_, None) => PlannedCondition::holds(Reason::Purging, "deleted directories are being purged"),
    }
}

/// Reports whether anything changed except numbers that change constantly, and times.
fn changed(previous: &NfsBackendStatus, planned: &NfsBackendStatus) -> bool {
    let without_figures = |status: &NfsBackendStatus| NfsBackendStatus {
        capacity: None,
        last_probe_time: None,
        export: ExportStatus {
            beacon: None,
            next_beacon: None,
            ..status.export.clone()
        },
        // Compares only whether usage is counted, and when the last scan was completed.
        usage: status.usage.as_ref().map(|usage| UsageStatus {
            last_completion_time: usage.last_completion_time.clone(),
            ..UsageStatus::default()
        }),
        orphans: status.orphans.clone().map(|orphans| OrphansStatus {
            last_scan_time: None,
            ..orphans
        }),
        ..status.clone()
    };
    without_figures(previous) != without_figures(planned)
}

/// Returns true if the numbers in the status may be written again. The last time may be in the future: it is from the clock
/// of another machine, or from before this clock was corrected.
fn due(previous: &NfsBackendStatus, now: Timestamp) -> bool {
    let since = |last: &Time| (now.as_second() - last.0.as_second()).abs();
    previous
        .last_probe_time
        .as_ref()
        .is_none_or(|last| since(last) >= MIN_WRITE_INTERVAL)
}

#[cfg(test)]
mod tests;
