//! Measured storage usage of volumes, for status and metrics. It is read from the annotations of the volumes, so that
//! it survives a restart.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::Notify;

use crate::api::names::{
    VOLUME_APPARENT_BYTES, VOLUME_DIRECTORY, VOLUME_UNREAD, VOLUME_USED_BYTES, VOLUME_USED_FILES, is_shared,
};
use crate::runtime::metrics::encode_series;
use export_store::{TreeUsage, UidMap, quota};

/// Part of a usage scan. One follows the other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScanPart {
    /// All volumes, except for the large ones.
    #[default]
    Volumes,
    /// The archives without a result, except for the large ones.
    Archives,
    /// The large volumes, which would delay the others by hours.
    LargeVolumes,
    /// The large archives.
    LargeArchives,
}

impl ScanPart {
    /// Returns the next part.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Volumes => Some(Self::Archives),
            Self::Archives => Some(Self::LargeVolumes),
            Self::LargeVolumes => Some(Self::LargeArchives),
            Self::LargeArchives => None,
        }
    }

    /// Returns the part that counts the large ones of this part; `None` if this one does.
    pub fn of_large(self) -> Option<Self> {
        match self {
            Self::Volumes => Some(Self::LargeVolumes),
            Self::Archives => Some(Self::LargeArchives),
            Self::LargeVolumes | Self::LargeArchives => None,
        }
    }
}

/// Position of a usage scan. Each part is ordered by name. It is kept in memory only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPosition {
    /// The part in progress.
    pub part: ScanPart,
    /// Name of the last volume or archive that was scanned; empty before the first one.
    pub after: String,
    /// Number of interrupted attempts to scan the next one, which is skipped after a few attempts.
    pub attempts: i64,
}

/// Progress of the usage scan of a backend.
#[derive(Debug, Clone, Default)]
pub struct UsageProgress {
    /// Position of the scan in progress.
    pub under_way: Option<ScanPosition>,
    /// Large volumes and archives of the scan in progress, each with the part that counts it.
    pub large: Vec<(ScanPart, String)>,
    /// True if another scan is requested.
    pub requested: bool,
    /// Request that the scan in progress carries out.
    pub request: Option<String>,
    /// Number of volumes and archives that could not be scanned, in the scan in progress or otherwise in the last one.
    pub skipped: i64,
    /// Time when the last complete scan ended.
    pub last_completed: Option<Timestamp>,
}

/// State of the usage scan of a backend.
#[derive(Default)]
pub struct UsageScanState {
    /// Notified when a scan is requested, and when the usage settings of the backend change.
    pub requested: Arc<Notify>,
    progress: Mutex<UsageProgress>,
}

impl UsageScanState {
    /// Returns the current progress.
    pub fn progress(&self) -> UsageProgress {
        self.progress.lock().clone()
    }

    /// Returns the request that the completed scan carried out.
    pub fn take_request(&self) -> Option<String> {
        let mut progress = self.progress.lock();
        progress.request.take()
    }

    /// Updates the progress.
    pub fn update(&self, change: impl FnOnce(&mut UsageProgress)) {
        change(&mut self.progress.lock());
    }
}

/// Measured storage usage of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Sum of the file sizes, in bytes; unset if the figures are those of the quota agent.
    pub apparent: Option<u64>,
    /// Number of files, directories and links.
    pub files: u64,
    /// Number of directories that could not be read.
    pub unread: u64,
}

impl VolumeUsage {
    /// Reads the usage from the annotations of a volume. Returns `None` if the volume was not scanned.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let number = |name: &str| volume.annotations().get(name).and_then(|text| text.parse().ok());
        Some(Self {
            bytes: number(VOLUME_USED_BYTES)?,
            apparent: number(VOLUME_APPARENT_BYTES),
            files: number(VOLUME_USED_FILES)?,
            unread: number(VOLUME_UNREAD).unwrap_or_default(),
        })
    }
}

impl From<&TreeUsage> for VolumeUsage {
    fn from(content: &TreeUsage) -> Self {
        Self {
            bytes: content.used,
            apparent: Some(content.size),
            files: content.names,
            unread: content.unread,
        }
    }
}

impl From<quota::VolumeUsage> for VolumeUsage {
    /// What the file system accounts for the volume's project, without the volume's directory among the files.
    fn from(accounted: quota::VolumeUsage) -> Self {
        Self {
            bytes: accounted.bytes,
            apparent: None,
            files: accounted.inodes.saturating_sub(1),
            unread: 0,
        }
    }
}

/// Total usage of the volumes of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Number of scanned volumes.
    pub volumes: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Number of files, directories and links.
    pub files: u64,
}

impl Total {
    fn add(&mut self, bytes: u64, files: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files = self.files.saturating_add(files);
    }
}

/// Measured storage usage of all volumes. Clones share the same data.
#[derive(Clone, Default)]
pub struct UsageStore(Arc<Mutex<Book>>);

struct Book {
    of_each_volume: bool,
    volumes: UidMap<VolumeEntry>,
    /// Backends with usage measurement enabled, and the time of their last complete scan.
    backends: BTreeMap<Arc<str>, Option<Timestamp>>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            of_each_volume: false,
            volumes: UidMap::by_volume(),
            backends: BTreeMap::new(),
        }
    }
}

