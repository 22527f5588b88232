//! `make bench-quotas`: what enforced sizes cost. The agent runs in the virtual machine beside the kernel's NFS server, with
//! XFS and its project quotas; the operator and the API server run on this machine.
//!
//! Every instruction in the machine is emulated, so only ratios and shares say something about other machines. The agent
//! shares the cores with the NFS server. Rates are measured alternately with and without the agent's part, in
//! phases of equally many claims, with the share of the machine's cores that was busy: at 100 %, CPU time is what bounds
//! the rate.

use std::{
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::{progress, table, volume_watch::VolumeWatch};
use crate::{
    cluster::{Cluster, Component},
    error::{Error, Result},
    kernel_vm::{FileSystem, KernelVm},
    objects::{Objects, reference, with_fields},
    operator::{Operator, OperatorOptions},
    process::run,
    run_dir::RunDir,
};

const NAMESPACE: &str = "bench";
/// The backend without `spec.quota`, and the one with `Required`; also the names of their classes.
const BACKENDS: [&str; 2] = ["plain", "required"];
/// Alternations of the measurement of rates.
const ROUNDS: usize = 3;
/// The emulated machine is slow, and slower on a busy host.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Pause after a phase. The operator reports a few seconds later on the claims that their limits are in force.
const SETTLE: Duration = Duration::from_secs(10);
/// Time in which the agent polls twice.
const IDLE: Duration = Duration::from_secs(60);
/// Interval of looking for the result of an expansion.
const LOOK: Duration = Duration::from_millis(10);
/// Clock ticks per second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;
const PROGRAM: &str = "/run/bench/nfs-operator";

/// What to measure; also the arguments of `rig bench-quotas`.
#[derive(clap::Args, Clone, Debug)]
pub struct QuotaBenchOptions {
    /// Path of the operator's binary, built in release mode.
    #[arg(long)]
    pub operator: PathBuf,
    /// Path of the agent's binary, if it is another one.
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Number of claims in a phase. In a short one, the time until the first and after the last claim counts most.
    #[arg(long, default_value_t = 300)]
    pub count: usize,
    /// Number of cores of the machine.
    #[arg(long, default_value_t = 2)]
    pub cores: u32,
    /// Maximum number of claims in progress at the same time.
    #[arg(long, default_value_t = 64)]
    pub concurrency: usize,
    /// Number of volumes with a limit while the idle agent is measured.
    #[arg(long, default_value_t = 1000)]
    pub volumes: usize,
    /// Number of expansions, one after the other.
    #[arg(long, default_value_t = 100)]
    pub expansions: usize,
}

/// Runs the benchmark and prints its results.
pub async fn bench(options: QuotaBenchOptions) -> Result<()> {
    let run = RunDir::new()?;
    let measured = measure(&run, &options).await;
    if measured.is_err() {
        run.keep();
    }
    measured
}

async fn measure(run: &RunDir, options: &QuotaBenchOptions) -> Result<()> {
    println!(
        "{} claims in a phase, {} at the same time; the NFS server and the agent are in an emulated machine with \
         {} cores; load at the start {}.",
        options.count,
        options.concurrency,
        options.cores,
        table::load()
    );
    let mut env = Env::start(run, options).await?;
    env.cluster.kill9(Component::ControllerManager).await?;
    let (mut rates, mut shares) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let (mut limited, mut agent_ticks) = (0, 0.0);
    for round in 0..ROUNDS {
        // Which one is first alternates, too.
        for at in [round % 2, 1 - round % 2] {
            let (Some(name), Some(rates), Some(shares)) = (BACKENDS.get(at), rates.get_mut(at), shares.get_mut(at))
            else {
                continue;
            };
            progress(&format!("claims on the backend {name}"));
            let (before, busy) = (env.agent_ticks().await?, env.busy().await?);
            let rate = env.create(name, options.count).await?;
            shares.push(busy.share_until(&env.busy().await?));
            println!("  {name}: {rate:.1} claims/s");
            rates.push(rate);
            if at == 1 {
                limited += options.count;
                agent_ticks += env.agent_ticks().await? - before;
            }
            tokio::time::sleep(SETTLE).await;
        }
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let ([plain, required], [plain_share, required_share]) = (rates.map(mean), shares.map(mean));
    let mut rows = Vec::new();
    add(
        &mut rows,
        [
            row("claims/s without spec.quota", format!("{plain:.1}"), ""),
            row("claims/s with Required", format!("{required:.1}"), ""),
            row(
                "with Required, relative to without",
                format!("{:.2}", required / plain),
                "≥ 0.70",
            ),
            row(
                "busy cores of the machine, without and with",
                format!("{:.0} %, {:.0} %", plain_share * 100.0, required_share * 100.0),
                "",
            ),
            row(
                "CPU time of the agent and its tools for each claim",
                format!("{:.0} ms", agent_ticks / TICKS * 1e3 / limited.max(1) as f64),
                "",
            ),
        ],
    );
    progress("more volumes");
    let missing = options.volumes.saturating_sub(limited);
    if missing > 0 {
        env.create("required", missing).await?;
    }
    add(&mut rows, env.measure_idle().await?);
    add(&mut rows, env.measure_expansions(options.expansions).await?);
    println!("\n{}", render(&rows));
    env.operator.terminate().await?;
    drop(env.volumes);
    env.cluster.stop().await
}

/// The cluster, the emulated machine with the agent, and the operator.
struct Env {
    cluster: Cluster,
    vm: KernelVm,
    operator: Operator,
    objects: Objects,
    volumes: VolumeWatch,
    concurrency: usize,
}

impl Env {
    async fn start(run: &RunDir, options: &QuotaBenchOptions) -> Result<Self> {
        let (cluster, vm) = tokio::try_join!(Cluster::start(run), KernelVm::start_with_cores(run, options.cores))?;
        let kubeconfig = Operator::install(&cluster).await?;
        let objects = Objects::new(cluster.client().await?);
        let volumes = VolumeWatch::start(cluster.client().await?).await?;
        let operator = Operator::start(run, OperatorOptions::new(&options.operator, kubeconfig)).await?;
        operator.wait_ready().await?;
        let env = Self {
            cluster,
            vm,
            operator,
            objects,
            volumes,
            concurrency: options.concurrency,
        };
        env.objects
            .create(&reference("v1", "Namespace", None, NAMESPACE))
            .await?;
        for name in BACKENDS {
            env.create_backend(name, options).await?;
        }
        Ok(env)
    }

    async fn create_backend(&self, name: &str, options: &QuotaBenchOptions) -> Result<()> {
        let path = self.vm.new_file_system(FileSystem::Xfs).await?;
        let is_limited = name != "plain";
        let quota = if is_limited {
            json!({ "enforce": "Required" })
        } else {
            Value::Null
        };
        let nfs = json!({ "version": "4.2", "port": self.vm.nfs_port() });
        let spec = json!({ "server": "127.0.0.1", "path": path, "nfs": nfs, "quota": quota });
        let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name);
        let created = self
            .objects
            .create(&with_fields(backend, json!({ "spec": spec })))
            .await?;
        if is_limited {
            // Its heartbeat is expected in the folder that the operator creates.
            let missing = Some("QuotaAgentMissing");
            self.objects
                .wait_condition(&created, "QuotasEnforced", "False", missing, TIMEOUT)
                .await?;
            self.start_agent(&path, options).await?;
        }
        self.objects
            .wait_condition(&created, "Ready", "True", None, TIMEOUT)
            .await?;
        let class = reference("storage.k8s.io/v1", "StorageClass", None, name);
        let fields = json!({
            "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
            "parameters": { "backend": name },
        });
        self.objects.create(&with_fields(class, fields)).await.map(drop)
    }

    /// Starts the agent in the machine as the guide says.
    async fn start_agent(&self, export: &str, options: &QuotaBenchOptions) -> Result<()> {
        let program = options.agent.as_ref().unwrap_or(&options.operator);
        self.vm.install_program(program, PROGRAM).await?;
        let mut plugin = Command::new(&options.operator);
        plugin.arg0("kubectl-nfs").args(["secret", "quota-key"]);
        plugin.env("KUBECONFIG", self.cluster.kubeconfig());
        let keys = run(plugin).await?;
        let script = format!(
            "umask 077; echo '{keys}' >/run/bench/keys
             {PROGRAM} quota-agent --export {export} --key-file /run/bench/keys >/run/bench/log 2>&1 &
             echo $! >/run/bench/pid"
        );
        self.vm.run(&script).await.map(drop)
    }

    /// Returns the CPU time of the agent and of the tools that it ran, in ticks.
    async fn agent_ticks(&self) -> Result<f64> {
        // The name of the program has no spaces.
        let script = "awk '{ print $14 + $15 + $16 + $17 }' /proc/$(cat /run/bench/pid)/stat";
        number(&self.vm.run(script).await?)
    }

    /// Returns how long the cores of the machine worked and waited since it started.
    async fn busy(&self) -> Result<Busy> {
        let text = self.vm.run("grep '^cpu ' /proc/stat").await?;
        let ticks: Vec<f64> = text
            .split_whitespace()
            .skip(1)
            .map_while(|word| word.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, and others that are work.
        let idle = ticks.iter().skip(3).take(2).sum::<f64>();
        Ok(Busy {
            idle,
            all: ticks.iter().take(8).sum(),
        })
    }

    /// Creates claims of a class, as the binder annotates them, and returns how many got their volume each second.
    async fn create(&self, class: &str, count: usize) -> Result<f64> {
        let batch = crate::random_suffix();
        let began = Instant::now();
        let created: Vec<Instant> = stream::iter(0..count)
            .map(|number| self.create_one(class, format!("{class}-{batch}-{number}")))
            .buffer_unordered(self.concurrency)
            .try_collect()
            .await?;
        let last = created.into_iter().max().unwrap_or(began);
        Ok(count as f64 / last.duration_since(began).as_secs_f64().max(f64::EPSILON))
    }

    async fn create_one(&self, class: &str, name: String) -> Result<Instant> {
        let claim = self.objects.create(&claim(class, &name)).await?;
        let uid = claim.pointer("/metadata/uid").and_then(Value::as_str);
        let uid = uid.ok_or_else(|| Error::Usage(format!("the claim has no uid: {claim}")))?;
        self.volumes.wait_created(&format!("pvc-{uid}")).await
    }

    /// Measures the agent while no orders are written.
    async fn measure_idle(&self) -> Result<Vec<Row>> {
        progress("no claims");
        let reports = "ls /fs-*/.nfs-operator/*/quota/reports | wc -l";
        let volumes = number(&self.vm.run(reports).await?)?;
        let (began, before) = (Instant::now(), self.agent_ticks().await?);
        tokio::time::sleep(IDLE).await;
        let used = (self.agent_ticks().await? - before) / TICKS / began.elapsed().as_secs_f64();
        let status = self.vm.run("cat /proc/$(cat /run/bench/pid)/status").await?;
        let memory = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.and_then(|line| line.split_whitespace().find_map(|word| word.parse::<f64>().ok()));
            kibibytes.map_or("unknown".to_owned(), |found| format!("{:.1} MiB", found / 1024.0))
        };
        Ok(vec![
            row(
                &format!("agent with {volumes} volumes and no orders, share of a core"),
                format!("{:.1} %", used * 100.0),
                "",
            ),
            row("peak of the agent's resident memory", memory("VmHWM:"), ""),
            row("memory that the agent allocated", memory("RssAnon:"), "≤ 20 MiB"),
        ])
    }

    /// Expands claims one after the other. A claim is expanded when its volume has the new size, which with Required is after
    /// the new limit is in force.
    async fn measure_expansions(&mut self, count: usize) -> Result<Vec<Row>> {
        progress("expansions");
        self.cluster.restart(Component::ControllerManager).await?;
        let mut took = Vec::new();
        for number in 0..count {
            let claim = self
                .objects
                .create(&claim("required", &format!("grows-{number}")))
                .await?;
            let volume = self.objects.wait_bound(&claim, TIMEOUT).await?;
            let began = Instant::now();
            let larger = json!({ "spec": { "resources": { "requests": { "storage": "2Mi" } } } });
            self.objects.patch(&claim, larger).await?;
            loop {
                let found = self.objects.get(&volume).await?.unwrap_or_default();
                if found.pointer("/spec/capacity/storage") == Some(&json!("2Mi")) {
                    break;
                }
                if began.elapsed() > TIMEOUT {
                    return Err(Error::Usage(format!("the volume is not expanded: {found}")));
                }
                tokio::time::sleep(LOOK).await;
            }
            took.push(began.elapsed());
        }
        took.sort();
        let milliseconds = |percent| format!("{:.0} ms", table::percentile(&took, percent).as_secs_f64() * 1e3);
        Ok(vec![
            row("expansion, p50", milliseconds(50), ""),
            row("expansion, p99", milliseconds(99), "< 1000 ms"),
        ])
    }
}

/// Time of all cores together, in ticks.
struct Busy {
    idle: f64,
    all: f64,
}

impl Busy {
    /// Returns the share of the cores' time between two moments in which they worked.
    fn share_until(&self, later: &Self) -> f64 {
        1.0 - (later.idle - self.idle) / (later.all - self.all).max(1.0)
    }
}

fn claim(class: &str, name: &str) -> Value {
    let fields = json!({
        "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": "nfs-operator.io/nfs" } },
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteMany"],
            "resources": { "requests": { "storage": "1Mi" } },
        },
    });
    with_fields(reference("v1", "PersistentVolumeClaim", Some(NAMESPACE), name), fields)
}

fn number(text: &str) -> Result<f64> {
    let number = text.trim().parse();
    number.map_err(|_| Error::Usage(format!("{text:?} is not a number")))
}

type Row = [String; 3];

fn row(what: &str, measured: String, target: &str) -> Row {
    [what.to_owned(), measured, target.to_owned()]
}

/// Adds rows to the result, and prints them at once: the next phase takes minutes.
fn add(rows: &mut Vec<Row>, new: impl IntoIterator<Item = Row>) {
    for row in new {
        let [what, measured, _] = &row;
        println!("  {what}: {measured}");
        rows.push(row);
    }
}

fn render(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "measured", "target"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows.iter().cloned());
    table
}
