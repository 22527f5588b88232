//! The metrics behind `/metrics`: the names of the ProvisionController library, so that dashboards keep working, and
//! this operator's own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};

use crate::api::backend::QuotaEnforcement;
use crate::api::{OrphanKind, OrphansStatus, Reason};
use crate::runtime::api_requests::ApiRequests;
use crate::runtime::backend_slots::SlotMetrics;
use crate::runtime::backup_metrics::BackupMetrics;
use crate::runtime::nfs_calls::NfsCalls;
use nfs_client::FsStat;

/// Labels of the claim metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClaimLabels {
    /// StorageClass.
    pub class: String,
    /// Kind of the data source, or empty.
    pub source: &'static str,
}

/// Labels of the volume metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VolumeLabels {
    /// StorageClass.
    pub class: String,
}

/// Labels of the backend metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BackendLabels {
    /// Backend.
    pub backend: String,
}

/// Labels of the metric about the reason of a backend's condition Ready.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    backend: String,
    reason: String,
}

/// Labels of the metric about the reason of a backend's condition QuotasEnforced.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuotaLabels {
    backend: String,
    enforce: &'static str,
    reason: String,
}

/// Labels of the metrics about orphans.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OrphanLabels {
    backend: String,
    kind: &'static str,
}

/// The series, with the value 1, for the current reason of each backend: at most one for each.
struct CurrentSeries<L> {
    series: Family<L, Gauge>,
    /// By backend, so that the former series is known and need not be searched for.
    current: Mutex<BTreeMap<String, L>>,
}

impl<L: Clone + Eq + Hash> CurrentSeries<L> {
    fn of(series: Family<L, Gauge>) -> Self {
        Self {
            series,
            current: Mutex::default(),
        }
    }

