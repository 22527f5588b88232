//! The metrics behind `/metrics`: the names of the ProvisionController library, so that dashboards keep working, and
//! this operator's own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};

use crate::runtime::api_requests::ApiRequests;
use crate::runtime::backend_metrics::BackendMetrics;
use crate::runtime::backend_slots::SlotMetrics;
use crate::runtime::backup_metrics::BackupMetrics;
use crate::runtime::nfs_calls::NfsCalls;

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
    waiting: Arc<OnceLock<CountWaiting>>,
    /// Backends.
    pub backends: BackendMetrics,
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
        let waiting = self.0.get().map(|count| count()).unwrap_or_default();
        let series = waiting
            .into_iter()
            .map(|(reason, count)| ([("reason", reason)], ConstGauge::new(count)));
        encode_series(&mut encoder, ("nfs_operator_claims_waiting", help), series)
    }
}

/// Encodes a metric: its name, the help text, and the labels and value of each series.
pub(crate) fn encode_series<L: EncodeLabelSet, M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    series: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for (labels, value) in series {
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
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
        let backends = BackendMetrics::default();
        registry.register_collector(Box::new(backends.clone()));
        let nfs_calls = NfsCalls::default();
        registry.register_collector(Box::new(nfs_calls.clone()));
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
            waiting,
            backends,
            api_requests,
            nfs_calls,
            slots,
            backups,
            classes: RwLock::default(),
            registry: std::mem::take(registry),
        }
    }
}

impl Metrics {
    /// Records that this process leads.
    pub fn set_leading(&self) {
        self.leader.set(1);
    }

    /// Returns the class if it is known, or an empty label.
    fn class_label(&self, class: &str) -> String {
        let classes = self.classes.read();
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
        let mut classes = self.classes.write();
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

    /// Removes the series of a backend.
    pub fn remove_backend(&self, backend: &str) {
        self.backends.remove(backend);
        self.nfs_calls.remove(backend);
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
