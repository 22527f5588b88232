//! Tables of results.

use std::{fs, path::Path, process::Command, time::Duration};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{BenchOptions, Throughput, baseline::BaselineResult, env::CpuUsage, latency::Latencies};

pub const MEBIBYTE: f64 = 1_048_576.0;

/// The kind of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From claims to volumes.
    Claims,
    /// From released volumes to their deletion.
    Deletes,
}

/// The result of one phase of the operator.
#[derive(Debug)]
pub struct PhaseResult {
    phase: Phase,
    what: String,
    throughput: Throughput,
    used: CpuUsage,
    /// Requests of the operator about single objects of users.
    requests: usize,
    load: String,
}

impl PhaseResult {
    pub fn new(phase: Phase, policy: &str, throughput: Throughput, used: CpuUsage, requests: usize) -> Self {
        let what = match phase {
            Phase::Claims => "claims to volumes",
            Phase::Deletes => "deletes",
        };
        Self {
            phase,
            what: format!("{what}, policy {policy}"),
            throughput,
            used,
            requests,
            load: load(),
        }
    }
}

fn phase_of(baseline: &BaselineResult, phase: Phase) -> &(Throughput, CpuUsage) {
    match phase {
        Phase::Claims => &baseline.claims,
        Phase::Deletes => &baseline.deletes,
    }
}

/// Describes the setup of the benchmark.
pub fn describe_setup(options: &BenchOptions, folder: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let BenchOptions {
        count,
        concurrency,
        lone,
        ..
    } = options;
    format!(
        "\
{count} claims, {concurrency} at the same time; {lone} single claims; {cores} cores, load at the start {}.
Data of the NFS server: {} ({}).
The baseline is a bare client under the operator's account that makes the same API requests with the same concurrency,
without NFS: the mean of a run before the operator starts and one after it has stopped.
In phases with a rate, kube-controller-manager is stopped for the operator and for the baseline, because its binder
handles only 40-70 claims a second. The benchmark acts in its place: it sets the storage-provisioner annotation of claims
and the phase Released of volumes, and removes the protection finalizers. Single claims are measured with the binder.
A claim is complete when a watch shows its volume, and a delete when a watch shows that the volume is deleted. All
volumes are released while the operator is paused, and each directory contains one file.
",
        load(),
        folder.display(),
        file_system(folder),
    )
}

/// Returns the throughput of all phases, compared with the mean of the baselines.
pub fn rates(rates: &[PhaseResult], baselines: &[&BaselineResult]) -> String {
    let mut table = new_table(&[
        "",
        "operator /s",
        "baseline /s",
        "ratio (goal 0.50)",
        "API requests each",
        "load",
    ]);
    for rate in rates {
        let sum: f64 = baselines
            .iter()
            .map(|baseline| phase_of(baseline, rate.phase).0.per_second())
            .sum();
        let (operator, baseline) = (rate.throughput.per_second(), sum / baselines.len().max(1) as f64);
        table.add_row(vec![
            rate.what.clone(),
            format!("{operator:.1}"),
            format!("{baseline:.1}"),
            format!("{:.2}", operator / baseline),
            format!("{:.2}", rate.requests as f64 / rate.throughput.count.max(1) as f64),
            rate.load.clone(),
        ]);
    }
    for (when, baseline) in ["before", "after"].iter().zip(baselines) {
        for (what, phase) in [("claims", Phase::Claims), ("deletes", Phase::Deletes)] {
            table.add_row(vec![
                format!("baseline {when}: {what}"),
                String::new(),
                format!("{:.1}", phase_of(baseline, phase).0.per_second()),
                String::new(),
                String::new(),
                baseline.load.clone(),
            ]);
        }
    }
    table.to_string()
}

/// Returns the latencies of single claims.
pub fn latencies(latencies: &Latencies) -> String {
    let mut table = new_table(&["single claim to its volume, ms", "p50", "p99 (goal < 100)", "max"]);
    let rows = [
        ("as a user creates it, including the binder", &latencies.whole),
        ("created with the binder's annotation", &latencies.without_binder),
    ];
    for (what, latencies) in rows {
        let at = |percent| format!("{:.1}", percentile(latencies, percent).as_secs_f64() * 1e3);
        table.add_row(vec![what.into(), at(50), at(99), at(100)]);
    }
    table.to_string()
}

/// The operator's resident memory and its peak so far, in bytes.
#[derive(Debug)]
pub struct Memory {
    pub when: String,
    pub resident: u64,
    pub peak: u64,
}

/// Returns the operator's memory at several times.
pub fn memory(samples: &[Memory], goal: &str) -> String {
    let mut table = new_table(&["operator's resident memory", &format!("MiB ({goal})"), "peak"]);
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / MEBIBYTE);
    for Memory { when, resident, peak } in samples {
        table.add_row(vec![when.clone(), mebibytes(*resident), mebibytes(*peak)]);
    }
    table.to_string()
}

/// Returns other results, one per line.
pub fn counts(rows: &[(&str, String)]) -> String {
    let mut table = new_table(&["", "result"]);
    for (what, count) in rows {
        table.add_row(vec![(*what).to_owned(), count.clone()]);
    }
    table.to_string()
}

/// Returns the CPU time of all processes.
pub fn cpu_times(rates: &[PhaseResult], baselines: &[&BaselineResult]) -> String {
    let mut table = new_table(&[
        "CPU time, ms per claim",
        "operator",
        "NFS server",
        "API server",
        "etcd",
        "bench",
    ]);
    let operators = rates.iter().map(|rate| (rate.what.clone(), rate.throughput, rate.used));
    let baselines = ["before", "after"].iter().zip(baselines).flat_map(|(when, baseline)| {
        [("claims", Phase::Claims), ("deletes", Phase::Deletes)].map(|(what, phase)| {
            let (throughput, used) = *phase_of(baseline, phase);
            (format!("baseline {when}: {what}"), throughput, used)
        })
    });
    for (what, throughput, used) in operators.chain(baselines) {
        let per_claim = |seconds: f64| format!("{:.2}", seconds * 1e3 / throughput.count.max(1) as f64);
        let shares = [used.operator, used.nfs_server, used.api_server, used.etcd, used.bench].map(per_claim);
        table.add_row(std::iter::once(what).chain(shares));
    }
    table.to_string()
}

fn new_table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(headings);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns the load average over 1 and 5 minutes, see /proc/loadavg in proc(5).
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn file_system(folder: &Path) -> String {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "file system unknown".into(),
    }
}

/// Returns the nearest-rank percentile of sorted values; zero if there are none.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&values, 100), Duration::from_millis(200));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