    /// Replaces the series of a backend.
    fn set(&self, backend: &str, labels: Option<L>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.get(backend) == labels.as_ref() {
            return;
        }
        if let Some(former) = current.remove(backend) {
            self.series.remove(&former);
        }
        if let Some(labels) = labels {
            self.series.get_or_create(&labels).set(1);
            current.insert(backend.to_owned(), labels);
        }
    }
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics, and the registry that prints them.
pub struct Metrics {
    registry: Registry,
    leader: Gauge,
    provisioned: Family<ClaimLabels, Counter>,
    provision_failed: Family<ClaimLabels, Counter>,
    provision_seconds: Durations<ClaimLabels>,
    deleted: Family<VolumeLabels, Counter>,
    delete_failed: Family<VolumeLabels, Counter>,
    delete_seconds: Durations<VolumeLabels>,
    /// In the order of [`OF_BACKENDS`].
    backends: [Family<BackendLabels, Gauge<f64, AtomicU64>>; OF_BACKENDS.len()],
    reasons: CurrentSeries<ReasonLabels>,
    quota_reasons: CurrentSeries<QuotaLabels>,
    pending_limits: Family<BackendLabels, Gauge>,
    orphans: Family<OrphanLabels, Gauge>,
    purged: Family<BackendLabels, Counter>,
    archives_purged: Family<BackendLabels, Counter>,
    last_scan: Family<BackendLabels, Gauge>,
    scan_seconds: Family<BackendLabels, Gauge<f64, AtomicU64>>,
    waiting: Arc<OnceLock<CountWaiting>>,
    /// Requests to the API server.
    pub api_requests: ApiRequests,
    /// Calls to NFS servers.
    pub nfs_calls: NfsCalls,
    /// Limits on concurrent work.
    pub slots: SlotMetrics,
    /// Backups and their schedules.
    pub backups: BackupMetrics,
    /// The only classes that become labels, so that no object can add series. Names in claims and volumes can be of
    /// classes that do not exist.
    classes: RwLock<HashSet<String>>,
}

/// The metrics of each backend: the name after `nfs_operator_backend_`, and the help text.
const OF_BACKENDS: [(&str, &str); 15] = [
    ("ready", "1 if claims can be provisioned"),
    (
        "last_probe_timestamp_seconds",
        "Time of the last probe, as a Unix timestamp",
    ),
    ("probe_duration_seconds", "Duration of the last probe"),
    (
        "probe_interval_seconds",
        "Interval of the probes while the backend is Ready",
    ),
    ("size_bytes", "Size of the export's file system, as last known"),
    (
        "available_bytes",
        "Free space on the export's file system, as last known",
    ),
    (
        "provisioned_bytes",
        "Sum of the requests of volumes, of archives, and of claims that are being provisioned",
    ),
    (
        "inodes",
        "Inodes of the export's file system; 0 if the server does not count them",
    ),
    ("inodes_free", "Free inodes"),
    ("volumes", "Volumes on the backend"),
    ("archives", "Archives on the backend"),
    ("archive_bytes", "Sum of the requests of archives"),
    ("trash_entries", "Deleted directories that are not purged yet"),
    ("trash_stuck", "Names in the trash that could not be removed"),
    (
        "unsigned_records",
        "Records of this cluster that its key did not sign, from which nothing is created",
    ),
];

/// The values of a backend's metrics.
#[derive(Debug, Clone, Copy)]
pub struct BackendMetrics {
    /// Claims can be provisioned.
    pub ready: bool,
    /// Reason of the condition Ready.
    pub reason: Reason,
    /// Duration of the probe.
    pub probe_duration: Duration,
    /// Interval of the probes while the backend is Ready.
    pub probe_interval: Duration,
    /// Statistics of the export's file system. If unset, the previous values remain.
    pub statistics: Option<FsStat>,
    /// Number of volumes, reservations included.
    pub volumes: u64,
    /// Sum of the requests of volumes and reservations, in bytes.
    pub provisioned: u128,
    /// Number of archives. If unset, the previous value remains.
    pub archives: Option<u64>,
    /// Sum of the requests of archives, in bytes.
    pub archived: u128,
    /// Number of deleted directories that are not purged yet.
    pub trash: u64,
    /// Number of names that could not be purged.
    pub stuck: u64,
    /// Number of records of this cluster without its signature. If unset, the previous value remains.
    pub unsigned_records: Option<usize>,
    /// Enforced sizes. Unset without `spec.quota`.
    pub quota: Option<QuotaMetrics>,
}

/// The values of the metrics about enforced sizes on a backend.
#[derive(Debug, Clone, Copy)]
pub struct QuotaMetrics {
    /// Whether claims wait for their limits.
    pub enforce: QuotaEnforcement,
    /// Reason of the condition QuotasEnforced.
    pub reason: Reason,
    /// Number of limits that are not in force.
    pub pending: u64,
}

impl BackendMetrics {
    /// Returns the values in the order of [`OF_BACKENDS`].
    #[allow(clippy::cast_precision_loss, reason = "values of Prometheus are doubles")]
    fn values(&self, now: Timestamp) -> [Option<f64>; OF_BACKENDS.len()] {
        let figure = |pick: fn(&FsStat) -> u64| self.statistics.as_ref().map(|figures| pick(figures) as f64);
        [
            Some(f64::from(u8::from(self.ready))),
            Some(now.as_second() as f64),
            Some(self.probe_duration.as_secs_f64()),
            Some(self.probe_interval.as_secs_f64()),
            figure(|figures| figures.total),
            figure(|figures| figures.available),
            Some(self.provisioned as f64),
            figure(|figures| figures.inodes),
            figure(|figures| figures.inodes_free),
            Some(self.volumes as f64),
            self.archives.map(|archives| archives as f64),
            Some(self.archived as f64),
            Some(self.trash as f64),
            Some(self.stuck as f64),
            self.unsigned_records.map(|records| records as f64),
        ]
    }
}

type CountWaiting = Box<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>;

/// Counts the waiting claims when it is scraped. A running count would have to see every way in which a claim stops
/// waiting.
struct WaitingClaims(Arc<OnceLock<CountWaiting>>);

impl fmt::Debug for WaitingClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitingClaims")
    }
}

