//! `rig up`: starts everything, applies the samples and shows the result.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rig::{
    Assets, Cluster, Error, Export, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, Result, ResultExt as _,
    RunDir,
    objects::reference,
    operator::{link_programs, repository_root},
};
use serde_json::{Value, json};

use crate::report;

/// A claim is Bound within one or two seconds.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);
/// Archiving is one rename.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(60);

/// Prints each step with its duration.
struct Progress {
    last: Instant,
    first: Instant,
}

impl Progress {
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

/// Starts everything and runs until Ctrl-C; with `exit`, runs the demo to its end.
pub async fn up(operator: PathBuf, exit: bool) -> Result<()> {
    let mut progress = Progress::new();
    // Find missing programs before the run starts: the logs of a run do not mention them.
    let assets = tokio::select! {
        assets = Assets::find_or_install() => assets?,
        interrupted = wait_for_signal() => return interrupted,
    };
    progress.done("control plane and NFS server are installed");
    let run = RunDir::new()?;
    let result = tokio::select! {
        result = run_demo(&run, progress, assets, operator, exit) => result,
        // Dropping the other branch stops everything that runs.
        interrupted = wait_for_signal() => interrupted,
    };
    if result.is_err() {
        run.keep();
    }
    result
}

/// Waits for Ctrl-C or SIGTERM.
async fn wait_for_signal() -> Result<()> {
    let action = || "wait for a signal".into();
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).with_context(action)?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.with_context(action)?,
        _ = terminate.recv() => {}
    }
    println!("\nstopping and removing everything");
    Ok(())
}

async fn run_demo(run: &RunDir, mut progress: Progress, assets: Assets, binary: PathBuf, exit: bool) -> Result<()> {
    let cluster = Cluster::start_with(run, assets.clone()).await?;
    progress.done("Kubernetes control plane is up");
    let options = NfsOptions {
        exports: vec![Export::new("/export")],
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start_with(run, options, &assets.ganesha).await?;
    progress.done(&format!("nfs-ganesha serves /export on 127.0.0.1:{}", nfs.port()));
    let kubeconfig = Operator::install(&cluster).await?;
    progress.done("applied crds/, config/rbac/ and config/admission/");
    let operator = Operator::start(run, OperatorOptions::new(binary.clone(), kubeconfig)).await?;
    operator.wait_ready().await?;
    progress.done("the operator is ready, as ServiceAccount nfs-operator-system/nfs-operator");

    let export = nfs.data_dir("/export")?;
    let mut demo = Demo {
        objects: Objects::new(cluster.client().await?),
        samples: run.new_dir("samples")?,
        cluster,
        export,
        progress,
    };
    let volume = demo.apply_samples(&nfs).await?;
    demo.print_state().await?;
    println!(
        "\non the export ({}):\n{}",
        demo.export.display(),
        report::tree(&demo.export)?
    );
    if exit {
        demo.delete_claim(&volume).await?;
        operator.terminate().await?;
        nfs.stop().await?;
        demo.cluster.stop().await?;
        println!("done in {:.1} s", demo.progress.first.elapsed().as_secs_f64());
        return Ok(());
    }
    let programs = link_programs(run, &demo.cluster, &binary)?;
    println!("to explore, in another terminal, with kubectl, kubectl nfs and nfs-operator:\n");
    println!("  export KUBECONFIG=\"{}\"", demo.cluster.kubeconfig().display());
    println!("  export PATH=\"{}:$PATH\"\n", programs.display());
    println!("in the manifests of the guides, this is the server:\n");
    println!("  server: 127.0.0.1");
    println!("  path: /export");
    println!("  nfs: {{port: {}}}\n", nfs.port());
    println!("and on the command line:\n");
    println!("  nfs-operator probe 127.0.0.1:/export --port {} --write\n", nfs.port());
    println!("there is no node: pods stay Pending. Write what they would write to the export, for example:\n");
    let file = demo.directory_of(&volume).await?.join("hello.txt");
    println!("  echo hello > \"{}\"\n", file.display());
    println!("the operator's log: {}", operator.log().display());
    println!("Ctrl-C stops everything and removes it.");
    std::future::pending().await
}

/// The sample objects and the state of the demo.
struct Demo {
    cluster: Cluster,
    objects: Objects,
    /// Folder of the samples that were changed for this run.
    samples: PathBuf,
    export: PathBuf,
    progress: Progress,
}

fn backend() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main")
}

