//! The provisioner names that the operator serves, from the settings of the Deployments in its namespace.

use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::Client;

use super::operator::{self, OperatorArguments};
use crate::api::names::DEFAULT_PROVISIONER;
use crate::cli::cluster::{CommandError, is_forbidden};
use crate::cli::run::parse_alias;
use crate::compat::nfs_subdir::backend::BACKEND;
use crate::compat::nfs_subdir::environment::Environment;
use crate::state::context::Provisioners;

/// Provisioner names of the operator.
#[derive(Args)]
pub struct ServedArguments {
    /// Provisioner names of the operator. If unset, those in the settings of its Deployment.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    provisioner_name: Vec<String>,
    /// Provisioner names whose classes use one backend. If unset, those in the settings of the operator's Deployment.
    #[arg(long, value_name = "NAME=BACKEND", value_delimiter = ',', value_parser = parse_alias)]
    provisioner_alias: Vec<(String, String)>,
    /// Where the Deployment is.
    #[command(flatten)]
    pub operator: OperatorArguments,
}

impl ServedArguments {
    /// Returns the names of the arguments, or else those of the operator's Deployments, if the user may find and list them.
    pub async fn read(self, client: &Client) -> Result<Provisioners, CommandError> {
        let deployments = match operator::find_namespace(client, &self.operator).await? {
            Ok(namespace) => match operator::list_deployments(client, &namespace).await {
                Err(error) if is_forbidden(&error) => Vec::new(),
                found => found?,
            },
            Err(_) => Vec::new(),
        };
        Ok(self.replace(of_deployments(&deployments)))
    }

    /// Returns true if the arguments contain aliases, which then replace those of the Deployments.
    pub fn has_aliases(&self) -> bool {
        !self.provisioner_alias.is_empty()
    }

    /// Replaces the names of the Deployments by those of the arguments.
    pub fn replace(self, found: Provisioners) -> Provisioners {
        let names = match self.provisioner_name.is_empty() {
            true => found.names,
            false => self.provisioner_name,
        };
        let aliases = match self.provisioner_alias.is_empty() {
            true => found.aliases,
            false => self.provisioner_alias.into_iter().collect(),
        };
        Provisioners { names, aliases }
    }
}

/// Returns the names in the settings of the operator's Deployments, or else the default.
pub fn of_deployments(deployments: &[Deployment]) -> Provisioners {
    let mut served = Provisioners::default();
    for container in deployments.iter().flat_map(containers) {
        let names = setting(container, "--provisioner-name", "NFS_OPERATOR_PROVISIONER_NAME");
        served.names.extend(names);
        let aliases = setting(container, "--provisioner-alias", "NFS_OPERATOR_PROVISIONER_ALIAS");
        served
            .aliases
            .extend(aliases.iter().filter_map(|alias| parse_alias(alias).ok()));
        if let Some(environment) = nfs_subdir_environment(container) {
            served.aliases.insert(environment.provisioner, BACKEND.to_owned());
        }
    }
    if served.names.is_empty() {
        served.names.push(DEFAULT_PROVISIONER.to_owned());
    }
    served
}

/// Returns the containers of a Deployment.
pub fn containers(deployment: &Deployment) -> impl Iterator<Item = &Container> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.into_iter().flat_map(|pod| &pod.containers)
}

/// Returns the settings of nfs-subdir in the environment of a container.
pub fn nfs_subdir_environment(container: &Container) -> Option<Environment> {
    Environment::read(|name| variable(container, name)).ok().flatten()
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
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        served: ServedArguments,
    }

    fn deployment(container: &Value) -> Deployment {
        serde_json::from_value(json!({
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
    fn the_operator_serves_the_names_of_its_arguments_and_variables() {
        let export = [
            ("NFS_SERVER", "nfs"),
            ("NFS_PATH", "/a"),
            ("PROVISIONER_NAME", "old/name"),
        ];
        let args = ["run", "--provisioner-name=a/b,c/d", "--provisioner-alias", "x/y=fast"];
        let served = of_deployments(&[deployment(
            &json!({"name": "p", "args": args, "env": variables(&export)}),
        )]);
        assert_eq!(served.names, ["a/b", "c/d"]);
        let aliases = [("old/name", "default"), ("x/y", "fast")].map(|(name, of)| (name.to_owned(), of.to_owned()));
        assert_eq!(served.aliases, aliases.into());

        let by_variable = variables(&[("NFS_OPERATOR_PROVISIONER_ALIAS", "x/y=slow,x/z=slow")]);
        let served = of_deployments(&[deployment(&json!({"name": "p", "env": by_variable}))]);
        assert_eq!(served.aliases.len(), 2);
        assert_eq!(served.names, [DEFAULT_PROVISIONER]);
    }

    #[test]
    fn arguments_replace_the_names_of_the_deployments() {
        let Line { served: given } = Line::parse_from(["kubectl-nfs", "--provisioner-name=mine"]);
        let args = ["--provisioner-name=a/b", "--provisioner-alias=x/y=fast"];
        let served = given.replace(of_deployments(&[deployment(&json!({"name": "p", "args": args}))]));
        assert_eq!((served.names, served.aliases.len()), (vec!["mine".to_owned()], 1));
    }
}
