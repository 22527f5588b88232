//! Metrics of each backend. A backend has one entry with all of its values, and not a series in a map for each of them:
//! there may be a thousand backends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::api::backend::QuotaEnforcement;
use crate::api::{OrphanKind, OrphansStatus, Reason};
use crate::runtime::metrics::encode_series;
use nfs_client::FsStat;

/// The values that a probe of a backend measures: the name after `nfs_operator_backend_`, and the help text.
const PROBED: [(&str, &str); 15] = [
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

/// What a probe measured of a backend.
#[derive(Debug, Clone, Copy)]
pub struct BackendFigures {
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
    pub quota: Option<QuotaFigures>,
}

/// What a probe measured of enforced sizes on a backend.
#[derive(Debug, Clone, Copy)]
pub struct QuotaFigures {
    /// Whether claims wait for their limits.
    pub enforce: QuotaEnforcement,
    /// Reason of the condition QuotasEnforced.
    pub reason: Reason,
    /// Number of limits that are not in force.
    pub pending: u64,
}

impl BackendFigures {
    /// Returns the values in the order of [`PROBED`].
    #[allow(clippy::cast_precision_loss, reason = "values of Prometheus are doubles")]
    fn values(&self, now: Timestamp) -> [Option<f64>; PROBED.len()] {
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

/// The metrics of all backends. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct BackendMetrics(Arc<Mutex<BTreeMap<String, Entry>>>);

/// What is known of one backend.
#[derive(Debug, Clone, Default)]
struct Entry {
    probed: Option<Probed>,
    scanned: Option<Scanned>,
}

/// The values that exist from the first probe on.
#[derive(Debug, Clone)]
struct Probed {
    /// In the order of [`PROBED`].
    values: [Option<f64>; PROBED.len()],
    reason: Reason,
    quota: Option<QuotaFigures>,
    /// Names that were removed from the trash.
    purged_names: u64,
    /// Archives that were moved to the trash.
    purged_archives: u64,
}

/// The last orphan scan.
#[derive(Debug, Clone)]
struct Scanned {
    /// In the order of [`OrphanKind::ALL`].
    orphans: [i64; OrphanKind::ALL.len()],
    ended: Option<Timestamp>,
    took: Option<Duration>,
}

impl BackendMetrics {
    /// Records a probe of a backend.
    pub fn probed(&self, backend: &str, figures: &BackendFigures, now: Timestamp) {
        let mut entries = self.0.lock();
        let entry = entries.entry(backend.to_owned()).or_default();
        let probed = entry.probed.get_or_insert(Probed {
            values: [None; PROBED.len()],
            reason: figures.reason,
            quota: None,
            // From 0 on, so that a rate over the first purge exists.
            purged_names: 0,
            purged_archives: 0,
        });
        for (known, value) in probed.values.iter_mut().zip(figures.values(now)) {
            *known = value.or(*known);
        }
        probed.reason = figures.reason;
        probed.quota = figures.quota;
    }

    /// Adds names that were removed from a backend's trash. A purge may end after its backend was deleted, so nothing is
    /// added for a backend that is not known.
    pub fn trash_purged(&self, backend: &str, names: u64) {
        self.change_probed(backend, |probed| probed.purged_names += names);
    }

    /// Records an archive that was moved to the trash, unless its backend was deleted.
    pub fn archive_purged(&self, backend: &str) {
        self.change_probed(backend, |probed| probed.purged_archives += 1);
    }

    fn change_probed(&self, backend: &str, change: impl FnOnce(&mut Probed)) {
        let mut entries = self.0.lock();
        if let Some(probed) = entries.get_mut(backend).and_then(|entry| entry.probed.as_mut()) {
            change(probed);
        }
    }

    /// Records the result of a backend's last orphan scan, and its duration if this process ran it.
    pub fn scanned(&self, backend: &str, orphans: &OrphansStatus, took: Option<Duration>) {
        let mut entries = self.0.lock();
        let entry = entries.entry(backend.to_owned()).or_default();
        let former = entry.scanned.take();
        entry.scanned = Some(Scanned {
            orphans: OrphanKind::ALL.map(|kind| orphans.count(kind)),
            ended: orphans
                .last_scan_time
                .as_ref()
                .map(|ended| ended.0)
                .or(former.as_ref().and_then(|former| former.ended)),
            took: took.or(former.and_then(|former| former.took)),
        });
    }

    /// Removes the series of a backend.
    pub(super) fn remove(&self, backend: &str) {
        self.0.lock().remove(backend);
    }
}

/// Encodes a metric: its name after `nfs_operator_backend_`, the help text, and the labels and values of all backends.
fn encode<L: EncodeLabelSet, M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    series: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    encode_series(encoder, (&format!("nfs_operator_backend_{name}"), help), series)
}

/// Returns the labels of a metric with one series for each backend.
fn backend_label(backend: &str) -> [(&'static str, &str); 1] {
    [("backend", backend)]
}

impl Collector for BackendMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // A copy, so that nothing is locked while the text is written.
        let entries = self.0.lock().clone();
        let (mut probed, mut scanned) = (Vec::new(), Vec::new());
        for (backend, entry) in &entries {
            probed.extend(entry.probed.as_ref().map(|probed| (backend.as_str(), probed)));
            scanned.extend(entry.scanned.as_ref().map(|scanned| (backend.as_str(), scanned)));
        }
        encode_probed(&mut encoder, &probed)?;
        encode_scanned(&mut encoder, &scanned)
    }
}

fn encode_probed(encoder: &mut DescriptorEncoder<'_>, probed: &[(&str, &Probed)]) -> fmt::Result {
    for (index, metric) in PROBED.into_iter().enumerate() {
        let gauges = probed.iter().filter_map(|(backend, probed)| {
            let value = probed.values.get(index).copied().flatten()?;
            Some((backend_label(backend), ConstGauge::new(value)))
        });
        encode(encoder, metric, gauges)?;
    }
    let reasons = probed.iter().map(|(backend, probed)| {
        let reason = probed.reason.to_string();
        (
            [("backend", (*backend).to_owned()), ("reason", reason)],
            ConstGauge::new(1_i64),
        )
    });
    encode(encoder, ("reason", "1 for the reason of the condition Ready"), reasons)?;
    let quotas: Vec<_> = probed
        .iter()
        .filter_map(|(backend, probed)| Some((*backend, probed.quota.as_ref()?)))
        .collect();
    let reasons = quotas.iter().map(|(backend, quota)| {
        let enforce = match quota.enforce {
            QuotaEnforcement::Required => "Required",
            QuotaEnforcement::Preferred => "Preferred",
        };
        let labels = [
            ("backend", (*backend).to_owned()),
            ("enforce", enforce.to_owned()),
            ("reason", quota.reason.to_string()),
        ];
        (labels, ConstGauge::new(1_i64))
    });
    let help = "1 for the reason of the condition QuotasEnforced; only with spec.quota";
    encode(encoder, ("quotas_enforced_reason", help), reasons)?;
    let pending = quotas
        .iter()
        .map(|(backend, quota)| (backend_label(backend), ConstGauge::new(quota.pending)));
    let help = "Volumes and claims whose limit was ordered from the quota agent and is not in force, as of the last probe; only with spec.quota";
    encode(encoder, ("pending_limits", help), pending)?;
    let names = probed
        .iter()
        .map(|(backend, probed)| (backend_label(backend), ConstCounter::new(probed.purged_names)));
    let help = "Files, links and directories that this process removed from the trash; backends on one export have one trash, and the first of them counts";
    encode(encoder, ("trash_purged", help), names)?;
    let archives = probed
        .iter()
        .map(|(backend, probed)| (backend_label(backend), ConstCounter::new(probed.purged_archives)));
    let help = "Archives that this process moved to the trash: expired ones, and those whose object was deleted";
    encode(encoder, ("archives_purged", help), archives)
}

fn encode_scanned(encoder: &mut DescriptorEncoder<'_>, scanned: &[(&str, &Scanned)]) -> fmt::Result {
    let orphans = scanned.iter().flat_map(|(backend, scanned)| {
        let of_kind =
            |(kind, count): (OrphanKind, i64)| ([("backend", *backend), ("kind", kind.name())], ConstGauge::new(count));
        OrphanKind::ALL.into_iter().zip(scanned.orphans).map(of_kind)
    });
    let help = "Directories, volumes and records without their counterpart, by kind, as of the last scan";
    encode(encoder, ("orphans", help), orphans)?;
    let ended = scanned.iter().filter_map(|(backend, scanned)| {
        let ended = scanned.ended?.as_second();
        Some((backend_label(backend), ConstGauge::new(ended)))
    });
    let help = "Time when the last orphan scan ended, as a Unix timestamp";
    encode(encoder, ("last_scan_timestamp_seconds", help), ended)?;
    let took = scanned.iter().filter_map(|(backend, scanned)| {
        let took = scanned.took?.as_secs_f64();
        Some((backend_label(backend), ConstGauge::new(took)))
    });
    let help = "Duration of the last orphan scan; absent until this process has completed one";
    encode(encoder, ("scan_duration_seconds", help), took)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use crate::runtime::metrics::Metrics;

    fn no_figures() -> BackendFigures {
        BackendFigures {
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
        metrics.backends.probed("main", &no_figures(), Timestamp::UNIX_EPOCH);
        assert_eq!(purged(&metrics), series(0, 0));
        metrics.backends.archive_purged("main");
        metrics.backends.trash_purged("main", 7);
        assert_eq!(purged(&metrics), series(1, 7));
        metrics.remove_backend("main");
        metrics.backends.trash_purged("main", 1);
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
            let figures = BackendFigures {
                ready,
                reason,
                ..no_figures()
            };
            metrics.backends.probed("main", &figures, Timestamp::UNIX_EPOCH);
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
            let figures = BackendFigures { quota, ..no_figures() };
            metrics.backends.probed("main", &figures, Timestamp::UNIX_EPOCH);
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
            let series = probed(Some(QuotaFigures {
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
    fn what_a_probe_or_a_scan_did_not_measure_keeps_its_value() {
        let metrics = Metrics::default();
        let known = |metrics: &Metrics| {
            let text = metrics.text().unwrap();
            let names = ["archives{", "unsigned_records{", "last_scan_", "scan_duration_"];
            let is_of = |line: &&str| {
                let name = line.strip_prefix("nfs_operator_backend_");
                name.is_some_and(|name| names.iter().any(|of| name.starts_with(of)))
            };
            let values = text
                .lines()
                .filter(is_of)
                .map(|line| line.rsplit(' ').next().unwrap().to_owned());
            values.collect::<Vec<_>>()
        };
        let scan = |ended: i64| OrphansStatus {
            last_scan_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                Timestamp::new(ended, 0).unwrap(),
            )),
            ..OrphansStatus::default()
        };
        // A scan of a former process is known before the first probe.
        metrics.backends.scanned("main", &scan(5), None);
        assert_eq!(known(&metrics), ["5"]);
        let figures = BackendFigures {
            archives: Some(2),
            unsigned_records: Some(3),
            ..no_figures()
        };
        metrics.backends.probed("main", &figures, Timestamp::UNIX_EPOCH);
        metrics.backends.scanned("main", &scan(7), Some(Duration::from_secs(4)));
        metrics.backends.probed("main", &no_figures(), Timestamp::UNIX_EPOCH);
        metrics.backends.scanned("main", &scan(9), None);
        assert_eq!(known(&metrics), ["2.0", "3.0", "9", "4.0"]);
    }
}
