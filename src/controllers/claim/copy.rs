//! A claim that requests a copy of another claim's or an archive's data: the source, the copy in the background, and its
//! result.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::content::DataSource;
use super::create_volume::create_volume;
use super::eligibility::source_claim;
use super::limit::order_limit;
use super::placement::pending_backend;
use super::plan::ProvisionPlan;
use super::provision::{BackendOutcome, ProvisionAttempt, ProvisionTarget, unresolved};
use super::report::ProvisionOutcome;
use super::restore::ArchiveSource;
use super::rollback::roll_back;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::volume_limit::{Excess, volume_limit};
use crate::runtime::reads;
use crate::runtime::waiting::ClaimRef;
use crate::runtime::writes::WriteError;
use crate::state::confirmed_export::{ConfirmedExport, Unconfirmed};
use crate::state::context::Context;
use crate::state::copy_jobs::CopyResult;
use crate::state::copy_jobs::job::{CopyFailure, CopyJob, CopyTask};
use crate::state::copy_jobs::source::{ClaimSourceError, check_bound, find_claim};
use crate::state::quota::accounted_volume;
use export_store::text::format_amount;
use export_store::{
    CopyError, CopySource, DirectoryRequest, ExportError, ExportStore, ProvisionedDirectory, SnapshotSelector,
    StagedLimit, VolumeLimit,
};

/// The data to copy, and the export that has it.
type LocatedSource = (Arc<ExportStore>, CopySource);

