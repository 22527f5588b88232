//! Tables of results.

use std::{fs, path::Path, process::Command, time::Duration};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{BenchOptions, Policy, Throughput, baseline::BaselineResult, env::CpuUsage, latency::Latencies};

pub const MEBIBYTE: f64 = 1_048_576.0;

/// The kind of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From claims to volumes.
    Claims,
    /// From released volumes to their deletion.
    Deletes,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Claims => "claims to volumes",
            Self::Deletes => "deletes",
        }
    }
}

/// The result of one phase of an operator, in one or more rounds.
#[derive(Clone, Debug)]
pub struct PhaseResult {
    operator: String,
    phase: Phase,
    policy: Policy,
    rounds: Vec<Throughput>,
    used: CpuUsage,
    /// Requests of the operator about single objects of users.
    requests: usize,
    load: String,
}

impl PhaseResult {
    /// Creates the result of a first round.
    pub fn new(
        operator: &str,
        (phase, policy): (Phase, Policy),
        throughput: Throughput,
        used: CpuUsage,
        requests: usize,
    ) -> Self {
        Self {
            operator: operator.into(),
            phase,
            policy,
            rounds: vec![throughput],
            used,
            requests,
            load: load(),
        }
    }

    /// Returns whether both are rounds of the same phase.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_of(&other.operator, other.phase, Some(other.policy))
    }

    /// Returns whether this is the result of an operator in a phase, with this policy if one is given.
    pub fn is_of(&self, operator: &str, phase: Phase, policy: Option<Policy>) -> bool {
        self.operator == operator && self.phase == phase && policy.is_none_or(|policy| self.policy == policy)
    }

    /// Adds the rounds of another result.
    pub fn add_round(&mut self, other: &Self) {
        self.rounds.extend(&other.rounds);
        self.used = self.used.plus(&other.used);
        self.requests += other.requests;
        self.load.clone_from(&other.load);
    }

    /// Returns the throughput of all rounds together.
    pub fn throughput(&self) -> Throughput {
        let none = Throughput { count: 0, seconds: 0.0 };
        self.rounds.iter().fold(none, |sum, round| sum.plus(*round))
    }

    /// Returns the number of API requests for each claim or volume.
    pub fn requests_each(&self) -> f64 {
        self.requests as f64 / self.throughput().count.max(1) as f64
    }

    fn name(&self) -> String {
        format!(
            "{}: {}, policy {}",
            self.operator,
            self.phase.name(),
            self.policy.name()
        )
    }
}

fn phase_of(baseline: &BaselineResult, phase: Phase) -> &(Throughput, CpuUsage) {
    match phase {
        Phase::Claims => &baseline.claims,
        Phase::Deletes => &baseline.deletes,
    }
}

fn floor_of(baseline: &BaselineResult, phase: Phase) -> Throughput {
    match phase {
        Phase::Claims => baseline.floor_claims,
        Phase::Deletes => baseline.floor_deletes,
    }
}

/// Returns the mean of the values, if there are any.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the ratio of two results, if there are both.
pub fn ratio(result: Option<f64>, to: Option<f64>) -> Option<f64> {
    Some(result? / to?)
}

