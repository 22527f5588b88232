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
use crate::cli::cluster::{CommandError, each, failed, is_forbidden};
use crate::decide::object_name::is_object_name;
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
pub struct ClusterLockArguments {
    /// Namespace of the Lease nfs-operator-cluster-lock, as the operator has it.
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    cluster_lock_namespace: String,
}

/// Where the operator is.
#[derive(Args)]
pub struct OperatorArguments {
    /// Namespace of the operator's Deployment. If unset, that of the operator's Lease, which the cluster lock names. Deployments
    /// elsewhere are ignored: whoever can create one can give it the label of the operator.
    #[arg(long, value_name = "NAMESPACE")]
    operator_namespace: Option<String>,
    #[command(flatten)]
    lock: ClusterLockArguments,
}

/// Why the namespace of the operator is unknown.
#[derive(Debug, thiserror::Error)]
pub enum UnknownNamespace {
    /// No operator has led yet, or it has another cluster lock.
    #[error("the namespace of the operator is unknown, because no operator holds the Lease {0}")]
    NotHeld(String),
    /// The user has no permission to read the cluster lock.
    #[error("the namespace of the operator is unknown, because you may not read the Lease {0}, which names it")]
    Forbidden(String),
}

/// The operator in the cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningOperator {
    /// Namespace in which its Deployments are; absent if it is unknown.
    pub namespace: Option<String>,
    /// Which instance leads.
    #[serde(flatten)]
    pub leadership: Leadership,
    /// Deployments of the operator.
    pub deployments: Vec<OperatorDeployment>,
    /// Provisioner names in their settings.
    #[serde(skip)]
    pub served: Provisioners,
}

/// The leader of the operator, as its Lease shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leadership {
    /// Identity of the leader; absent if no instance leads.
    pub leader: Option<String>,
    /// Seconds since the leader renewed its Lease, by the clock of this machine.
    pub seconds_since_renewal: Option<i64>,
    /// True if the Lease was renewed recently.
    pub is_alive: bool,
    /// Namespace and name of the Lease.
    pub lease: Option<String>,
}

impl Leadership {
    fn of(lease: Option<&Lease>, name: Option<String>) -> Self {
        let age = lease.and_then(since_renewal);
        let is_renewed = age.zip(lease).is_some_and(|(age, lease)| {
            let duration = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
            let tolerance = SignedDuration::try_from(CLOCK_TOLERANCE).unwrap_or_default();
            age <= SignedDuration::from_secs(duration.unwrap_or_default().into()) + tolerance
        });
        let leader = lease.and_then(holder).map(str::to_owned);
        Self {
            is_alive: is_renewed && leader.is_some(),
            leader,
            seconds_since_renewal: age.map(|age| age.as_secs()),
            lease: name,
        }
    }

