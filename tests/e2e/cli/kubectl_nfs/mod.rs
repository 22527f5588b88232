//! `kubectl nfs`, with the kubeconfig of an administrator.

mod archives;
mod explain;
mod migrate;
mod probe;
mod program;
mod requests;
mod rights;
mod schedules;
mod status;

use std::path::Path;
use std::process::Output;

use rig::Cluster;
use rig::operator::find_binary;
use serde_json::Value;
use tokio::process::Command;

use super::program::text;

/// Namespace of the operators of the tests: that of their Lease.
const OPERATOR_NAMESPACE: &str = "nfs-operator-system";

/// Runs the plugin as an administrator of the cluster.
async fn nfs(cluster: &Cluster, args: &[&str]) -> Output {
    nfs_as(cluster.kubeconfig(), args).await
}

/// Runs the plugin with a kubeconfig.
async fn nfs_as(kubeconfig: &Path, args: &[&str]) -> Output {
    command(kubeconfig).args(args).output().await.unwrap()
}

/// Returns the plugin as a command with a kubeconfig.
fn command(kubeconfig: &Path) -> Command {
    let mut command = Command::new(find_binary().unwrap());
    command
        .arg0("/usr/local/bin/kubectl-nfs")
        .env("KUBECONFIG", kubeconfig)
        .kill_on_drop(true);
    command
}

/// Runs it. Returns its output, which must not be an error.
pub async fn fine(cluster: &Cluster, args: &[&str]) -> String {
    let output = nfs(cluster, args).await;
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    text(&output.stdout)
}

/// Runs it. Returns the output of a command that must find a problem.
pub async fn problem(cluster: &Cluster, args: &[&str]) -> String {
    let output = nfs(cluster, args).await;
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    text(&output.stdout)
}

/// Runs it with `-o json`. Returns its exit code and the JSON.
async fn json(cluster: &Cluster, args: &[&str]) -> (Option<i32>, Value) {
    let output = nfs(cluster, &[args, &["-o", "json"]].concat()).await;
    assert!(output.stdout.is_ascii(), "{output:?}");
    let parsed = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        parsed.unwrap_or_else(|error| panic!("{error}: {output:?}")),
    )
}

/// Runs it. Returns the error output of a command that must fail with this code.
pub async fn refused(cluster: &Cluster, code: i32, args: &[&str]) -> String {
    let output = nfs(cluster, args).await;
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    text(&output.stderr)
}
