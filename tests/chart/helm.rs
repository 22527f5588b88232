//! The command line of Helm in both major versions.

use std::path::{Path, PathBuf};

use rig::assets::{Helm, Kubernetes};
use rig::{Cluster, Error};
use tokio::process::Command;

use crate::Failure;
use crate::objects::chart;

/// Returns the flag that sets the version of Kubernetes. By default, a Helm built from its module uses an old one.
pub fn kube_version_flag(release: &str) -> String {
    format!("--kube-version={release}")
}

/// Returns both versions of Helm, or none, with a warning, if they cannot be built.
pub async fn both_versions() -> Result<Vec<HelmCli>, Failure> {
    let mut tools = Vec::new();
    for helm in Helm::ALL {
        match helm.find_or_build().await {
            Ok(program) => tools.push(HelmCli { program }),
            Err(missing @ Error::Missing { .. }) => {
                eprintln!("SKIPPED, the chart is not tested: {missing}");
                return Ok(Vec::new());
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(tools)
}

/// One version of Helm.
pub struct HelmCli {
    program: PathBuf,
}

/// The output of Helm.
pub struct HelmOutput {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl HelmOutput {
    /// Returns the standard output, or an error with everything that was printed if Helm failed.
    pub fn into_stdout(self) -> Result<String, Failure> {
        if self.success {
            Ok(self.stdout)
        } else {
            Err(format!("{}{}", self.stdout, self.stderr).into())
        }
    }
}

impl HelmCli {
    /// Returns its file name, for messages.
    pub fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    async fn run(&self, args: &[&str], environment: Option<&HelmEnv>) -> Result<HelmOutput, Failure> {
        let mut command = Command::new(&self.program);
        command.args(args).kill_on_drop(true);
        if let Some(environment) = environment {
            command.env("KUBECONFIG", &environment.kubeconfig);
            for (variable, folder) in [
                ("HELM_CACHE_HOME", "cache"),
                ("HELM_CONFIG_HOME", "config"),
                ("HELM_DATA_HOME", "data"),
                ("KUBECACHEDIR", "kube"),
            ] {
                command.env(variable, environment.home.join(folder));
            }
        }
        let output = command.output().await?;
        Ok(HelmOutput {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs `helm lint --strict` on the chart.
    pub async fn lint(&self, args: &[&str]) -> Result<HelmOutput, Failure> {
        let chart = chart().display().to_string();
        let kubernetes = kube_version_flag(Kubernetes::from_env()?.release());
        let all = [&["lint", "--strict", &kubernetes, &chart], args].concat();
        self.run(&all, None).await
    }

    /// Runs `helm template nfs-operator` in the namespace that config/ uses.
    pub async fn template(&self, args: &[&str]) -> Result<HelmOutput, Failure> {
        self.template_for(Kubernetes::from_env()?.release(), args).await
    }

    /// Runs `helm template` for a version of Kubernetes.
    pub async fn template_for(&self, release: &str, args: &[&str]) -> Result<HelmOutput, Failure> {
        let kubernetes = kube_version_flag(release);
        self.template_chart(&chart(), &[&[kubernetes.as_str()], args].concat())
            .await
    }

    /// Runs `helm template` on another chart.
    pub async fn template_chart(&self, chart: &Path, args: &[&str]) -> Result<HelmOutput, Failure> {
        let chart = chart.display().to_string();
        let namespace = "--namespace=nfs-operator-system";
        let all = [&["template", "nfs-operator", &chart, namespace], args].concat();
        self.run(&all, None).await
    }

    /// Runs any command on a cluster.
    pub async fn run_on(&self, environment: &HelmEnv, args: &[&str]) -> Result<HelmOutput, Failure> {
        self.run(args, Some(environment)).await
    }
}

/// A cluster for Helm, with the administrator's permissions.
pub struct HelmEnv {
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl HelmEnv {
    /// `home` is the directory of Helm's own files.
    pub fn new(cluster: &Cluster, home: &Path) -> Self {
        Self {
            kubeconfig: cluster.kubeconfig().to_owned(),
            home: home.to_owned(),
        }
    }
}
