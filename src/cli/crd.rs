//! `nfs-operator crd`: prints or installs the CustomResourceDefinitions.

use std::process::ExitCode;

use super::cluster::ClusterArguments;
use crate::api::names::managers;
use crate::api::{custom_resource_definitions, to_value};
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};

/// Arguments of `nfs-operator crd`.
#[derive(Args)]
pub struct CrdArguments {
    /// Install or update the definitions instead of printing them.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Prints or applies the definitions.
pub async fn run(arguments: CrdArguments) -> ExitCode {
    let result = if arguments.apply {
        apply(&arguments.cluster).await
    } else {
        print()
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::fail(error.as_ref()),
    }
}

fn print() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", documents()?);
    Ok(())
}

/// Returns the definitions as YAML documents, which are stored in `crds/`.
fn documents() -> Result<String, Box<dyn std::error::Error>> {
    custom_resource_definitions()
        .iter()
        .map(|definition| Ok(format!("---\n{}", serde_norway::to_string(&to_value(definition)?)?)))
        .collect()
}

async fn apply(cluster: &ClusterArguments) -> Result<(), Box<dyn std::error::Error>> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client().await?);
    for definition in custom_resource_definitions() {
        let name = definition.name_any();
        api.patch(
            &name,
            &PatchParams::apply(managers::CRD).force(),
            &Patch::Apply(&to_value(&definition)?),
        )
        .await?;
        println!("customresourcedefinition {name} applied");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    #[test]
    fn the_files_in_crds_are_what_the_program_prints() {
        let file = include_str!("../../crds/nfs-operator.yaml");
        assert!(
            super::documents().unwrap() == file,
            "crds/ is out of date: run `make crds`"
        );
    }
}
