//! Child processes that log to a file and that the kernel kills when this process exits.

use std::{
    fs::{self, OpenOptions},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::{oneshot, watch};

use crate::error::{Error, Result, ResultExt};

/// Maximum time until a killed process is gone. It takes milliseconds, unless the machine stalls. Beyond that, it hangs
/// in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of lines of a log in an error.
const TAIL_LINES: usize = 15;

/// How to start a process.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// The name in messages.
    pub name: String,
    /// The program's path, or its name in `PATH`.
    pub program: PathBuf,
    /// The arguments.
    pub args: Vec<String>,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    /// The file to which standard output and standard error are appended.
    pub log: PathBuf,
}

impl ProcessSpec {
    /// Creates a specification without additional environment variables.
    pub fn new<A: Into<String>>(
        name: &str,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
        log: PathBuf,
    ) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            log,
        }
    }
}

/// A running child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    spec: ProcessSpec,
    pid: u32,
    /// Signals use this descriptor: unlike a pid, it never refers to another process.
    handle: OwnedFd,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts a process in its own process group: Ctrl-C in a terminal then reaches only the rig, which stops its
    /// children in the right order.
    pub async fn start(spec: ProcessSpec) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&spec.log);
        let log = log.with_context(|| format!("open {}", spec.log.display()))?;
        let errors = log
            .try_clone()
            .with_context(|| format!("open {}", spec.log.display()))?;
        let mut command = command_bound_to_parent(&spec.program);
        command.args(&spec.args);
        command.envs(spec.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let (mut child, handle) = spawn(command).await.with_context(|| format!("start {}", spec.name))?;
        let pid = child.id();
        let (sender, exit) = watch::channel(None);
        std::thread::Builder::new()
            .name(format!("wait {}", spec.name))
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    sender.send_replace(Some(status));
                }
            })
            .with_context(|| format!("watch {}", spec.name))?;
        Ok(Self {
            spec,
            pid,
            handle,
            exit,
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the specification that the process was started from.
    pub fn spec(&self) -> &ProcessSpec {
        &self.spec
    }

    /// Returns the exit status, or `None` while the process runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Returns an error with the end of the log if the process has exited.
    pub fn ensure_running(&self) -> Result<()> {
        match self.exit_status() {
            None => Ok(()),
            Some(status) => Err(Error::ProcessExited {
                name: self.spec.name.clone(),
                status,
                log: self.spec.log.clone(),
                tail: self.log_tail(),
            }),
        }
    }

    /// Returns the last lines of the process's log.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.spec.log)
    }

    /// Waits until the process has exited.
    pub async fn wait(&self) -> Result<ExitStatus> {
        let mut exit = self.exit.clone();
        let status = exit.wait_for(Option::is_some).await.ok().and_then(|status| *status);
        status.ok_or_else(|| Error::Usage(format!("the exit status of {} is unknown", self.spec.name)))
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub async fn kill9(&self) -> Result<ExitStatus> {
        self.signal_and_wait(Signal::KILL, KILL_TIMEOUT).await
    }

    /// Sends SIGTERM and waits until the process has exited. After `timeout` it returns an error, and the process still
    /// runs.
    pub async fn terminate(&self, timeout: Duration) -> Result<ExitStatus> {
        self.signal_and_wait(Signal::TERM, timeout).await
    }

    async fn signal_and_wait(&self, signal: Signal, timeout: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        self.signal(signal)?;
        tokio::time::timeout(timeout, self.wait())
            .await
            .map_err(|_| Error::Timeout {
                what: format!("{} to exit after {signal:?}", self.spec.name),
                waited: start.elapsed(),
                last: format!("it runs; log: {}", self.spec.log.display()),
            })?
    }

    /// Sends SIGSTOP: the process keeps its sockets and does not respond.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Sends a signal. It is no error if the process has exited.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(error) if error == rustix::io::Errno::SRCH => Ok(()),
            sent => sent.with_context(|| format!("send {signal:?} to {}", self.spec.name)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit_status().is_some() || self.signal(Signal::KILL).is_err() {
            return;
        }
        // The caller removes the process's directory next, so it must not write there any more.
        let start = Instant::now();
        while self.exit_status().is_none() && start.elapsed() < KILL_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

type SpawnResult = std::io::Result<(Child, OwnedFd)>;
type SpawnRequest = (Command, oneshot::Sender<SpawnResult>);

/// Spawns a process on a thread that lives as long as this process. The kernel sends the parent-death signal when the
/// *thread* that created the child exits, and threads of tests and runtimes are short-lived.
async fn spawn(command: Command) -> SpawnResult {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        // If the thread cannot start, the receiver is dropped and every request below fails.
        let _thread = std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, reply) in inbox {
                // If the caller was cancelled, nobody receives the child, so it is killed here.
                if let Err(Ok((mut child, _))) = reply.send(spawn_child(&mut command)) {
                    let _ = child.kill().and_then(|()| child.wait().map(drop));
                }
            }
        });
        requests
    });
    let exited = || std::io::Error::other("the thread that spawns processes has exited");
    let (reply, result) = oneshot::channel();
    spawner.send((command, reply)).map_err(|_| exited())?;
    result.await.map_err(|_| exited())?
}

