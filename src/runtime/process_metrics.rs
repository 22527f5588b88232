//! Metrics of this process, with the names that all client libraries of Prometheus use
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>).

use std::fmt;

use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads the figures of this process when they are scraped. Where they cannot be read, they are absent.
#[derive(Debug)]
pub struct ProcessMetrics;

/// The figures, in base units.
struct Figures {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
    open_files: u64,
    max_files: Option<u64>,
    start_seconds: f64,
}

#[allow(clippy::cast_precision_loss, reason = "values of Prometheus are doubles")]
fn read() -> ProcResult<Figures> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
    Ok(Figures {
        cpu_seconds: seconds(stat.utime.saturating_add(stat.stime)),
        resident_bytes: stat.rss.saturating_mul(page_size()),
        virtual_bytes: stat.vsize,
        threads: u64::try_from(stat.num_threads).unwrap_or_default(),
        open_files: process.fd_count()? as u64,
        max_files: match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        },
        start_seconds: boot_time_secs()? as f64 + seconds(stat.starttime),
    })
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Ok(figures) = read() else {
            return Ok(());
        };
        let help = "User and system CPU time, in seconds";
        let cpu = encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(figures.cpu_seconds).encode(cpu)?;
        #[allow(clippy::cast_precision_loss, reason = "values of Prometheus are doubles")]
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                Some(figures.resident_bytes as f64),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                Some(figures.virtual_bytes as f64),
            ),
            ("process_threads", "Threads", Some(figures.threads as f64)),
            (
                "process_open_fds",
                "Open file descriptors",
                Some(figures.open_files as f64),
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors",
                figures.max_files.map(|limit| limit as f64),
            ),
            (
                "process_start_time_seconds",
                "Start of the process, as a Unix timestamp",
                Some(figures.start_seconds),
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(gauge)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_figures_of_this_process_are_exposed_under_their_usual_names() {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(ProcessMetrics));
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.expect(name).parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_start_time_seconds") > 1.6e9);
    }
}
