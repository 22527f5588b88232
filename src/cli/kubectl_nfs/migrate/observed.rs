//! What a plan depends on, from the objects that a user can read.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PersistentVolume};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt};

use crate::api::NfsBackend;
use crate::cli::cluster::{CommandError, all};
use crate::cli::kubectl_nfs::operator::is_operator;
use crate::cli::run::parse_alias;
use crate::compat::nfs_subdir::backend::BACKEND;
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
    /// Deployments of nfs-subdir.
    pub deployments: Vec<LegacyDeployment>,
    /// Provisioner names of the operator, from its Deployment.
    pub served: Provisioners,
}

/// A Deployment of nfs-subdir.
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
    /// Reads the objects.
    pub async fn read(client: &Client) -> Result<Self, CommandError> {
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
        for deployment in &deployments {
            observed.add(deployment);
        }
        Ok(observed)
    }

    fn add(&mut self, deployment: &Deployment) {
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        for container in pod.iter().flat_map(|pod| &pod.containers) {
            let environment = Environment::read(|name| variable(container, name)).ok().flatten();
            if is_operator(deployment) {
                self.add_served(container, environment);
            } else if let Some(environment) = environment {
                let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                self.deployments.push(LegacyDeployment {
                    namespace: deployment.namespace().unwrap_or_default(),
                    name: deployment.name_any(),
                    environment,
                    is_running: replicas.unwrap_or(1) > 0,
                });
            }
        }
    }

    /// Adds the provisioner names that the operator's container serves.
    fn add_served(&mut self, container: &Container, environment: Option<Environment>) {
        let names = setting(container, "--provisioner-name", "NFS_OPERATOR_PROVISIONER_NAME");
        self.served.names.extend(names);
        let aliases = setting(container, "--provisioner-alias", "NFS_OPERATOR_PROVISIONER_ALIAS");
        self.served
            .aliases
            .extend(aliases.iter().filter_map(|alias| parse_alias(alias).ok()));
        if let Some(environment) = environment {
            self.served.aliases.insert(environment.provisioner, BACKEND.to_owned());
        }
    }
}

/// Returns the values of a list, from the arguments of a container, or else from its environment.
fn setting(container: &Container, flag: &str, name: &str) -> Vec<String> {
    let arguments = container.args.iter().flatten();
    let following = arguments.clone().skip(1).map(Some).chain([None]);
    let given: Vec<&str> = arguments
        .zip(following)
        .filter_map(|(argument, next)| match argument.strip_prefix(flag)? {
            "" => next.map(String::as_str),
            value => value.strip_prefix('='),
        })
        .collect();
    let variable = variable(container, name).filter(|_| given.is_empty());
    let values = given.into_iter().chain(variable.as_deref());
    values.flat_map(|value| value.split(',')).map(str::to_owned).collect()
}

fn variable(container: &Container, name: &str) -> Option<String> {
    let mut variables = container.env.iter().flatten();
    variables.find(|variable| variable.name == name)?.value.clone()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(labels: &Value, container: &Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"namespace": "storage", "name": "nfs", "labels": labels},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
        }))
        .unwrap()
    }

    fn variables(names: &[(&str, &str)]) -> Value {
        names
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect()
    }

    #[test]
    fn a_deployment_with_the_three_variables_is_one_of_nfs_subdir() {
        let export = [
            ("NFS_SERVER", "nfs"),
            ("NFS_PATH", "/a"),
            ("PROVISIONER_NAME", "old/name"),
        ];
        let mut observed = Observed::default();
        observed.add(&deployment(
            &json!({}),
            &json!({"name": "p", "env": variables(&export)}),
        ));
        observed.add(&deployment(
            &json!({}),
            &json!({"name": "p", "env": variables(&export[..2])}),
        ));
        let found: Vec<_> = observed.deployments.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(found, ["nfs"]);
        assert!(observed.served.aliases.is_empty());
    }

    #[test]
    fn the_operator_serves_the_names_of_its_arguments_and_variables() {
        let labels = json!({"app.kubernetes.io/name": "nfs-operator"});
        let export = [
            ("NFS_SERVER", "nfs"),
            ("NFS_PATH", "/a"),
            ("PROVISIONER_NAME", "old/name"),
        ];
        let args = ["run", "--provisioner-name=a/b,c/d", "--provisioner-alias", "x/y=fast"];
        let mut observed = Observed::default();
        observed.add(&deployment(
            &labels,
            &json!({"name": "p", "args": args, "env": variables(&export)}),
        ));
        assert_eq!(observed.served.names, ["a/b", "c/d"]);
        let aliases = [("old/name", "default"), ("x/y", "fast")].map(|(name, of)| (name.to_owned(), of.to_owned()));
        assert_eq!(observed.served.aliases, aliases.into());
        assert!(observed.deployments.is_empty());

        let by_variable = variables(&[("NFS_OPERATOR_PROVISIONER_ALIAS", "x/y=slow,x/z=slow")]);
        let mut observed = Observed::default();
        observed.add(&deployment(&labels, &json!({"name": "p", "env": by_variable})));
        assert_eq!(observed.served.aliases.len(), 2);
    }
}