/// Usage of one volume. There is one for each scanned volume, so it must be small.
struct VolumeEntry {
    backend: Arc<str>,
    /// Bytes on disk.
    bytes: u64,
    /// Number of files, directories and links.
    files: u64,
    /// What few volumes have.
    rest: Option<Box<VolumeDetails>>,
}

#[derive(Default, PartialEq, Eq)]
struct VolumeDetails {
    /// The directory, if other volumes may have it.
    shared: Option<Box<str>>,
    /// Namespace and name of the volume's claim. Present only if per-volume metrics are enabled, to save memory.
    claim: Option<(String, String)>,
}

impl UsageStore {
    /// Returns an empty store. With `of_each_volume`, usage metrics are exported per volume.
    pub fn new(of_each_volume: bool) -> Self {
        Self(Arc::new(Mutex::new(Book {
            of_each_volume,
            ..Book::default()
        })))
    }

    /// Records the usage that the annotations of a volume contain, or forgets the volume if they contain none.
    pub fn observe(&self, volume: &PersistentVolume, backend: &str) {
        match VolumeUsage::of(volume) {
            Some(figures) => self.set(volume, backend, figures),
            None => self.forget(&volume.name_any()),
        }
    }

    /// Records the usage of a scanned volume.
    pub fn set(&self, volume: &PersistentVolume, backend: &str, figures: VolumeUsage) {
        let mut book = self.0.lock();
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim = claim.filter(|_| book.of_each_volume).map(|claim| {
            let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
            (namespace.unwrap_or_default(), name.unwrap_or_default())
        });
        let directory = volume.annotations().get(VOLUME_DIRECTORY);
        let shared = directory.filter(|_| is_shared(volume)).map(|path| path.as_str().into());
        let known = book.backends.get_key_value(backend);
        let backend = known.map_or_else(|| backend.into(), |(known, _)| Arc::clone(known));
        let details = VolumeDetails { shared, claim };
        let counted = VolumeEntry {
            backend,
            bytes: figures.bytes,
            files: figures.files,
            rest: (details != VolumeDetails::default()).then(|| Box::new(details)),
        };
        book.volumes.insert(&volume.name_any(), counted);
    }

    /// Returns the number of files, directories and links of a scanned volume.
    pub fn files(&self, volume: &str) -> Option<u64> {
        self.0.lock().volumes.get(volume).map(|counted| counted.files)
    }

    /// Forgets a volume that is deleted or not measured anymore.
    pub fn forget(&self, volume: &str) {
        self.0.lock().volumes.remove(volume);
    }

    /// Returns the names of the scanned volumes of a backend.
    pub fn volumes_of(&self, backend: &str) -> Vec<String> {
        let book = self.0.lock();
        book.volumes.keys_where(|counted| &*counted.backend == backend)
    }

    /// Enables the metrics of a backend, and records the time of its last complete scan.
    pub fn enable(&self, backend: &str, last_completed: Option<Timestamp>) {
        self.0.lock().backends.insert(backend.into(), last_completed);
    }

    /// Disables the metrics of a backend that is removed or not measured anymore.
    pub fn disable(&self, backend: &str) {
        self.0.lock().backends.remove(backend);
    }

    /// Returns the total usage of the volumes of a backend.
    pub fn total(&self, backend: &str) -> Total {
        self.0.lock().total(backend)
    }
}

impl Book {
    fn total(&self, backend: &str) -> Total {
        let of_it = self.volumes.values().filter(|counted| &*counted.backend == backend);
        let (mut total, mut shared) = (Total::default(), HashMap::<&str, (u64, u64)>::new());
        for VolumeEntry { bytes, files, rest, .. } in of_it {
            total.volumes += 1;
            match rest.as_deref().and_then(|rest| rest.shared.as_deref()) {
                None => total.add(*bytes, *files),
                // Counted once. Scans that ended early leave different figures on its volumes.
                Some(path) => {
                    let most = shared.entry(path).or_default();
                    *most = (most.0.max(*bytes), most.1.max(*files));
                }
            }
        }
        shared.values().for_each(|(bytes, files)| total.add(*bytes, *files));
        total
    }
}

impl fmt::Debug for UsageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Usages")
    }
}

/// Metric of a backend: name after `nfs_operator_backend_`, help text and value.
type OfBackend = (&'static str, &'static str, fn(&Total, Option<Timestamp>) -> Option<u64>);
const OF_BACKENDS: [OfBackend; 4] = [
    (
        "used_bytes",
        "Disk space that the counted volumes use on the server; only with spec.usage",
        |total, _| Some(total.bytes),
    ),
    (
        "used_files",
        "Files, directories and links in the counted volumes; only with spec.usage",
        |total, _| Some(total.files),
    ),
    (
        "counted_volumes",
        "Volumes that were counted at least once; only with spec.usage",
        |total, _| Some(total.volumes),
    ),
    (
        "last_count_timestamp_seconds",
        "Time when the last complete count ended, as a Unix timestamp; only with spec.usage",
        |_, at| at.and_then(|at| u64::try_from(at.as_second()).ok()),
    ),
];