fn spawn_child(command: &mut Command) -> SpawnResult {
    let mut child = command.spawn()?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok((child, handle)),
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// Waits for `waited`. If one of the needed processes exits first, that is the error.
pub(crate) async fn while_running<T>(needed: &[&Process], waited: impl Future<Output = Result<T>>) -> Result<T> {
    let ends = needed.iter().map(|process| {
        Box::pin(async move {
            process.wait().await?;
            process.ensure_running()
        })
    });
    tokio::select! {
        result = waited => result,
        (ended, ..) = futures::future::select_all(ends) => {
            ended?;
            Err(Error::Usage("a process has exited without a status".into()))
        }
    }
}

/// Returns the user and system time of a process, see /proc/PID/stat in proc(5).
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The name in parentheses may contain any character. utime and stime are fields 14 and 15.
    let after = text.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
    let mut fields = after.split_whitespace().skip(11).map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(user)), Some(Ok(system))) => {
            Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
        }
        _ => Err(Error::Usage(format!("{path} does not have the format of proc(5)"))),
    }
}

/// Returns the last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().rev().take(TAIL_LINES).collect();
    lines.reverse();
    lines.join("\n")
}

/// Returns a command that the kernel kills when the calling thread exits. `setpriv` replaces itself with the program, so
/// the pid does not change.
pub(crate) fn command_bound_to_parent(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs a command on a blocking thread and returns its output. An error contains what it printed.
pub async fn run(mut command: Command) -> Result<String> {
    let line = format!("{command:?}");
    let join = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output()).await;
    let output = join
        .map_err(std::io::Error::other)
        .flatten()
        .with_context(|| line.clone())?;
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(printed(&output.stdout));
    }
    let output_text = printed(&output.stdout) + &printed(&output.stderr);
    Err(Error::Command {
        command: line,
        status: output.status,
        output: output_text,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use crate::RunDir;

    fn shell(run: &RunDir, script: &str) -> ProcessSpec {
        ProcessSpec {
            env: vec![("WORD".into(), "hello".into())],
            ..ProcessSpec::new("script", "sh", ["-c", script], run.path().join("script.log"))
        }
    }

    fn is_running(pid: u32) -> bool {
        // A zombie process still has a directory.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[tokio::test]
    async fn a_child_logs_and_reports_its_exit_status() {
        let run = RunDir::new().unwrap();
        let process = Process::start(shell(&run, "echo $WORD; exit 3")).await.unwrap();
        assert_eq!(process.wait().await.unwrap().code(), Some(3));
        let error = process.ensure_running().unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("3"), "{error}");
    }

    #[tokio::test]
    async fn a_child_is_terminated_killed_and_dropped() {
        let run = RunDir::new().unwrap();
        let script = "trap 'exit 7' TERM; echo trapped; while :; do sleep 0.01; done";
        let process = Process::start(shell(&run, script)).await.unwrap();
        crate::wait::until("the signal to be trapped", KILL_TIMEOUT, async || {
            let log = process.log_tail();
            if log.contains("trapped") { Ok(()) } else { Err(log) }
        })
        .await
        .unwrap();
        assert_eq!(process.terminate(KILL_TIMEOUT).await.unwrap().code(), Some(7));

        let process = Process::start(shell(&run, "exec sleep 60")).await.unwrap();
        process.pause().unwrap();
        assert_eq!(process.kill9().await.unwrap().code(), None);

        let process = Process::start(shell(&run, "exec sleep 60")).await.unwrap();
        let pid = process.pid();
        assert!(is_running(pid));
        drop(process);
        assert!(!is_running(pid));
    }

    #[test]
    fn a_child_outlives_the_thread_that_started_it() {
        let run = RunDir::new().unwrap();
        let process = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(Process::start(shell(&run, "exec sleep 60"))).unwrap()
            });
            thread.join().unwrap()
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(is_running(process.pid()));
    }
}
