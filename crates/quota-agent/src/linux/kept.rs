//! A tool that stays running between scripts: to start it takes most of the time of a short script.
//!
//! The tools write what they print to a pipe only once they have printed 4 KiB, or end. To a terminal, they write each line at
//! once, so their standard output is a pseudoterminal. Each script is followed by two commands that show on both streams
//! that it has ended.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::tool::{MAX_OUTPUT, Printed, TIMEOUT, Tool};
use crate::quotas::QuotasError;

/// Prints [`PRINTED_END`] on standard output, and something with [`REFUSED_END`] on standard error, for it is no command.
const END: &str = "help quit\nend-of-script\n";
const PRINTED_END: &[u8] = b"-- exit the program";
const REFUSED_END: &[u8] = b"end-of-script";
/// A tool that takes longer to answer at all is taken for one that works otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A tool that is started once for many scripts.
#[derive(Debug)]
pub(super) struct KeptTool {
    tool: Tool,
    arguments: &'static [&'static str],
    mount_point: Option<PathBuf>,
    running: Mutex<Option<Box<Running>>>,
    /// Another version of the tool may print other things, or the machine may have no pseudoterminals: then it is started for
    /// each script, until the next poll.
    is_unusable: AtomicBool,
    /// It was logged that it is unusable.
    is_logged: AtomicBool,
}

/// A process of the tool that waits for a script.
#[derive(Debug)]
struct Running {
    /// Killed when it is dropped.
    _child: Child,
    stdin: ChildStdin,
    /// Reads what the tool prints to its terminal.
    printed: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
}

impl KeptTool {
    /// The arguments and the mount point are those of [`Tool::run`].
    pub fn new(tool: Tool, arguments: &'static [&'static str], mount_point: Option<PathBuf>) -> Self {
        Self {
            tool,
            arguments,
            mount_point,
            running: Mutex::default(),
            is_unusable: AtomicBool::new(false),
            is_logged: AtomicBool::new(false),
        }
    }

    /// Starts it again for the next script: it knows what was mounted when it started, and what failed then may work now.
    pub fn restart(&self) {
        drop(self.take());
        self.is_unusable.store(false, Ordering::Relaxed);
    }

    /// Runs a script, and returns what it printed. The script is run again from its start if the tool ends meanwhile.
    ///
    /// # Errors
    /// As of [`Tool::run`].
    pub async fn run(&self, script: String) -> Result<Printed, QuotasError> {
        // For both attempts: the next heartbeat comes in time, whatever hangs.
        let ran = tokio::time::timeout(TIMEOUT, self.try_run(script));
        ran.await.unwrap_or_else(|_| Err(self.tool.timeout()))
    }

    async fn try_run(&self, script: String) -> Result<Printed, QuotasError> {
        if let Some(mut running) = self.running().await {
            match running.run(&script).await {
                Ok((text, errors)) => {
                    *self.running.lock() = Some(running);
                    return Ok(Printed::new(&text, &errors));
                }
                Err(error) => tracing::debug!("{} ended while it ran a script: {error}", self.tool.name),
            }
        }
        self.tool.run(self.arguments, self.mount_point.as_deref(), script).await
    }

    fn take(&self) -> Option<Box<Running>> {
        self.running.lock().take()
    }

    /// Returns the process, which it starts if necessary. `None` if it does not work this way.
    async fn running(&self) -> Option<Box<Running>> {
        if self.is_unusable.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(running) = self.take() {
            return Some(running);
        }
        let started = tokio::time::timeout(START_TIMEOUT, self.start());
        match started.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(running) => Some(Box::new(running)),
            Err(error) => {
                if !self.is_logged.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        "{} is started for each change, which takes longer: {error}",
                        self.tool.name
                    );
                }
                self.is_unusable.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    async fn start(&self) -> io::Result<Running> {
        let mut command = self.tool.command(self.arguments).map_err(io::Error::other)?;
        // Not the controlling terminal of this process, nor of the tool.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = openpt(flags)?;
        unlockpt(&terminal)?;
        command
            .args(&self.mount_point)
            .stdout(Stdio::from(ioctl_tiocgptpeer(&terminal, flags)?));
        let mut child = command.spawn()?;
        // Its end of the terminal is closed here, so that reads fail once it ends.
        drop(command);
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut running = Running {
            stdin: child.stdin.take().ok_or_else(missing)?,
            printed: BufReader::new(ChildStdout::from_std(terminal.into())?),
            errors: BufReader::new(child.stderr.take().ok_or_else(missing)?),
            _child: child,
        };
        // Includes what it prints when it starts.
        running.run("").await?;
        Ok(running)
    }
}

