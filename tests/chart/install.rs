//! Installation, upgrade and removal of the chart on a real API server. There is no kubelet: the operator runs as a
//! process, with tokens of the ServiceAccounts that the chart creates.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use rig::objects::reference;
use rig::operator::{find_binary, repository_root};
use rig::{Cluster, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir, TIMEOUT};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::helm::{HelmCli, HelmEnv, HelmOutput, both_versions};
use crate::objects::{chart, documents, kind_and_name};
use crate::render::values;
use crate::{Failure, Test};

const NAMESPACE: &str = "nfs-operator-system";

/// A cluster with the chart.
struct Installation<'a> {
    helm: &'a HelmCli,
    environment: HelmEnv,
    cluster: Cluster,
    objects: Objects,
    run: RunDir,
}

impl<'a> Installation<'a> {
    async fn new(helm: &'a HelmCli) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        let cluster = Cluster::start(&run).await?;
        Ok(Self {
            helm,
            environment: HelmEnv::new(&cluster, &run.new_dir("helm")?),
            objects: Objects::new(cluster.client().await?),
            cluster,
            run,
        })
    }

    async fn helm(&self, command: &[&str], args: &[&str]) -> Result<HelmOutput, Failure> {
        let namespace = ["--namespace", NAMESPACE];
        self.helm
            .run_on(&self.environment, &[command, &namespace, args].concat())
            .await
    }

    async fn install(&self, args: &[&str]) -> Result<HelmOutput, Failure> {
        let chart = chart().display().to_string();
        self.helm(&["install", "nfs-operator", &chart, "--create-namespace"], args)
            .await
    }

    /// Runs without hooks, because their Jobs need a kubelet.
    async fn upgrade(&self, args: &[&str]) -> Result<HelmOutput, Failure> {
        let chart = chart().display().to_string();
        self.helm(&["upgrade", "nfs-operator", &chart, "--no-hooks"], args)
            .await
    }

    async fn exists(&self, object: &Value) -> Result<bool, Failure> {
        Ok(self.objects.get(object).await?.is_some())
    }

    /// Runs the command of the notes that saves the Secret, deletes the Secret, and creates it from the file.
    async fn assert_saved_secret_can_be_created(&self, notes: &str) -> Test {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"key": "a2V5"}, "immutable": true,
            "metadata": {"name": "nfs-operator-records", "namespace": NAMESPACE},
        });
        self.objects.create(&secret).await?;
        let save = notes
            .lines()
            .find(|line| line.contains("get secret nfs-operator-records"));
        let save = save.ok_or("the notes do not save the Secret")?;
        let kubectl = format!("{} ", self.cluster.kubectl_path().display());
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &save.replace("kubectl ", &kubectl)]);
        command
            .current_dir(self.run.path())
            .env("KUBECONFIG", self.cluster.kubeconfig());
        let saved = command.output().await?;
        assert!(saved.status.success(), "{save}: {}", printed(&saved));
        self.objects.delete(&secret).await?;
        let file = self.run.path().join("nfs-operator-records.yaml").display().to_string();
        self.cluster.kubectl(["create", "-f", &file]).await?;
        let created = self.objects.get(&secret).await?.unwrap();
        assert_eq!(created["data"], secret["data"]);
        self.objects.delete(&secret).await?;
        Ok(())
    }

    /// Creates the ServiceAccount and the roles of a hook, and returns a kubeconfig for the account.
    async fn create_hook_account(&self, account: &str, args: &[&str]) -> Result<PathBuf, Failure> {
        let objects = documents(&self.helm.template(args).await?.into_stdout()?)?;
        let of_hook = |object: &&Value| {
            let is_pod = object["kind"] == "Job" || object["kind"] == "Pod";
            object["metadata"]["name"] == account && !is_pod
        };
        for object in objects.iter().filter(of_hook) {
            self.objects.apply(object).await?;
        }
        Ok(self.cluster.service_account_kubeconfig(NAMESPACE, account).await?)
    }
}

fn backend(name: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name)
}

fn class(name: &str) -> Value {
    reference("storage.k8s.io/v1", "StorageClass", None, name)
}

fn deployment() -> Value {
    reference("apps/v1", "Deployment", Some(NAMESPACE), "nfs-operator")
}

fn crd() -> Value {
    let name = "nfsbackends.nfs-operator.io";
    reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name)
}

async fn run_operator(kubeconfig: &std::path::Path, args: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new(find_binary()?);
    command.args(args).env("KUBECONFIG", kubeconfig).kill_on_drop(true);
    Ok(command.output().await?)
}

fn printed(output: &Output) -> String {
    [&output.stdout[..], &output.stderr]
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect()
}

/// Minimal CRDs of the Prometheus operator.
const MONITORING: &str = include_str!("values/monitoring-kinds.yaml");

