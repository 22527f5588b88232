//! The chart on a real API server, as an administrator installs, upgrades and uninstalls it. There is no kubelet here: the
//! program runs beside it, under the tokens of the accounts that the chart makes.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use rig::objects::reference;
use rig::operator::find_binary;
use rig::{Cluster, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir, TIMEOUT};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::helm::{Environment, Said, Tool, both};
use crate::objects::{chart, documents, named};
use crate::render::values;
use crate::{Failure, Test};

const NAMESPACE: &str = "nfs-operator-system";

/// A cluster, and Helm on it.
struct Site<'a> {
    helm: &'a Tool,
    environment: Environment,
    cluster: Cluster,
    objects: Objects,
    run: RunDir,
}

impl<'a> Site<'a> {
    async fn new(helm: &'a Tool) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        let cluster = Cluster::start(&run).await?;
        Ok(Self {
            helm,
            environment: Environment::new(&cluster, &run.new_dir("helm")?),
            objects: Objects::new(cluster.client().await?),
            cluster,
            run,
        })
    }

    async fn helm(&self, command: &[&str], args: &[&str]) -> Result<Said, Failure> {
        let namespace = ["--namespace", NAMESPACE];
        self.helm
            .on(&self.environment, &[command, &namespace, args].concat())
            .await
    }

    async fn install(&self, args: &[&str]) -> Result<Said, Failure> {
        let chart = chart().display().to_string();
        self.helm(&["install", "nfs-operator", &chart, "--create-namespace"], args)
            .await
    }

    /// Without hooks: a Job would wait for a kubelet.
    async fn upgrade(&self, args: &[&str]) -> Result<Said, Failure> {
        let chart = chart().display().to_string();
        self.helm(&["upgrade", "nfs-operator", &chart, "--no-hooks"], args)
            .await
    }

    async fn there(&self, object: &Value) -> Result<bool, Failure> {
        Ok(self.objects.get(object).await?.is_some())
    }