impl Running {
    /// Runs a script, and returns its output and its errors.
    async fn run(&mut self, script: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let Self {
            stdin, printed, errors, ..
        } = self;
        let write = async {
            stdin.write_all(script.as_bytes()).await?;
            stdin.write_all(END.as_bytes()).await
        };
        let ((), printed, errors) =
            tokio::try_join!(write, read_until(printed, PRINTED_END), read_until(errors, REFUSED_END))?;
        Ok((printed, errors))
    }
}

/// Returns the lines before one with a mark.
async fn read_until(stream: &mut (impl AsyncBufRead + Unpin), mark: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let start = bytes.len();
        let mut rest = (&mut *stream).take(MAX_OUTPUT.saturating_sub(start as u64));
        if rest.read_until(b'\n', &mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = bytes.get(start..).unwrap_or_default();
        if line.windows(mark.len()).any(|part| part == mark) {
            bytes.truncate(start);
            return Ok(bytes);
        }
        if bytes.ends_with(b"\r\n") {
            // The terminal adds it.
            bytes.truncate(bytes.len() - 2);
            bytes.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A shell that shows the ends of scripts as the tools do.
    const SHELL: &[&str] = &[
        "-c",
        "while read -r line; do
             case $line in
                 'help quit') echo 'quit -- exit the program' ;;
                 end-of-script) echo \"command \\\"$line\\\" not found\" >&2 ;;
                 *) eval \"$line\" ;;
             esac
         done",
    ];

    fn shell(arguments: &'static [&'static str]) -> KeptTool {
        KeptTool::new(Tool::new("sh", "dash"), arguments, None)
    }

    async fn run(tool: &KeptTool, script: &str) -> (String, Option<String>) {
        let printed = tool.run(format!("{script}\n")).await.unwrap();
        (printed.text.trim_end().to_owned(), printed.errors)
    }

    #[tokio::test]
    async fn scripts_share_a_process_and_get_their_own_output() {
        let tool = shell(SHELL);
        let (first, _) = run(&tool, "echo $$").await;
        assert_eq!(run(&tool, "echo one; echo two").await, ("one\ntwo".to_owned(), None));
        let refused = run(&tool, "echo one; echo refused >&2").await;
        assert_eq!(refused, ("one".to_owned(), Some("refused".to_owned())));
        assert_eq!(run(&tool, ":").await, (String::new(), None));
        // More than a terminal and a pipe hold.
        let (many, errors) = run(&tool, "seq 100000; seq 100000 >&2").await;
        assert!(many.lines().count() == 100_000 && many.ends_with("100000") && errors.is_some());
        assert_eq!(run(&tool, "echo $$").await.0, first);
        tool.restart();
        assert_ne!(run(&tool, "echo $$").await.0, first);
    }

    #[tokio::test]
    async fn a_script_whose_process_was_killed_is_run_again_by_another_one() {
        let tool = shell(SHELL);
        let (first, _) = run(&tool, "echo $$").await;
        let once = std::env::temp_dir().join(format!("quota-agent-kept-{:016x}", rand::random::<u64>()));
        let script = format!("mkdir {} && kill -9 $$; echo done", once.display());
        let (text, _) = run(&tool, &script).await;
        std::fs::remove_dir(once).unwrap();
        assert!(text.ends_with("done"), "{text}");
        assert_ne!(run(&tool, "echo $$").await.0, first);
    }

    #[tokio::test]
    async fn a_tool_that_does_not_stay_is_started_for_each_script() {
        // Ends after one line.
        let tool = shell(&["-c", "read -r line; eval \"$line\""]);
        for _ in 0..2 {
            assert_eq!(run(&tool, "echo one").await, ("one".to_owned(), None));
            assert!(tool.is_unusable.load(Ordering::Relaxed));
        }
    }
}
