//! What the rig starts ends with it: when it is dropped, and when its process is killed.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    any::Any,
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use rig::{Cluster, Export, KernelVm, NfsOptions, NfsServer, RunDir, wait};

/// Every process inherits this variable from the one that started it: its value tells those of one test.
const MARK: &str = "RIG_LEFTOVERS_MARK";
/// What [`starts_something_and_ends_when_told`] is to start.
const PART: &str = "RIG_LEFTOVERS_PART";
/// Killed processes go in milliseconds; a machine that is busy with other tests takes longer.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// A process that started a part of the rig.
struct Holder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    mark: String,
}

impl Holder {
    /// Starts one, and waits until the part runs.
    fn of(part: &str) -> Self {
        let mark = format!("{part}-{}-{}", std::process::id(), rig::random_suffix());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "starts_something_and_ends_when_told",
                "--nocapture",
            ])
            .env(MARK, &mark)
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut holder = Self {
            child,
            input,
            output: BufReader::new(output),
            mark,
        };
        holder.said("started");
        holder
    }

    /// Reads on until that line.
    fn said(&mut self, wanted: &str) {
        let lines = self.output.by_ref().lines();
        let mut seen = lines.map(Result::unwrap);
        assert!(seen.any(|line| line == wanted), "it ended without saying {wanted:?}");
    }

    /// The processes that it started, and those that they started.
    fn others(&self) -> BTreeMap<u32, String> {
        let mark = format!("{MARK}={}", self.mark);
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid != self.child.id())
            .filter_map(|pid| {
                // One that has ended has no environment any more, also before its parent took notice.
                let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
                let ours = environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
                let line = ours.then(|| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())?;
                Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
            })
            .collect()
    }

    /// That these programs run, and nothing of them after `end`.
    async fn leaves_nothing(mut self, programs: &[&str], end: impl FnOnce(&mut Self)) {
        let running = self.others();
        for program in programs {
            assert!(
                running.values().any(|line| line.contains(program)),
                "no {program}: {running:?}"
            );
        }
        end(&mut self);
        wait::until("what was started to end", GONE_WITHIN, async || match self.others() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await
        .unwrap();
    }

    fn drops(&mut self) {
        self.input.write_all(b"drop\n").unwrap();
        self.said("dropped");
    }

    fn is_killed(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended; a test that failed must not leave it.
        let _killed = self.child.kill().and_then(|()| self.child.wait());
    }
}

async fn start(part: &str, run: &RunDir) -> rig::Result<Box<dyn Any>> {
    Ok(match part {
        "nfs" => {
            let options = NfsOptions {
                exports: vec![Export::new("/export"), Export::new("/small").tmpfs(1 << 20, None)],
                v3: true,
                ..NfsOptions::default()
            };
            Box::new(NfsServer::start(run, options).await?)
        }
        "cluster" => Box::new(Cluster::start(run).await?),
        part => {
            assert_eq!(part, "machine");
            Box::new(KernelVm::start(run).await?)
        }
    })
}

#[tokio::test]
#[ignore = "the tests below run it as a process of its own"]
async fn starts_something_and_ends_when_told() {
    let Ok(part) = std::env::var(PART) else { return };
    let run = RunDir::new().unwrap();
    let started = start(&part, &run).await.unwrap();
    println!("\nstarted");
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).unwrap();
    drop(started);
    println!("\ndropped");
    // Until the test has looked.
    std::io::stdin().read_line(&mut told).unwrap();
}

const NFS: &[&str] = &["ganesha.nfsd", "rpcbind", "sleep infinity"];
const CLUSTER: &[&str] = &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

#[tokio::test]
async fn an_nfs_server_that_is_dropped_leaves_no_process() {
    Holder::of("nfs").leaves_nothing(NFS, Holder::drops).await;
}

#[tokio::test]
async fn an_nfs_server_whose_process_is_killed_leaves_no_process() {
    Holder::of("nfs").leaves_nothing(NFS, Holder::is_killed).await;
}

#[tokio::test]
async fn a_cluster_that_is_dropped_leaves_no_process() {
    Holder::of("cluster").leaves_nothing(CLUSTER, Holder::drops).await;
}

#[tokio::test]
async fn a_cluster_whose_process_is_killed_leaves_no_process() {
    Holder::of("cluster").leaves_nothing(CLUSTER, Holder::is_killed).await;
}

/// The name by which the Makefile leaves these out where there is no emulator.
mod kernel {
    use super::Holder;

    #[tokio::test]
    async fn a_machine_that_is_dropped_leaves_no_process() {
        Holder::of("machine").leaves_nothing(&["qemu"], Holder::drops).await;
    }

    #[tokio::test]
    async fn a_machine_whose_process_is_killed_leaves_no_process() {
        Holder::of("machine").leaves_nothing(&["qemu"], Holder::is_killed).await;
    }
}
