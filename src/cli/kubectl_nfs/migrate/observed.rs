//! What a plan depends on, from the objects that a user can read.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt};

use crate::api::NfsBackend;
use crate::cli::cluster::{CommandError, all};
use crate::cli::kubectl_nfs::operator::has_label;
use crate::cli::kubectl_nfs::served::{containers, nfs_subdir_environment, of_deployments};
use crate::compat::nfs_subdir::environment::Environment;
use crate::state::context::Provisioners;

/// The objects, and the settings of the operator.
#[derive(Default)]
pub struct Observed {
    /// All volumes.
    pub volumes: Vec<PersistentVolume>,
    /// All classes.
    pub classes: Vec<StorageClass>,
    /// All backends.
    pub backends: Vec<NfsBackend>,
    /// Deployments that may be those of nfs-subdir: anybody who can create one can give it these variables.
    pub deployments: Vec<LegacyDeployment>,
    /// Provisioner names of the operator, from the Deployments in its namespace.
    pub served: Provisioners,
}

/// A Deployment with the variables of nfs-subdir.
pub struct LegacyDeployment {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Provisioner name, and export.
    pub environment: Environment,
    /// True if it runs.
    pub is_running: bool,
}

impl Observed {
    /// Reads the objects. Without the namespace of the operator, it counts as not installed.
    pub async fn read(client: &Client, operator_namespace: Option<&str>) -> Result<Self, CommandError> {
        let mut observed = Self {
            volumes: all(&Api::all(client.clone()), "PersistentVolumes").await?,
            classes: all(&Api::all(client.clone()), "StorageClasses").await?,
            backends: match all(&Api::all(client.clone()), "NfsBackends").await {
                // The plan is made before the operator is installed.
                Err(CommandError::NotInstalled { .. }) => Vec::new(),
                found => found?,
            },
            ..Self::default()
        };
        let deployments: Vec<Deployment> = all(&Api::all(client.clone()), "Deployments").await?;
        observed.add(deployments, operator_namespace);
        Ok(observed)
    }

    /// Ignores the Deployments of nfs-subdir outside these namespaces, if any are given.
    pub fn restrict_to(&mut self, namespaces: &[String]) {
        self.deployments
            .retain(|deployment| namespaces.is_empty() || namespaces.contains(&deployment.namespace));
    }

    fn add(&mut self, deployments: Vec<Deployment>, operator_namespace: Option<&str>) {
        // Outside the namespace of the operator, those with its label are neither the operator nor nfs-subdir.
        let (mut operators, others): (Vec<_>, Vec<_>) = deployments.into_iter().partition(has_label);
        operators.retain(|deployment| deployment.metadata.namespace.as_deref() == operator_namespace);
        self.served = of_deployments(&operators);
        for deployment in &others {
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            let environments = containers(deployment).filter_map(nfs_subdir_environment);
            self.deployments
                .extend(environments.map(|environment| LegacyDeployment {
                    namespace: deployment.namespace().unwrap_or_default(),
                    name: deployment.name_any(),
                    environment,
                    is_running: replicas.unwrap_or(1) > 0,
                }));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(name: &str, labels: &Value, variables: &[(&str, &str)]) -> Deployment {
        let env: Value = variables
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "storage", "name": name, "labels": labels},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "p", "env": env}]}}},
        }))
        .unwrap()
    }

    const EXPORT: [(&str, &str); 3] = [
        ("NFS_SERVER", "nfs"),
        ("NFS_PATH", "/a"),
        ("PROVISIONER_NAME", "old/name"),
    ];

    #[test]
    fn a_deployment_with_the_three_variables_is_one_of_nfs_subdir() {
        let mut observed = Observed::default();
        let deployments = vec![
            deployment("nfs", &json!({}), &EXPORT),
            deployment("incomplete", &json!({}), &EXPORT[..2]),
        ];
        observed.add(deployments, Some("storage"));
        let found: Vec<_> = observed.deployments.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(found, ["nfs"]);
        assert!(observed.served.aliases.is_empty());
        observed.restrict_to(&[]);
        observed.restrict_to(&["other".to_owned(), "storage".to_owned()]);
        assert_eq!(observed.deployments.len(), 1);
        observed.restrict_to(&["other".to_owned()]);
        assert!(observed.deployments.is_empty());
    }

    #[test]
    fn a_deployment_with_the_label_of_the_operator_counts_only_in_its_namespace() {
        for (operator_namespace, aliases) in [(Some("storage"), 1), (Some("other"), 0), (None, 0)] {
            let mut observed = Observed::default();
            let labels = json!({"nfs-operator.io/component": "operator"});
            observed.add(vec![deployment("operator", &labels, &EXPORT)], operator_namespace);
            assert!(observed.deployments.is_empty());
            assert_eq!(observed.served.aliases.len(), aliases, "{operator_namespace:?}");
        }
    }
}