    /// Returns why no instance leads, or `None` if one does.
    pub fn fault(&self) -> Option<String> {
        match &self.leader {
            Some(_) if self.is_alive => None,
            Some(leader) => Some(format!(
                "{leader} has not renewed its Lease for {}s: check that the operator runs, and the clock of this \
                 machine",
                self.seconds_since_renewal.unwrap_or_default()
            )),
            None if self.lease.is_none() => Some(
                "no operator has led: check that it runs, and set --cluster-lock-namespace if its lock is elsewhere"
                    .to_owned(),
            ),
            None => Some("no Lease is held: check that the operator runs".to_owned()),
        }
    }
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

/// Returns the namespace of the operator: that of the arguments, or else that of the holder of the cluster lock.
pub async fn find_namespace(
    client: &Client,
    arguments: &OperatorArguments,
) -> Result<Result<String, UnknownNamespace>, CommandError> {
    match &arguments.operator_namespace {
        Some(namespace) => Ok(Ok(namespace.clone())),
        None => find_lease_namespace(client, &arguments.lock).await,
    }
}

/// Returns the namespace of the operator's Lease, from the Lease by which it keeps other installations from running. Only the
/// operator and administrators of the cluster can write that one.
pub async fn find_lease_namespace(
    client: &Client,
    arguments: &ClusterLockArguments,
) -> Result<Result<String, UnknownNamespace>, CommandError> {
    let namespace = &arguments.cluster_lock_namespace;
    let named = || format!("{namespace}/{CLUSTER_LOCK}");
    let lock = match read_lease(client, namespace, CLUSTER_LOCK).await {
        Err(error) if is_forbidden(&error) => return Ok(Err(UnknownNamespace::Forbidden(named()))),
        found => found?,
    };
    let installation = lock.as_ref().and_then(installation);
    let found = installation.map(|(namespace, _)| namespace.to_owned());
    Ok(found.ok_or_else(|| UnknownNamespace::NotHeld(named())))
}

/// Reads the Leases and the Deployments.
pub async fn find(client: &Client, arguments: &OperatorArguments) -> Result<RunningOperator, CommandError> {
    let leadership = find_leader(client, arguments).await?;
    let of_lease = leadership.lease.as_deref().and_then(|lease| lease.split_once('/'));
    let of_lease = of_lease.map(|(namespace, _)| namespace.to_owned());
    let namespace = arguments.operator_namespace.clone().or(of_lease);
    let deployments = match &namespace {
        Some(namespace) => list_deployments(client, namespace).await?,
        None => Vec::new(),
    };
    Ok(RunningOperator {
        namespace,
        leadership,
        served: of_deployments(&deployments),
        deployments: deployments.iter().map(OperatorDeployment::of).collect(),
    })
}

/// Reads the cluster lock, and the Lease that it names.
pub async fn find_leader(client: &Client, arguments: &OperatorArguments) -> Result<Leadership, CommandError> {
    let lock = read_lease(client, &arguments.lock.cluster_lock_namespace, CLUSTER_LOCK).await?;
    let installation = lock.as_ref().and_then(installation);
    let lease = match installation {
        Some((namespace, name)) => read_lease(client, namespace, name).await?,
        None => None,
    };
    Ok(Leadership::of(
        lease.as_ref(),
        installation.map(|(namespace, name)| format!("{namespace}/{name}")),
    ))
}

/// Returns namespace and name of the Lease of the installation that holds the cluster lock.
fn installation(lock: &Lease) -> Option<(&str, &str)> {
    let (namespace, name) = holder(lock)?.split_once('/')?;
    // Both become parts of request paths.
    (is_object_name(namespace) && is_object_name(name)).then_some((namespace, name))
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

/// Returns true for a Deployment with the label of the operator. It is one of the operator only in the operator's namespace.
pub fn has_label(deployment: &Deployment) -> bool {
    let (name, value) = LABEL;
    deployment.labels().get(name).is_some_and(|found| found == value)
}

/// Returns the Deployment of the operator in its namespace. With several, the result is the first that has ready pods.
pub async fn find_deployment(client: &Client, namespace: &str) -> Result<Option<Deployment>, CommandError> {
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

/// Returns the Deployments of the operator in its namespace. There is no way to list those of all namespaces: tenants can create
/// Deployments with any label.
pub async fn list_deployments(client: &Client, namespace: &str) -> Result<Vec<Deployment>, CommandError> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let labels = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let mut found = Vec::new();
    each(&api, "Deployments", labels, |deployment| found.push(deployment)).await?;
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nobody_leads_without_a_holder_that_renewed_its_lease() {
        let fault = |holder: &str, seconds: i64| {
            let renewed = Timestamp::now() - SignedDuration::from_secs(seconds);
            let spec =
                json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": format!("{renewed:.6}")});
            let lease: Lease = serde_json::from_value(json!({"spec": spec})).unwrap();
            Leadership::of(Some(&lease), Some("storage/nfs-operator".to_owned())).fault()
        };
        assert_eq!(fault("pod-1", 5), None);
        assert!(
            fault("pod-1", 300)
                .unwrap()
                .contains("pod-1 has not renewed its Lease for 300s")
        );
        assert!(fault("", 5).unwrap().contains("no Lease is held"));
        assert!(
            Leadership::of(None, None)
                .fault()
                .unwrap()
                .contains("no operator has led")
        );
    }

    #[test]
    fn the_cluster_lock_names_the_lease_of_an_installation_or_nothing() {
        let found = |holder: Option<&str>| {
            let lock: Lease = serde_json::from_value(json!({"spec": {"holderIdentity": holder}})).unwrap();
            installation(&lock).map(|(namespace, name)| format!("{namespace} {name}"))
        };
        assert_eq!(
            found(Some("storage/nfs-operator")).as_deref(),
            Some("storage nfs-operator")
        );
        for nothing in [
            None,
            Some(""),
            Some("storage"),
            Some("/nfs-operator"),
            Some("../a/b"),
            Some("a/b?c"),
        ] {
            assert_eq!(found(nothing), None, "{nothing:?}");
        }
    }
}
