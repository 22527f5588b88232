//! `rig up`: from nothing to a Bound claim, on the screen.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rig::{
    Assets, Cluster, Error, Export, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, Result, RunDir,
    objects::reference, operator::repository_root,
};
use serde_json::{Value, json};

use crate::report;

/// The sample's claim is served within a second or two.
const BOUND: Duration = Duration::from_secs(60);
/// Archiving is one rename.
const RECLAIMED: Duration = Duration::from_secs(60);

/// Prints a step, and in the end how long it took.
struct Steps {
    last: Instant,
    first: Instant,
}

impl Steps {
    fn new() -> Self {
        Self {
            last: Instant::now(),
            first: Instant::now(),
        }
    }

    fn done(&mut self, what: &str) {
        println!("{:>6.1} s  {what}", self.last.elapsed().as_secs_f64());
        self.last = Instant::now();
    }
}

/// Starts everything and stays, or with `exit` goes on to the end of the claim.
pub async fn up(operator: PathBuf, exit: bool) -> Result<()> {
    let mut steps = Steps::new();
    // What is missing here is told before there is a run whose logs would tell nothing.
    let assets = tokio::select! {
        assets = Assets::find_or_install() => assets?,
        interrupted = interrupted() => return interrupted,
    };
    steps.done("control plane and NFS server are on this machine");
    let run = RunDir::new()?;
    let result = tokio::select! {
        result = show(&run, steps, assets, operator, exit) => result,
        // Whatever is running is dropped with the other branch, and with it ended.
        interrupted = interrupted() => interrupted,
    };
    if result.is_err() {
        run.keep();
    }
    result
}

/// Ctrl-C, or the signal that ends a background job.
async fn interrupted() -> Result<()> {
    let failed = |source| Error::Io {
        action: "wait for a signal".into(),
        source,
    };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.map_err(failed)?,
        _ = terminate.recv() => {}
    }
    println!("\nstopping; nothing is left behind");
    Ok(())
}

async fn show(run: &RunDir, mut steps: Steps, assets: Assets, binary: PathBuf, exit: bool) -> Result<()> {
    let cluster = Cluster::start_with(run, assets.clone()).await?;
    steps.done("Kubernetes control plane is up");
    let options = NfsOptions {
        exports: vec![Export::new("/export")],
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start_with(run, options, &assets.ganesha).await?;
    steps.done(&format!("nfs-ganesha serves /export on 127.0.0.1:{}", nfs.port()));
    let kubeconfig = Operator::install(&cluster).await?;
    steps.done("applied crds/, config/rbac/ and config/admission/");
    let operator = Operator::start(run, OperatorOptions::new(binary, kubeconfig)).await?;
    operator.wait_ready().await?;
    steps.done("the operator is ready, as ServiceAccount nfs-operator-system/nfs-operator");

    let export = nfs.data_dir("/export")?;
    let mut demo = Demo {
        objects: Objects::new(cluster.client().await?),
        cluster,
        export,
        steps,
    };
    let volume = demo.claim(&nfs).await?;
    demo.state().await?;
    println!(
        "\non the export ({}):\n{}",
        demo.export.display(),
        report::tree(&demo.export)?
    );
    if exit {
        demo.end(&volume).await?;
        operator.terminate().await?;
        nfs.stop().await?;
        demo.cluster.stop().await?;
        println!("done in {:.1} s", demo.steps.first.elapsed().as_secs_f64());
        return Ok(());
    }
    println!("to look around, in another terminal:\n");
    println!("  export KUBECONFIG={}", demo.cluster.kubeconfig().display());
    println!("  alias kubectl={}\n", demo.cluster.kubectl_path().display());
    println!("the operator's log: {}", operator.log().display());
    println!("Ctrl-C ends everything and removes it.");
    std::future::pending().await
}

/// The samples on their way through the cluster.
struct Demo {
    cluster: Cluster,
    objects: Objects,
    export: PathBuf,
    steps: Steps,
}

fn backend() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main")
}

