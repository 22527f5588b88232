//! The figures, in columns.

use std::{fs, path::Path, process::Command, time::Duration};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{BenchOptions, Pace, lone::Latencies, stage::Usage};

const MEBIBYTE: f64 = 1_048_576.0;

/// One phase: the operator's figures and the floor's.
#[derive(Debug)]
pub struct Rate {
    what: String,
    operator: Pace,
    floor: Pace,
    used: Usage,
    used_by_floor: Usage,
    load: String,
}

impl Rate {
    pub fn new(what: &str, (operator, used): (Pace, Usage), (floor, used_by_floor): (Pace, Usage)) -> Self {
        Self {
            what: what.into(),
            operator,
            floor,
            used,
            used_by_floor,
            load: load(),
        }
    }
}

/// What was measured, and how.
pub fn conditions(options: &BenchOptions, folder: &Path) -> String {
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
NFS, just before the operator's turn and while the operator is paused.
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

/// Claims and deletes a second.
pub fn rates(rates: &[Rate]) -> String {
    let mut table = new(&["", "operator /s", "floor /s", "ratio (goal 0.50)", "load"]);
    for rate in rates {
        let (operator, floor) = (rate.operator.per_second(), rate.floor.per_second());
        table.add_row(vec![
            rate.what.clone(),
            format!("{operator:.1}"),
            format!("{floor:.1}"),
            format!("{:.2}", operator / floor),
            rate.load.clone(),
        ]);
    }
    table.to_string()
}

/// How long lone claims waited.
pub fn latencies(lone: &Latencies) -> String {
    let mut table = new(&["lone claim to its volume, ms", "p50", "p99 (goal < 100)", "longest"]);
    let rows = [
        ("as a user makes it, binder included", &lone.whole),
        ("with the binder's annotation", &lone.without_binder),
    ];
    for (what, latencies) in rows {
        let at = |percent| format!("{:.1}", percentile(latencies, percent).as_secs_f64() * 1e3);
        table.add_row(vec![what.into(), at(50), at(99), at(100)]);
    }
    table.to_string()
}

/// The operator's resident memory at those moments.
pub fn memory(moments: &[(String, u64)]) -> String {
    let mut table = new(&["operator's resident memory", "MiB (goal < 30 at 500 claims)"]);
    for (when, bytes) in moments {
        table.add_row(vec![when.clone(), format!("{:.1}", *bytes as f64 / MEBIBYTE)]);
    }
    table.to_string()
}

/// Where the time of the processors went.
pub fn cost(rates: &[Rate]) -> String {
    let mut table = new(&[
        "CPU time, ms each",
        "operator",
        "NFS server",
        "API server",
        "etcd",
        "bench",
    ]);
    for rate in rates {
        let sides = [
            (rate.what.clone(), rate.operator, &rate.used),
            (format!("{}: floor", rate.what), rate.floor, &rate.used_by_floor),
        ];
        for (what, pace, used) in sides {
            let each = |seconds: f64| format!("{:.2}", seconds * 1e3 / pace.count.max(1) as f64);
            table.add_row(vec![
                what,
                each(used.operator),
                each(used.nfs_server),
                each(used.api_server),
                each(used.etcd),
                each(used.bench),
            ]);
        }
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
