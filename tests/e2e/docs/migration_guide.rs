//! The commands of docs/migrate-from-nfs-subdir.md in their order.

use rig::objects::{merge, reference};
use rig::operator::{find_binary, repository_root};
use rig::{Cluster, Export, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir};
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT, Test, text};
use crate::support::shell::Shell;

const NAME: &str = "k8s-sigs.io/nfs-subdir-external-provisioner";

/// A fenced block of the page.
struct Block {
    language: String,
    text: String,
}

/// Returns the blocks of the page, with the server of this test.
fn blocks(port: u16) -> Result<Vec<Block>, Failure> {
    let page = std::fs::read_to_string(repository_root().join("docs/migrate-from-nfs-subdir.md"))?;
    let fenced = page.split("```").skip(1).step_by(2);
    Ok(fenced
        .filter_map(|block| block.split_once('\n'))
        .map(|(language, text)| Block {
            language: language.to_owned(),
            text: text
                .replace("nfs.example.com", "127.0.0.1")
                // Which deletes the class, among others.
                .replace(
                    "helm uninstall OLD-RELEASE --namespace default",
                    "kubectl delete storageclass nfs-client",
                )
                .replace(" --write", &format!(" --port {port} --write")),
        })
        .collect())
}

/// Creates the Deployment of nfs-subdir, its class, and a claim. Returns the Deployment.
async fn old_objects(objects: &Objects) -> rig::Result<Value> {
    let mut deployment = reference("apps/v1", "Deployment", Some("default"), "nfs-client-provisioner");
    let labels = json!({ "app": "nfs-client-provisioner" });
    let container = json!({ "name": "provisioner", "image": "example.com/provisioner" });
    let spec = json!({
        "replicas": 1,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
    });
    merge(&mut deployment, &json!({ "spec": spec }));
    let deployment = objects.create(&deployment).await?;
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, "nfs-client");
    merge(&mut class, &json!({ "provisioner": NAME, "reclaimPolicy": "Delete" }));
    objects.create(&class).await?;
    let mut claim = reference("v1", "PersistentVolumeClaim", Some("default"), "data");
    let spec = json!({
        "storageClassName": "nfs-client", "accessModes": ["ReadWriteMany"],
        "resources": { "requests": { "storage": "1Mi" } },
    });
    merge(&mut claim, &json!({ "spec": spec }));
    objects.create(&claim).await?;
    Ok(deployment)
}

/// Builds the overlay of the page, in a copy of config.
async fn build_overlay(run: &RunDir, cluster: &Cluster, overlay: &str) -> Test {
    let folder = run.path().join("overlay");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("kustomization.yaml"), overlay)?;
    let config = repository_root().join("config");
    let shell = Shell::new(run, cluster)?.at(folder);
    let built = shell
        .run(&format!("cp -r '{}' . && kubectl kustomize .", config.display()))
        .await?;
    // In a quoted string of YAML, they are doubled.
    let built = built.replace("''", "'");
    for part in [
        "name: PROVISIONER_NAME",
        "['nfs-operator.io/nfs', 'k8s-sigs.io/nfs-subdir-external-provisioner']",
    ] {
        assert!(built.contains(part), "{part}: {built}");
    }
    Ok(())
}

async fn at_this_port(objects: &Objects, name: &str, port: u16) -> rig::Result<()> {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name);
    let port = json!({ "spec": { "nfs": { "port": port } } });
    objects.wait(&backend, "to exist", TIMEOUT, |_| Ok(())).await?;
    objects.patch(&backend, port).await?;
    objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT).await?;
    Ok(())
}

fn replicas(deployment: Option<&Value>) -> Option<&Value> {
    deployment?.pointer("/spec/replicas")
}