#[tokio::test]
async fn helm_installs_upgrades_and_uninstalls_and_keeps_backends() -> Test {
    for helm in both_versions().await? {
        let installation = Installation::new(&helm).await?;
        let notes = installation.install(&[]).await?.into_stdout()?;
        let manifest = notes
            .split("<<'END'\n")
            .nth(1)
            .and_then(|rest| rest.split("\nEND\n").next());
        installation
            .cluster
            .apply(manifest.ok_or("no manifest in the notes")?)
            .await?;
        assert!(installation.exists(&backend("main")).await? && installation.exists(&class("nfs")).await?);
        installation.objects.delete(&backend("main")).await?;
        installation.objects.delete(&class("nfs")).await?;
        installation.assert_saved_secret_can_be_created(&notes).await?;
        assert!(installation.exists(&deployment()).await? && installation.exists(&crd()).await?);

        installation.cluster.apply(MONITORING).await?;
        let everything = values("everything.yaml");
        let notes = installation.upgrade(&[&everything]).await?.into_stdout()?;
        assert!(
            notes.contains("nfsb main other") && notes.contains("helm test nfs-operator"),
            "{notes}"
        );
        // The pod of the test is in the namespace of the objects, and Helm looks in that of the release.
        let elsewhere = "--set=namespaceOverride=storage,crds.enabled=false";
        let notes = installation
            .upgrade(&[&everything, elsewhere, "--dry-run=client"])
            .await?;
        let notes = notes.into_stdout()?;
        assert!(
            notes.contains("kubectl --namespace storage logs pod/nfs-operator-test")
                && notes.contains("helm test nfs-operator --namespace nfs-operator-system\n"),
            "{notes}"
        );
        let kinds = concat!("/releases/download/v", env!("CARGO_PKG_VERSION"), "/crds.yaml");
        assert!(notes.contains("--skip-crds") && notes.contains(kinds), "{notes}");
        let deployed = installation.objects.get(&deployment()).await?.unwrap();
        assert_eq!(deployed["spec"]["strategy"]["type"], "RollingUpdate");
        assert_eq!(deployed["spec"]["replicas"], 2);
        assert!(installation.exists(&backend("main")).await? && installation.exists(&class("nfs")).await?);
        // The revision before comes back; kinds and backends stay.
        let rollback = ["rollback", "nfs-operator", "--no-hooks"];
        installation.helm(&rollback, &[]).await?.into_stdout()?;
        let deployed = installation.objects.get(&deployment()).await?.unwrap();
        assert_eq!(deployed["spec"]["replicas"], 1);
        assert!(installation.exists(&backend("main")).await? && installation.exists(&crd()).await?);
        assert!(!installation.exists(&class("nfs")).await?);
        installation.upgrade(&[&everything]).await?.into_stdout()?;
        // Backends that are removed from the values are kept.
        installation.upgrade(&["--reset-values"]).await?.into_stdout()?;
        assert!(installation.exists(&backend("main")).await? && !installation.exists(&class("nfs")).await?);

        installation
            .helm(&["uninstall", "nfs-operator"], &["--no-hooks"])
            .await?
            .into_stdout()?;
        assert!(installation.exists(&backend("main")).await? && installation.exists(&crd()).await?);
        assert!(!installation.exists(&deployment()).await?);
        // A later installation adopts them.
        installation
            .install(&["--no-hooks", &everything])
            .await?
            .into_stdout()?;
        assert!(installation.exists(&backend("other")).await? && installation.exists(&deployment()).await?);
        installation.cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_files_of_a_release_are_enough_to_install_it() -> Test {
    for helm in both_versions().await? {
        let installation = Installation::new(&helm).await?;
        let folder = installation.run.new_dir("dist")?.display().to_string();
        let (source, to) = (chart().display().to_string(), format!("--destination={folder}"));
        installation
            .helm(&["package", &source, &to], &[])
            .await?
            .into_stdout()?;
        let mut packages = fs::read_dir(&folder)?;
        let package = packages.next().ok_or("no package")??.path().display().to_string();
        let command = ["install", "nfs-operator", &package, "--create-namespace"];
        installation.helm(&command, &[]).await?.into_stdout()?;
        assert!(installation.exists(&deployment()).await? && installation.exists(&crd()).await?);
        let uninstall = ["uninstall", "nfs-operator", "--wait"];
        installation.helm(&uninstall, &["--no-hooks"]).await?.into_stdout()?;

        installation.cluster.stop().await?;
    }
    Ok(())
}

/// The bundle of a release, `install.yaml`, is the output of `kubectl kustomize config/default`.
#[tokio::test]
async fn kubectl_applies_the_bundle_of_a_release_on_either_side_and_the_operator_starts_with_it() -> Test {
    for side in ["--server-side=true", "--server-side=false"] {
        let run = RunDir::new()?;
        let cluster = Cluster::start(&run).await?;
        let objects = Objects::new(cluster.client().await?);
        let bundle = run.path().join("install.yaml");
        let folder = repository_root().join("config/default").display().to_string();
        fs::write(&bundle, cluster.kubectl(["kustomize", &folder]).await?)?;
        let apply = ["apply", side, "-f", &bundle.display().to_string()];
        cluster.kubectl(apply).await?;
        for object in [deployment(), crd()] {
            assert!(objects.get(&object).await?.is_some(), "{}", kind_and_name(&object));
        }
        let account = Operator::kubeconfig(&cluster).await?;
        let operator = Operator::start(&run, OperatorOptions::new(find_binary()?, account)).await?;
        operator.wait_ready().await?;
        drop(operator);
        // An upgrade applies it again.
        let applied = cluster.kubectl(apply).await?;
        assert!(!applied.contains("created"), "{applied}");
        cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_typo_in_the_values_changes_nothing() -> Test {
    for helm in both_versions().await? {
        let installation = Installation::new(&helm).await?;
        installation.install(&[]).await?.into_stdout()?;
        let output = installation.upgrade(&["--set=replicaCuont=2"]).await?;
        assert!(
            !output.success && output.stderr.contains("replicaCuont"),
            "{}",
            output.stderr
        );
        // The API server validates what the values' schema does not.
        let bad = "--set=backends.main.spec.server=nfs.example.com,backends.main.spec.path=/a/../b";
        let output = installation.upgrade(&[bad]).await?;
        assert!(
            !output.success && output.stderr.contains("path must not contain"),
            "{}",
            output.stderr
        );
        assert!(!installation.exists(&backend("main")).await?);
        installation.cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_job_before_an_upgrade_may_bring_the_kinds_up_to_date_and_nothing_else() -> Test {
    let helms = both_versions().await?;
    let Some(helm) = helms.first() else { return Ok(()) };
    let installation = Installation::new(helm).await?;
    installation.install(&[]).await?.into_stdout()?;
    let account = installation.create_hook_account("nfs-operator-crds", &[]).await?;
    // An older CRD, without the short name.
    let before = installation.objects.get(&crd()).await?.unwrap();
    let older = json!({"spec": {"names": {"shortNames": null}}});
    installation.objects.patch(&crd(), older).await?;
    let applied = run_operator(&account, &["crd", "--apply"]).await?;
    assert!(applied.status.success(), "{}", printed(&applied));
    let after = installation.objects.get(&crd()).await?.unwrap();
    assert_eq!(after["spec"], before["spec"]);
    // A missing CRD is created.
    installation.objects.delete(&crd()).await?;
    installation.objects.wait_gone(&crd(), TIMEOUT).await?;
    let applied = run_operator(&account, &["crd", "--apply"]).await?;
    assert!(applied.status.success(), "{}", printed(&applied));
    assert!(installation.exists(&crd()).await?);
    let other = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x.example.com"}});
    let config = format!("--as=system:serviceaccount:{NAMESPACE}:nfs-operator-crds");
    for verb in ["create", "patch", "delete"] {
        let query = [
            "auth",
            "can-i",
            verb,
            "customresourcedefinitions.apiextensions.k8s.io/x.example.com",
            &config,
        ];
        let allowed = installation.cluster.kubectl(query).await;
        assert!(allowed.is_err(), "{verb} of {}", kind_and_name(&other));
    }
    installation.cluster.stop().await?;
    Ok(())
}

#[tokio::test]
async fn one_file_of_values_gives_a_storage_service_that_passes_the_charts_test() -> Test {
    let helms = both_versions().await?;
    let Some(helm) = helms.first() else { return Ok(()) };
    let installation = Installation::new(helm).await?;
    let nfs = NfsServer::start(&installation.run, NfsOptions::default()).await?;
    let spec = json!({"server": "127.0.0.1", "path": "/export", "nfs": {"port": nfs.port()}, "probeInterval": "1s"});
    let service = json!({
        "backends": {"main": {"spec": spec}},
        "storageClasses": {
            "nfs": {"default": true, "parameters": {"backend": "main"}},
            "late": {"parameters": {"backend": "main"}, "volumeBindingMode": "WaitForFirstConsumer"},
        },
    });
    let file = installation.run.path().join("values.yaml");
    fs::write(&file, service.to_string())?;
    let file = format!("--values={}", file.display());
    installation.install(&[&file]).await?.into_stdout()?;
    let account = Operator::kubeconfig(&installation.cluster).await?;
    let operator = Operator::start(&installation.run, OperatorOptions::new(find_binary()?, account)).await?;
    operator.wait_ready().await?;
    let main = backend("main");
    installation
        .objects
        .wait_condition(&main, "Ready", "True", None, TIMEOUT)
        .await?;

    for class in ["nfs", "late"] {
        let tested = format!("--set=tests.storageClass={class}");
        let account = installation
            .create_hook_account("nfs-operator-test", &[&file, &tested])
            .await?;
        let storage_class = format!("--storage-class={class}");
        // The default timeout of a step is for a cluster that does nothing else.
        let timeout = format!("--timeout={}s", TIMEOUT.as_secs());
        let check = [
            "check",
            &storage_class,
            "--namespace",
            NAMESPACE,
            "--node=anywhere",
            &timeout,
        ];
        let checked = run_operator(&account, &check).await?;
        assert_eq!(checked.status.code(), Some(0), "{class}: {}", printed(&checked));
    }
    let remaining = installation
        .objects
        .list(&reference("v1", "PersistentVolume", None, "any"))
        .await?;
    assert!(remaining.is_empty(), "{remaining:?}");
    drop(operator);
    installation.cluster.stop().await?;
    Ok(())
}