/// Stops the copy of a claim that is no longer allowed to have it, and rolls back what was copied. Everything that may
/// be in use remains: a directory that has its volume, one that was moved, and one whose backend cannot be reached.
pub(crate) async fn abandon(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), WriteError> {
    CopyJob::of(ctx, claim).abort().await;
    let uid = claim.uid().unwrap_or_default();
    let Some(backend) = pending_backend(ctx, volume) else {
        return Ok(());
    };
    let Some(export) = backend.last_probe().store.clone() else {
        return Ok(());
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let created = reads::get_metadata_opt(&volumes, volume)
        .await
        .map_err(WriteError::action("check whether the claim has its volume"))?;
    if created.is_some() || backend.is_move(volume) || backend.is_in_work(volume) {
        return Ok(());
    }
    // Garbage collection retries a failed rollback once the claim is deleted.
    let _ = roll_back(ctx, &backend, &export, volume, &uid).await;
    Ok(())
}

/// Creates the volume if its copy is complete; otherwise starts the copy.
pub(super) async fn copy(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    plan: ProvisionPlan,
    source: &DataSource,
) -> Result<BackendOutcome, WriteError> {
    let result = CopyJob::of(attempt.ctx, attempt.claim).take_result(&target.backend.name);
    if result.is_some() {
        attempt.requeue_archive();
    }
    let (copy, copied) = match result {
        Some(Ok((CopyResult::Directory(copy), copied))) => (Some(copy), format!(" ({copied})")),
        Some(Err(failure)) => return Ok(copy_failed(attempt, target, failure).await),
        // An archive is never the result of a claim's copy.
        Some(Ok((CopyResult::Archive, _))) | None => (None, String::new()),
    };
    // The claim may be placed on another backend by now, or the backend may have another export.
    let directory = match find_finished(attempt, target, &plan.directory).await {
        Ok(Some(found)) => {
            let is_found =
                |copy: &ProvisionedDirectory| (&copy.directory, copy.file_id) == (&found.directory, found.file_id);
            copy.filter(is_found).unwrap_or(found)
        }
        Ok(None) => return start(attempt, target, plan.directory, source).await,
        // Another backend is tried if this one refuses the copy, too.
        Err(error) if error.definite_refusal() => return start(attempt, target, plan.directory, source).await,
        Err(error) => {
            attempt.ctx.request_probe(&target.backend.name);
            return Ok(BackendOutcome::Ended(unresolved(&target.backend, &error)));
        }
    };
    let Some(_pending) = target.backend.begin_work(&attempt.volume, &plan.directory.claim) else {
        return Ok(BackendOutcome::Ended(ProvisionOutcome::Queued));
    };
    if let Some(outcome) = order_limit(attempt, target, (&plan.directory, &directory), None).await {
        return Ok(BackendOutcome::Ended(outcome));
    }
    let mut outcome = create_volume(attempt, target, &plan, &directory).await?;
    if let ProvisionOutcome::Provisioned {
        condition,
        created_now: true,
    } = &mut outcome
    {
        target.backend.remove_pending(&attempt.volume);
        condition.message = format!("{}, a copy of {source}{copied}", condition.message);
    }
    // The staging folder is in the trash.
    target.backend.purge_requested.notify_one();
    Ok(BackendOutcome::Ended(outcome))
}

/// Returns the copy that an earlier attempt finished, and whose volume was not created. It needs the source no longer, which
/// may be deleted or larger by now.
async fn find_finished(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    request: &DirectoryRequest,
) -> Result<Option<ProvisionedDirectory>, ExportError> {
    match target.backend.has_pending(&attempt.volume) {
        true => target.export.find_copy(request).await,
        false => Ok(None),
    }
}

/// Returns the outcome for a claim whose source is not bound according to the watch cache. From now on, the claim is
/// woken when the source becomes bound, so nothing is polled, however many claims wait for each other.
pub(super) fn await_source(ctx: &Context, claim: &PersistentVolumeClaim, name: &str) -> Option<ProvisionOutcome> {
    let source: ClaimRef = ObjectRef::new(name).within(&claim.namespace().unwrap_or_default());
    ctx.waiting_claims.subscribe(ObjectRef::from_obj(claim), source.clone());
    let cached = |claim: &ClaimRef| ctx.cached_claim(claim);
    let condition = match is_copied_from_itself(claim, &cached) {
        true => circular_source(name),
        // A claim that is not in the cache is settled, belongs to another provisioner, or does not exist.
        false => check_bound(&cached(&source)?, name).err()?,
    };
    Some(ProvisionOutcome::AwaitingSource {
        condition,
        source: Some(source),
    })
}

/// Maximum number of sources that are followed to find a cycle. A longer cycle waits like any other claim whose source is
/// not bound.
const MAX_SOURCES: usize = 32;

/// Returns true if a claim is to be a copy of a copy of itself.
fn is_copied_from_itself(
    claim: &PersistentVolumeClaim,
    cached: &impl Fn(&ClaimRef) -> Option<PersistentVolumeClaim>,
) -> bool {
    let own_ref = ObjectRef::from_obj(claim);
    let source = |claim: &PersistentVolumeClaim| {
        let name = source_claim(claim).ok().flatten()?;
        Some(ObjectRef::new(&name).within(&claim.namespace().unwrap_or_default()))
    };
    let sources = std::iter::successors(source(claim), |next| source(&cached(next)?));
    sources.take(MAX_SOURCES).any(|source| source == own_ref)
}

fn circular_source(name: &str) -> PlannedCondition {
    let message = format!(
        "source claim {name} waits for a copy of this claim: delete one of them, and recreate it without a data source"
    );
    PlannedCondition::fails(Reason::CopySourceUnsuitable, message)
}

/// Starts the copy, if its source is ready.
async fn start(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    request: DirectoryRequest,
    source: &DataSource,
) -> Result<BackendOutcome, WriteError> {
    let located = match source {
        DataSource::Claim { name, snapshot } => locate_claim(attempt, name, snapshot.clone()).await?,
        DataSource::Archive(source) => {
            locate_archive(attempt.ctx, source).map_err(|condition| ProvisionOutcome::AwaitingSource {
                condition,
                source: None,
            })
        }
    };
    let (origin, located) = match located {
        Ok(located) => located,
        Err(outcome) => return Ok(BackendOutcome::Ended(without_source(attempt, target, outcome).await)),
    };
    let settings = target.snapshot.object.spec.quota.as_ref();
    let limit = settings.map(|settings| volume_limit(settings, attempt.request.bytes));
    if let Some(limit) = limit
        && let Some(excess) = find_excess(attempt, (&origin, &located), limit).await
    {
        let condition = exceeds_limit(source, &target.backend.name, excess);
        let outcome = ProvisionOutcome::AwaitingSource {
            condition,
            source: None,
        };
        return Ok(BackendOutcome::Ended(without_source(attempt, target, outcome).await));
    }
    if let Some(deleted) = attempt.set_placed_on(&target.backend).await? {
        return Ok(BackendOutcome::Ended(deleted));
    }
    let task = CopyTask::ToVolume {
        source: (origin, Box::new(located)),
        backend: Arc::clone(&target.backend),
        export: Arc::clone(&target.export),
        request: Box::new(request),
        max_bytes: u64::try_from(attempt.request.bytes).unwrap_or(u64::MAX),
        limit: limit.zip(settings).map(|(limit, settings)| StagedLimit {
            limit,
            required: settings.is_required(),
        }),
    };
    let condition = CopyJob::of(attempt.ctx, attempt.claim).start_or_progress(task, source);
    Ok(BackendOutcome::Ended(
        condition.map_or(ProvisionOutcome::Queued, ProvisionOutcome::Copying),
    ))
}

/// Returns what the source holds beyond the limit of the copy, if a quota agent accounts for it: the server would refuse the
/// rest of the copy. Without an agent, and in a snapshot, nobody knows before it is copied.
async fn find_excess(
    attempt: &ProvisionAttempt<'_>,
    (origin, located): (&ExportStore, &CopySource),
    limit: VolumeLimit,
) -> Option<Excess> {
    let volume = match located {
        CopySource::Volume(directory) => &directory.volume,
        CopySource::Archive(archive) => &archive.volume,
        CopySource::Snapshot(..) => return None,
    };
    let backend = attempt.ctx.backends.get(origin.backend())?;
    let used = accounted_volume(&backend, origin, volume).await?;
    Excess::of(used, limit)
}

/// Returns the condition of a claim whose volume could not hold its source. Pure.
fn exceeds_limit(source: &DataSource, backend: &str, excess: Excess) -> PlannedCondition {
    let remedy = match excess {
        Excess::Bytes { limit, .. } => format!(
            "this claim requests {}: recreate the claim with a larger request, or remove data from the source",
            format_amount(u128::from(limit))
        ),
        Excess::Inodes { limit, .. } => format!(
            "a volume of backend {backend} may have {limit} (spec.quota.inodes): remove files from the source, or ask an \
             administrator to raise the limit"
        ),
    };
    let message = format!("{source} cannot be copied: it {excess}, and {remedy}");
    PlannedCondition::fails(Reason::CopySourceUnsuitable, message)
}

/// Discards what an earlier attempt has copied, if its source is gone or cannot be copied any more: another attempt would
/// start from the beginning, and there may be none. Returns the outcome.
async fn without_source(
    attempt: &ProvisionAttempt<'_>,
    target: &ProvisionTarget,
    outcome: ProvisionOutcome,
) -> ProvisionOutcome {
    let ProvisionTarget { backend, export, .. } = target;
    let ProvisionOutcome::AwaitingSource { condition, source } = &outcome else {
        return outcome;
    };
    let is_ready_later = source.is_none() && condition.reason != Reason::CopySourceUnsuitable;
    if is_ready_later || !backend.has_pending(&attempt.volume) {
        return outcome;
    }
    let condition = condition.clone();
    let uid = attempt.claim.uid().unwrap_or_default();
    match roll_back(attempt.ctx, backend, export, &attempt.volume, &uid).await {
        Ok(true) => outcome,
        // Retried, although the claim may wait for its source forever.
        Ok(false) | Err(_) => ProvisionOutcome::Failed(condition),
    }
}

/// Locates the data of a claim. An unsuitable claim cannot be copied, but a user may replace it.
async fn locate_claim(
    attempt: &ProvisionAttempt<'_>,
    name: &str,
    snapshot: Option<String>,
) -> Result<Result<LocatedSource, ProvisionOutcome>, WriteError> {
    let namespace = attempt.claim.namespace().unwrap_or_default();
    Ok(find_claim(attempt.ctx, &namespace, name, Some(attempt.request.bytes))
        .await?
        .map(|found| {
            let source = match snapshot {
                Some(name) => CopySource::Snapshot(found.directory, SnapshotSelector::Named(name)),
                None => CopySource::Volume(found.directory),
            };
            (found.export, source)
        })
        .map_err(|error| match error {
            ClaimSourceError::Unbound(condition) => ProvisionOutcome::AwaitingSource {
                condition,
                source: Some(ObjectRef::new(name).within(&namespace)),
            },
            ClaimSourceError::NotReady(condition) | ClaimSourceError::Unsuitable(condition) => {
                ProvisionOutcome::AwaitingSource {
                    condition,
                    source: None,
                }
            }
        }))
}

/// Locates an archive that the claim is allowed to restore. Its record is compared when the archive is opened.
fn locate_archive(ctx: &Context, source: &ArchiveSource) -> Result<LocatedSource, PlannedCondition> {
    match ConfirmedExport::find(ctx, &source.backend, &source.export_id) {
        Ok(confirmed) => Ok((confirmed.export, CopySource::Archive(source.archive.clone()))),
        Err(unconfirmed) => {
            let why = match unconfirmed {
                Unconfirmed::NotReady(condition) => condition.message,
                Unconfirmed::OtherExport => "the backend is now on another export than the archive".to_owned(),
            };
            let message = format!("{source} to copy is on backend {}: {why}", source.backend);
            let condition = PlannedCondition::fails(Reason::CopySourceNotReady, message);
            Err(condition)
        }
    }
}

/// Handles a failed copy. It is rolled back if another backend may succeed.
async fn copy_failed(attempt: &ProvisionAttempt<'_>, target: &ProvisionTarget, failure: CopyFailure) -> BackendOutcome {
    let ProvisionTarget { backend, export, .. } = target;
    let CopyFailure { error, condition } = failure;
    let reason = condition.reason;
    let uid = attempt.claim.uid().unwrap_or_default();
    if reason == Reason::CopySourceUnsuitable {
        // Another attempt would fail as late. What is copied uses space.
        let discarded = roll_back(attempt.ctx, backend, export, &attempt.volume, &uid).await;
        return BackendOutcome::Ended(match discarded {
            Ok(true) => ProvisionOutcome::Infeasible(condition),
            Ok(false) | Err(_) => ProvisionOutcome::Failed(condition),
        });
    }
    if is_data_missing(&error) {
        return BackendOutcome::Ended(ProvisionOutcome::DataMissing(condition));
    }
    if !error.is_target_error() {
        return BackendOutcome::Ended(if reason.is_connectivity() {
            ProvisionOutcome::Unanswered(condition)
        } else {
            ProvisionOutcome::Failed(condition)
        });
    }
    match roll_back(attempt.ctx, backend, export, &attempt.volume, &uid).await {
        Ok(true) => BackendOutcome::Refused {
            condition: PlannedCondition::fails(reason, error.to_string()),
            permanent: false,
        },
        Ok(false) | Err(_) => BackendOutcome::Ended(ProvisionOutcome::Failed(condition)),
    }
}

/// Returns true if the data to copy are not there: the source was removed during the copy, or the snapshot does not have
/// them.
fn is_data_missing(error: &CopyError) -> bool {
    matches!(
        error,
        CopyError::SourceGone { .. } | CopyError::Export(ExportError::SnapshotUnavailable { .. })
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a claim of the namespace `team` that copies another one.
    fn copy_of(name: &str, source: Option<&str>) -> PersistentVolumeClaim {
        let source = source.map(|name| json!({"kind": "PersistentVolumeClaim", "name": name}));
        let claim = json!({"metadata": {"name": name, "namespace": "team"}, "spec": {"dataSource": source}});
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn only_data_that_do_not_exist_are_no_failure() {
        let why = || "why".to_owned();
        assert!(is_data_missing(&CopyError::SourceGone { why: why() }));
        assert!(is_data_missing(&ExportError::SnapshotUnavailable { why: why() }.into()));
        // The server changed what it calls a snapshot.
        assert!(!is_data_missing(&CopyError::SnapshotChanged { name: why() }));
        assert!(!is_data_missing(&CopyError::LimitNotInForce { why: why() }));
    }

    #[test]
    fn a_cycle_of_copies_is_recognized() {
        let is_cyclic = |sources: &[(&str, Option<&str>)]| {
            let claims: Vec<_> = sources.iter().map(|(name, source)| copy_of(name, *source)).collect();
            let cached = |claim: &ClaimRef| {
                let found = claims.iter().find(|cached| ObjectRef::from_obj(*cached) == *claim);
                found.cloned()
            };
            is_copied_from_itself(claims.first().unwrap(), &cached)
        };
        assert!(is_cyclic(&[("a", Some("b")), ("b", Some("a"))]));
        assert!(is_cyclic(&[("a", Some("b")), ("b", Some("c")), ("c", Some("a"))]));
        assert!(
            !is_cyclic(&[("a", Some("b")), ("b", Some("c")), ("c", Some("b"))]),
            "it is not part of the cycle"
        );
        assert!(!is_cyclic(&[("a", Some("b")), ("b", None)]));
        assert!(!is_cyclic(&[("a", Some("b"))]), "b is not in the cache");
        let names: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
        let long: Vec<_> = (0..100)
            .map(|n| {
                (
                    names.get(n).unwrap().as_str(),
                    names.get((n + 1) % 100).map(String::as_str),
                )
            })
            .collect();
        assert!(!is_cyclic(&long), "it is not followed to its end");
    }
}
