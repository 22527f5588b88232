//! A claim that gets the data of an archive or a backup.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::names::parse_claim;
use super::progress::{self, Progress};
use crate::api::names::{CLAIM_CONDITION, GROUP, RESTORE};
use crate::cli::cluster::{CommandError, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::print;
use crate::decide::quantity;
use crate::runtime::writes::merge;

/// Arguments about the claim to create.
#[derive(Args)]
pub struct NewClaimArguments {
    /// Name of the claim to create.
    #[arg(long = "to", value_name = "pvc/NAME", value_parser = parse_claim)]
    name: String,
    /// StorageClass of the claim. If unset, that of the claim that the data come from.
    #[arg(long)]
    storage_class: Option<String>,
    /// Size to request. If unset, that of the claim that the data come from.
    #[arg(long, value_parser = parse_size)]
    size: Option<String>,
    /// Access mode of the claim.
    #[arg(long, default_value = "ReadWriteMany")]
    access_mode: String,
    /// Only print what would happen, and the claim that would be created.
    #[arg(long)]
    plan: bool,
    /// Wait until the claim is bound.
    #[arg(long, conflicts_with = "plan")]
    wait: bool,
    /// Maximum duration of --wait (Go duration).
    #[arg(long, default_value = "24h", value_parser = parse_duration)]
    timeout: Duration,
}

/// Where the data come from.
pub struct DataSource<'a> {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: &'a str,
    /// Size that the claim of the data requested.
    pub size: Option<String>,
    /// Class of the claim of the data.
    pub class: Option<String>,
    /// Value of the annotation that decides whether the data are moved or copied. If unset, the operator decides.
    pub mode: Option<&'static str>,
    /// What happens to the object.
    pub effect: &'static str,
}

fn parse_size(text: &str) -> Result<String, String> {
    match quantity::bytes(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected an amount of storage, such as 10Gi".to_owned()),
    }
}

impl NewClaimArguments {
    /// Creates the claim, and waits for its volume with `--wait`.
    pub async fn create(
        &self,
        client: &Client,
        namespace: &str,
        source: &DataSource<'_>,
    ) -> Result<ExitCode, CommandError> {
        let manifest = self.manifest(namespace, source)?;
        let named = format!("{namespace}/{}", self.name);
        if self.plan {
            print(&format!("# creates claim {named}: {}", source.effect))?;
            let yaml = serde_norway::to_string(&manifest).map_err(|error| CommandError::Format(error.to_string()))?;
            print(yaml.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let manifest = serde_json::from_value(manifest).map_err(|error| CommandError::Format(error.to_string()))?;
        let created = claims.create(&PostParams::default(), &manifest).await;
        created.map_err(failed(format!("create PersistentVolumeClaim {named}")))?;
        if !self.wait {
            print(&format!(
                "claim {named} created; kubectl nfs explain pvc/{} -n {namespace} shows its state",
                self.name
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        wait_bound(&claims, &self.name, &named, self.timeout).await?;
        print(&format!("claim {named} is bound and has the data of {}", source.name))?;
        Ok(ExitCode::SUCCESS)
    }

    fn manifest(&self, namespace: &str, source: &DataSource<'_>) -> Result<Value, CommandError> {
        let unknown = |what: &str, option: &str| {
            CommandError::Usage(format!(
                "the {what} of the claim that the data come from is unknown: set {option}"
            ))
        };
        let size = self.size.as_ref().or(source.size.as_ref());
        let size = size.ok_or_else(|| unknown("size", "--size"))?;
        let class = self.storage_class.as_ref().or(source.class.as_ref());
        let class = class.ok_or_else(|| unknown("class", "--storage-class"))?;
        let mut metadata = json!({"name": self.name, "namespace": namespace});
        if let Some(mode) = source.mode {
            merge(&mut metadata, json!({"annotations": {RESTORE: mode}}));
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": {
                "storageClassName": class,
                "accessModes": [self.access_mode],
                "resources": {"requests": {"storage": size}},
                "dataSourceRef": {"apiGroup": GROUP, "kind": source.kind, "name": source.name},
            },
        }))
    }
}

async fn wait_bound(
    claims: &Api<PersistentVolumeClaim>,
    name: &str,
    named: &str,
    timeout: Duration,
) -> Result<(), CommandError> {
    let what = format!("PersistentVolumeClaim {named}");
    progress::wait(&what, timeout, async || {
        let claim = get(claims, name, &what).await?;
        let status = claim.status.unwrap_or_default();
        if status.phase.as_deref() == Some("Bound") {
            return Ok(Progress::Done(()));
        }
        let condition = status.conditions.unwrap_or_default();
        let condition = condition
            .into_iter()
            .find(|condition| condition.type_ == CLAIM_CONDITION);
        Ok(Progress::Waits(match condition {
            Some(condition) => {
                let (reason, message) = (
                    condition.reason.unwrap_or_default(),
                    condition.message.unwrap_or_default(),
                );
                format!("{reason}: {message}")
            }
            None => "the operator has not seen it yet".to_owned(),
        }))
    })
    .await
}