/// Metric of a volume: name after `nfs_operator_volume_`, help text and value.
type OfVolume = (&'static str, &'static str, fn(&VolumeEntry) -> u64);
const OF_VOLUMES: [OfVolume; 2] = [
    (
        "used_bytes",
        "Disk space that the volume uses on the server, as of its last count; only with --volume-metrics",
        |counted| counted.bytes,
    ),
    (
        "used_files",
        "Files, directories and links in the volume, as of its last count; only with --volume-metrics",
        |counted| counted.files,
    ),
];

impl Collector for UsageStore {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let book = self.0.lock();
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let backends: Vec<_> = book
            .backends
            .iter()
            .map(|(name, at)| (name, book.total(name), *at))
            .collect();
        for (name, help, figure) in OF_BACKENDS {
            let name = format!("nfs_operator_backend_{name}");
            let series = backends.iter().filter_map(|(backend, total, at)| {
                let value = figure(total, *at)?;
                Some(([("backend", backend.to_string())], gauge(value)))
            });
            encode_series(&mut encoder, (&name, help), series)?;
        }
        for (name, help, figure) in OF_VOLUMES {
            let name = format!("nfs_operator_volume_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            let mut result = Ok(());
            let is_exported = |counted: &VolumeEntry| book.backends.contains_key(&counted.backend);
            book.volumes.for_each_where(is_exported, |volume, counted| {
                let claim = counted.rest.as_deref().and_then(|rest| rest.claim.as_ref());
                if let (Ok(()), Some((namespace, claim))) = (result, claim) {
                    let labels = [
                        ("backend", counted.backend.as_ref()),
                        ("claim", claim.as_str()),
                        ("claim_namespace", namespace.as_str()),
                        ("volume", volume),
                    ];
                    let family = family.encode_family(&labels);
                    result = family.and_then(|family| gauge(figure(counted)).encode(family));
                }
            });
            result?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use prometheus_client::registry::Registry;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, bytes: &str) -> PersistentVolume {
        let annotations = json!({VOLUME_USED_BYTES: bytes, VOLUME_USED_FILES: "3"});
        let claim = json!({"namespace": "team", "name": "data"});
        serde_json::from_value(
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"claimRef": claim}}),
        )
        .unwrap()
    }

    fn metrics_text(usages: &UsageStore) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(usages.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn a_backends_sums_are_those_of_its_volumes_that_were_counted_and_still_are_there() {
        let usages = UsageStore::default();
        usages.observe(&volume("a", "10"), "main");
        usages.observe(&volume("b", "20"), "main");
        usages.observe(&volume("c", "40"), "other");
        usages.observe(&volume("d", "no number"), "main");
        let total = |volumes, bytes, files| Total { volumes, bytes, files };
        assert_eq!(usages.total("main"), total(2, 30, 6));
        usages.observe(&volume("a", &u64::MAX.to_string()), "main");
        usages.forget("b");
        assert_eq!(usages.total("main"), total(1, u64::MAX, 3));
    }

    #[test]
    fn a_shared_directory_counts_once() {
        let usages = UsageStore::default();
        let sharing = |name: &str, bytes: &str, directory: &str| {
            let mut volume = volume(name, bytes);
            let annotations = volume.metadata.annotations.as_mut().unwrap();
            annotations.insert(crate::api::names::VOLUME_EXISTING.to_owned(), "Share".to_owned());
            annotations.insert(VOLUME_DIRECTORY.to_owned(), directory.to_owned());
            volume
        };
        usages.observe(&sharing("a", "10", "common"), "main");
        usages.observe(&sharing("b", "12", "common"), "main");
        usages.observe(&sharing("c", "5", "other"), "main");
        usages.observe(&volume("d", "100"), "main");
        let (volumes, bytes, files) = (4, 117, 9);
        assert_eq!(usages.total("main"), Total { volumes, bytes, files });
    }

    #[test]
    fn volumes_have_series_of_their_own_only_where_that_is_wanted_and_while_they_are_counted() {
        let usages = UsageStore::default();
        usages.observe(&volume("a", "10"), "main");
        assert_eq!(metrics_text(&usages), "");
        usages.enable("main", Timestamp::from_second(1000).ok());
        let text = metrics_text(&usages);
        assert!(
            text.contains("nfs_operator_backend_used_bytes{backend=\"main\"} 10"),
            "{text}"
        );
        assert!(
            text.contains("last_count_timestamp_seconds{backend=\"main\"} 1000"),
            "{text}"
        );
        assert!(!text.contains("nfs_operator_volume"), "{text}");
        let usages = UsageStore::new(true);
        usages.enable("main", Timestamp::from_second(1000).ok());
        usages.observe(&volume("a", "10"), "main");
        let series =
            "nfs_operator_volume_used_bytes{backend=\"main\",claim=\"data\",claim_namespace=\"team\",volume=\"a\"} 10";
        assert!(metrics_text(&usages).contains(series), "{}", metrics_text(&usages));
        usages.disable("main");
        assert_eq!(metrics_text(&usages), "");
    }
}