/// Describes the setup of the benchmark.
pub fn describe_setup(options: &BenchOptions, folder: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let BenchOptions {
        count,
        concurrency,
        lone,
        base,
        round_trip,
        ..
    } = options;
    let compared = match (base, round_trip) {
        (Some(_), _) => {
            "The operator and the base, each with a cluster and an NFS server of its own, are measured alternately: base,\n\
             operator, operator, base. What is not measured is paused.\n"
        }
        (_, Some(_)) => {
            "The operator reaches API server and NFS server through proxies, without and with a round trip in them.\n"
        }
        _ => "",
    };
    format!(
        "\
{count} claims, {concurrency} at the same time; {lone} single claims; {cores} cores, load at the start {}.
Data of the NFS server: {} ({}).
The baselines are bare clients under the operator's account, with the same concurrency and without NFS: one makes the
same API requests, the other, the floor, only creates and deletes volumes. Each is the mean of a run before the operator
starts and one after it has stopped.
{compared}In phases with a rate, kube-controller-manager is stopped for the operator and for the baselines, because its binder
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

/// Returns the throughput of all phases, compared with the means of the baselines.
pub fn rates(rates: &[PhaseResult], baselines: &[&BaselineResult]) -> String {
    let mut table = new_table(&[
        "",
        "/s",
        "each round",
        "same requests /s",
        "ratio",
        "floor /s",
        "ratio",
        "API requests each",
        "load",
    ]);
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    for rate in rates {
        let same = mean(
            baselines
                .iter()
                .map(|baseline| phase_of(baseline, rate.phase).0.per_second()),
        );
        let floor = mean(
            baselines
                .iter()
                .map(|baseline| floor_of(baseline, rate.phase).per_second()),
        );
        let operator = Some(rate.throughput().per_second());
        let rounds = rate.rounds.iter().map(|round| format!("{:.1}", round.per_second()));
        table.add_row(vec![
            rate.name(),
            number(operator, 1),
            rounds.collect::<Vec<_>>().join(", "),
            number(same, 1),
            number(ratio(operator, same), 2),
            number(floor, 1),
            number(ratio(operator, floor), 2),
            number(Some(rate.requests_each()), 2),
            rate.load.clone(),
        ]);
    }
    for (when, baseline) in ["before", "after"].iter().zip(baselines) {
        for (what, phase) in [("claims", Phase::Claims), ("deletes", Phase::Deletes)] {
            table.add_row(vec![
                format!("baselines {when}: {what}"),
                String::new(),
                String::new(),
                number(Some(phase_of(baseline, phase).0.per_second()), 1),
                String::new(),
                number(Some(floor_of(baseline, phase).per_second()), 1),
                String::new(),
                String::new(),
                baseline.load.clone(),
            ]);
        }
    }
    table.to_string()
}

/// Returns the latencies of single claims.
pub fn latencies(latencies: &[(String, Latencies)]) -> String {
    let mut table = new_table(&["single claim to its volume, ms", "p50", "p99", "max"]);
    for (operator, latencies) in latencies {
        let rows = [
            ("as a user creates it, including the binder", &latencies.whole),
            ("created with the binder's annotation", &latencies.without_binder),
        ];
        for (what, latencies) in rows {
            let at = |percent| format!("{:.1}", percentile(latencies, percent).as_secs_f64() * 1e3);
            table.add_row(vec![format!("{operator}: {what}"), at(50), at(99), at(100)]);
        }
    }
    table.to_string()
}

/// The operator's resident memory, the part of it without the program's file, and the peak of the process so far, in
/// bytes.
#[derive(Debug)]
pub struct Memory {
    pub when: String,
    pub resident: u64,
    pub anonymous: u64,
    pub peak: u64,
}

/// Returns the operator's memory at several times.
pub fn memory(samples: &[Memory]) -> String {
    let mut table = new_table(&["operator's memory, MiB", "resident", "of it anonymous", "peak"]);
    let mebibytes = |bytes: &u64| format!("{:.1}", *bytes as f64 / MEBIBYTE);
    for Memory {
        when,
        resident,
        anonymous,
        peak,
    } in samples
    {
        let sizes = [resident, anonymous, peak].map(mebibytes);
        table.add_row(std::iter::once(when.clone()).chain(sizes));
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
    let operators = rates.iter().map(|rate| (rate.name(), rate.throughput(), rate.used));
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

/// Returns an empty table whose columns, except for the first, are right-aligned.
pub fn new_table(headings: &[&str]) -> Table {
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
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
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

    #[test]
    fn a_mean_and_a_ratio_need_values() {
        assert_eq!(mean([1.0, 2.0].into_iter()), Some(1.5));
        assert_eq!(mean([].into_iter()), None);
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(Some(3.0), None), None);
    }
}
