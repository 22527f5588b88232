//! One cluster with a node and an NFS server for all tests, and Helm on it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use rig::{
    Assets, Cluster, Export, NfsOptions, NfsServer, Node, Objects, RunDir, TIMEOUT,
    assets::NodeAssets,
    node::{ADDRESS, Enforcement},
    objects::{condition, merge, reference},
    operator::repository_root,
    process,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{Failure, Test};

/// Where the operator is installed; its release is called [`RELEASE`].
pub const NAMESPACE: &str = "nfs-operator-system";
/// The release, and with it the Deployment and the Lease.
pub const RELEASE: &str = "nfs-operator";
/// The backend and the class from the values.
pub const BACKEND: &str = "main";
const CLASS: &str = "nfs";
const EXPORT: &str = "/export";
/// What is under test: its image has_bytes the version of this package.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// That image, as the chart calls it.
pub const IMAGE: &str = concat!("ghcr.io/nfs-operator/nfs-operator:", env!("CARGO_PKG_VERSION"));

/// The programs that are needed.
pub struct Programs {
    pub cluster: Assets,
    pub node: NodeAssets,
    pub helm: PathBuf,
}

/// The cluster, and what was started with it.
pub struct Stage {
    pub cluster: Cluster,
    pub node: Node,
    pub objects: Objects,
    nfs: NfsServer,
    ganesha: PathBuf,
    enforcement: Mutex<Option<Enforcement>>,
    helm: PathBuf,
    helm_home: PathBuf,
    run: RunDir,
    start: Instant,
}

impl Stage {
    pub async fn start(programs: Programs, image: &Path) -> Result<Self, Failure> {
        let start = Instant::now();
        let run = RunDir::new()?;
        eprintln!("pod: logs are in {}", run.path().display());
        // As Linux' own server has it unless told otherwise: source ports below 1024 alone.
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
        let stage = Self {
            objects: Objects::new(cluster.client().await?),
            cluster,
            node,
            nfs,
            ganesha,
            enforcement: Mutex::new(None),
            helm: programs.helm,
            helm_home: run.new_dir("helm")?,
            run,
            start,
        };
        stage.say(&format!("the node is Ready and has {}", image.display()));
        Ok(stage)
    }

    /// A line of progress.
    pub fn say(&self, what: &str) {
        eprintln!("pod: {:>6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// A folder for what a test needs.
    pub fn folder(&self, name: &str) -> Result<PathBuf, Failure> {
        Ok(self.run.new_dir(name)?)
    }

    /// Ends everything in an orderly way; the logs stay when a test failed.
    pub async fn end(&self, failed: bool) -> Test {
        if failed {
            self.run.keep();
        }
        Ok(self.nfs.stop().await?)
    }

    /// The chart in the working tree.
    pub fn chart() -> PathBuf {
        repository_root().join("config/helm/nfs-operator")
    }

    /// Runs Helm on the release, with our image, backend and class in the values.
    pub async fn helm(&self, command: &[&str], chart: Option<&Path>, args: &[&str]) -> Result<String, Failure> {
        let mut helm = Command::new(&self.helm);
        helm.env("KUBECONFIG", self.cluster.kubeconfig());
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR"] {
            helm.env(folder, &self.helm_home);
        }
        helm.args(command).arg(RELEASE);
        if let Some(chart) = chart {
            let values = self.run.path().join("values.json");
            std::fs::write(&values, values_of_a_user().to_string())?;
            helm.arg(chart).arg("--values").arg(values);
        }
        helm.args(["--namespace", NAMESPACE]).args(args);
        Ok(process::run(helm).await?)
    }

    /// Has NetworkPolicies enforced until [`Self::cleared`].
    pub async fn enforce(&self) -> Test {
        *self.enforcement.lock().await = Some(self.node.enforce_network_policies(&self.cluster).await?);
        Ok(())
    }

    /// Another NFS server, on that port of the node's address.
    pub async fn another_server(&self, port: u16) -> Result<NfsServer, Failure> {
        let options = NfsOptions {
            address: ADDRESS.into(),
            port: Some(port),
            ..NfsOptions::default()
        };
        Ok(NfsServer::start_with(&self.run, options, &self.ganesha).await?)
    }

    /// A backend `other` on another server.
    pub async fn other_backend(&self, port: u16) -> Result<Value, Failure> {
        let mut other = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "other");
        let spec = json!({
            "server": ADDRESS.to_string(),
            "path": EXPORT,
            "probeInterval": "1s",
            "nfs": { "port": port },
        });
        merge(&mut other, &json!({ "spec": spec }));
        Ok(self.objects.create(&other).await?)
    }

