//! A shell for the commands of the documentation.

use std::path::PathBuf;

use rig::operator::{find_binary, link_programs, repository_root};
use rig::{Cluster, RunDir};
use tokio::process::Command;

use crate::support::shared::Failure;

/// A shell in the checkout whose `kubectl` is an administrator of the cluster.
pub struct Shell {
    folder: PathBuf,
    path: String,
    kubeconfig: PathBuf,
}

impl Shell {
    /// Creates a shell for an administrator of this cluster.
    pub fn new(run: &RunDir, cluster: &Cluster) -> Result<Self, Failure> {
        let programs = link_programs(run, cluster, &find_binary()?)?;
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            folder: repository_root(),
            path: format!("{}:{path}", programs.display()),
            kubeconfig: cluster.kubeconfig().to_owned(),
        })
    }

    /// Changes the working folder.
    pub fn at(self, folder: PathBuf) -> Self {
        Self { folder, ..self }
    }

    /// Runs commands that must all succeed. Returns their output.
    pub async fn run(&self, commands: &str) -> Result<String, Failure> {
        let done = self.run_unchecked(commands).await?;
        Ok(done.unwrap_or_else(|complaint| panic!("{complaint}")))
    }

    /// Runs commands. Returns their output, or if one fails, the commands and everything that was printed.
    pub async fn run_unchecked(&self, commands: &str) -> Result<Result<String, String>, Failure> {
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", commands])
            .current_dir(&self.folder);
        shell.env("PATH", &self.path).env("KUBECONFIG", &self.kubeconfig);
        // The cache of kubectl is removed with the cluster.
        shell.env("KUBECACHEDIR", self.kubeconfig.with_file_name("kubectl-cache"));
        let done = shell.output().await?;
        let reported = String::from_utf8_lossy(&done.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&done.stderr);
        Ok(match done.status.success() {
            true => Ok(reported),
            false => Err(format!("{commands}\n{reported}{complaint}")),
        })
    }
}
