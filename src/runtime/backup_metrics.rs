//! Metrics of backups and their schedules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::runtime::metrics::encode_series;

/// What is measured of backups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupFigures {
    /// Number of schedules, by the reason of their condition.
    pub schedules: BTreeMap<String, u64>,
    /// Time of the data of the newest backup: when they were archived, or of the snapshot; by namespace and name of the claim.
    /// Empty unless metrics of each claim are enabled.
    pub newest: BTreeMap<(String, String), Timestamp>,
    /// Whether the newest backup is older than the schedules that select the claim expect, by namespace and name of the claim.
    /// Empty unless metrics of each claim are enabled.
    pub overdue: BTreeMap<(String, String), bool>,
}

type ReadFigures = Box<dyn Fn() -> BackupFigures + Send + Sync>;

/// Reads the figures when they are scraped. Clones share the function that reads them.
#[derive(Clone, Default)]
pub struct BackupMetrics(Arc<OnceLock<ReadFigures>>);

impl BackupMetrics {
    /// Sets the function that reads the figures.
    pub fn read_with(&self, read: impl Fn() -> BackupFigures + Send + Sync + 'static) {
        // A process runs one operator, which sets it once.
        let _already = self.0.set(Box::new(read));
    }
}

impl fmt::Debug for BackupMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackupMetrics")
    }
}

impl Collector for BackupMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let figures = self.0.get().map(|read| read()).unwrap_or_default();
        let help = "Schedules of backups, by the reason in their condition";
        let schedules = figures.schedules.into_iter();
        let series = schedules.map(|(reason, count)| ([("reason", reason)], ConstGauge::new(count)));
        encode_series(&mut encoder, ("nfs_operator_backup_schedules", help), series)?;
        let of_claim = |(namespace, claim)| [("claim", claim), ("claim_namespace", namespace)];
        let help = "Time when the claim's newest requested backup began, or of the snapshot that it has, as a Unix timestamp, as long as its data exist; only with --volume-metrics";
        let newest = figures.newest.into_iter();
        let series = newest.map(|(claim, time)| (of_claim(claim), ConstGauge::new(time.as_second())));
        encode_series(
            &mut encoder,
            ("nfs_operator_claim_last_backup_timestamp_seconds", help),
            series,
        )?;
        let help = "1 if a schedule should have backed up the claim by now, and no backup began since, or its data do not exist; only with --volume-metrics";
        let overdue = figures.overdue.into_iter();
        let series = overdue.map(|(claim, is_overdue)| (of_claim(claim), ConstGauge::new(i64::from(is_overdue))));
        encode_series(&mut encoder, ("nfs_operator_claim_backup_overdue", help), series)
    }
}
