//! `make bench-quotas`: what the quota agent itself costs, without the tools of the file system: starts with many volumes,
//! whose limits are not in force and are, memory, and CPU time of an idle interval and of an order.
//!
//! It measures, and never fails on a result. The file system is kept in memory ([`memory`]); orders and reports are files
//! in a folder of this machine. Each start is a process of its own.

mod memory;

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use export_store::RecordsKey;
use export_store::quota::{KeyFile, LimitState, Order, QuotaDirectory, QuotaSeal, Report};
use quota_agent::{Agent, ProjectRange, Settings};

use self::memory::MemoryQuotas;

type Failure = Box<dyn Error + Send + Sync>;

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
/// Number of idle intervals and of orders that are measured.
const REPEATED: u32 = 10;
const MIB: u64 = 1 << 20;

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
    create_export(root)?;
    let orders = quota_folder(root).join("orders");
    fs::create_dir_all(&orders)?;
    for closed in [quota_folder(root), orders] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700))?;
    }
    for number in 0..options.volumes {
        fs::create_dir(root.join(directory(number)))?;
        place(root, number, 1)?;
    }
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

/// Creates an export that an operator uses.
fn create_export(root: &Path) -> Result<(), Failure> {
    let cluster = root.join(".nfs-operator").join(CLUSTER);
    fs::create_dir_all(cluster.join("records"))?;
    for closed in [root.join(".nfs-operator"), cluster] {
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700))?;
    }
    fs::write(
        root.join(".nfs-operator/identity"),
        r#"{"version":1,"id":"export","rootFileID":2}"#,
    )?;
    let keys = root.join("keys");
    fs::write(&keys, KeyFile::lines(CLUSTER, &key()))?;
    fs::set_permissions(keys, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn key() -> RecordsKey {
    RecordsKey::new(&[7; 32])
}

fn seal() -> QuotaSeal {
    QuotaSeal::new(Some(key().quota_key()), CLUSTER, "export")
}

fn quota_folder(root: &Path) -> PathBuf {
    root.join(".nfs-operator").join(CLUSTER).join("quota")
}

/// Returns the name of a volume's directory, as long as that of a claim.
fn directory(number: usize) -> String {
    format!("namespace-claim-{number:05}-pvc-00000000-0000-4000-8000-{number:012}")
}

fn volume(number: usize) -> String {
    format!("pvc-00000000-0000-4000-8000-{number:012}")
}

/// Orders a limit, as the operator does.
fn place(root: &Path, number: usize, generation: u64) -> Result<(), Failure> {
    let order = Order {
        volume: volume(number),
        directory: QuotaDirectory::parse(&directory(number))?,
        file_id: fs::metadata(root.join(directory(number)))?.ino(),
        generation,
        bytes: Some(generation * MIB),
        inodes: Some(1000),
    };
    let orders = quota_folder(root).join("orders");
    let draft = orders.join(format!(".draft-{}", order.volume));
    fs::write(&draft, seal().seal(&order)?)?;
    fs::rename(draft, orders.join(&order.volume))?;
    Ok(())
}

/// Returns the state and the generation in the report about a volume.
fn reported(root: &Path, number: usize) -> Result<(LimitState, u64), Failure> {
    let bytes = fs::read(quota_folder(root).join("reports").join(volume(number)))?;
    let (report, _) = seal().open::<Report>(&volume(number), &bytes)?;
    Ok((report.state, report.generation))
}

/// Starts an agent, prints what that took, and after the second start also what it takes then.
async fn be_agent(root: &Path, volumes: usize) -> Result<(), Failure> {
    let quotas = MemoryQuotas::load(&root.join("file-system"))?;
    let is_first = quotas.is_empty();
    let meter = Meter::start(&quotas)?;
    let settings = Settings {
        exports: vec![root.to_owned()],
        key_file: Some(root.join("keys")),
        projects: ProjectRange::default(),
        files_per_second: 1000,
    };
    let mut agent = Agent::new(settings, vec![(root.to_owned(), quotas.clone())])?;
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
    quotas.save(&root.join("file-system"))?;
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
