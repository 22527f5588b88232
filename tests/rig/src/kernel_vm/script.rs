//! Scripts that run in the machine, and what comes back.

use std::net::Ipv4Addr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::KernelVm;
use crate::error::{Error, Result, ResultExt};

/// What a script in the machine came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptOutput {
    /// Its exit code.
    pub code: i32,
    /// What it printed to standard output and standard error.
    pub output: String,
}

impl KernelVm {
    /// Runs a shell script as root in the machine, and gives back what it printed.
    ///
    /// # Errors
    /// With what it printed, when it ends with another exit code than 0.
    pub async fn run(&self, script: &str) -> Result<String> {
        let ran = self.output(script).await?;
        if ran.code == 0 {
            return Ok(ran.output);
        }
        Err(Error::Usage(format!(
            "in the machine: {script:?} ended with {}:\n{}",
            ran.code, ran.output
        )))
    }

    /// The same for a script that may fail.
    pub async fn output(&self, script: &str) -> Result<ScriptOutput> {
        let action = || format!("run {script:?} in the machine");
        let answer = send_script(self.agent, script).await.with_context(action)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let cut = || Error::Usage(format!("{}: its answer was cut short: {text:?}", action()));
        let (head, output) = text.split_once('\n').ok_or_else(cut)?;
        let (code, length) = head.split_once(' ').ok_or_else(cut)?;
        let code = code.parse().map_err(|_| cut())?;
        // In bytes of what was sent, which is not that of the text where it was no UTF-8.
        let sent = answer.len().saturating_sub(head.len() + 1);
        if length.parse() != Ok(sent) {
            return Err(cut());
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
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
