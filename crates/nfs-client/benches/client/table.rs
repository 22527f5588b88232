//! The table of results.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::Options;
use crate::meter::Share;

/// The conditions of a row.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub version: &'static str,
    /// The configured round trip of the proxy in milliseconds.
    pub requested: u64,
    /// The measured time of a call to which the server replies at once.
    pub measured: Duration,
}

/// The time of sequential calls.
#[derive(Debug, Clone, Copy)]
pub struct Serial(Duration);

impl Serial {
    /// Extrapolates the time of `whole` calls from a sample.
    pub fn sampled(took: Duration, sample: usize, whole: usize) -> Self {
        Self(took.mul_f64(whole as f64 / sample.max(1) as f64))
    }
}

/// One measurement.
#[derive(Debug)]
pub struct Row {
    about: About,
    what: String,
    objects: usize,
    took: Duration,
    serial: Option<(Serial, Option<u32>)>,
    bare: Option<(Duration, Option<f64>)>,
    readdir: Option<Share>,
}

impl Row {
    pub fn new(about: &About, what: String, objects: usize, took: Duration) -> Self {
        Self {
            about: *about,
            what,
            objects,
            took,
            serial: None,
            bare: None,
            readdir: None,
        }
    }

    /// Compares with sequential calls; `goal` is the required factor.
    pub fn beside(self, serial: Serial, goal: Option<u32>) -> Self {
        Self {
            serial: Some((serial, goal)),
            ..self
        }
    }

    /// Compares with the bare calls; `goal` is the required factor.
    pub fn against_bare(self, bare: Duration, goal: Option<f64>) -> Self {
        Self {
            bare: Some((bare, goal)),
            ..self
        }
    }

    pub fn with_readdir(self, share: Share) -> Self {
        Self {
            readdir: Some(share),
            ..self
        }
    }

    fn cells(&self) -> [String; 9] {
        let ms = |took: Duration| format!("{:.1}", took.as_secs_f64() * 1e3);
        let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64().max(f64::EPSILON);
        let serial = self
            .serial
            .map_or([const { String::new() }; 2], |(Serial(serial), goal)| {
                let goal = goal.map_or(String::new(), |goal| format!(" (goal {goal})"));
                [ms(serial), format!("{:.0}{goal}", ratio(serial, self.took))]
            });
        let bare = self.bare.map_or(String::new(), |(bare, goal)| {
            let goal = goal.map_or(String::new(), |goal| format!(" (goal {goal})"));
            format!("{:.2}{goal}", ratio(self.took, bare))
        });
        let readdir = self.readdir.map_or(String::new(), |share| {
            format!("{:.0} % of the time, {} calls", share.alone * 100.0, share.calls)
        });
        let [alone, times] = serial;
        [
            self.about.version.to_owned(),
            format!("{} ({})", self.about.requested, ms(self.about.measured)),
            self.what.clone(),
            ms(self.took),
            format!("{:.0}", self.objects as f64 / self.took.as_secs_f64().max(f64::EPSILON)),
            alone,
            times,
            bare,
            readdir,
        ]
    }
}

/// Returns a description of the measurement.
pub fn conditions(options: &Options) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let profile = if cfg!(debug_assertions) {
        "without optimization: no figure to quote"
    } else {
        "optimized"
    };
    format!(
        "\
The NFS client alone, {profile}; {cores} cores, load at the start {}; nfs-ganesha behind a proxy that makes the round trip.
Serial is one call at a time: samples of 40 creates, 40 renames and 100 removals in the same run, reckoned up to the whole.
Bare is the same REMOVEs, as many a call and in flight, of names that are known: no listing; for creates, a GETATTR for each of their calls.
READDIR is serial by nature; its share is the time in which nothing else was in flight. {} creates, {} entries in the large directory.
",
        load.split_whitespace().take(2).collect::<Vec<_>>().join(" "),
        options.count,
        options.large,
    )
}

pub fn rows(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "NFS",
        "round trip ms (measured)",
        "what",
        "ms",
        "objects/s",
        "serial ms",
        "times serial",
        "times bare",
        "READDIR alone",
    ]);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        table.add_row(row.cells());
    }
    table.to_string()
}
