//! The results, in columns.

use std::{fs, path::Path, process::Command, time::Duration};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{BenchOptions, Throughput, baseline::BaselineResult, env::CpuUsage, latency::Latencies};

pub const MEBIBYTE: f64 = 1_048_576.0;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Claims to volumes.
    Claims,
    /// Released volumes to none.
    Deletes,
}

/// One phase of the operator.
#[derive(Debug)]
pub struct PhaseResult {
    phase: Phase,
    what: String,
    throughput: Throughput,
    used: CpuUsage,
    load: String,
}

impl PhaseResult {
    pub fn new(phase: Phase, policy: &str, throughput: Throughput, used: CpuUsage) -> Self {
        let what = match phase {
            Phase::Claims => "claims to volumes",
            Phase::Deletes => "deletes",
        };
        Self {
            phase,
            what: format!("{what}, policy {policy}"),
            throughput,
            used,
            load: load(),
        }
    }
}

fn of(floor: &BaselineResult, phase: Phase) -> &(Throughput, CpuUsage) {
    match phase {
        Phase::Claims => &floor.claims,
        Phase::Deletes => &floor.deletes,
    }
}

/// What was measured, and how.
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
{count} claims, {concurrency} at a time; {lone} lone claims; {cores} cores, load at the start {}.
The NFS server's data is in {} ({}).
The floor is a bare client under the operator's account that makes the same API calls at the same concurrency, without
NFS: the mean of a run before the operator starts and one after it has ended.
In phases with a rate kube-controller-manager is stopped, for operator and floor alike: its binder serves 40-70 claims
a second and would be what is measured. The bench writes what it would: the storage-provisioner annotation on claims,
the phase Released on volumes, and the end of the protection finalizers. Lone claims are measured with it running.
A claim counts when a watch shows its volume, a delete when a watch shows that the volume is gone; all volumes were
released while the operator was paused, and each directory holds one file.
",
        load(),
        folder.display(),
        file_system(folder),
    )
}

/// Claims and deletes a second, against the mean of the baselines.
pub fn rates(rates: &[PhaseResult], baselines: &[&BaselineResult]) -> String {
    let mut table = new(&["", "operator /s", "floor /s", "ratio (goal 0.50)", "load"]);
    for rate in rates {
        let sum: f64 = baselines.iter().map(|floor| of(floor, rate.phase).0.per_second()).sum();
        let (operator, floor) = (rate.throughput.per_second(), sum / baselines.len().max(1) as f64);
        table.add_row(vec![
            rate.what.clone(),
            format!("{operator:.1}"),
            format!("{floor:.1}"),
            format!("{:.2}", operator / floor),
            rate.load.clone(),
        ]);
    }
    for (when, floor) in ["before", "after"].iter().zip(baselines) {
        for (what, phase) in [("claims", Phase::Claims), ("deletes", Phase::Deletes)] {
            table.add_row(vec![
                format!("floor {when}: {what}"),
                String::new(),
                format!("{:.1}", of(floor, phase).0.per_second()),
                String::new(),
                floor.load.clone(),
            ]);
        }
    }
    table.to_string()
}

/// How long lone claims waited.
pub fn latencies(lone: &Latencies) -> String {
    let mut table = new(&["lone claim to its volume, ms", "p50", "p99 (goal < 100)", "longest"]);
    let rows = [
        ("as a user makes it, binder included", &lone.whole),
        ("with the binder's annotation", &lone.stop_binder),
    ];
    for (what, latencies) in rows {
        let at = |percent| format!("{:.1}", percentile(latencies, percent).as_secs_f64() * 1e3);
        table.add_row(vec![what.into(), at(50), at(99), at(100)]);
    }
    table.to_string()
}

/// The operator's resident memory at a moment, and its peak until then in the same process, in bytes.
#[derive(Debug)]
pub struct Memory {
    pub when: String,
    pub resident: u64,
    pub peak: u64,
}

/// The operator's resident memory at those moments.
pub fn memory(moments: &[Memory], goal: &str) -> String {
    let mut table = new(&["operator's resident memory", &format!("MiB ({goal})"), "peak so far"]);
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / MEBIBYTE);
    for Memory { when, resident, peak } in moments {
        table.add_row(vec![when.clone(), mebibytes(*resident), mebibytes(*peak)]);
    }
    table.to_string()
}

/// What else was counted, a line each.
pub fn counts(rows: &[(&str, String)]) -> String {
    let mut table = new(&["", "counted"]);
    for (what, count) in rows {
        table.add_row(vec![(*what).to_owned(), count.clone()]);
    }
    table.to_string()
}

/// Where the time of the processors went.
pub fn cpu_times(rates: &[PhaseResult], baselines: &[&BaselineResult]) -> String {
    let mut table = new(&[
        "CPU time, ms each",
        "operator",
        "NFS server",
        "API server",
        "etcd",
        "bench",
    ]);
    let operators = rates.iter().map(|rate| (rate.what.clone(), rate.throughput, rate.used));
    let baselines = ["before", "after"].iter().zip(baselines).flat_map(|(when, floor)| {
        [("claims", Phase::Claims), ("deletes", Phase::Deletes)].map(|(what, phase)| {
            let (throughput, used) = *of(floor, phase);
            (format!("floor {when}: {what}"), throughput, used)
        })
    });
    for (what, throughput, used) in operators.chain(baselines) {
        let each = |seconds: f64| format!("{:.2}", seconds * 1e3 / throughput.count.max(1) as f64);
        let shares = [used.operator, used.nfs_server, used.api_server, used.etcd, used.bench].map(each);
        table.add_row(std::iter::once(what).chain(shares));
    }
    table.to_string()
}

fn new(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(heads);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// How busy the machine was, see proc(5), /proc/loadavg: over 1 and 5 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn file_system(folder: &Path) -> String {
    let asked = Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).output();
    match asked {
        Ok(answer) if answer.status.success() => String::from_utf8_lossy(&answer.stdout).trim().to_owned(),
        _ => "file system unknown".into(),
    }
}

/// The nearest-rank percentile of sorted values; zero of none.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values_with_so_many_at_or_below_it() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&values, 100), Duration::from_millis(200));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
