//! The environment of all tests: one cluster with a node, an NFS server, and Helm 4 and 3.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use rig::{
    Assets, Cluster, Export, NfsOptions, NfsServer, Node, Objects, RunDir, TIMEOUT,
    assets::NodeAssets,
    node::{ADDRESS, Enforcement},
    objects::{condition, reference, with_fields},
    operator::repository_root,
    process,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{Failure, Test};

/// The namespace of the operator.
pub const NAMESPACE: &str = "nfs-operator-system";
/// The name of the Helm release, the Deployment and the Lease.
pub const RELEASE: &str = "nfs-operator";
/// The name of the backend in the values.
pub const BACKEND: &str = "main";
const CLASS: &str = "nfs";
const EXPORT: &str = "/export";
/// The version of the tested image is the version of this package.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The tested image, as the chart names it.
pub const IMAGE: &str = concat!("ghcr.io/nfs-operator/nfs-operator:", env!("CARGO_PKG_VERSION"));

/// Timeout of Helm for pods that become ready or end, which takes seconds on an idle machine.
pub const HELM_TIMEOUT: &str = "300s";

/// The programs that the tests need.
pub struct Programs {
    pub cluster: Assets,
    pub node: NodeAssets,
    pub helm: PathBuf,
    pub helm_3: PathBuf,
}

/// A cluster with a node, an NFS server, the chart of a release, and Helm in both major versions.
pub struct PodEnv {
    pub cluster: Cluster,
    pub node: Node,
    pub objects: Objects,
    nfs: NfsServer,
    ganesha: PathBuf,
    enforcement: Mutex<Option<Enforcement>>,
    helm: PathBuf,
    helm_3: PathBuf,
    helm_home: PathBuf,
    chart: PathBuf,
    run: RunDir,
    start: Instant,
}

impl PodEnv {
    pub async fn start(programs: Programs, image: &Path) -> Result<Self, Failure> {
        let start = Instant::now();
        let run = RunDir::new()?;
        eprintln!("pod: logs are in {}", run.path().display());
        // Like Linux' server by default: accept only source ports below 1024.
        let export = Export::new(EXPORT).extra("PrivilegedPort", "true");
        let options = NfsOptions {
            exports: vec![export],
            address: ADDRESS.into(),
            port: Some(2049),
            ..NfsOptions::default()
        };
        let ganesha = programs.cluster.ganesha.clone();
        let nfs = NfsServer::start_with(&run, options, &ganesha).await?;
        let cluster = Cluster::start_for_nodes(&run, programs.cluster, ADDRESS).await?;
        let node = Node::start(&run, &programs.node, &cluster).await?;
        node.load(image).await?;
        let chart = package(&programs.helm, &run.new_dir("dist")?).await?;
        let env = Self {
            objects: Objects::new(cluster.client().await?),
            cluster,
            node,
            nfs,
            ganesha,
            enforcement: Mutex::new(None),
            helm: programs.helm,
            helm_3: programs.helm_3,
            helm_home: run.new_dir("helm")?,
            chart,
            run,
            start,
        };
        env.print_progress(&format!("the node is Ready and has the image {}", image.display()));
        Ok(env)
    }

