//! The last step of provisioning: creates the volume object for an existing directory.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::PostParams;

use super::plan::ProvisionPlan;
use super::provision::{ProvisionAttempt, Target};
use super::report::{self, ProvisionOutcome};
use super::volume_object::{is_for, is_of_this_operator, location};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::events::Severity;
use crate::runtime::writes;
use crate::state::volume_indexer::index_volume;
use export_store::ProvisionedDirectory;

/// Creates the volume object.
pub(super) async fn create_volume(
    attempt: &ProvisionAttempt<'_>,
    target: &Target,
    plan: &ProvisionPlan,
    directory: &ProvisionedDirectory,
) -> ProvisionOutcome {
    let object = attempt.planner(target).volume(plan, directory);
    let created = match create_or_find(attempt, target, &object).await {
        Ok(created) => created,
        Err(outcome) => return outcome,
    };
    let ctx = attempt.ctx;
    index_volume(&created, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    // Otherwise, an nfs-subdir that still runs under the same name was faster. The new directory stays pending: garbage
    // collection removes it if the volume names another one.
    let created_now = is_of_this_operator(&created);
    if created_now {
        warn_of_deviations(attempt, plan, directory);
    }
    ProvisionOutcome::Provisioned {
        condition: PlannedCondition::holds(Reason::Provisioned, location(&created)),
        created_now,
    }
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

/// Creates the object, or verifies that the existing one belongs to this claim. A conflict alone is not a success
/// (data-safety rule 13).
async fn create_or_find(
    attempt: &ProvisionAttempt<'_>,
    target: &Target,
    object: &PersistentVolume,
) -> Result<PersistentVolume, ProvisionOutcome> {
    let api: Api<PersistentVolume> = Api::all(attempt.ctx.clients.calls.clone());
    let error = match api.create(&PostParams::default(), object).await {
        Ok(created) => return Ok(created),
        Err(error) => error,
    };
    if writes::http_status(&error) == Some(409) {
        return match api.get(&attempt.volume).await {
            Ok(found) if is_for(&found, attempt.claim, &attempt.request.provisioner) => Ok(found),
            Ok(_) => {
                let message = format!(
                    "volume {} exists and belongs to another claim: remove it",
                    attempt.volume
                );
                Err(attempt
                    .roll_back_and_fail(target, Reason::VolumeNameTaken, &message)
                    .await)
            }
            Err(error) => Err(unknown(&error)),
        };
    }
    if is_permanent(&error) {
        let message = format!("the API server refuses the volume: {error}");
        return Err(attempt
            .roll_back_and_fail(target, Reason::VolumeRefused, &message)
            .await);
    }
    Err(unknown(&error))
}

fn unknown(error: &kube::Error) -> ProvisionOutcome {
    let message = format!("it is not known whether the volume was created: {error}");
    ProvisionOutcome::Unknown(PlannedCondition::fails(Reason::OutcomeUnknown, message))
}

/// Returns true if a retry cannot succeed: validation or RBAC, but not a timeout, throttling or a server error.
fn is_permanent(error: &kube::Error) -> bool {
    writes::http_status(error).is_some_and(|code| (400..500).contains(&code) && !matches!(code, 408 | 409 | 429))
}
