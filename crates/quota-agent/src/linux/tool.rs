use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::quotas::QuotasError;

/// Folders of the tools on all distributions. `PATH` is not used: what runs as root is found in known places.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// A tool takes milliseconds, or seconds for tens of thousands of projects. Longer on a file system that hangs. Shorter
/// than the time after which the operator takes the agent for dead, so that the next heartbeat can tell.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of the output, in bytes: 200,000 projects in 100 bytes each.
pub(super) const MAX_OUTPUT: u64 = 20 * 1024 * 1024;
/// What libedit, with which the tools read their scripts, prints where no terminal is described.
const NOISE: [&str; 2] = ["Cannot read termcap database;", "using dumb terminal settings."];
/// Maximum length of an excerpt, in bytes.
const MAX_EXCERPT: usize = 300;

pub(super) const XFS_QUOTA: Tool = Tool::new("xfs_quota", "xfsprogs");
pub(super) const XFS_IO: Tool = Tool::new("xfs_io", "xfsprogs");

/// What a tool printed.
pub(super) struct Printed {
    /// Standard output.
    pub text: String,
    /// The beginning of the errors, if there are any.
    pub errors: Option<String>,
}

impl Printed {
    /// From both streams.
    pub fn new(text: &[u8], errors: &[u8]) -> Self {
        let errors = String::from_utf8_lossy(errors);
        let errors = errors.lines().filter(|line| !line.is_empty() && !NOISE.contains(line));
        let errors: Vec<&str> = errors.collect();
        Self {
            text: String::from_utf8_lossy(text).into_owned(),
            errors: (!errors.is_empty()).then(|| excerpt(&errors.join("\n"))),
        }
    }
}

/// A program. The package of those of XFS has the same name for Debian and Red Hat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool {
    pub name: &'static str,
    package: &'static str,
}

impl Tool {
    pub const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }

    /// Returns its path.
    pub fn find(self) -> Result<PathBuf, QuotasError> {
        let mut paths = FOLDERS.iter().map(|folder| Path::new(folder).join(self.name));
        paths
            .find(|path| path.is_file())
            .ok_or_else(|| self.missing(std::io::ErrorKind::NotFound.into()))
    }

    fn missing(self, source: std::io::Error) -> QuotasError {
        QuotasError::Tool {
            tool: self.name,
            package: self.package,
            source,
        }
    }

    /// Runs a script, and returns what it printed. Its exit code says nothing about single commands in it. `mount_point` is
    /// the last argument.
    ///
    /// # Errors
    /// It does not start, takes too long, is killed, or fails without a message.
    pub async fn run(
        self,
        arguments: &[&str],
        mount_point: Option<&Path>,
        script: String,
    ) -> Result<Printed, QuotasError> {
        let mut command = self.command(arguments)?;
        command.args(mount_point);
        let output = self.wait(command, script).await?;
        let printed = Printed::new(&output.stdout, &output.stderr);
        let is_silent = printed.text.is_empty() && printed.errors.is_none();
        if output.status.code().is_none() || (is_silent && !output.status.success()) {
            return Err(self.failed(output.status.to_string()));
        }
        Ok(printed)
    }

    /// Returns the failure of a run.
    pub fn failed(self, output: String) -> QuotasError {
        QuotasError::Failed {
            tool: self.name,
            output,
        }
    }

    /// Returns the failure of a run that did not end in time.
    pub fn timeout(self) -> QuotasError {
        QuotasError::Timeout {
            tool: self.name,
            seconds: TIMEOUT.as_secs(),
        }
    }

    /// Returns its command line, with a pipe for each stream.
    pub fn command(self, arguments: &[&str]) -> Result<Command, QuotasError> {
        let mut command = Command::new(self.find()?);
        command
            .args(arguments)
            .env_clear()
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }

    async fn wait(self, mut command: Command, input: String) -> Result<Output, QuotasError> {
        let failed = |source| self.missing(source);
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async move {
            if let Some(mut stdin) = stdin {
                // A tool that stops reading says why on its standard error.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let finish = async {
            let ((), stdout, stderr, status) = tokio::join!(write, read(stdout), read(stderr), child.wait());
            std::io::Result::Ok(Output {
                stdout: stdout?,
                stderr: stderr?,
                status: status?,
            })
        };
        match tokio::time::timeout(TIMEOUT, finish).await {
            Ok(output) => output.map_err(failed),
            Err(_) => Err(self.timeout()),
        }
    }
}

/// Reads up to the maximum. The tool gets an error if it writes more.
async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Returns the beginning of an output, for a message.
pub(super) fn excerpt(text: &str) -> String {
    let text = text.trim();
    let lines: Vec<&str> = text.lines().take(3).collect();
    export_store::text::abbreviate(&export_store::text::escape(&lines.join("; ")), MAX_EXCERPT)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    async fn run(script: &str) -> Result<Printed, QuotasError> {
        Tool::new("sh", "dash").run(&[], None, format!("{script}\n")).await
    }

    #[tokio::test]
    async fn what_a_tool_printed_counts_whatever_its_exit_status_is() {
        let printed = run("echo one; echo refused >&2; exit 1").await.unwrap();
        assert_eq!(
            (printed.text.as_str(), printed.errors.as_deref()),
            ("one\n", Some("refused"))
        );
        let printed = run("echo one; exit 1").await.unwrap();
        assert_eq!((printed.text.as_str(), printed.errors), ("one\n", None));
        let printed = run("exit 0").await.unwrap();
        assert_eq!((printed.text.as_str(), printed.errors), ("", None));
    }

    #[tokio::test]
    async fn a_tool_that_was_killed_or_failed_silently_did_nothing_that_counts() {
        let killed = run("echo one; kill -9 $$").await.err().map(|error| error.to_string());
        assert_eq!(killed.as_deref(), Some("sh failed: signal: 9 (SIGKILL)"));
        let silent = run("exit 3").await.err().map(|error| error.to_string());
        assert_eq!(silent.as_deref(), Some("sh failed: exit status: 3"));
    }
}