    /// `helm install --wait`, and the backend Ready.
    pub async fn install(&self, chart: &Path, args: &[&str]) -> Test {
        let wait = ["--create-namespace", "--wait", "--timeout", "120s"];
        self.helm(&["install"], Some(chart), &[&wait, args].concat()).await?;
        self.say(&format!("helm install --wait {} is done", args.join(" ")));
        self.objects
            .wait_condition(&backend(), "Ready", "True", None, TIMEOUT)
            .await?;
        self.say("the backend is Ready");
        Ok(())
    }

    /// Makes claims in a namespace of that name.
    pub async fn claims(&self, namespace: &str, count: usize) -> Result<Vec<Value>, Failure> {
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

    /// Waits until all are Bound, each to a directory of its own and with none beside these.
    pub async fn all_bound(&self, namespace: &str, claims: &[Value]) -> Test {
        for claim in claims {
            let bound = self.objects.wait(claim, "to be Bound", TIMEOUT, |claim| {
                match claim["status"]["phase"] == "Bound" {
                    true => Ok(()),
                    false => Err("it is not".into()),
                }
            });
            bound.await?;
        }
        let directories = self.directories(namespace)?;
        assert_eq!(directories.len(), claims.len(), "on the export: {directories:?}");
        Ok(())
    }

    /// The directories on the export that are of claims in that namespace.
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

    /// The operator's pods that are not being deleted.
    pub async fn pods(&self) -> Result<Vec<Value>, Failure> {
        let mut pods = self.objects.list(&reference("v1", "Pod", Some(NAMESPACE), "")).await?;
        pods.retain(|pod| {
            let labels = &pod["metadata"]["labels"];
            labels["app.kubernetes.io/name"] == RELEASE && pod["metadata"]["deletionTimestamp"].is_null()
        });
        Ok(pods)
    }

    /// The operator's one pod.
    pub async fn pod(&self) -> Result<Value, Failure> {
        let pods = self.pods().await?;
        let [pod] = pods.as_slice() else {
            return Err(format!("{} pods of the operator", pods.len()).into());
        };
        Ok(pod.clone())
    }

    /// Uninstalls what a test installed, and waits until its pods are gone.
    pub async fn cleared(&self) -> Test {
        let enforced = match self.enforcement.lock().await.take() {
            Some(enforcement) => enforcement.end().await,
            None => Ok(()),
        };
        let args = ["--ignore-not-found", "--wait", "--timeout", "120s"];
        self.helm(&["uninstall"], None, &args).await?;
        for pod in self.objects.list(&reference("v1", "Pod", Some(NAMESPACE), "")).await? {
            self.objects.delete(&pod).await?;
            self.objects.wait_gone(&pod, TIMEOUT).await?;
        }
        // Helm takes the rights before the pod has ended, which can't give its Lease back then: the next would wait until
        // it runs out.
        self.objects
            .delete(&reference("coordination.k8s.io/v1", "Lease", Some(NAMESPACE), RELEASE))
            .await?;
        self.say("uninstalled");
        Ok(enforced?)
    }

    /// Prints what may tell why a test failed.
    pub async fn report(&self) {
        self.run.keep();
        let looks: [&[&str]; 3] = [
            &["get", "pods,pvc,nfsb,lease", "--all-namespaces", "--output=wide"],
            &["describe", "pods", "--namespace", NAMESPACE],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        ];
        for look in looks {
            match self.cluster.kubectl(look).await {
                Ok(text) => eprintln!("$ kubectl {}\n{text}", look.join(" ")),
                Err(error) => eprintln!("$ kubectl {}\n{error}", look.join(" ")),
            }
        }
        eprintln!("{}", self.node.logs());
    }
}

fn values_of_a_user() -> Value {
    json!({
        "image": { "tag": VERSION },
        "backends": {
            BACKEND: { "spec": { "server": ADDRESS.to_string(), "path": EXPORT, "probeInterval": "1s" } },
        },
        "storageClasses": { CLASS: { "parameters": { "backend": BACKEND } } },
    })
}

/// The backend from the values.
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

/// Whether a pod says that it is Ready.
pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}
