//! A claim that gets the data of an archive or a backup.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::changes::{Change, ChangeState, Changes, print_changes};
use super::names::parse_claim;
use super::progress::{self, Progress, wait_or_refuse};
use crate::api::names::{CLAIM_CONDITION, GROUP, RESTORE};
use crate::cli::cluster::{CommandError, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::OutputFormat;
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
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
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
        print_changes(self.output, async |changes| {
            self.create_planned(client, namespace, source, manifest, changes).await
        })
        .await
    }

    async fn create_planned(
        &self,
        client: &Client,
        namespace: &str,
        source: &DataSource<'_>,
        manifest: Value,
        changes: &mut Changes,
    ) -> Result<(), CommandError> {
        let named = format!("{namespace}/{}", self.name);
        let change = |state, message| Change {
            object: format!("persistentvolumeclaim/{}", self.name),
            namespace: Some(namespace.to_owned()),
            request: "spec".to_owned(),
            value: manifest.get("spec").cloned().unwrap_or_default(),
            state,
            message,
        };
        if self.plan {
            let yaml = serde_norway::to_string(&manifest).map_err(|error| CommandError::Format(error.to_string()))?;
            let text = format!("# creates claim {named}: {}\n{}", source.effect, yaml.trim_end());
            return Ok(changes.add(change(ChangeState::Planned, text))?);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let object = serde_json::from_value(manifest.clone());
        let object = object.map_err(|error| CommandError::Format(error.to_string()))?;
        let created = claims.create(&PostParams::default(), &object).await;
        created.map_err(failed(format!("create PersistentVolumeClaim {named}")))?;
        let text = match self.wait {
            true => format!("claim {named} created"),
            false => format!(
                "claim {named} created; kubectl nfs explain pvc/{} -n {namespace} shows its state",
                self.name
            ),
        };
        changes.add(change(ChangeState::Requested, text))?;
        if self.wait {
            wait_bound(&claims, &self.name, &named, self.timeout).await?;
            let text = format!("claim {named} is bound and has the data of {}", source.name);
            changes.add(change(ChangeState::Done, text))?;
        }
        Ok(())
    }

    /// Returns the class of the claim.
    pub fn class<'a>(&'a self, source: &'a DataSource<'_>) -> Result<&'a str, CommandError> {
        let class = self.storage_class.as_deref().or(source.class.as_deref());
        class.ok_or_else(|| unknown("class", "--storage-class"))
    }

    /// Returns the size of the claim, which must have room for the data.
    fn size<'a>(&'a self, source: &'a DataSource<'_>) -> Result<&'a str, CommandError> {
        let Some(size) = self.size.as_deref() else {
            return source.size.as_deref().ok_or_else(|| unknown("size", "--size"));
        };
        let needed = source.size.as_deref().unwrap_or_default();
        match quantity::bytes(size) < quantity::bytes(needed) {
            true => Err(CommandError::Usage(format!(
                "--size {size} is too small: the claim that the data come from requested {needed}, which is the minimum"
            ))),
            false => Ok(size),
        }
    }

    fn manifest(&self, namespace: &str, source: &DataSource<'_>) -> Result<Value, CommandError> {
        let (size, class) = (self.size(source)?, self.class(source)?);
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

fn unknown(what: &str, option: &str) -> CommandError {
    CommandError::Usage(format!(
        "the {what} of the claim that the data come from is unknown: set {option}"
    ))
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
        match condition {
            Some(condition) if condition.status == "False" => {
                let reason = condition.reason.unwrap_or_default();
                wait_or_refuse(&what, &reason, &condition.message.unwrap_or_default())
            }
            Some(_) => Ok(Progress::Waits(
                "its volume exists, and is about to be bound".to_owned(),
            )),
            None => Ok(Progress::Waits("the operator has not seen it yet".to_owned())),
        }
    })
    .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        claim: NewClaimArguments,
    }

    #[test]
    fn a_claim_is_not_smaller_than_the_one_that_its_data_come_from() {
        let source = |size: Option<&str>| DataSource {
            kind: "NfsArchive",
            name: "a",
            size: size.map(str::to_owned),
            class: Some("nfs".to_owned()),
            mode: None,
            effect: "",
        };
        let size = |given: &[&str], source: &DataSource<'_>| {
            let Line { claim } = Line::parse_from([&["restore", "--to", "b"], given].concat());
            claim.size(source).map(str::to_owned).map_err(|error| error.to_string())
        };
        assert_eq!(size(&[], &source(Some("2Gi"))).unwrap(), "2Gi");
        assert_eq!(size(&["--size", "2048Mi"], &source(Some("2Gi"))).unwrap(), "2048Mi");
        assert_eq!(size(&["--size", "1Gi"], &source(None)).unwrap(), "1Gi");
        let small = size(&["--size", "1Gi"], &source(Some("2Gi"))).unwrap_err();
        assert!(
            small.contains("--size 1Gi is too small") && small.contains("2Gi"),
            "{small}"
        );
        assert!(size(&[], &source(None)).unwrap_err().contains("set --size"));
    }
}
