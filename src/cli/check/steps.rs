//! The steps of the check, one row each.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use nfs_operator::api::names::volume_name;
use tokio_util::sync::CancellationToken;

use super::CheckArguments;
use super::judge::{self, CLAIM, Plan};
use super::report::Report;

/// The check may only `get`, one object at a time: that is a light load, and soon enough for a person.
const LOOK: Duration = Duration::from_millis(250);

/// A check and what it needs.
pub struct Check<'a> {
    arguments: &'a CheckArguments,
    classes: Api<StorageClass>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    shutdown: CancellationToken,
}

impl<'a> Check<'a> {
    /// With that client's rights.
    pub fn new(client: Client, arguments: &'a CheckArguments, shutdown: CancellationToken) -> Self {
        Self {
            arguments,
            classes: Api::all(client.clone()),
            claims: Api::namespaced(client.clone(), &arguments.namespace),
            volumes: Api::all(client),
            shutdown,
        }
    }

    /// All steps. What was made is removed whatever happens in between, a signal included.
    pub async fn run(&self) -> Report {
        let mut report = Report::default();
        let Some(plan) = self.read_class(&mut report).await else {
            return report;
        };
        let Some(claim) = self.make(&plan, &mut report).await else {
            return report;
        };
        self.wait_bound(&mut report).await;
        self.remove(&claim, &plan, &mut report).await;
        report
    }

    async fn read_class(&self, report: &mut Report) -> Option<Plan> {
        let name = &self.arguments.storage_class;
        let planned = match self.classes.get(name).await {
            Ok(class) => judge::plan(&class, self.arguments.node.as_deref()).map(|plan| (class.provisioner, plan)),
            Err(error) => Err(format!("cannot read the class {name}: {error}")),
        };
        match planned {
            Ok((provisioner, plan)) => {
                report.passed("class", format!("{name} of {provisioner}"));
                Some(plan)
            }
            Err(message) => {
                report.failed("class", message);
                None
            }
        }
    }

    /// Creates the claim; gives back its uid.
    async fn make(&self, plan: &Plan, report: &mut Report) -> Option<String> {
        let named = format!("{}/{CLAIM}", self.arguments.namespace);
        let claim = judge::claim(&self.arguments.storage_class, plan);
        match self.claims.create(&PostParams::default(), &claim).await {
            Ok(made) => {
                report.passed("claim", named);
                Some(made.uid().unwrap_or_default())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let remedy = format!("kubectl --namespace {} delete pvc {CLAIM}", self.arguments.namespace);
                report.failed(
                    "claim",
                    format!("{named} is there: another check is at work, or was killed; then: {remedy}"),
                );
                None
            }
            Err(error) => {
                report.failed("claim", format!("cannot create {named}: {error}"));
                None
            }
        }
    }

    async fn wait_bound(&self, report: &mut Report) {
        let bound = self.until(async || match self.claims.get(CLAIM).await {
            Ok(claim) => judge::bound(&claim),
            Err(error) => Err(error.to_string()),
        });
        // A signal ends the wait; what follows removes the claim.
        let volume = match self.shutdown.run_until_cancelled(bound).await {
            Some(Ok(volume)) => volume,
            Some(Err(last)) => return report.failed("bound", last),
            None => return report.failed("bound", "interrupted"),
        };
        report.passed("bound", format!("to {volume}"));
        let place = match self.volumes.get(&volume).await {
            Ok(volume) => judge::place(&volume),
            Err(error) => Err(error.to_string()),
        };
        match place {
            Ok(place) => report.passed("volume", place),
            Err(message) => report.failed("volume", message),
        }
    }

    /// Deletes the claim and waits for its end and its volume's.
    async fn remove(&self, uid: &str, plan: &Plan, report: &mut Report) {
        let ours = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let gone = self.until(async || {
            // Asked again each time: the first request may have been lost.
            match self.claims.delete(CLAIM, &ours).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                // One of the same name, and not ours.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("it is being deleted".to_owned()),
            }
        });
        let named = format!("{}/{CLAIM}", self.arguments.namespace);
        match gone.await {
            Ok(()) => report.passed("delete", format!("{named} is gone")),
            Err(last) => report.stuck("delete", format!("{named} stays: {last}")),
        }
        self.wait_reclaimed(&volume_name(uid), plan, report).await;
    }

    async fn wait_reclaimed(&self, volume: &str, plan: &Plan, report: &mut Report) {
        if !plan.deletes {
            let remedy = format!("remove its directory, then: kubectl delete pv {volume}");
            return report.left(
                "reclaim",
                format!("{volume} stays, for the class has reclaimPolicy Retain; {remedy}"),
            );
        }
        let gone = self.until(async || match self.volumes.get_opt(volume).await {
            Ok(None) => Ok(()),
            Ok(Some(found)) => {
                let phase = found.status.and_then(|status| status.phase);
                Err(format!("it is {}", phase.unwrap_or_default()))
            }
            Err(error) => Err(error.to_string()),
        });
        match gone.await {
            Ok(()) => report.passed("reclaim", format!("{volume} is gone")),
            Err(last) => report.stuck(
                "reclaim",
                format!("{volume} stays: {last}; kubectl describe pv {volume} says why"),
            ),
        }
    }

    /// Looks until `look` is content, or the time is over; then what it said last.
    async fn until<T>(&self, look: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
        let deadline = tokio::time::Instant::now() + self.arguments.timeout;
        loop {
            match look().await {
                Ok(done) => return Ok(done),
                Err(last) if tokio::time::Instant::now() >= deadline => return Err(last),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
