//! Running shell scripts in the virtual machine.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::KernelVm;
use crate::error::{Error, Result, ResultExt};

/// Maximum time of a script: one that uses a mount waits without end while its NFS server is stopped.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The result of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOutput {
    /// The exit code.
    pub code: i32,
    /// Standard output and standard error.
    pub output: String,
}

impl KernelVm {
    /// Runs a shell script as root in the machine and returns its output.
    ///
    /// # Errors
    /// If the exit code is not 0, with the output.
    pub async fn run(&self, script: &str) -> Result<String> {
        let ran = self.output(script).await?;
        if ran.code == 0 {
            return Ok(ran.output);
        }
        Err(Error::Usage(format!(
            "script {script:?} in the machine exited with {}:\n{}",
            ran.code, ran.output
        )))
    }

    /// Runs a shell script that may fail.
    ///
    /// # Errors
    /// If there is no result after 5 minutes. The script continues then.
    pub async fn output(&self, script: &str) -> Result<ScriptOutput> {
        let action = || format!("run {script:?} in the machine");
        let sent = tokio::time::timeout(TIMEOUT, send_script(self.agent, script));
        let response = sent.await.map_err(|_| Error::Timeout {
            what: format!("{script:?} to end in the machine"),
            waited: TIMEOUT,
            last: "it has not ended".into(),
        })?;
        let response = response.with_context(action)?;
        let text = String::from_utf8_lossy(&response).into_owned();
        let truncated = || Error::Usage(format!("{}: truncated response: {text:?}", action()));
        let (head, output) = text.split_once('\n').ok_or_else(truncated)?;
        let (code, length) = head.split_once(' ').ok_or_else(truncated)?;
        let code = code.parse().map_err(|_| truncated())?;
        // The length is in bytes as sent, which differs from the text's length if the output is not UTF-8.
        let sent = response.len().saturating_sub(head.len() + 1);
        if length.parse() != Ok(sent) {
            return Err(truncated());
        }
        Ok(ScriptOutput {
            code,
            output: output.to_owned(),
        })
    }
}

async fn send_script(port: u16, script: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream
        .write_all(format!("{}\n{script}", script.len()).as_bytes())
        .await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(response)
}
