//! Parts of the rig leave no process behind, neither when they are dropped nor when their process is killed.
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

/// Environment variable that child processes inherit. Its value identifies the processes of one test.
const TEST_ID_VARIABLE: &str = "RIG_CLEANUP_TEST_ID";
/// Environment variable with the part that [`start_part_and_wait`] starts.
const PART_VARIABLE: &str = "RIG_CLEANUP_PART";
/// Killed processes exit in milliseconds, and later on a machine that is busy with other tests.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that runs a part of the rig.
struct PartProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    test_id: String,
}

impl PartProcess {
    /// Starts the process and waits until the part runs.
    fn start(part: &str) -> Self {
        let test_id = format!("{part}-{}-{}", std::process::id(), rig::random_suffix());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "start_part_and_wait", "--nocapture"])
            .env(TEST_ID_VARIABLE, &test_id)
            .env(PART_VARIABLE, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut process = Self {
            child,
            input,
            output: BufReader::new(output),
            test_id,
        };
        process.wait_for_line("started");
        process
    }

    /// Reads its output up to a line.
    fn wait_for_line(&mut self, expected: &str) {
        let lines = self.output.by_ref().lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(
            lines.any(|line| line == expected),
            "it exited without printing {expected:?}"
        );
    }

    /// Returns its child processes and their descendants.
    fn descendants(&self) -> BTreeMap<u32, String> {
        let variable = format!("{TEST_ID_VARIABLE}={}", self.test_id);
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid != self.child.id())
            .filter_map(|pid| {
                // A zombie has no environment.
                let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
                let is_descendant = environment
                    .split(|byte| *byte == 0)
                    .any(|word| word == variable.as_bytes());
                let line = is_descendant.then(|| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())?;
                Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
            })
            .collect()
    }

    /// Verifies that `programs` run, and that no process remains after `end`.
    async fn assert_no_leftovers(mut self, programs: &[&str], end: impl FnOnce(&mut Self)) {
        let running = self.descendants();
        for program in programs {
            assert!(
                running.values().any(|line| line.contains(program)),
                "no {program}: {running:?}"
            );
        }
        end(&mut self);
        wait::until("all child processes to exit", EXIT_TIMEOUT, async || {
            match self.descendants() {
                left if left.is_empty() => Ok(()),
                left => Err(format!("{left:?}")),
            }
        })
        .await
        .unwrap();
    }

    fn drop_part(&mut self) {
        self.input.write_all(b"drop\n").unwrap();
        self.wait_for_line("dropped");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for PartProcess {
    fn drop(&mut self) {
        // A failed test must not leave the process. It may have exited.
        let _ = self.child.kill().and_then(|()| self.child.wait());
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
#[ignore = "the tests below run it in a separate process"]
async fn start_part_and_wait() {
    let Ok(part) = std::env::var(PART_VARIABLE) else { return };
    let run = RunDir::new().unwrap();
    let started = start(&part, &run).await.unwrap();
    println!("\nstarted");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(started);
    println!("\ndropped");
    // Wait until the test has listed the processes.
    std::io::stdin().read_line(&mut line).unwrap();
}

const NFS: &[&str] = &["ganesha.nfsd", "rpcbind", "sleep infinity"];
const CLUSTER: &[&str] = &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

#[tokio::test]
async fn an_nfs_server_that_is_dropped_leaves_no_process() {
    PartProcess::start("nfs")
        .assert_no_leftovers(NFS, PartProcess::drop_part)
        .await;
}

#[tokio::test]
async fn an_nfs_server_whose_process_is_killed_leaves_no_process() {
    PartProcess::start("nfs")
        .assert_no_leftovers(NFS, PartProcess::kill)
        .await;
}

#[tokio::test]
async fn a_cluster_that_is_dropped_leaves_no_process() {
    PartProcess::start("cluster")
        .assert_no_leftovers(CLUSTER, PartProcess::drop_part)
        .await;
}

#[tokio::test]
async fn a_cluster_whose_process_is_killed_leaves_no_process() {
    PartProcess::start("cluster")
        .assert_no_leftovers(CLUSTER, PartProcess::kill)
        .await;
}

/// The Makefile skips tests with this name if there is no emulator.
mod kernel {
    use super::PartProcess;

    #[tokio::test]
    async fn a_machine_that_is_dropped_leaves_no_process() {
        PartProcess::start("machine")
            .assert_no_leftovers(&["qemu"], PartProcess::drop_part)
            .await;
    }

    #[tokio::test]
    async fn a_machine_whose_process_is_killed_leaves_no_process() {
        PartProcess::start("machine")
            .assert_no_leftovers(&["qemu"], PartProcess::kill)
            .await;
    }
}
