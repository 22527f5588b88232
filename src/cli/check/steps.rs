//! Steps of a check, one row each.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::CheckArguments;
use super::objects::{self, CLAIM, Plan};
use crate::api::names::volume_name;
use crate::cli::findings::{Findings, StepResult};
use crate::runtime::api_error::api_error_text;

/// Interval between two reads of an object. The rights of the check include `get`, but not `watch`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Check of a StorageClass.
pub struct Check<'a> {
    arguments: &'a CheckArguments,
    namespace: String,
    classes: Api<StorageClass>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    shutdown: CancellationToken,
}

impl<'a> Check<'a> {
    /// Creates a check that uses `client`, and whose waits end with `shutdown`.
    pub fn new(client: Client, arguments: &'a CheckArguments, shutdown: CancellationToken) -> Self {
        let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
        Self {
            arguments,
            namespace: namespace.to_owned(),
            classes: Api::all(client.clone()),
            claims: Api::namespaced(client.clone(), namespace),
            volumes: Api::all(client),
            shutdown,
        }
    }

    /// Runs all steps. The claim is deleted even if a step fails or a signal arrives.
    pub async fn run(&self) -> Findings {
        let mut findings = Findings::default();
        let Some(plan) = self.read_class(&mut findings).await else {
            return findings;
        };
        let Some(claim) = self.create_claim(&plan, &mut findings).await else {
            return findings;
        };
        self.wait_bound(&mut findings).await;
        self.delete_claim(&claim, &mut findings).await;
        self.wait_reclaimed(&volume_name(&claim), &plan, &mut findings).await;
        findings
    }

    async fn read_class(&self, findings: &mut Findings) -> Option<Plan> {
        let name = &self.arguments.storage_class;
        let planned = match self.classes.get(name).await {
            Ok(class) => objects::plan(&class, self.arguments.node.as_deref()).map(|plan| (class.provisioner, plan)),
            Err(error) => Err(format!("cannot read StorageClass {name}: {}", api_error_text(&error))),
        };
        match planned {
            Ok((provisioner, plan)) => {
                findings.passed("class", format!("{name} of {provisioner}"));
                Some(plan)
            }
            Err(message) => {
                findings.failed("class", message);
                None
            }
        }
    }

    /// Creates the claim and returns its UID.
    async fn create_claim(&self, plan: &Plan, findings: &mut Findings) -> Option<String> {
        let named = format!("{}/{CLAIM}", self.namespace);
        let claim = objects::build_claim(&self.arguments.storage_class, plan);
        match self.claims.create(&PostParams::default(), &claim).await {
            Ok(created) => {
                findings.passed("claim", named);
                Some(created.uid().unwrap_or_default())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let remedy = format!("kubectl --namespace {} delete pvc {CLAIM}", self.namespace);
                findings.failed(
                    "claim",
                    format!(
                        "{named} already exists: another check is running, or was killed; in that case run: {remedy}"
                    ),
                );
                None
            }
            Err(error) => {
                findings.failed("claim", format!("cannot create {named}: {}", api_error_text(&error)));
                None
            }
        }
    }

    async fn wait_bound(&self, findings: &mut Findings) {
        let bound = self.until(async || match self.claims.get(CLAIM).await {
            Ok(claim) => match objects::bound_volume(&claim) {
                Ok(volume) => Ok(Ok(volume)),
                Err(never) if never.is_permanent => Ok(Err(never.message)),
                Err(not_yet) => Err(not_yet.message),
            },
            Err(error) => Err(api_error_text(&error)),
        });
        // A signal ends the wait; the claim is deleted afterwards.
        let volume = match self.shutdown.run_until_cancelled(bound).await {
            Some(Ok(Ok(volume))) => volume,
            Some(Ok(Err(last)) | Err(last)) => return findings.failed("bound", last),
            None => return findings.failed("bound", "interrupted"),
        };
        findings.passed("bound", format!("to {volume}"));
        let address = match self.volumes.get(&volume).await {
            Ok(volume) => objects::volume_address(&volume),
            Err(error) => Err(api_error_text(&error)),
        };
        match address {
            Ok(address) => findings.passed("volume", address),
            Err(message) => findings.failed("volume", message),
        }
    }

    /// Deletes the claim, and waits until it no longer exists.
    async fn delete_claim(&self, uid: &str, findings: &mut Findings) {
        let ours = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let deleted = self.until(async || {
            // Requested each time, because a request may be lost.
            match self.claims.delete(CLAIM, &ours).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                // The UID differs: another claim has the same name.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(api_error_text(&error)),
                Ok(_) => Err("it is being deleted".to_owned()),
            }
        });
        let named = format!("{}/{CLAIM}", self.namespace);
        match deleted.await {
            Ok(()) => findings.passed("delete", format!("{named} is deleted")),
            Err(last) => {
                findings.set_left_behind();
                findings.failed("delete", format!("{named} still exists: {last}"));
            }
        }
    }

    /// Waits until the volume no longer exists. It may exist although the claim never became bound.
    async fn wait_reclaimed(&self, volume: &str, plan: &Plan, findings: &mut Findings) {
        let existed = match self.volumes.get_opt(volume).await {
            Ok(found) => found.is_some() || findings.has_passed("bound"),
            Err(_) => true,
        };
        if !existed {
            return findings.add("reclaim", StepResult::Skipped, "there was no volume", Value::Null);
        }
        if !plan.deletes_volume {
            let remedy = format!("remove its directory, then: kubectl delete pv {volume}");
            let message = format!("{volume} is kept because the class has reclaimPolicy Retain; {remedy}");
            findings.set_left_behind();
            return findings.add("reclaim", StepResult::Left, message, Value::Null);
        }
        let deleted = self.until(async || match self.volumes.get_opt(volume).await {
            Ok(None) => Ok(()),
            Ok(Some(found)) => {
                let phase = found.status.and_then(|status| status.phase);
                Err(format!("it is {}", phase.unwrap_or_default()))
            }
            Err(error) => Err(api_error_text(&error)),
        });
        match deleted.await {
            Ok(()) => findings.passed("reclaim", format!("{volume} is deleted")),
            Err(last) => {
                findings.set_left_behind();
                findings.failed(
                    "reclaim",
                    format!("{volume} still exists: {last}; see kubectl describe pv {volume}"),
                );
            }
        }
    }

    /// Calls `poll` until it succeeds. Returns its last error after the timeout.
    async fn until<T>(&self, poll: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
        let deadline = tokio::time::Instant::now() + self.arguments.timeout;
        loop {
            match poll().await {
                Ok(done) => return Ok(done),
                Err(last) if tokio::time::Instant::now() >= deadline => return Err(last),
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }
}
