//! `make bench-quotas`: what the quota agent itself costs, without the tools of the file system: starts with many volumes,
//! whose limits are not in force and are, memory, and CPU time of an idle interval and of an order.
//!
//! It measures, and never fails on a result. The file system is kept in memory ([`memory`]); orders and reports are files
//! in a folder of this machine. Each start is a process of its own.

mod export;
mod memory;

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use export_store::quota::LimitState;
use quota_agent::Agent;

use self::export::{create, place, reported, settings};
use self::memory::MemoryQuotas;

type Failure = Box<dyn Error + Send + Sync>;

/// Number of idle intervals and of orders that are measured.
const REPEATED: u32 = 10;

/// Options of the benchmark.
#[derive(Debug, Parser)]
struct Options {
    /// Number of volumes.
    #[arg(long, default_value_t = 10_000)]
    volumes: usize,
    /// Folder for orders and reports. Its file system decides how long it takes until reports are on stable storage.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Be the agent of an export that the benchmark created.
    #[arg(long, hide = true)]
    agent: Option<PathBuf>,
    /// Cargo passes this option to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A row of the result: what was done, and what it took.
type Row = Vec<String>;

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    if let Some(root) = &options.agent {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(be_agent(root, options.volumes));
    }
    let root = options
        .folder
        .join(format!("quota-agent-{:016x}", rand::random::<u64>()));
    let measured = measure(&root, &options);
    fs::remove_dir_all(&root)?;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "time", "CPU time", "runs of tools", "RssAnon", "VmHWM"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(measured?);
    println!(
        "{} volumes; orders and reports are in {}\n{table}",
        options.volumes,
        options.folder.display()
    );
    Ok(())
}

fn measure(root: &Path, options: &Options) -> Result<Vec<Row>, Failure> {
    create(root, options.volumes)?;
    let mut rows = Vec::new();
    for _ in 0..2 {
        let mut agent = Command::new(std::env::current_exe()?);
        agent
            .arg("--agent")
            .arg(root)
            .args(["--volumes", &options.volumes.to_string()]);
        let output = agent.output()?;
        std::io::stderr().write_all(&output.stderr)?;
        if !output.status.success() {
            return Err("the agent failed".into());
        }
        let text = String::from_utf8(output.stdout)?;
        rows.extend(
            text.lines()
                .map(|line| line.split('\t').map(str::to_owned).collect::<Row>()),
        );
    }
    Ok(rows)
}

/// Starts an agent, prints what that took, and after the second start also what it takes then.
async fn be_agent(root: &Path, volumes: usize) -> Result<(), Failure> {
    let saved = root.join("file-system");
    let is_first = !saved.exists();
    let quotas = MemoryQuotas::load(&saved)?;
    let meter = Meter::start(&quotas)?;
    let mut agent = Agent::new(settings(root), vec![(root.to_owned(), quotas.clone())])?;
    agent.poll().await;
    agent.write_usage().await;
    let what = if is_first {
        "first start, which sets all limits"
    } else {
        "restart"
    };
    meter.print(what, &quotas, 1)?;
    for number in 0..volumes {
        if reported(root, number)? != (LimitState::InForce, 1) {
            return Err(format!("the limit of volume {number} is not in force").into());
        }
    }
    quotas.save(&saved)?;
    if is_first {
        return Ok(());
    }
    let meter = Meter::start(&quotas)?;
    for _ in 0..REPEATED {
        agent.poll().await;
        agent.write_usage().await;
    }
    meter.print("30 s without orders", &quotas, REPEATED)?;
    let mut took = (Duration::ZERO, Duration::ZERO, 0);
    for repeated in 0..REPEATED {
        place(root, 0, 2 + u64::from(repeated))?;
        let meter = Meter::start(&quotas)?;
        agent.enforce().await;
        let (time, cpu, runs) = meter.read(&quotas)?;
        took = (took.0 + time, took.1 + cpu, took.2 + runs);
    }
    if reported(root, 0)? != (LimitState::InForce, 1 + u64::from(REPEATED)) {
        return Err("the last order is not in force".into());
    }
    print_row("an order for one of the volumes", took, REPEATED)
}

/// Measures what this process uses.
struct Meter {
    began: Instant,
    cpu: Duration,
    runs: u32,
}

impl Meter {
    fn start(quotas: &MemoryQuotas) -> Result<Self, Failure> {
        Ok(Self {
            began: Instant::now(),
            cpu: cpu_time()?,
            runs: quotas.runs(),
        })
    }

    /// Returns the time, the CPU time and the number of runs of tools since the start.
    fn read(&self, quotas: &MemoryQuotas) -> Result<(Duration, Duration, u32), Failure> {
        Ok((
            self.began.elapsed(),
            cpu_time()?.saturating_sub(self.cpu),
            quotas.runs() - self.runs,
        ))
    }

    fn print(&self, what: &str, quotas: &MemoryQuotas, repeated: u32) -> Result<(), Failure> {
        print_row(what, self.read(quotas)?, repeated)
    }
}

fn print_row(what: &str, (time, cpu, runs): (Duration, Duration, u32), repeated: u32) -> Result<(), Failure> {
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3 / f64::from(repeated));
    let status = fs::read_to_string("/proc/self/status")?;
    let memory = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kibibytes.map_or("unknown".to_owned(), |found| format!("{:.1} MiB", found / 1024.0))
    };
    let row = [
        what.to_owned(),
        milliseconds(time),
        milliseconds(cpu),
        format!("{}", runs / repeated),
        memory("RssAnon"),
        memory("VmHWM"),
    ];
    println!("{}", row.join("\t"));
    Ok(())
}

/// Returns the CPU time of this process, which has one thread.
fn cpu_time() -> Result<Duration, Failure> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = text.split(' ').next().ok_or("/proc/self/schedstat is empty")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}