impl Collector for WaitingClaims {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let help = "Claims without a volume, by the reason in their condition";
        let mut family = encoder.encode_descriptor("nfs_operator_claims_waiting", help, None, MetricType::Gauge)?;
        for (reason, count) in self.0.get().map(|count| count()).unwrap_or_default() {
            let labels = [("reason", reason)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Returns a histogram with buckets that double from 10 ms (one claim, near server) to 5 min (a claim with retries).
pub(super) fn durations() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.01, 2.0, 16,
    ))
}

/// Registers a metric and returns it.
fn registered<M: Registered + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        Self::with_collectors(Vec::new())
    }
}

impl Metrics {
    /// Registers the operator's metrics, and collectors of values that live elsewhere.
    pub fn with_collectors(collectors: Vec<Box<dyn Collector>>) -> Self {
        let registry = &mut Registry::default();
        for collector in collectors {
            registry.register_collector(collector);
        }
        // The encoder appends `_total` to the names of counters.
        let claim = "controller_persistentvolumeclaim_provision";
        let volume = "controller_persistentvolume_delete";
        let version: Family<[(&str, &str); 1], Gauge> = Family::default();
        let of_version = registered(
            registry,
            "nfs_operator_build_info",
            "1, with the release as a label",
            version,
        );
        of_version
            .get_or_create(&[("version", env!("CARGO_PKG_VERSION"))])
            .set(1);
        let waiting = Arc::default();
        registry.register_collector(Box::new(WaitingClaims(Arc::clone(&waiting))));
        let api_requests = ApiRequests::default();
        api_requests.register(registry);
        let nfs_calls = NfsCalls::default();
        nfs_calls.register(registry);
        let slots = SlotMetrics::default();
        registry.register_collector(Box::new(slots.clone()));
        let backups = BackupMetrics::default();
        registry.register_collector(Box::new(backups.clone()));
        let seconds = "from the start of the attempt, in seconds";
        Self {
            leader: registered(
                registry,
                "nfs_operator_leader",
                "1 if this process is the leader, 0 if it is on standby",
                Gauge::default(),
            ),
            provisioned: registered(registry, claim, "Provisioned claims", Family::default()),
            provision_failed: registered(
                registry,
                &format!("{claim}_failed"),
                "Failed attempts to provision a claim; waiting for a backend or for the data to copy does not count",
                Family::default(),
            ),
            provision_seconds: registered(
                registry,
                &format!("{claim}_duration_seconds"),
                &format!("Time until the volume is created, {seconds}"),
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            deleted: registered(registry, volume, "Reclaimed volumes", Family::default()),
            delete_failed: registered(
                registry,
                &format!("{volume}_failed"),
                "Failed attempts to reclaim a volume",
                Family::default(),
            ),
            delete_seconds: registered(
                registry,
                &format!("{volume}_duration_seconds"),
                &format!("Time until the volume is deleted, {seconds}"),
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            backends: OF_BACKENDS.map(|(name, help)| {
                registered(
                    registry,
                    &format!("nfs_operator_backend_{name}"),
                    help,
                    Family::default(),
                )
            }),
            reasons: CurrentSeries::of(registered(
                registry,
                "nfs_operator_backend_reason",
                "1 for the reason of the condition Ready",
                Family::default(),
            )),
            quota_reasons: CurrentSeries::of(registered(
                registry,
                "nfs_operator_backend_quotas_enforced_reason",
                "1 for the reason of the condition QuotasEnforced; only with spec.quota",
                Family::default(),
            )),
            pending_limits: registered(
                registry,
                "nfs_operator_backend_pending_limits",
                "Volumes and claims whose limit was ordered from the quota agent and is not in force, as of the last probe; only with spec.quota",
                Family::default(),
            ),
            orphans: registered(
                registry,
                "nfs_operator_backend_orphans",
                "Directories, volumes and records without their counterpart, by kind, as of the last scan",
                Family::default(),
            ),
            purged: registered(
                registry,
                "nfs_operator_backend_trash_purged",
                "Files, links and directories that this process removed from the trash; backends on one export have one trash, and the first of them counts",
                Family::default(),
            ),
            archives_purged: registered(
                registry,
                "nfs_operator_backend_archives_purged",
                "Archives that this process moved to the trash: expired ones, and those whose object was deleted",
                Family::default(),
            ),
            last_scan: registered(
                registry,
                "nfs_operator_backend_last_scan_timestamp_seconds",
                "Time when the last orphan scan ended, as a Unix timestamp",
                Family::default(),
            ),
            scan_seconds: registered(
                registry,
                "nfs_operator_backend_scan_duration_seconds",
                "Duration of the last orphan scan; absent until this process has completed one",
                Family::default(),
            ),
            waiting,
            api_requests,
            nfs_calls,
            slots,
            backups,
            classes: RwLock::default(),
            registry: std::mem::take(registry),
        }
    }
}

fn orphan_labels(backend: &str, kind: OrphanKind) -> OrphanLabels {
    OrphanLabels {
        backend: backend.to_owned(),
        kind: kind.name(),
    }
}

fn reason_labels(backend: &str, reason: Reason) -> ReasonLabels {
    ReasonLabels {
        backend: backend.to_owned(),
        reason: reason.to_string(),
    }
}

fn quota_labels(backend: &str, enforce: QuotaEnforcement, reason: Reason) -> QuotaLabels {
    QuotaLabels {
        backend: backend.to_owned(),
        enforce: match enforce {
            QuotaEnforcement::Required => "Required",
            QuotaEnforcement::Preferred => "Preferred",
        },
        reason: reason.to_string(),
    }
}

fn backend_labels(backend: &str) -> BackendLabels {
    BackendLabels {
        backend: backend.to_owned(),
    }
}

impl Metrics {
    /// Records that this process leads.
    pub fn set_leading(&self) {
        self.leader.set(1);
    }

    /// Returns the class if it is known, or an empty label.
    fn class_label(&self, class: &str) -> String {
        let classes = self.classes.read().unwrap_or_else(PoisonError::into_inner);
        classes.get(class).cloned().unwrap_or_default()
    }

    fn claim_labels(&self, class: &str, source: &'static str) -> ClaimLabels {
        ClaimLabels {
            class: self.class_label(class),
            source,
        }
    }

    fn volume_labels(&self, class: &str) -> VolumeLabels {
        VolumeLabels {
            class: self.class_label(class),
        }
    }

    /// Adds a class that exists, and starts its counters at 0, so that a rate over its first failure exists.
    pub fn register_class(&self, class: &str) {
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        classes.insert(class.to_owned());
        drop(classes);
        let (claims, volumes) = (self.claim_labels(class, ""), self.volume_labels(class));
        self.provisioned.get_or_create(&claims).inc_by(0);
        self.provision_failed.get_or_create(&claims).inc_by(0);
        self.deleted.get_or_create(&volumes).inc_by(0);
        self.delete_failed.get_or_create(&volumes).inc_by(0);
        drop(self.provision_seconds.get_or_create(&claims));
        drop(self.delete_seconds.get_or_create(&volumes));
    }

    /// Records a provisioned claim with the kind of its data source, and the time since the start of the attempt.
    pub fn claim_provisioned(&self, class: &str, source: &'static str, after: Duration) {
        let labels = self.claim_labels(class, source);
        self.provisioned.get_or_create(&labels).inc();
        self.provision_seconds
            .get_or_create(&labels)
            .observe(after.as_secs_f64());
    }

    /// Records a failed attempt to provision.
    pub fn claim_failed(&self, class: &str, source: &'static str) {
        let labels = self.claim_labels(class, source);
        self.provision_failed.get_or_create(&labels).inc();
    }

    /// Records a reclaimed volume, and the time since the start of the attempt.
    pub fn volume_reclaimed(&self, class: &str, after: Duration) {
        let labels = self.volume_labels(class);
        self.deleted.get_or_create(&labels).inc();
        self.delete_seconds.get_or_create(&labels).observe(after.as_secs_f64());
    }

    /// Records a failed attempt to reclaim.
    pub fn volume_failed(&self, class: &str) {
        self.delete_failed.get_or_create(&self.volume_labels(class)).inc();
    }

    /// Sets the function that counts waiting claims by reason.
    pub fn count_waiting(&self, count: impl Fn() -> BTreeMap<String, u64> + Send + Sync + 'static) {
        // A process runs one operator, which sets it once.
        let _already = self.waiting.set(Box::new(count));
    }

    /// Records a probe of a backend.
    pub fn backend_probed(&self, backend: &str, figures: &BackendMetrics, now: Timestamp) {
        let labels = backend_labels(backend);
        for (family, value) in self.backends.iter().zip(figures.values(now)) {
            if let Some(value) = value {
                family.get_or_create(&labels).set(value);
            }
        }
        // From 0 on, so that a rate over the first purge exists.
        self.purged.get_or_create(&labels).inc_by(0);
        self.archives_purged.get_or_create(&labels).inc_by(0);
        self.reasons.set(backend, Some(reason_labels(backend, figures.reason)));
        self.set_quota(backend, figures.quota);
    }

    /// Adds names that were removed from a backend's trash. A purge may end after its backend was deleted, so the series
    /// is not created.
    pub fn trash_purged(&self, backend: &str, names: u64) {
        if let Some(counter) = self.purged.get(&backend_labels(backend)) {
            counter.inc_by(names);
        }
    }

    /// Records an archive that was moved to the trash, unless its backend was deleted.
    pub fn archive_purged(&self, backend: &str) {
        if let Some(counter) = self.archives_purged.get(&backend_labels(backend)) {
            counter.inc();
        }
    }

    /// Replaces the series about enforced sizes.
    fn set_quota(&self, backend: &str, figures: Option<QuotaMetrics>) {
        let current = figures.map(|figures| quota_labels(backend, figures.enforce, figures.reason));
        self.quota_reasons.set(backend, current);
        match figures {
            Some(figures) => {
                let pending = i64::try_from(figures.pending).unwrap_or(i64::MAX);
                self.pending_limits.get_or_create(&backend_labels(backend)).set(pending);
            }
            None => drop(self.pending_limits.remove(&backend_labels(backend))),
        }
    }

    /// Records the result of a backend's last orphan scan, and its duration if this process ran it.
    pub fn backend_scanned(&self, backend: &str, orphans: &OrphansStatus, took: Option<Duration>) {
        for kind in OrphanKind::ALL {
            self.orphans
                .get_or_create(&orphan_labels(backend, kind))
                .set(orphans.count(kind));
        }
        let labels = backend_labels(backend);
        if let Some(ended) = &orphans.last_scan_time {
            self.last_scan.get_or_create(&labels).set(ended.0.as_second());
        }
        if let Some(took) = took {
            self.scan_seconds.get_or_create(&labels).set(took.as_secs_f64());
        }
    }

    /// Removes the series of a backend.
    pub fn remove_backend(&self, backend: &str) {
        let labels = backend_labels(backend);
        for kind in OrphanKind::ALL {
            self.orphans.remove(&orphan_labels(backend, kind));
        }
        self.reasons.set(backend, None);
        self.set_quota(backend, None);
        self.purged.remove(&labels);
        self.archives_purged.remove(&labels);
        self.last_scan.remove(&labels);
        self.scan_seconds.remove(&labels);
        self.nfs_calls.remove(backend);
        for family in &self.backends {
            family.remove(&labels);
        }
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    fn no_figures() -> BackendMetrics {
        BackendMetrics {
            ready: true,
            reason: Reason::AllChecksPassed,
            probe_duration: Duration::ZERO,
            probe_interval: Duration::ZERO,
            statistics: None,
            volumes: 0,
            provisioned: 0,
            archives: None,
            archived: 0,
            trash: 0,
            stuck: 0,
            unsigned_records: None,
            quota: None,
        }
    }

    #[test]
    fn purges_are_counted_from_the_first_probe_until_the_backend_is_deleted() {
        let metrics = Metrics::default();
        let purged = |metrics: &Metrics| {
            let text = metrics.text().unwrap();
            let lines = text.lines().filter(|line| line.contains("_purged_total{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let series = |archives: u64, names: u64| {
            [
                format!("nfs_operator_backend_trash_purged_total{{backend=\"main\"}} {names}"),
                format!("nfs_operator_backend_archives_purged_total{{backend=\"main\"}} {archives}"),
            ]
        };
        metrics.backend_probed("main", &no_figures(), Timestamp::UNIX_EPOCH);
        assert_eq!(purged(&metrics), series(0, 0));
        metrics.archive_purged("main");
        metrics.trash_purged("main", 7);
        assert_eq!(purged(&metrics), series(1, 7));
        metrics.remove_backend("main");
        metrics.trash_purged("main", 1);
        assert_eq!(purged(&metrics), Vec::<String>::new());
    }

    #[test]
    fn a_backend_has_one_reason_and_none_after_its_deletion() {
        let metrics = Metrics::default();
        let reasons = |metrics: &Metrics| {
            let text = metrics.text().unwrap();
            let lines = text
                .lines()
                .filter(|line| line.starts_with("nfs_operator_backend_reason{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        for (ready, reason) in [(true, Reason::AllChecksPassed), (false, Reason::IdentityMismatch)] {
            let figures = BackendMetrics {
                ready,
                reason,
                ..no_figures()
            };
            metrics.backend_probed("main", &figures, Timestamp::UNIX_EPOCH);
            let series = format!("nfs_operator_backend_reason{{backend=\"main\",reason=\"{reason}\"}} 1");
            assert_eq!(reasons(&metrics), [series]);
        }
        metrics.remove_backend("main");
        assert_eq!(reasons(&metrics), Vec::<String>::new());
    }

    #[test]
    fn a_backend_has_one_reason_for_its_quotas_and_none_without_them() {
        let metrics = Metrics::default();
        let probed = |quota| {
            let figures = BackendMetrics { quota, ..no_figures() };
            metrics.backend_probed("main", &figures, Timestamp::UNIX_EPOCH);
            let text = metrics.text().unwrap();
            let names = [
                "nfs_operator_backend_quotas_enforced_reason{",
                "nfs_operator_backend_pending_limits{",
            ];
            let is_about_quotas = |line: &&str| names.iter().any(|name| line.starts_with(name));
            text.lines()
                .filter(is_about_quotas)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for (enforce, reason, pending) in [
            (QuotaEnforcement::Required, Reason::QuotaAgentReady, 0),
            (QuotaEnforcement::Required, Reason::QuotaAgentNotResponding, 3),
            (QuotaEnforcement::Preferred, Reason::QuotaAgentNotResponding, 2),
        ] {
            let series = probed(Some(QuotaMetrics {
                enforce,
                reason,
                pending,
            }));
            let expected = [
                format!(
                    "nfs_operator_backend_quotas_enforced_reason{{backend=\"main\",enforce=\"{enforce:?}\",\
                     reason=\"{reason}\"}} 1"
                ),
                format!("nfs_operator_backend_pending_limits{{backend=\"main\"}} {pending}"),
            ];
            assert_eq!(series, expected);
        }
        assert_eq!(probed(None), Vec::<String>::new());
    }

    #[test]
    fn only_classes_that_exist_become_labels() {
        let metrics = Metrics::default();
        metrics.register_class("nfs");
        metrics.claim_failed("nfs", "NfsArchive");
        for class in ["nfs", "no-such-class", "another"] {
            metrics.claim_failed(class, "");
            metrics.volume_failed(class);
        }
        let text = metrics.text().unwrap();
        for series in [
            "controller_persistentvolumeclaim_provision_failed_total{class=\"nfs\",source=\"\"} 1\n",
            "controller_persistentvolumeclaim_provision_failed_total{class=\"nfs\",source=\"NfsArchive\"} 1\n",
            "controller_persistentvolumeclaim_provision_failed_total{class=\"\",source=\"\"} 2\n",
            "controller_persistentvolume_delete_failed_total{class=\"\"} 2\n",
        ] {
            assert!(text.contains(series), "{series} in {text}");
        }
        assert!(!text.contains("no-such-class"), "{text}");
    }
}
