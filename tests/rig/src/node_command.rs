//! `rig node`: a cluster whose node runs pods, in an sandbox.

use std::{io::Read as _, path::PathBuf, process::ExitCode};

use rig::{
    Assets, Cluster, Error, Node, Objects, Result, RunDir, Sandbox,
    assets::NodeAssets,
    node::ADDRESS,
    node::exit_code,
    objects::{merge, reference},
};
use serde_json::json;

/// Pulling, starting and telling takes 2 s.
const RUNNING: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs this program again in an sandbox, or, when it is in one, starts the cluster and stays until the end of its
/// standard input.
pub async fn run() -> Result<ExitCode> {
    // Both look for what they need, but only outside is there a network to get it by.
    let assets = Assets::find_or_install().await?;
    let node_assets = NodeAssets::find_or_install().await?;
    if Sandbox::current().is_none() {
        let program = std::env::current_exe().map_err(|source| Error::Io {
            action: "find this program".into(),
            source,
        })?;
        return Ok(ExitCode::from(exit_code(Sandbox::run(&program, ["node"])?)));
    }
    let run = RunDir::new()?;
    match serve(&run, assets, node_assets).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            run.keep();
            Err(error)
        }
    }
}

async fn serve(run: &RunDir, assets: Assets, node_assets: NodeAssets) -> Result<()> {
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_else(|_| PathBuf::from("unknown"));
    let name = Sandbox::current().map_or_else(String::new, |sandbox| sandbox.cgroup().to_owned());
    println!("control groups: {name}\nnetwork: {}", network.display());
    let cluster = Cluster::start_for_nodes(run, assets, ADDRESS).await?;
    let node = Node::start(run, &node_assets, &cluster).await?;
    if let Err(error) = pod(&cluster).await {
        eprintln!("{}", node.logs());
        return Err(error);
    }
    println!("pod: running");
    println!("to look around, as root: nsenter --target PID --all, with PID of one of its processes, and");
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("  alias kubectl={}", cluster.kubectl_path().display());
    println!("Ctrl-C, or the end of the input, ends everything and removes it.");
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    // However reading ended: there is nobody to stay for.
    let _end = read.await;
    drop(node);
    cluster.stop().await
}

/// A pod that does nothing, to see that pods run.
async fn pod(cluster: &Cluster) -> Result<()> {
    let objects = Objects::new(cluster.client().await?);
    let mut pod = reference("v1", "Pod", Some("default"), "pod");
    let container = json!({ "name": "pause", "image": Node::PAUSE, "imagePullPolicy": "Never" });
    merge(&mut pod, &json!({ "spec": { "containers": [container] } }));
    let pod = objects.create(&pod).await?;
    objects
        .wait(&pod, "to run", RUNNING, |pod| {
            match pod.pointer("/status/phase") == Some(&json!("Running")) {
                true => Ok(()),
                false => Err("it does not run".into()),
            }
        })
        .await
}
