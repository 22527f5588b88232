//! Metrics of the limits on concurrent work, by backend.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::runtime::metrics::encode_series;

/// Use of a limit on concurrent work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotUsage {
    /// Number of slots.
    pub limit: usize,
    /// Slots in use.
    pub used: usize,
    /// Objects that wait for a slot.
    pub queued: usize,
}

/// The limits of one backend.
pub struct BackendSlots {
    /// Backend.
    pub backend: String,
    /// Each kind of work with the use of its limit.
    pub work: [(&'static str, SlotUsage); 3],
}

type ReadSlots = Box<dyn Fn() -> Vec<BackendSlots> + Send + Sync>;

/// Reads the use of all limits when it is scraped. Clones share the function that reads it.
#[derive(Clone, Default)]
pub struct SlotMetrics(Arc<OnceLock<ReadSlots>>);

type Field = fn(&SlotUsage) -> usize;

/// The metrics: the name after `nfs_operator_backend_`, the help text and the value.
const METRICS: [(&str, &str, Field); 3] = [
    (
        "slots",
        "Maximum number of objects in progress, by kind of work: claims, reclaims or archives",
        |slots| slots.limit,
    ),
    ("slots_used", "Objects in progress, by kind of work", |slots| slots.used),
    ("queued", "Objects that wait for a slot, by kind of work", |slots| {
        slots.queued
    }),
];

impl SlotMetrics {
    /// Sets the function that reads the limits of all backends.
    pub fn read_with(&self, read: impl Fn() -> Vec<BackendSlots> + Send + Sync + 'static) {
        // A process runs one operator, which sets it once.
        let _already = self.0.set(Box::new(read));
    }
}

impl fmt::Debug for SlotMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotMetrics")
    }
}

impl Collector for SlotMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let backends = self.0.get().map(|read| read()).unwrap_or_default();
        for (name, help, field) in METRICS {
            let name = format!("nfs_operator_backend_{name}");
            let series = backends.iter().flat_map(|slots| {
                slots.work.iter().map(move |(work, usage)| {
                    let labels = [("backend", slots.backend.as_str()), ("work", work)];
                    let value = i64::try_from(field(usage)).unwrap_or(i64::MAX);
                    (labels, ConstGauge::new(value))
                })
            });
            encode_series(&mut encoder, (&name, help), series)?;
        }
        Ok(())
    }
}
