//! The last step of provisioning: creates the volume object for an existing directory.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::plan::ProvisionPlan;
use super::provision::{ProvisionAttempt, ProvisionTarget};
use super::report::{self, ProvisionOutcome};
use super::volume_object::is_for;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_BACKEND;
use crate::decide::volume_location::volume_location;
use crate::runtime::api_error::api_error_text;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::volume_indexer::index_volume;
use export_store::ProvisionedDirectory;

/// Creates the volume object.
///
/// # Errors
/// The API server rejected the request before it was executed: nothing was created, and it is repeated later.
pub(super) async fn create_volume(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    plan: &ProvisionPlan,
    directory: &ProvisionedDirectory,
) -> Result<ProvisionOutcome, WriteError> {
    let object = attempt.planner(target).volume(plan, directory);
    let ctx = attempt.ctx;
    let api = Api::all(ctx.clients.calls.clone());
    let created = match create_or_find(&api, &object, (attempt.claim, &attempt.request.provisioner)).await? {
        Created::Volume(created) => created,
        Created::Refused(reason, message) => return Ok(attempt.roll_back_and_fail(target, reason, &message).await),
        Created::Unknown(condition) => return Ok(ProvisionOutcome::Unknown(condition)),
    };
    index_volume(&created, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    // Otherwise, an nfs-subdir that still runs under the same name was faster, or a previous process that had begun on a
    // backend which the claim left. The new directory stays pending: garbage collection removes it if the volume names
    // another one.
    let created_now = created.annotations().get(VOLUME_BACKEND) == Some(&target.backend.name);
    if created_now {
        warn_of_deviations(attempt, plan, directory);
    }
    Ok(ProvisionOutcome::Provisioned {
        condition: PlannedCondition::holds(Reason::Provisioned, volume_location(&created, attempt.claim)),
        created_now,
    })
}

/// Publishes an event for each setting that was not applied.
fn warn_of_deviations(attempt: &ProvisionAttempt<'_>, plan: &ProvisionPlan, directory: &ProvisionedDirectory) {
    let warn = |reason, note: &str| report::event(attempt.ctx, attempt.claim, Severity::Warning, reason, note);
    for parameter in &attempt.request.parameters.ignored {
        warn(Reason::ParameterIgnored, &format!("{parameter}: it is ignored"));
    }
    if let Some(mode) = directory.mode_not_kept {
        let note = format!(
            "the server created the directory with mode {mode:04o} instead of {:04o}",
            plan.settings.mode
        );
        warn(Reason::ModeNotKept, &note);
    }
}

/// Result of a request to create a volume that was executed, or may have been.
#[derive(Debug)]
enum Created {
    /// The volume of the claim: a new one, or one that an earlier attempt created.
    Volume(Box<PersistentVolume>),
    /// There is no volume of the claim, and a retry cannot create one.
    Refused(Reason, String),
    /// It is unknown whether there is one.
    Unknown(PlannedCondition),
}

/// Creates the object, or verifies that the existing one belongs to this claim. A conflict alone is not a success, and a
/// refusal alone does not mean that there is no volume (data-safety rule 13).
async fn create_or_find(
    api: &Api<PersistentVolume>,
    object: &PersistentVolume,
    (claim, provisioner): (&PersistentVolumeClaim, &str),
) -> Result<Created, WriteError> {
    let error = match api.create(&PostParams::default(), object).await {
        Ok(created) => return Ok(Created::Volume(Box::new(created))),
        Err(error) => error,
    };
    let refused = match CreateFailure::of(&error) {
        CreateFailure::NotExecuted => return Err(WriteError::action("create the volume")(error)),
        CreateFailure::Unknown => return Ok(unknown(&api_error_text(&error))),
        CreateFailure::Exists => false,
        // An earlier attempt whose reply was lost may have created it.
        CreateFailure::Refused => true,
    };
    let name = object.name_any();
    Ok(match reads::get_opt(api, &name).await {
        Ok(Some(found)) if is_for(&found, claim, provisioner) => Created::Volume(Box::new(found)),
        Ok(Some(_)) => {
            let message = format!("volume {name} exists and belongs to another claim: remove it");
            Created::Refused(Reason::VolumeNameTaken, message)
        }
        Ok(None) if refused => {
            let message = format!("the API server refuses the volume: {}", api_error_text(&error));
            Created::Refused(Reason::VolumeRefused, message)
        }
        Ok(None) => unknown("it was deleted again"),
        Err(error) => unknown(&api_error_text(&error)),
    })
}

fn unknown(cause: &str) -> Created {
    let message = format!("it is not known whether the volume was created: {cause}");
    Created::Unknown(PlannedCondition::fails(Reason::OutcomeUnknown, message))
}

/// Meaning of an error in reply to the create of a volume.
#[derive(Debug, PartialEq, Eq)]
enum CreateFailure {
    /// The API server rejected the request before it was executed.
    NotExecuted,
    /// A volume has the name.
    Exists,
    /// A retry cannot succeed: validation or RBAC.
    Refused,
    /// The volume may have been created.
    Unknown,
}

impl CreateFailure {
    fn of(error: &kube::Error) -> Self {
        match writes::http_status(error) {
            Some(429) => Self::NotExecuted,
            Some(409) => Self::Exists,
            Some(408) => Self::Unknown,
            Some(code) if (400..500).contains(&code) => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use axum::http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::core::Status;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    use super::*;

    const PROVISIONER: &str = "nfs-operator.io/nfs";

    /// What the scripted API server does with a create request.
    #[derive(Clone, Copy)]
    enum Answer {
        /// Executes it, and the reply is lost.
        Lose,
        Reject(u16),
    }

    fn volume(claim_uid: &str) -> PersistentVolume {
        let claim = json!({"namespace": "team", "name": "data", "uid": claim_uid});
        let annotations = json!({"pv.kubernetes.io/provisioned-by": PROVISIONER});
        serde_json::from_value(json!({
            "metadata": {"name": "pvc-u1", "annotations": annotations}, "spec": {"claimRef": claim},
        }))
        .unwrap()
    }

    /// Creates the volume of a claim once for each answer, on an API server that has the `existing` volume. Returns the last
    /// result.
    async fn create(answers: &[Answer], existing: Option<&PersistentVolume>) -> Result<Created, WriteError> {
        let script: VecDeque<Answer> = answers.iter().copied().collect();
        let script = Arc::new(Mutex::new(script));
        let stored = Arc::new(Mutex::new(existing.map(|volume| json!(volume))));
        let service = service_fn(move |request: Request<Body>| {
            let (script, stored) = (Arc::clone(&script), Arc::clone(&stored));
            async move {
                let reply = |code: u16, body: &Value| {
                    let body = Body::from(body.to_string().into_bytes());
                    Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
                };
                let failure = |code: u16| {
                    let reason = if code == 404 { "NotFound" } else { "" };
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "reason": reason, "message": "no", "code": code});
                    reply(code, &status)
                };
                if request.method() == Method::GET {
                    let stored = stored.lock().clone();
                    return stored.map_or_else(|| failure(404), |volume| reply(200, &volume));
                }
                let answer = script.lock().pop_front().unwrap();
                match answer {
                    Answer::Lose => {
                        let body = request.into_body().collect_bytes().await?;
                        *stored.lock() = Some(serde_json::from_slice(&body)?);
                        Err("the connection was closed".into())
                    }
                    Answer::Reject(code) => failure(code),
                }
            }
        });
        let api = Api::all(Client::new(service, "default"));
        let claim = json!({"metadata": {"namespace": "team", "name": "data", "uid": "u1"}});
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let mut last = Ok(unknown("not called"));
        for _ in answers {
            last = create_or_find(&api, &volume("u1"), (&claim, PROVISIONER)).await;
        }
        last
    }

    /// The watch does not show the volume yet: otherwise, the claim has one and is not provisioned again.
    #[tokio::test]
    async fn a_volume_whose_creation_had_no_answer_is_found_although_a_second_one_is_refused() {
        use Answer::{Lose, Reject};
        let lost = create(&[Lose], None).await;
        assert!(matches!(&lost, Ok(Created::Unknown(_))), "{lost:?}");
        for code in [403, 409, 422] {
            let found = create(&[Lose, Reject(code)], None).await;
            assert!(matches!(&found, Ok(Created::Volume(_))), "{code}: {found:?}");
            let taken = create(&[Reject(code)], Some(&volume("u2"))).await;
            assert!(
                matches!(&taken, Ok(Created::Refused(Reason::VolumeNameTaken, _))),
                "{code}: {taken:?}"
            );
        }
        let refused = create(&[Reject(403)], None).await;
        assert!(
            matches!(&refused, Ok(Created::Refused(Reason::VolumeRefused, _))),
            "{refused:?}"
        );
        let deleted = create(&[Reject(409)], None).await;
        assert!(matches!(&deleted, Ok(Created::Unknown(_))), "{deleted:?}");
        assert!(create(&[Reject(429)], None).await.is_err());
    }

    #[test]
    fn a_throttled_create_was_not_executed_and_a_missing_answer_leaves_it_open() {
        for (code, expected) in [
            (429, CreateFailure::NotExecuted),
            (409, CreateFailure::Exists),
            (403, CreateFailure::Refused),
            (422, CreateFailure::Refused),
            (408, CreateFailure::Unknown),
            // The API server may have timed out after it passed the write to etcd.
            (500, CreateFailure::Unknown),
            (503, CreateFailure::Unknown),
            (504, CreateFailure::Unknown),
        ] {
            let status = Status {
                code,
                ..Status::failure("", "")
            };
            assert_eq!(
                CreateFailure::of(&kube::Error::Api(Box::new(status))),
                expected,
                "{code}"
            );
        }
        assert_eq!(CreateFailure::of(&kube::Error::TlsRequired), CreateFailure::Unknown);
    }
}