    /// Makes the ServiceAccount and the roles of a hook, and gives back a kubeconfig for the account.
    async fn account_of_hook(&self, account: &str, args: &[&str]) -> Result<PathBuf, Failure> {
        let rendered = documents(&self.helm.template(args).await?.output()?)?;
        let of_hook = |object: &&Value| {
            let is_pod = object["kind"] == "Job" || object["kind"] == "Pod";
            object["metadata"]["name"] == account && !is_pod
        };
        for object in rendered.iter().filter(of_hook) {
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

fn kind() -> Value {
    let name = "nfsbackends.nfs-operator.io";
    reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name)
}

async fn program(kubeconfig: &std::path::Path, args: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new(find_binary()?);
    command.args(args).env("KUBECONFIG", kubeconfig).kill_on_drop(true);
    Ok(command.output().await?)
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr]
        .iter()
        .map(|said| String::from_utf8_lossy(said))
        .collect()
}

/// The kinds of the Prometheus operator, as far as a chart needs them to be there.
const MONITORING: &str = include_str!("values/monitoring-kinds.yaml");

#[tokio::test]
async fn helm_installs_upgrades_and_uninstalls_and_the_exports_stay() -> Test {
    for helm in both().await? {
        let site = Site::new(&helm).await?;
        let told = site.install(&[]).await?.output()?;
        assert!(told.contains("helm upgrade nfs-operator"), "the next command: {told}");
        assert!(site.there(&deployment()).await? && site.there(&kind()).await?);

        site.cluster.apply(MONITORING).await?;
        let everything = values("everything.yaml");
        let told = site.upgrade(&[&everything]).await?.output()?;
        assert!(
            told.contains("nfsb main other") && told.contains("helm test nfs-operator"),
            "{told}"
        );
        let made = site.objects.get(&deployment()).await?.unwrap();
        assert_eq!(made["spec"]["strategy"]["type"], "RollingUpdate");
        assert_eq!(made["spec"]["replicas"], 2);
        assert!(site.there(&backend("main")).await? && site.there(&class("nfs")).await?);
        // What is taken out of the values is left where it is.
        site.upgrade(&["--reset-values"]).await?.output()?;
        assert!(site.there(&backend("main")).await? && !site.there(&class("nfs")).await?);

        site.helm(&["uninstall", "nfs-operator"], &["--no-hooks"])
            .await?
            .output()?;
        assert!(site.there(&backend("main")).await? && site.there(&kind()).await?);
        assert!(!site.there(&deployment()).await?);
        // And a later installation takes them up again.
        site.install(&["--no-hooks", &everything]).await?.output()?;
        assert!(site.there(&backend("other")).await? && site.there(&deployment()).await?);
        site.cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_typo_in_the_values_changes_nothing() -> Test {
    for helm in both().await? {
        let site = Site::new(&helm).await?;
        site.install(&[]).await?.output()?;
        let said = site.upgrade(&["--set=replicsa=2"]).await?;
        assert!(!said.success && said.error.contains("replicsa"), "{}", said.error);
        // Past the values' schema the API server has the last word.
        let bad = "--set=backends.main.spec.server=nfs.example.com,backends.main.spec.path=/a/../b";
        let said = site.upgrade(&[bad]).await?;
        assert!(
            !said.success && said.error.contains("path must not hold"),
            "{}",
            said.error
        );
        assert!(!site.there(&backend("main")).await?);
        site.cluster.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_job_before_an_upgrade_may_bring_the_kinds_up_to_date_and_nothing_else() -> Test {
    let helms = both().await?;
    let Some(helm) = helms.first() else { return Ok(()) };
    let site = Site::new(helm).await?;
    site.install(&[]).await?.output()?;
    let account = site.account_of_hook("nfs-operator-crds", &[]).await?;
    // An older kind: it has no short name.
    let before = site.objects.get(&kind()).await?.unwrap();
    let older = json!({"spec": {"names": {"shortNames": null}}});
    site.objects.patch(&kind(), older).await?;
    let applied = program(&account, &["crd", "--apply"]).await?;
    assert!(applied.status.success(), "{}", said(&applied));
    let after = site.objects.get(&kind()).await?.unwrap();
    assert_eq!(after["spec"], before["spec"]);
    // One that this version brings is made.
    site.objects.delete(&kind()).await?;
    site.objects.wait_gone(&kind(), TIMEOUT).await?;
    let applied = program(&account, &["crd", "--apply"]).await?;
    assert!(applied.status.success(), "{}", said(&applied));
    assert!(site.there(&kind()).await?);
    let strange = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x.example.com"}});
    let config = format!("--as=system:serviceaccount:{NAMESPACE}:nfs-operator-crds");
    for verb in ["create", "patch", "delete"] {
        let asked = [
            "auth",
            "can-i",
            verb,
            "customresourcedefinitions.apiextensions.k8s.io/x.example.com",
            &config,
        ];
        let may = site.cluster.kubectl(asked).await;
        assert!(may.is_err(), "{verb} of {}", named(&strange));
    }
    site.cluster.stop().await?;
    Ok(())
}

#[tokio::test]
async fn one_file_of_values_gives_a_storage_service_that_the_charts_test_finds_working() -> Test {
    let helms = both().await?;
    let Some(helm) = helms.first() else { return Ok(()) };
    let site = Site::new(helm).await?;
    let nfs = NfsServer::start(&site.run, NfsOptions::default()).await?;
    let spec = json!({"server": "127.0.0.1", "path": "/export", "nfs": {"port": nfs.port()}, "probeInterval": "1s"});
    let service = json!({
        "backends": {"main": {"spec": spec}},
        "storageClasses": {
            "nfs": {"default": true, "parameters": {"backend": "main"}},
            "late": {"parameters": {"backend": "main"}, "volumeBindingMode": "WaitForFirstConsumer"},
        },
    });
    let file = site.run.path().join("values.yaml");
    fs::write(&file, service.to_string())?;
    let file = format!("--values={}", file.display());
    site.install(&[&file]).await?.output()?;
    let account = Operator::kubeconfig(&site.cluster).await?;
    let operator = Operator::start(&site.run, OperatorOptions::new(find_binary()?, account)).await?;
    operator.wait_ready().await?;
    let main = backend("main");
    site.objects
        .wait_condition(&main, "Ready", "True", None, TIMEOUT)
        .await?;

    for class in ["nfs", "late"] {
        let tested = format!("--set=tests.storageClass={class}");
        let account = site.account_of_hook("nfs-operator-test", &[&file, &tested]).await?;
        let storage_class = format!("--storage-class={class}");
        let check = ["check", &storage_class, "--namespace", NAMESPACE, "--node=anywhere"];
        let checked = program(&account, &check).await?;
        assert_eq!(checked.status.code(), Some(0), "{class}: {}", said(&checked));
    }
    let left = site
        .objects
        .list(&reference("v1", "PersistentVolume", None, "any"))
        .await?;
    assert!(left.is_empty(), "{left:?}");
    drop(operator);
    site.cluster.stop().await?;
    Ok(())
}