    /// Prints a line of progress.
    pub fn print_progress(&self, what: &str) {
        eprintln!("pod: {:>6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Stops everything. If a test failed, the logs are kept.
    pub async fn stop(&self, failed: bool) -> Test {
        if failed {
            self.run.keep();
        }
        Ok(self.nfs.stop().await?)
    }

    /// Returns the path of the packaged chart.
    pub fn chart(&self) -> &Path {
        &self.chart
    }

    /// Creates `install.yaml` as a release does, and applies it without any change. Returns its objects.
    pub async fn apply_bundle(&self) -> Result<Vec<Value>, Failure> {
        let folder = repository_root().join("config/default").display().to_string();
        let bundle = self.run.path().join("install.yaml");
        std::fs::write(&bundle, self.cluster.kubectl(["kustomize", &folder]).await?)?;
        let bundle = bundle.display().to_string();
        let apply = ["apply", "--server-side", "--filename", &bundle, "--output=json"];
        let applied: Value = serde_json::from_str(&self.cluster.kubectl(apply).await?)?;
        let objects = applied["items"].as_array().ok_or("no list of objects")?;
        Ok(objects.clone())
    }

    /// Runs Helm for the release, with the tested image, the backend and the class in the values.
    pub async fn helm(&self, command: &[&str], chart: Option<&Path>, args: &[&str]) -> Result<String, Failure> {
        self.run_helm(&self.helm, command, chart, args).await
    }

    /// Runs Helm 3 in the same way.
    pub async fn helm_3(&self, command: &[&str], chart: Option<&Path>, args: &[&str]) -> Result<String, Failure> {
        self.run_helm(&self.helm_3, command, chart, args).await
    }

    async fn run_helm(
        &self,
        program: &Path,
        command: &[&str],
        chart: Option<&Path>,
        args: &[&str],
    ) -> Result<String, Failure> {
        let mut helm = Command::new(program);
        helm.env("KUBECONFIG", self.cluster.kubeconfig());
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR"] {
            helm.env(folder, &self.helm_home);
        }
        helm.args(command).arg(RELEASE);
        if let Some(chart) = chart {
            let values = self.run.path().join("values.json");
            std::fs::write(&values, helm_values().to_string())?;
            helm.arg(chart).arg("--values").arg(values);
        }
        helm.args(["--namespace", NAMESPACE]).args(args);
        Ok(process::run(helm).await?)
    }

    /// Enforces NetworkPolicies until [`Self::clean_up`].
    pub async fn enforce_network_policies(&self) -> Test {
        *self.enforcement.lock().await = Some(self.node.enforce_network_policies(&self.cluster).await?);
        Ok(())
    }

    /// Starts another NFS server on a port of the node's address.
    pub async fn start_second_server(&self, port: u16) -> Result<NfsServer, Failure> {
        let options = NfsOptions {
            address: ADDRESS.into(),
            port: Some(port),
            ..NfsOptions::default()
        };
        Ok(NfsServer::start_with(&self.run, options, &self.ganesha).await?)
    }

    /// Creates a backend `other` on another server.
    pub async fn create_second_backend(&self, port: u16) -> Result<Value, Failure> {
        let other = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "other");
        let spec = json!({
            "server": ADDRESS.to_string(),
            "path": EXPORT,
            "probeInterval": "1s",
            "nfs": { "port": port },
        });
        Ok(self
            .objects
            .create(&with_fields(other, json!({ "spec": spec })))
            .await?)
    }

    /// Runs `helm install --wait` and waits until the backend is Ready.
    pub async fn install(&self, chart: &Path, args: &[&str]) -> Test {
        let wait = ["--create-namespace", "--wait", "--timeout", HELM_TIMEOUT];
        self.helm(&["install"], Some(chart), &[&wait, args].concat()).await?;
        self.print_progress(&format!("helm install --wait {} has finished", args.join(" ")));
        self.objects
            .wait_condition(&backend(), "Ready", "True", None, TIMEOUT)
            .await?;
        self.print_progress("the backend is Ready");
        Ok(())
    }

    /// Creates the class that the chart creates from the values.
    pub async fn create_class(&self) -> Result<Value, Failure> {
        let class = reference("storage.k8s.io/v1", "StorageClass", None, CLASS);
        let fields = json!({"provisioner": "nfs-operator.io/nfs", "parameters": {"backend": BACKEND}});
        Ok(self.objects.create(&with_fields(class, fields)).await?)
    }

    /// Creates claims in a namespace.
    pub async fn create_claims(&self, namespace: &str, count: usize) -> Result<Vec<Value>, Failure> {
        self.objects
            .apply(&reference("v1", "Namespace", None, namespace))
            .await?;
        let mut claims = Vec::new();
        for number in 0..count {
            claims.push(
                self.objects
                    .create(&claim(namespace, &format!("claim-{number}")))
                    .await?,
            );
        }
        Ok(claims)
    }

