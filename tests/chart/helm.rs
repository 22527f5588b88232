//! Helm in both major versions, as a shell runs it.

use std::path::{Path, PathBuf};

use rig::assets::{Helm, Kubernetes};
use rig::{Cluster, Error};
use tokio::process::Command;

use crate::Failure;
use crate::objects::chart;

/// Names a release of Kubernetes that charts are rendered for: a Helm built from its module knows an old one only.
fn for_release(release: &str) -> String {
    format!("--kube-version={release}")
}

/// Both versions of Helm; none where they can't be had, which is said loudly.
pub async fn both() -> Result<Vec<Tool>, Failure> {
    let mut tools = Vec::new();
    for helm in Helm::ALL {
        match helm.find_or_build().await {
            Ok(program) => tools.push(Tool { program }),
            Err(missing @ Error::Missing { .. }) => {
                eprintln!("SKIPPED, the chart was not checked: {missing}");
                return Ok(Vec::new());
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(tools)
}

/// One version of Helm.
pub struct Tool {
    program: PathBuf,
}

/// What Helm said.
pub struct Said {
    pub success: bool,
    pub out: String,
    pub error: String,
}

impl Said {
    /// The output; fails with all that was said unless it succeeded.
    pub fn output(self) -> Result<String, Failure> {
        if self.success {
            Ok(self.out)
        } else {
            Err(format!("{}{}", self.out, self.error).into())
        }
    }
}

impl Tool {
    /// Its name, for messages.
    pub fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    async fn run(&self, args: &[&str], environment: Option<&Environment>) -> Result<Said, Failure> {
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
        let said = command.output().await?;
        Ok(Said {
            success: said.status.success(),
            out: String::from_utf8_lossy(&said.stdout).into_owned(),
            error: String::from_utf8_lossy(&said.stderr).into_owned(),
        })
    }

    /// `helm lint --strict` of the chart with these further arguments.
    pub async fn lint(&self, args: &[&str]) -> Result<Said, Failure> {
        let chart = chart().display().to_string();
        let kubernetes = for_release(Kubernetes::from_env()?.release());
        let all = [&["lint", "--strict", &kubernetes, &chart], args].concat();
        self.run(&all, None).await
    }

    /// `helm template nfs-operator` in the namespace of config/ with these further arguments.
    pub async fn template(&self, args: &[&str]) -> Result<Said, Failure> {
        self.template_for(Kubernetes::from_env()?.release(), args).await
    }

    /// The same for that release of Kubernetes.
    pub async fn template_for(&self, release: &str, args: &[&str]) -> Result<Said, Failure> {
        let chart = chart().display().to_string();
        let (namespace, kubernetes) = ("--namespace=nfs-operator-system", for_release(release));
        let all = [&["template", "nfs-operator", &chart, namespace, &kubernetes], args].concat();
        self.run(&all, None).await
    }

    /// Anything, against a cluster.
    pub async fn on(&self, environment: &Environment, args: &[&str]) -> Result<Said, Failure> {
        self.run(args, Some(environment)).await
    }
}

/// Where Helm works on a cluster, as its administrator.
pub struct Environment {
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Environment {
    /// With a folder for what Helm keeps.
    pub fn new(cluster: &Cluster, home: &Path) -> Self {
        Self {
            kubeconfig: cluster.kubeconfig().to_owned(),
            home: home.to_owned(),
        }
    }
}