#[tokio::test]
async fn each_command_of_the_migration_guide_works_as_described() -> Test {
    let run = RunDir::new()?;
    let exports = ["/export", "/projects"].map(Export::new).to_vec();
    let nfs = NfsServer::start(
        &run,
        NfsOptions {
            exports,
            ..NfsOptions::default()
        },
    )
    .await?;
    let cluster = Cluster::start(&run).await?;
    let objects = Objects::new(cluster.client().await?);
    // The commands need the folder config of the checkout, and write files.
    let folder = run.new_dir("admin")?;
    std::os::unix::fs::symlink(repository_root().join("config"), folder.join("config"))?;
    let shell = Shell::new(&run, &cluster)?.at(folder);
    let deployment = old_objects(&objects).await?;
    let mut operator: Option<Operator> = None;
    let mut commands = 0;
    for Block { language, text } in blocks(nfs.port())? {
        // Values of the chart, and the command that installs it with them: the tests of the chart do.
        if text.starts_with("operator:") || text.contains("helm install") {
            continue;
        }
        if text.starts_with("resources:") {
            build_overlay(&run, &cluster, &text).await?;
            continue;
        }
        if language == "yaml" {
            shell.run(&format!("kubectl apply -f - <<'END'\n{text}END")).await?;
            at_this_port(&objects, "projects", nfs.port()).await?;
            continue;
        }
        commands += 1;
        if let Some(arguments) = text.trim().strip_prefix("nfs-operator run") {
            let arguments = arguments.split_whitespace().filter(|word| *word != "\\");
            let former = operator.take().ok_or("no operator runs")?;
            former.terminate().await?;
            operator = Some(start(&run, &cluster, arguments.map(str::to_owned).collect(), &[]).await?);
            continue;
        }
        if text.contains("kubectl wait") {
            let variables = [
                ("NFS_SERVER", "127.0.0.1"),
                ("NFS_PATH", "/export"),
                ("PROVISIONER_NAME", NAME),
            ];
            operator = Some(start(&run, &cluster, Vec::new(), &variables).await?);
            at_this_port(&objects, "default", nfs.port()).await?;
        }
        let before = objects.get(&deployment).await?;
        if text.contains("--replicas=1") {
            // Nobody would provision the claim afterwards.
            bound(&objects).await?;
            // As described there in the page.
            operator.take().ok_or("no operator runs")?.terminate().await?;
        }
        if text.contains("finalizers") {
            bound_and_held(&objects).await?;
        }
        shell.run(&text).await?;
        if text.contains("kubectl scale") {
            let after = objects.get(&deployment).await?;
            assert_ne!(replicas(before.as_ref()), replicas(after.as_ref()));
        }
        if text.contains("finalizers") {
            let (_, volume) = bound(&objects).await?;
            assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
        }
    }
    assert_eq!(commands, 10, "number of tested blocks");
    Ok(())
}

async fn start(run: &RunDir, cluster: &Cluster, args: Vec<String>, env: &[(&str, &str)]) -> rig::Result<Operator> {
    let kubeconfig = Operator::install(cluster).await?;
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let options = OperatorOptions {
        args,
        env: env.collect(),
        ..OperatorOptions::new(find_binary()?, kubeconfig)
    };
    let operator = Operator::start(run, options).await?;
    operator.wait_ready().await?;
    Ok(operator)
}

/// Returns the claim with its volume.
async fn bound(objects: &Objects) -> Result<(Value, Value), Failure> {
    let claim = reference("v1", "PersistentVolumeClaim", Some("default"), "data");
    let name = objects
        .wait(&claim, "to be Bound", TIMEOUT, |claim| {
            match text(claim, "/status/phase") {
                "Bound" => Ok(text(claim, "/spec/volumeName").to_owned()),
                phase => Err(phase.to_owned()),
            }
        })
        .await?;
    let volume = objects.get(&reference("v1", "PersistentVolume", None, &name)).await?;
    Ok((claim, volume.ok_or("no volume")?))
}

async fn bound_and_held(objects: &Objects) -> Test {
    let (_, volume) = bound(objects).await?;
    let held = volume["metadata"]["finalizers"].to_string();
    assert!(held.contains("nfs-operator.io/reclaim"), "{held}");
    Ok(())
}
