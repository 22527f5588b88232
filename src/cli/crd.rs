//! `nfs-operator crd`: prints or installs the CustomResourceDefinitions.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::api::names::managers;
use crate::api::{custom_resource_definitions, to_value};
use crate::runtime::clients::Clients;
use crate::runtime::write_fence::WriteFence;
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
    /// Path of a kubeconfig for --apply. If unset, KUBECONFIG or the service account of the pod is used.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Prints or applies the definitions.
pub async fn run(arguments: CrdArguments) -> ExitCode {
    let result = if arguments.apply {
        apply(arguments.kubeconfig).await
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

async fn apply(kubeconfig: Option<PathBuf>) -> Result<(), Box<dyn std::error::Error>> {
    // A user runs this command, whichever operator is the leader.
    let fence = WriteFence::default();
    fence.open(None);
    let clients = Clients::new(kubeconfig.as_deref(), "crd", &fence, None).await?;
    let api: Api<CustomResourceDefinition> = Api::all(clients.calls);
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
