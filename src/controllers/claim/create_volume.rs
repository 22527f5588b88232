//! The last step of provisioning: creates the volume object for an existing directory.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::PostParams;

use super::plan::ProvisionPlan;
use super::provision::{ProvisionAttempt, ProvisionTarget};
use super::report::{self, ProvisionOutcome};
use super::volume_object::{is_for, is_of_this_operator, location};
use crate::api::conditions::{PlannedCondition, Reason};
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
    let created = match create_or_find(attempt, target, &object).await? {
        Ok(created) => created,
        Err(outcome) => return Ok(outcome),
    };
    let ctx = attempt.ctx;
    index_volume(&created, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    // Otherwise, an nfs-subdir that still runs under the same name was faster. The new directory stays pending: garbage
    // collection removes it if the volume names another one.
    let created_now = is_of_this_operator(&created);
    if created_now {
        warn_of_deviations(attempt, plan, directory);
    }
    Ok(ProvisionOutcome::Provisioned {
        condition: PlannedCondition::holds(Reason::Provisioned, location(&created)),
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

/// Creates the object, or verifies that the existing one belongs to this claim. A conflict alone is not a success, and a
/// refusal alone does not mean that there is no volume (data-safety rule 13).
async fn create_or_find(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    object: &PersistentVolume,
) -> Result<Result<PersistentVolume, ProvisionOutcome>, WriteError> {
    let api: Api<PersistentVolume> = Api::all(attempt.ctx.clients.calls.clone());
    let error = match api.create(&PostParams::default(), object).await {
        Ok(created) => return Ok(Ok(created)),
        Err(error) => error,
    };
    let refused = match CreateFailure::of(&error) {
        CreateFailure::NotExecuted => return Err(WriteError::action("create the volume")(error)),
        CreateFailure::Unknown => return Ok(Err(unknown(&error))),
        CreateFailure::Exists => false,
        // An earlier attempt whose reply was lost may have created it.
        CreateFailure::Refused => true,
    };
    let (reason, message) = match reads::get_opt(&api, &attempt.volume).await {
        Ok(Some(found)) if is_for(&found, attempt.claim, &attempt.request.provisioner) => return Ok(Ok(found)),
        Ok(Some(_)) => (
            Reason::VolumeNameTaken,
            format!(
                "volume {} exists and belongs to another claim: remove it",
                attempt.volume
            ),
        ),
        Ok(None) if refused => (
            Reason::VolumeRefused,
            format!("the API server refuses the volume: {error}"),
        ),
        Ok(None) => return Ok(Err(unknown("it was deleted again"))),
        Err(error) => return Ok(Err(unknown(&error))),
    };
    Ok(Err(attempt.roll_back_and_fail(target, reason, &message).await))
}

fn unknown(error: impl std::fmt::Display) -> ProvisionOutcome {
    let message = format!("it is not known whether the volume was created: {error}");
    ProvisionOutcome::Unknown(PlannedCondition::fails(Reason::OutcomeUnknown, message))
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
mod tests {
    use kube::core::Status;

    use super::*;

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
