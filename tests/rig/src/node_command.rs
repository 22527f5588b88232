//! `rig node`: runs a cluster whose node runs pods, in a sandbox.

use std::{io::Read as _, path::PathBuf, process::ExitCode};

use rig::{
    Assets, Cluster, Node, Objects, Result, ResultExt as _, RunDir, Sandbox,
    assets::NodeAssets,
    node::ADDRESS,
    node::exit_code,
    objects::{reference, with_fields},
};
use serde_json::json;

/// Starting a container from a local image takes 2 s, and longer on a busy machine.
const RUN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(180);

/// Runs this program again in a sandbox. Inside a sandbox, starts the cluster and runs until its standard input is
/// closed.
pub async fn run() -> Result<ExitCode> {
    // Both processes look for the programs, but only the one outside has a network to download them.
    let assets = Assets::find_or_install().await?;
    let node_assets = NodeAssets::find_or_install().await?;
    if Sandbox::current().is_none() {
        let program = std::env::current_exe().with_context(|| "find the path of this program".into())?;
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
    println!("cgroups: {name}\nnetwork: {}", network.display());
    let cluster = Cluster::start_for_nodes(run, assets, ADDRESS).await?;
    let node = Node::start(run, &node_assets, &cluster).await?;
    if let Err(error) = run_pod(&cluster).await {
        eprintln!("{}", node.logs());
        return Err(error);
    }
    println!("pod: running");
    println!("to explore, as root: nsenter --target PID --all, where PID is one of its processes, and");
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("  alias kubectl={}", cluster.kubectl_path().display());
    println!("Ctrl-C or the end of the input stops everything and removes it.");
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    // A read error also means that the input has ended.
    let _ = read.await;
    drop(node);
    cluster.stop().await
}

/// Starts a pod that does nothing, to verify that pods run.
async fn run_pod(cluster: &Cluster) -> Result<()> {
    let objects = Objects::new(cluster.client().await?);
    let container = json!({ "name": "pause", "image": Node::PAUSE_IMAGE, "imagePullPolicy": "Never" });
    let pod = reference("v1", "Pod", Some("default"), "pod");
    let pod = with_fields(pod, json!({ "spec": { "containers": [container] } }));
    objects.create(&pod).await?;
    objects
        .wait(&pod, "to run", RUN_TIMEOUT, |pod| {
            match pod.pointer("/status/phase") == Some(&json!("Running")) {
                true => Ok(()),
                false => Err("it is not running".into()),
            }
        })
        .await
}
