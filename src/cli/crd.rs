//! `nfs-operator crd`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use nfs_operator::api::{custom_resource_definitions, names::managers};
use nfs_operator::runtime::clients::Clients;
use nfs_operator::runtime::write_fence::WriteFence;

/// Arguments of `nfs-operator crd`.
#[derive(Args)]
pub struct CrdArguments {
    /// Install them, or bring them up to date, instead of printing them.
    #[arg(long)]
    apply: bool,
    /// Kubernetes configuration for `--apply`; absent: KUBECONFIG, then the pod's service account.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Prints the definitions as YAML documents, or applies them.
pub async fn run(arguments: CrdArguments) -> ExitCode {
    let done = if arguments.apply {
        apply(arguments.kubeconfig).await
    } else {
        print()
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::fail(error.as_ref()),
    }
}

fn print() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", documents()?);
    Ok(())
}

/// The definitions as YAML documents: what `crds/` holds.
fn documents() -> Result<String, serde_norway::Error> {
    custom_resource_definitions()
        .iter()
        .map(|definition| Ok(format!("---\n{}", serde_norway::to_string(definition)?)))
        .collect()
}

async fn apply(kubeconfig: Option<PathBuf>) -> Result<(), Box<dyn std::error::Error>> {
    // A person asked for it, whoever leads.
    let guard = WriteFence::default();
    guard.open(None);
    let clients = Clients::new(kubeconfig.as_deref(), "crd", &guard, None).await?;
    let api: Api<CustomResourceDefinition> = Api::all(clients.calls);
    for definition in custom_resource_definitions() {
        let name = definition.name_any();
        api.patch(
            &name,
            &PatchParams::apply(managers::CRD).force(),
            &Patch::Apply(&definition),
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
        let kept = include_str!("../../crds/nfs-operator.yaml");
        assert!(
            super::documents().unwrap() == kept,
            "crds/ is out of date: run `make crds`"
        );
    }
}