    /// Waits until all claims are Bound, and verifies that each has one directory and that there are no others.
    pub async fn wait_all_bound(&self, namespace: &str, claims: &[Value]) -> Test {
        for claim in claims {
            self.objects.wait_bound(claim, TIMEOUT).await?;
        }
        let directories = self.directories(namespace)?;
        assert_eq!(directories.len(), claims.len(), "on the export: {directories:?}");
        Ok(())
    }

    /// Returns the directories on the export for claims in a namespace.
    pub fn directories(&self, namespace: &str) -> Result<Vec<PathBuf>, Failure> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.nfs.data_dir(EXPORT)?)? {
            let entry = entry?;
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(&format!("{namespace}-"))
            {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// Returns the operator's pods, except those that are being deleted.
    pub async fn pods(&self) -> Result<Vec<Value>, Failure> {
        let mut pods = self.objects.list(&reference("v1", "Pod", Some(NAMESPACE), "")).await?;
        pods.retain(|pod| {
            let labels = &pod["metadata"]["labels"];
            labels["app.kubernetes.io/name"] == RELEASE && pod["metadata"]["deletionTimestamp"].is_null()
        });
        Ok(pods)
    }

    /// Returns the operator's only pod.
    pub async fn pod(&self) -> Result<Value, Failure> {
        let pods = self.pods().await?;
        let [pod] = pods.as_slice() else {
            return Err(format!("the operator has {} pods", pods.len()).into());
        };
        Ok(pod.clone())
    }

    /// Uninstalls the chart and waits until its pods are deleted.
    pub async fn clean_up(&self) -> Test {
        let result = match self.enforcement.lock().await.take() {
            Some(enforcement) => enforcement.end().await,
            None => Ok(()),
        };
        let args = ["--ignore-not-found", "--wait", "--timeout", HELM_TIMEOUT];
        self.helm(&["uninstall"], None, &args).await?;
        for pod in self.objects.list(&reference("v1", "Pod", Some(NAMESPACE), "")).await? {
            self.objects.delete(&pod).await?;
            self.objects.wait_gone(&pod, TIMEOUT).await?;
        }
        // Helm deletes the RBAC rules before the pod has exited, so the pod cannot release its Lease. The next pod
        // would wait until it expires.
        self.objects
            .delete(&reference("coordination.k8s.io/v1", "Lease", Some(NAMESPACE), RELEASE))
            .await?;
        self.print_progress("uninstalled");
        Ok(result?)
    }

    /// Prints information about a failed test.
    pub async fn print_diagnostics(&self) {
        self.run.keep();
        let commands: [&[&str]; 3] = [
            &["get", "pods,pvc,nfsb,lease", "--all-namespaces", "--output=wide"],
            &["describe", "pods", "--namespace", NAMESPACE],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        ];
        for command in commands {
            match self.cluster.kubectl(command).await {
                Ok(text) => eprintln!("$ kubectl {}\n{text}", command.join(" ")),
                Err(error) => eprintln!("$ kubectl {}\n{error}", command.join(" ")),
            }
        }
        eprintln!("{}", self.node.logs());
    }
}

/// Packages the chart in the repository, as a release does.
async fn package(helm: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let mut command = Command::new(helm);
    command
        .arg("package")
        .arg(repository_root().join("config/helm/nfs-operator"));
    command.arg("--destination").arg(folder);
    process::run(command).await?;
    Ok(folder.join(format!("nfs-operator-{VERSION}.tgz")))
}

fn helm_values() -> Value {
    json!({
        "image": { "tag": VERSION },
        "backends": {
            BACKEND: { "spec": { "server": ADDRESS.to_string(), "path": EXPORT, "probeInterval": "1s" } },
        },
        "storageClasses": { CLASS: { "parameters": { "backend": BACKEND } } },
        // The default is for a cluster that does nothing else.
        "tests": { "timeout": format!("{}s", TIMEOUT.as_secs()) },
    })
}

/// Returns a reference to the backend in the values.
pub fn backend() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, BACKEND)
}

fn claim(namespace: &str, name: &str) -> Value {
    let mut claim = reference("v1", "PersistentVolumeClaim", Some(namespace), name);
    claim["spec"] = json!({
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteMany"],
        "resources": { "requests": { "storage": "1Mi" } },
    });
    claim
}

pub fn is_pod_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}
