//! The running operator, as its Leases and Deployments show it.

use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use super::served::{containers, of_deployments};
use crate::cli::cluster::{CommandError, each, failed};
use crate::runtime::election::CLUSTER_LOCK;
use crate::runtime::reads;
use crate::state::context::Provisioners;

/// Label of the Deployments of the chart and of config/manager. The settings of the chart replace the standard labels.
const LABEL: (&str, &str) = ("nfs-operator.io/component", "operator");
/// Label with the version of the operator.
const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// A Lease that was not renewed for its duration may be taken by another instance. The clocks of this machine and of the
/// leader may differ by as much.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);

/// Where the operator has its cluster lock.
#[derive(Args)]
pub struct OperatorArguments {
    /// Namespace of the Lease nfs-operator-cluster-lock, as the operator has it.
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    cluster_lock_namespace: String,
}

/// The operator in the cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningOperator {
    /// Identity of the leader; absent if no instance leads.
    pub leader: Option<String>,
    /// Seconds since the leader renewed its Lease, by the clock of this machine.
    pub seconds_since_renewal: Option<i64>,
    /// True if the Lease was renewed recently.
    pub is_alive: bool,
    /// Namespace and name of the Lease.
    pub lease: Option<String>,
    /// Deployments of the operator.
    pub deployments: Vec<OperatorDeployment>,
    /// Provisioner names in their settings.
    #[serde(skip)]
    pub served: Provisioners,
}

/// A Deployment of the operator.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorDeployment {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Version of the operator, from a label; absent if a tool removed it.
    pub version: Option<String>,
    /// Image of the first container.
    pub image: String,
    /// Arguments of the first container.
    pub arguments: Vec<String>,
    /// Ready replicas.
    pub ready: i32,
    /// Requested replicas.
    pub replicas: i32,
}

impl OperatorDeployment {
    fn of(deployment: &Deployment) -> Self {
        let container = containers(deployment).next();
        let status = deployment.status.as_ref();
        Self {
            namespace: deployment.namespace().unwrap_or_default(),
            name: deployment.name_any(),
            version: deployment.labels().get(VERSION_LABEL).cloned(),
            image: container
                .and_then(|container| container.image.clone())
                .unwrap_or_default(),
            arguments: container
                .and_then(|container| container.args.clone())
                .unwrap_or_default(),
            ready: status.and_then(|status| status.ready_replicas).unwrap_or_default(),
            replicas: deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        }
    }
}

/// Returns the namespace of the operator, from the Lease by which it keeps other installations from running.
pub async fn find_namespace(client: &Client, arguments: &OperatorArguments) -> Result<Option<String>, CommandError> {
    let lock = read_lease(client, &arguments.cluster_lock_namespace, CLUSTER_LOCK).await?;
    let installation = lock.as_ref().and_then(holder).and_then(|name| name.split_once('/'));
    Ok(installation.map(|(namespace, _)| namespace.to_owned()))
}

/// Reads the Leases and the Deployments.
pub async fn find(client: &Client, arguments: &OperatorArguments) -> Result<RunningOperator, CommandError> {
    let lock = read_lease(client, &arguments.cluster_lock_namespace, CLUSTER_LOCK).await?;
    // The cluster lock is held by an installation, named by the Lease of its instances.
    let installation = lock.as_ref().and_then(holder).map(str::to_owned);
    let named = installation.as_deref().and_then(|name| name.split_once('/'));
    let lease = match named {
        Some((namespace, name)) => read_lease(client, namespace, name).await?,
        None => None,
    };
    let age = lease.as_ref().and_then(since_renewal);
    let is_alive = age.zip(lease.as_ref()).is_some_and(|(age, lease)| {
        let duration = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let tolerance = SignedDuration::try_from(CLOCK_TOLERANCE).unwrap_or_default();
        age <= SignedDuration::from_secs(duration.unwrap_or_default().into()) + tolerance
    });
    let leader = lease.as_ref().and_then(holder).map(str::to_owned);
    let deployments = list_deployments(client, None).await?;
    Ok(RunningOperator {
        is_alive: is_alive && leader.is_some(),
        leader,
        seconds_since_renewal: age.map(|age| age.as_secs()),
        lease: installation,
        served: of_deployments(&deployments),
        deployments: deployments.iter().map(OperatorDeployment::of).collect(),
    })
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    Some(holder).filter(|holder| !holder.is_empty())
}

fn since_renewal(lease: &Lease) -> Option<SignedDuration> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(Timestamp::now().duration_since(renewed.0))
}

async fn read_lease(client: &Client, namespace: &str, name: &str) -> Result<Option<Lease>, CommandError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let found = reads::get_opt(&leases, name).await;
    found.map_err(failed(format!("read Lease {namespace}/{name}")))
}

/// Returns true for a Deployment of the operator.
pub fn is_operator(deployment: &Deployment) -> bool {
    let (name, value) = LABEL;
    deployment.labels().get(name).is_some_and(|found| found == value)
}

/// Returns the Deployment of the operator, in this namespace if one is given. With several, the result is the first that
/// has ready pods.
pub async fn find_deployment(client: &Client, namespace: Option<&str>) -> Result<Option<Deployment>, CommandError> {
    let mut found = list_deployments(client, namespace).await?;
    let ready = |deployment: &Deployment| {
        deployment
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or(0)
            > 0
    };
    found.sort_by_key(|deployment| !ready(deployment));
    Ok(found.into_iter().next())
}

/// Returns the Deployments of the operator, in this namespace if one is given.
pub async fn list_deployments(client: &Client, namespace: Option<&str>) -> Result<Vec<Deployment>, CommandError> {
    let api: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let labels = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let mut found = Vec::new();
    each(&api, "Deployments", labels, |deployment| found.push(deployment)).await?;
    Ok(found)
}
