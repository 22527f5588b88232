//! What `/metrics` shows: the ProvisionController library's names, so that dashboards keep working, and ours.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};

/// Labels of the claim metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClaimLabels {
    /// StorageClass.
    pub class: String,
    /// Data source: always empty until there are any.
    pub source: String,
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
    ready: Family<BackendLabels, Gauge>,
    available: Family<BackendLabels, Gauge<f64, AtomicU64>>,
    volumes: Family<BackendLabels, Gauge>,
    trash: Family<BackendLabels, Gauge>,
}

/// From 10 ms, a lone claim on a near server, doubling up to 5 min, a claim that waited for retries.
fn durations() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.01, 2.0, 16,
    ))
}

/// Registers a metric and answers it.
fn registered<M: Registered + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = &mut Registry::default();
        // Counters are printed with `_total` behind the name.
        let claim = "controller_persistentvolumeclaim_provision";
        let volume = "controller_persistentvolume_delete";
        let backend = "nfs_operator_backend";
        let seconds = "from the start of the attempt, in seconds";
        Self {
            leader: registered(
                registry,
                "nfs_operator_leader",
                "1 when this process leads, 0 when it stands by",
                Gauge::default(),
            ),
            provisioned: registered(registry, claim, "Claims that got their volume", Family::default()),
            provision_failed: registered(
                registry,
                &format!("{claim}_failed"),
                "Attempts to provision that failed; waiting for a backend does not count",
                Family::default(),
            ),
            provision_seconds: registered(
                registry,
                &format!("{claim}_duration_seconds"),
                &format!("Time to the saved volume, {seconds}"),
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            deleted: registered(registry, volume, "Volumes that were reclaimed", Family::default()),
            delete_failed: registered(
                registry,
                &format!("{volume}_failed"),
                "Attempts to reclaim that failed",
                Family::default(),
            ),
            delete_seconds: registered(
                registry,
                &format!("{volume}_duration_seconds"),
                &format!("Time to the deleted volume, {seconds}"),
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            ready: registered(
                registry,
                &format!("{backend}_ready"),
                "1 when claims can be provisioned",
                Family::default(),
            ),
            available: registered(
                registry,
                &format!("{backend}_available_bytes"),
                "Free space",
                Family::default(),
            ),
            volumes: registered(registry, &format!("{backend}_volumes"), "Volumes", Family::default()),
            trash: registered(
                registry,
                &format!("{backend}_trash_entries"),
                "Deleted directories still to be purged",
                Family::default(),
            ),
            registry: std::mem::take(registry),
        }
    }
}

fn claim_labels(class: &str) -> ClaimLabels {
    ClaimLabels {
        class: class.to_owned(),
        source: String::new(),
    }
}

fn volume_labels(class: &str) -> VolumeLabels {
    VolumeLabels {
        class: class.to_owned(),
    }
}

impl Metrics {
    /// This process leads now.
    pub fn leads(&self) {
        self.leader.set(1);
    }

    /// A class of ours is there: its counts begin at 0, so that a rate over the first failure can be had.
    pub fn class_seen(&self, class: &str) {
        let (claims, volumes) = (claim_labels(class), volume_labels(class));
        self.provisioned.get_or_create(&claims).inc_by(0);
        self.provision_failed.get_or_create(&claims).inc_by(0);
        self.deleted.get_or_create(&volumes).inc_by(0);
        self.delete_failed.get_or_create(&volumes).inc_by(0);
    }

    /// A claim got its volume, this long after the attempt began.
    pub fn claim_provisioned(&self, class: &str, after: Duration) {
        let labels = claim_labels(class);
        self.provisioned.get_or_create(&labels).inc();
        self.provision_seconds
            .get_or_create(&labels)
            .observe(after.as_secs_f64());
    }

    /// An attempt to provision failed.
    pub fn claim_failed(&self, class: &str) {
        self.provision_failed.get_or_create(&claim_labels(class)).inc();
    }

    /// A volume was reclaimed, this long after the attempt began.
    pub fn volume_reclaimed(&self, class: &str, after: Duration) {
        let labels = volume_labels(class);
        self.deleted.get_or_create(&labels).inc();
        self.delete_seconds.get_or_create(&labels).observe(after.as_secs_f64());
    }

    /// An attempt to reclaim failed.
    pub fn volume_failed(&self, class: &str) {
        self.delete_failed.get_or_create(&volume_labels(class)).inc();
    }

    /// What a probe found.
    pub fn backend_probed(&self, backend: &str, ready: bool, available: Option<u64>, volumes: u64, trash: u64) {
        let labels = BackendLabels {
            backend: backend.to_owned(),
        };
        self.ready.get_or_create(&labels).set(i64::from(ready));
        if let Some(available) = available {
            #[allow(clippy::cast_precision_loss, reason = "Prometheus' numbers are doubles")]
            self.available.get_or_create(&labels).set(available as f64);
        }
        self.volumes
            .get_or_create(&labels)
            .set(i64::try_from(volumes).unwrap_or(i64::MAX));
        self.trash
            .get_or_create(&labels)
            .set(i64::try_from(trash).unwrap_or(i64::MAX));
    }

    /// A backend is gone: its series end.
    pub fn backend_gone(&self, backend: &str) {
        let labels = BackendLabels {
            backend: backend.to_owned(),
        };
        self.ready.remove(&labels);
        self.available.remove(&labels);
        self.volumes.remove(&labels);
        self.trash.remove(&labels);
    }

    /// All of them in the OpenMetrics text format.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