fn claim() -> Value {
    reference("v1", "PersistentVolumeClaim", Some("default"), "my-data")
}

impl Demo {
    /// Applies the samples and waits until the claim is Bound; gives back its volume.
    async fn claim(&mut self, nfs: &NfsServer) -> Result<Value> {
        let samples = repository_root().join("config/samples");
        let change = json!({ "spec": { "server": "127.0.0.1", "path": "/export", "nfs": { "port": nfs.port() } } });
        self.cluster
            .apply(&self.patched(&samples.join("backend.yaml"), &change).await?)
            .await?;
        self.cluster.apply_path(&samples.join("storageclass.yaml")).await?;
        self.cluster.apply_path(&samples.join("claim.yaml")).await?;
        self.steps
            .done(&format!("applied config/samples/, the backend with {change}"));
        let claim = claim();
        let bound = self.objects.wait(&claim, "to be Bound", BOUND, |claim| {
            let volume = claim.pointer("/spec/volumeName").and_then(Value::as_str);
            volume
                .filter(|_| claim.pointer("/status/phase") == Some(&json!("Bound")))
                .map(String::from)
                .ok_or_else(|| "not bound".into())
        });
        let volume = match bound.await {
            Ok(volume) => volume,
            Err(error) => {
                self.state().await?;
                return Err(error);
            }
        };
        self.steps
            .done(&format!("the claim default/my-data is Bound to {volume}"));
        Ok(reference("v1", "PersistentVolume", None, &volume))
    }

    /// A sample with a change, as YAML; the file stays as it is.
    async fn patched(&self, sample: &Path, change: &Value) -> Result<String> {
        let (sample, change) = (sample.display().to_string(), change.to_string());
        let args = [
            "patch",
            "--local",
            "-f",
            &sample,
            "--type=merge",
            "-p",
            &change,
            "-o",
            "yaml",
        ];
        self.cluster.kubectl(args).await
    }

    /// Prints objects and conditions.
    async fn state(&self) -> Result<()> {
        println!(
            "\n$ kubectl get nfsb,pvc,pv\n{}",
            self.cluster.kubectl(["get", "nfsb,pvc,pv"]).await?
        );
        for (title, object) in [("NfsBackend main", backend()), ("claim default/my-data", claim())] {
            if let Some(found) = self.objects.get(&object).await? {
                println!("conditions of {title}:\n{}", report::conditions(&found));
            }
        }
        Ok(())
    }

    /// Writes a file as a pod would, deletes the claim, and shows what became of the data.
    async fn end(&mut self, volume: &Value) -> Result<()> {
        let found = self.objects.get(volume).await?.unwrap_or_default();
        let path = found
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let directory = path.strip_prefix("/export/").unwrap_or_default();
        let file = self.export.join(directory).join("hello.txt");
        fs::write(&file, "data of a pod\n").map_err(|source| Error::Io {
            action: format!("write {}", file.display()),
            source,
        })?;
        self.steps.done(&format!("wrote {directory}/hello.txt as a pod would"));
        self.objects.delete(&claim()).await?;
        self.objects.wait_gone(&claim(), RECLAIMED).await?;
        self.objects.wait_gone(volume, RECLAIMED).await?;
        self.steps.done("deleted the claim; its volume is gone too");
        println!(
            "\non the export, by the backend's archive policy:\n{}",
            report::tree(&self.export)?
        );
        let kept = fs::read_dir(&self.export)
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| {
                entry.file_name().to_string_lossy().starts_with("archived-") && entry.path().join("hello.txt").is_file()
            });
        match kept {
            Some(entry) => println!("hello.txt is kept in {}", entry.file_name().display()),
            None => return Err(Error::Usage("the archive with hello.txt is not on the export".into())),
        }
        Ok(())
    }
}