fn claim() -> Value {
    reference("v1", "PersistentVolumeClaim", Some("default"), "my-data")
}

impl Demo {
    /// Applies the samples, waits until the claim is Bound, and returns a reference to its volume.
    async fn apply_samples(&mut self, nfs: &NfsServer) -> Result<Value> {
        let samples = repository_root().join("config/samples");
        let change = json!({ "spec": { "server": "127.0.0.1", "path": "/export", "nfs": { "port": nfs.port() } } });
        let adapted = self.patch_locally(&samples.join("backend.yaml"), &change).await?;
        let backend_path = self.samples.join("backend.yaml");
        fs::write(&backend_path, adapted).with_context(|| format!("write {}", backend_path.display()))?;
        for path in [
            backend_path,
            samples.join("storageclass.yaml"),
            samples.join("claim.yaml"),
        ] {
            // As a reader of the guides applies them: kubectl warns if it did not create an object that it applies.
            self.cluster
                .kubectl(["apply", "-f", &path.display().to_string()])
                .await?;
        }
        self.progress
            .done(&format!("applied config/samples/, the backend with {change}"));
        let claim = claim();
        let volume = match self.objects.wait_bound(&claim, BIND_TIMEOUT).await {
            Ok(volume) => volume,
            Err(error) => {
                self.print_state().await?;
                return Err(error);
            }
        };
        let name = volume.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        self.progress
            .done(&format!("the claim default/my-data is Bound to {name}"));
        // What is printed next shouldn't show 0 volumes beside a Bound claim.
        let counted = |found: &Value| match found.pointer("/status/volumes").and_then(Value::as_u64) {
            Some(1) => Ok(()),
            other => Err(format!("it reports {other:?} volumes")),
        };
        self.objects
            .wait(&backend(), "to report its volume", BIND_TIMEOUT, counted)
            .await?;
        self.progress.done("the backend reports its volume");
        Ok(volume)
    }

    /// Returns a sample with a merge patch applied, as YAML. The file does not change.
    async fn patch_locally(&self, sample: &Path, change: &Value) -> Result<String> {
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
    async fn print_state(&self) -> Result<()> {
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

    /// Returns the directory of a volume on the disk of the server.
    async fn directory_of(&self, volume: &Value) -> Result<PathBuf> {
        let found = self.objects.get(volume).await?.unwrap_or_default();
        let path = found.pointer("/spec/nfs/path").and_then(Value::as_str);
        let directory = path.and_then(|path| path.strip_prefix("/export/"));
        match directory {
            Some(directory) => Ok(self.export.join(directory)),
            None => Err(Error::Usage("the volume is not on the export".into())),
        }
    }

    /// Writes a file as a pod would, deletes the claim, and shows where the data is then.
    async fn delete_claim(&mut self, volume: &Value) -> Result<()> {
        let directory = self.directory_of(volume).await?;
        let file = directory.join("hello.txt");
        fs::write(&file, "data of a pod\n").with_context(|| format!("write {}", file.display()))?;
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        self.progress.done(&format!("wrote {name}/hello.txt as a pod would"));
        self.objects.delete(&claim()).await?;
        self.objects.wait_gone(&claim(), RECLAIM_TIMEOUT).await?;
        self.objects.wait_gone(volume, RECLAIM_TIMEOUT).await?;
        self.progress.done("deleted the claim; its volume is deleted too");
        println!(
            "\non the export, after the backend's archive policy was applied:\n{}",
            report::tree(&self.export)?
        );
        let archive = fs::read_dir(&self.export)
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| {
                entry.file_name().to_string_lossy().starts_with("archived-") && entry.path().join("hello.txt").is_file()
            });
        match archive {
            Some(entry) => println!(
                "hello.txt is kept in {}, which a claim can restore:\n\n$ kubectl get nfsa\n{}",
                entry.file_name().display(),
                self.cluster.kubectl(["get", "nfsa"]).await?
            ),
            None => return Err(Error::Usage("no archive with hello.txt is on the export".into())),
        }
        Ok(())
    }
}
