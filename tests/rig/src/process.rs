//! Child processes that log to a file and end with their parent, however that ends.

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

/// A killed process that is still there after this long hangs in the kernel; nobody can wait for that.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a log an error quotes.
const TAIL_LINES: usize = 15;

/// What to start.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// What it is called in messages.
    pub name: String,
    /// The program's path, or its name in `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables beside those that are inherited.
    pub env: Vec<(String, String)>,
    /// Where its output goes; appended to.
    pub log: PathBuf,
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    spec: ProcessSpec,
    pid: u32,
    /// Signals go through this: it never means another process, unlike a pid.
    handle: OwnedFd,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts it. It gets a process group of its own, so that Ctrl-C in a terminal reaches the rig alone,
    /// which then ends its children in the right order.
    pub async fn start(spec: ProcessSpec) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&spec.log);
        let log = log.with_context(|| format!("open {}", spec.log.display()))?;
        let errors = log
            .try_clone()
            .with_context(|| format!("open {}", spec.log.display()))?;
        // setpriv asks the kernel for the signal and becomes the program: the pid stays.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&spec.program)
            .args(&spec.args);
        command.envs(spec.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let (mut child, handle) = spawn(command).await.with_context(|| format!("start {}", spec.name))?;
        let pid = child.id();
        let (report, exit) = watch::channel(None);
        std::thread::Builder::new()
            .name(format!("wait {}", spec.name))
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    report.send_replace(Some(status));
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it was started from.
    pub fn spec(&self) -> &ProcessSpec {
        &self.spec
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// An error with the end of its log if it has ended: for use while waiting for what it should do.
    pub fn ensure_running(&self) -> Result<()> {
        match self.exit_status() {
            None => Ok(()),
            Some(status) => Err(Error::ProcessExited {
                name: self.spec.name.clone(),
                status,
                log: self.spec.log.clone(),
                tail: tail(&self.spec.log),
            }),
        }
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> Result<ExitStatus> {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.ok().and_then(|status| *status);
        ended.ok_or_else(|| Error::Usage(format!("{}: its exit status is lost", self.spec.name)))
    }

    /// `kill -9`, and waits for the end.
    pub async fn kill9(&self) -> Result<ExitStatus> {
        self.signal_and_wait(Signal::KILL, KILL_TIMEOUT).await
    }

    /// SIGTERM, and waits for the end for at most `timeout`; then it is an error, and the process still there.
    pub async fn terminate(&self, timeout: Duration) -> Result<ExitStatus> {
        self.signal_and_wait(Signal::TERM, timeout).await
    }

    async fn signal_and_wait(&self, signal: Signal, timeout: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        self.signal(signal)?;
        tokio::time::timeout(timeout, self.wait())
            .await
            .map_err(|_| Error::Timeout {
                what: format!("{} to end after {signal:?}", self.spec.name),
                waited: start.elapsed(),
                last: format!("it runs; its log: {}", self.spec.log.display()),
            })?
    }

    /// SIGSTOP: it keeps its sockets and answers nobody.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Sends a signal; to a process that has ended it is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(error) if error == rustix::io::Errno::SRCH => Ok(()),
            sent => sent
                .map_err(std::io::Error::from)
                .with_context(|| format!("send {signal:?} to {}", self.spec.name)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit_status().is_some() || self.signal(Signal::KILL).is_err() {
            return;
        }
        // Its folder is removed next: it must not write there any more.
        let start = Instant::now();
        while self.exit_status().is_none() && start.elapsed() < KILL_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

type SpawnResult = std::io::Result<(Child, OwnedFd)>;
type SpawnRequest = (Command, oneshot::Sender<SpawnResult>);

/// Spawns on a thread that lives as long as this process: the kernel sends the parent's death signal when the
/// *thread* that made the child ends, and the threads of a test or of a runtime come and go.
async fn spawn(command: Command) -> SpawnResult {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        // Without the thread the inbox is gone and every order fails below.
        let _thread = std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, answer) in inbox {
                // Nobody waits any more when the caller was cancelled: the child must not stay.
                if let Err(Ok((mut child, _))) = answer.send(spawn_child(&mut command)) {
                    let _killed = child.kill().and_then(|()| child.wait().map(drop));
                }
            }
        });
        requests
    });
    let gone = || std::io::Error::other("the thread that starts processes is gone");
    let (answer, result) = oneshot::channel();
    spawner.send((command, answer)).map_err(|_| gone())?;
    result.await.map_err(|_| gone())?
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

/// Waits for something that these processes must be there for: when one ends, that is the error.
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
            Err(Error::Usage("a process is said to have ended and runs".into()))
        }
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().rev().take(TAIL_LINES).collect();
    lines.reverse();
    lines.join("\n")
}

/// Runs a command to its end off the runtime's threads; an error has what it printed.
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
            name: "script".into(),
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("WORD".into(), "hello".into())],
            log: run.path().join("script.log"),
        }
    }

    fn runs(pid: u32) -> bool {
        // A process that was killed but not yet reaped still has a folder.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[tokio::test]
    async fn a_child_logs_and_reports_how_it_ended() {
        let run = RunDir::new().unwrap();
        let process = Process::start(shell(&run, "echo $WORD; exit 3")).await.unwrap();
        assert_eq!(process.wait().await.unwrap().code(), Some(3));
        let error = process.ensure_running().unwrap_err().to_string();
        assert!(error.contains("hello") && error.contains("3"), "{error}");
    }

    #[tokio::test]
    async fn a_child_is_terminated_killed_and_dropped() {
        let run = RunDir::new().unwrap();
        let process = Process::start(shell(&run, "trap 'exit 7' TERM; while :; do sleep 0.01; done"))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(process.terminate(KILL_TIMEOUT).await.unwrap().code(), Some(7));

        let process = Process::start(shell(&run, "exec sleep 60")).await.unwrap();
        process.pause().unwrap();
        assert_eq!(process.kill9().await.unwrap().code(), None);

        let process = Process::start(shell(&run, "exec sleep 60")).await.unwrap();
        let pid = process.pid();
        assert!(runs(pid));
        drop(process);
        assert!(!runs(pid));
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let run = RunDir::new().unwrap();
        let process = std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(Process::start(shell(&run, "exec sleep 60"))).unwrap()
            });
            asked.join().unwrap()
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(runs(process.pid()));
    }
}
