//! An agent with ten thousand volumes and a file system in memory: starts are quick and need little memory. The tools of real
//! file systems are not run: see `tests/kernel.rs`. This program is also the agent, so that its memory is that of the agent.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use export_store::quota::LimitState;
use libtest_mimic::{Arguments, Trial};
use quota_agent::Agent;

#[path = "../benches/agent/export.rs"]
mod export;
#[path = "../benches/agent/memory.rs"]
mod memory;

use self::memory::MemoryQuotas;

type Failure = Box<dyn Error + Send + Sync>;

const VOLUMES: usize = 10_000;
/// What a start may take. CPU time, because other tests run at the same time.
const MAX_CPU: Duration = Duration::from_secs(10);
/// What an agent may use at most, in KiB.
const MAX_MEMORY: u64 = 20 * 1024;
/// Runs of tools of a start that sets all limits, and of one that finds them in force: one for 200 directories of each kind.
const MAX_RUNS: [u32; 2] = [160, 60];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, serve, root] = arguments.as_slice()
        && serve == "serve"
    {
        return match be_agent(Path::new(root)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let test = Trial::test("an_agent_starts_with_ten_thousand_volumes", || {
        Ok(starts_with_many_volumes().map_err(|error| error.to_string())?)
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

fn starts_with_many_volumes() -> Result<(), Failure> {
    // In memory, where it is there: how long a disk takes says nothing about the agent.
    let folder = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(std::env::temp_dir);
    let root = folder.join(format!("quota-agent-scale-{:016x}", rand::random::<u64>()));
    let tested = starts_twice(&root);
    fs::remove_dir_all(&root)?;
    tested
}

fn starts_twice(root: &Path) -> Result<(), Failure> {
    export::create(root, VOLUMES)?;
    for most in MAX_RUNS {
        let output = Command::new(std::env::current_exe()?).arg("serve").arg(root).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [runs, milliseconds, kibibytes] = *numbers.as_slice() else {
            return Err(format!("three numbers are expected: {text}").into());
        };
        println!("{runs} runs of tools, {milliseconds} ms of CPU time, {kibibytes} KiB");
        let is_quick = Duration::from_millis(milliseconds) <= MAX_CPU && runs <= u64::from(most);
        if !is_quick || kibibytes > MAX_MEMORY {
            return Err(format!("more than {most} runs of tools, {MAX_CPU:?} or {MAX_MEMORY} KiB: {text}").into());
        }
    }
    for number in 0..VOLUMES {
        if export::reported(root, number)? != (LimitState::InForce, 1) {
            return Err(format!("the limit of volume {number} is not in force").into());
        }
    }
    Ok(())
}

/// Starts an agent, and prints the number of runs of tools, its CPU time in milliseconds and the peak of its memory in KiB.
fn be_agent(root: &Path) -> Result<(), Failure> {
    let saved = root.join("file-system");
    let quotas = MemoryQuotas::load(&saved)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut agent = Agent::new(export::settings(root), vec![(root.to_owned(), quotas.clone())])?;
        agent.poll().await;
        agent.write_usage().await;
        Ok::<_, Failure>(())
    })?;
    // Nanoseconds on a processor (proc(5)). The process has one thread.
    let schedule = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: u64 = schedule.split(' ').next().unwrap_or_default().parse()?;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default();
    println!("{} {} {peak}", quotas.runs(), nanoseconds / 1_000_000);
    quotas.save(&saved)
}
