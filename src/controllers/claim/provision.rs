//! Provisioning of a claim: placement → annotation → record → directory → volume.
//!
//! The process may end after any step. If provisioning is repeated, it results in one directory and one volume.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::cached_fields::{LAST_APPLIED, is_incomplete, is_oversized};
use super::claim_writes::{clear_placed_on, is_unplaced, release_node, set_placed_on};
use super::content::{DataSource, InitialContent};
use super::copy;
use super::create_volume::create_volume;
use super::eligibility::{ClaimRequest, oversized};
use super::limit::{find_no_order, order_limit, still_awaited};
use super::placement::{PlacementResult, pending_backend, place};
use super::plan::{Planner, ProvisionPlan};
use super::recovery_hold::recovery_hold;
use super::report::{self, ProvisionOutcome};
use super::restore::{find_archive, find_cached_archive};
use super::rollback::roll_back;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, volume_name};
use crate::decide::restore_source::RestoreSource;
use crate::runtime::concurrency_limiter::Priority;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::waiting::{Blockers, CapacityDemand};
use crate::runtime::writes::WriteError;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use crate::state::copy_jobs::job::CopyJob;
use export_store::{ExportError, ExportStore};

/// The outcome of an attempt on one backend.
pub(crate) enum BackendOutcome {
    /// Nothing was created there, and another backend may be tried.
    Refused {
        condition: PlannedCondition,
        /// True if the backend refuses the claim until a user changes something.
        permanent: bool,
    },
    /// Anything else.
    Ended(ProvisionOutcome),
}

/// The backends that refused the claim in this attempt, or in earlier ones whose copies failed.
struct Refusals {
    conditions: Vec<(String, PlannedCondition)>,
    any_temporary: bool,
}

impl Refusals {
    /// Returns the refusals of copies, which are temporary: another attempt may succeed.
    fn of_copies(conditions: Vec<(String, PlannedCondition)>) -> Self {
        Self {
            any_temporary: !conditions.is_empty(),
            conditions,
        }
    }
}

/// A backend with a confirmed export.
pub(crate) struct ProvisionTarget {
    pub(crate) backend: Arc<Backend>,
    pub(crate) snapshot: Arc<ProbeSnapshot>,
    pub(crate) export: Arc<ExportStore>,
    /// True if no other backend can have the claim.
    is_only_choice: bool,
}

/// One attempt to provision a claim.
pub(crate) struct ProvisionAttempt<'a> {
    pub(crate) ctx: &'a Arc<Context>,
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) request: &'a ClaimRequest,
    pub(crate) volume: String,
    /// The content that the claim may have according to the watch caches.
    content: InitialContent,
    namespace: Arc<PartialObjectMeta<Namespace>>,
    /// Metadata of the claim that the cache does not have.
    metadata: OnceLock<ObjectMeta>,
    /// True if this attempt placed the claim on a backend.
    placed: AtomicBool,
}

/// Provisions a claim.
pub async fn provision(
    ctx: &Arc<Context>,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
) -> Result<ProvisionOutcome, WriteError> {
    let result = try_provision(ctx, claim, request).await;
    release_unused(ctx, claim);
    result
}

/// Releases the capacity that is reserved for a claim for which nothing is in progress. However an attempt ended, its
/// reservation is not needed without a directory or a copy: the next attempt reserves again, and there may be none.
pub(super) fn release_unused(ctx: &Context, claim: &PersistentVolumeClaim) {
    let volume = volume_name(&claim.uid().unwrap_or_default());
    if !is_in_progress(ctx, claim, &volume) {
        ctx.capacity.release(&volume);
    }
}

async fn try_provision(
    ctx: &Arc<Context>,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
) -> Result<ProvisionOutcome, WriteError> {
    let name = claim.namespace().unwrap_or_default();
    let Some(namespace) = ctx.namespace(&name) else {
        let condition = PlannedCondition::fails(Reason::Provisioning, format!("namespace {name} is not known yet"));
        return Ok(ProvisionOutcome::AwaitingNamespace(condition));
    };
    let volume = volume_name(&claim.uid().unwrap_or_default());
    if ctx.capacity.has_volume(&volume) {
        return Ok(ProvisionOutcome::Nothing);
    }
    if let Some(outcome) = still_awaited(ctx, &volume) {
        return Ok(outcome);
    }
    if let Some(condition) = recovery_hold(ctx, claim, request, &namespace).await {
        return Ok(if condition.reason.awaits_probe() {
            ProvisionOutcome::AwaitingProbe(condition)
        } else {
            ProvisionOutcome::Waiting(condition, Box::default())
        });
    }
    let content = match &request.restore {
        None => InitialContent::without_archive(request),
        Some(name) => match find_cached_archive(ctx, claim, request, &namespace, name) {
            Ok(found) => InitialContent::of_archive(found),
            Err(_) if is_in_progress(ctx, claim, &volume) => match withdraw(ctx, claim, request, name).await? {
                Ok(content) => content,
                Err(outcome) => return Ok(outcome),
            },
            Err(condition) => return Ok(ProvisionOutcome::Infeasible(condition)),
        },
    };
    let attempt = ProvisionAttempt {
        ctx,
        claim,
        request,
        volume,
        content,
        namespace,
        metadata: OnceLock::new(),
        placed: AtomicBool::new(false),
    };
    // This does not depend on the current state of the backend: the end of the copy wakes the claim.
    let copied = attempt.content.copied();
    if let Some(condition) = copied.and_then(|source| CopyJob::of(ctx, claim).progress(source)) {
        return Ok(ProvisionOutcome::Copying(condition));
    }
    // What an earlier attempt has begun is completed or discarded, although the source is not bound.
    if let Some(DataSource::Claim { name: source, .. }) = copied
        && let Some(outcome) = copy::await_source(ctx, claim, source)
        && pending_backend(ctx, &attempt.volume).is_none()
    {
        return Ok(outcome);
    }
    attempt.run().await
}

/// Returns true if data are being copied to the claim's volume, or something may exist on a backend for it.
fn is_in_progress(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> bool {
    CopyJob::of(ctx, claim).exists() || pending_backend(ctx, volume).is_some()
}

/// Stops a restore that is in progress and no longer permitted according to the watch caches, which may be out of date:
/// the archive is read first. Returns the content if the claim may still have the archive, or else the outcome.
async fn withdraw(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    source: &RestoreSource,
) -> Result<Result<InitialContent, ProvisionOutcome>, WriteError> {
    let uid = claim.uid().unwrap_or_default();
    let (volume, priority) = (volume_name(&uid), ctx.claim_retries.priority(&uid));
    let backend = pending_backend(ctx, &volume);
    let Some(_slot) = ctx.work_slot(claim, backend.as_deref(), priority) else {
        return Ok(Err(ProvisionOutcome::Queued));
    };
    let condition = match find_archive(ctx, claim, request, source).await? {
        Ok(found) => return Ok(Ok(InitialContent::of_archive(found))),
        Err(condition) => condition,
    };
    copy::abandon(ctx, claim, &volume).await?;
    Ok(Err(ProvisionOutcome::Infeasible(condition)))
}

impl ProvisionAttempt<'_> {
    /// Tries one backend after the other until one ends provisioning, or none is left.
    async fn run(&self) -> Result<ProvisionOutcome, WriteError> {
        let uid = self.claim.uid().unwrap_or_default();
        // A copy ends in a later attempt than it began in. Without the refusals before it, backends that all refuse it would
        // take turns forever.
        let mut refusals = Refusals::of_copies(self.ctx.copy_jobs.take_refusals(&uid));
        let outcome = self.try_backends(&mut refusals).await?;
        // A deleted claim is forgotten only once.
        let is_copied =
            self.content.copied().is_some() && self.ctx.cached_claim(&ObjectRef::from_obj(self.claim)).is_some();
        if is_copied && matches!(outcome, ProvisionOutcome::Copying(_) | ProvisionOutcome::Queued) {
            self.ctx.copy_jobs.keep_refusals(uid, refusals.conditions);
        }
        Ok(outcome)
    }

    async fn try_backends(&self, refusals: &mut Refusals) -> Result<ProvisionOutcome, WriteError> {
        loop {
            match place(
                self.ctx,
                self.claim,
                self.request,
                self.content.moved(),
                &self.namespace,
                &refusals.conditions,
            ) {
                PlacementResult::Placed {
                    backend,
                    is_only_choice,
                } => match self.try_backend(&backend, is_only_choice).await? {
                    BackendOutcome::Refused { condition, permanent } => {
                        refusals.any_temporary |= !permanent;
                        refusals.conditions.push((backend.name.clone(), condition));
                    }
                    BackendOutcome::Ended(outcome) => return Ok(outcome),
                },
                PlacementResult::NoBackend {
                    condition,
                    awaits_probe: true,
                    ..
                } if refusals.conditions.is_empty() => return Ok(ProvisionOutcome::AwaitingProbe(condition)),
                PlacementResult::NoBackend { .. } if self.leave_backend().await => {}
                PlacementResult::NoBackend {
                    condition,
                    capacity,
                    other_node_possible,
                    ..
                } => {
                    return self
                        .no_backend(refusals, condition, capacity, other_node_possible)
                        .await;
                }
                PlacementResult::Infeasible(condition) => return Ok(ProvisionOutcome::Infeasible(condition)),
            }
        }
    }

    /// Tries one backend.
    async fn try_backend(&self, backend: &Arc<Backend>, is_only_choice: bool) -> Result<BackendOutcome, WriteError> {
        let snapshot = backend.last_probe();
        let (Some(export), Some(_)) = (snapshot.store.clone(), &snapshot.identity) else {
            return Ok(refused(snapshot.ready.clone(), false));
        };
        let priority = self.ctx.claim_retries.priority(&self.claim.uid().unwrap_or_default());
        let claim = ObjectRef::from_obj(self.claim);
        let (waiting, namespace) = (&self.ctx.waiting_claims, self.namespace.name_any());
        let Some(_slot) = backend.claims.enter(&claim, &namespace, priority, waiting) else {
            return Ok(BackendOutcome::Ended(ProvisionOutcome::Queued));
        };
        let target = ProvisionTarget {
            backend: Arc::clone(backend),
            snapshot,
            export,
            is_only_choice,
        };
        if let Some(outcome) = self.complete_metadata().await? {
            return Ok(BackendOutcome::Ended(outcome));
        }
        if let Some(outcome) = self.confirm_archive().await? {
            return Ok(BackendOutcome::Ended(outcome));
        }
        let plan = match self.planner(&target).plan() {
            Ok(plan) => plan,
            Err(condition) => return Ok(refused(condition, true)),
        };
        if let Some(source) = self.content.copied() {
            return Box::pin(copy::copy(self, &target, plan, source)).await;
        }
        if priority == Priority::Retry
            && let Some(error) = self.dry_run(&target, &plan).await
        {
            return Ok(self.export_failed(backend, &error));
        }
        self.create(&target, &plan).await
    }

    /// Reads the labels and annotations that the cache does not have. Returns the outcome if the claim cannot be provisioned
    /// with them.
    async fn complete_metadata(&self) -> Result<Option<ProvisionOutcome>, WriteError> {
        if !is_incomplete(self.claim) || self.metadata.get().is_some() {
            return Ok(None);
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.ctx.clients.calls.clone(), &self.namespace.name_any());
        let read = reads::get_metadata_opt(&claims, &self.claim.name_any()).await;
        let read = read.map_err(WriteError::action("read the labels and annotations of the claim"))?;
        let Some(mut read) = read.filter(|read| read.metadata.uid == self.claim.metadata.uid) else {
            return Ok(Some(ProvisionOutcome::ClaimDeleted));
        };
        read.annotations_mut().remove(LAST_APPLIED);
        if is_oversized(&read.metadata) {
            return Ok(Some(ProvisionOutcome::Infeasible(oversized())));
        }
        // A concurrent read has the same result.
        let _ = self.metadata.set(read.metadata);
        Ok(None)
    }

    /// Reads the archive that the claim requests. Returns the outcome if the claim may not have its data now.
    async fn confirm_archive(&self) -> Result<Option<ProvisionOutcome>, WriteError> {
        let Some(name) = &self.request.restore else {
            return Ok(None);
        };
        let outcome = match find_archive(self.ctx, self.claim, self.request, name).await? {
            Ok(found) if self.content.is_archive(&found) => return Ok(None),
            // The watch cache is about to have the change.
            Ok(_) => ProvisionOutcome::Queued,
            Err(condition) => {
                copy::abandon(self.ctx, self.claim, &self.volume).await?;
                ProvisionOutcome::Infeasible(condition)
            }
        };
        Ok(Some(outcome))
    }

    /// Creates the directory and the volume.
    async fn create(&self, target: &ProvisionTarget, plan: &ProvisionPlan) -> Result<BackendOutcome, WriteError> {
        let ProvisionTarget { backend, export, .. } = target;
        let can_omit = target.is_only_choice && is_unplaced(self.ctx, self.claim);
        if can_omit && self.planner(target).can_omit_placement(plan) {
            self.placed.store(true, Ordering::Relaxed);
        } else if let Some(deleted) = self.set_placed_on(backend).await? {
            return Ok(BackendOutcome::Ended(deleted));
        }
        let Some(_pending) = backend.begin_work(&self.volume, &plan.directory.claim) else {
            return Ok(BackendOutcome::Ended(ProvisionOutcome::Queued));
        };
        if self.content.moved().is_some() {
            backend.mark_as_move(&self.volume);
        }
        let provisioned = export.provision(&plan.directory);
        let (provisioned, no_order) = tokio::join!(provisioned, find_no_order(self, target));
        self.requeue_archive();
        match provisioned {
            Ok(directory) => {
                if let Some(outcome) = order_limit(self, target, (&plan.directory, &directory), no_order).await {
                    return Ok(BackendOutcome::Ended(outcome));
                }
                let outcome = create_volume(self, target, plan, &directory).await?;
                if matches!(outcome, ProvisionOutcome::Provisioned { created_now: true, .. }) {
                    backend.remove_pending(&self.volume);
                    self.requeue_archive();
                }
                Ok(BackendOutcome::Ended(outcome))
            }
            Err(error) => Ok(self.export_failed(backend, &error)),
        }
    }

    pub(crate) fn planner<'b>(&'b self, target: &'b ProvisionTarget) -> Planner<'b> {
        Planner {
            claim: self.claim,
            metadata: self.metadata.get().unwrap_or(&self.claim.metadata),
            request: self.request,
            namespace_uid: self.namespace.metadata.uid.as_deref().unwrap_or_default(),
            restore: self.content.moved().map(|source| &source.archive),
            under_alias: self.ctx.settings.served.aliases.contains_key(&self.request.provisioner),
            cluster_uid: self.ctx.cluster_uid(),
            snapshot: &target.snapshot,
            negotiated: target.export.nfs().negotiated(),
        }
    }

    /// Returns the refusal to expect for a claim that failed before, if it can be predicted. Then its placement is neither
    /// written nor cleared, so that thousands of failing claims cost the API server nothing.
    async fn dry_run(&self, target: &ProvisionTarget, plan: &ProvisionPlan) -> Option<ExportError> {
        if self.content.moved().is_some() || target.backend.has_pending(&self.volume) {
            return None;
        }
        let checked = target.export.dry_run(&plan.directory).await;
        checked.err().filter(ExportError::definite_refusal)
    }

    /// Requeues the archive that is restored: it reports the progress, and is deleted once it was moved, or once it has
    /// expired and is no longer being copied.
    pub(crate) fn requeue_archive(&self) {
        if let Some(source) = self.content.archive() {
            self.ctx.requeue_archive(ObjectRef::new(&source.archive.volume));
        }
    }

    /// Writes the placement annotation, before anything is created on the backend. Returns the outcome if the claim is
    /// deleted.
    pub(crate) async fn set_placed_on(&self, backend: &Backend) -> Result<Option<ProvisionOutcome>, WriteError> {
        self.placed.store(true, Ordering::Relaxed);
        let Err(error) = set_placed_on(self.ctx, self.claim, &backend.name).await else {
            return Ok(None);
        };
        match error {
            WriteError::NotFound | WriteError::Replaced => Ok(Some(ProvisionOutcome::ClaimDeleted)),
            error => Err(error),
        }
    }

    /// Ends the attempt without a backend.
    async fn no_backend(
        &self,
        refusals: &Refusals,
        condition: PlannedCondition,
        capacity: Option<CapacityDemand>,
        other_node_possible: bool,
    ) -> Result<ProvisionOutcome, WriteError> {
        if refusals.conditions.is_empty() {
            return self
                .wait_or_release_node(condition, capacity, other_node_possible)
                .await;
        }
        // Every backend that was tried refused, and nothing was created there.
        clear_placed_on(self.ctx, self.claim).await?;
        let is_exhausted = |(_, refusal): &(String, PlannedCondition)| refusal.reason == Reason::GroupsExhausted;
        if refusals.conditions.iter().all(is_exhausted) {
            // Other claims got the last groups meanwhile. A group that becomes free wakes the claim.
            return self
                .wait_or_release_node(condition, capacity, other_node_possible)
                .await;
        }
        let placed = self.placed.load(Ordering::Relaxed) || self.claim.annotations().contains_key(PLACED_ON);
        if other_node_possible && (placed || refusals.any_temporary) {
            return self
                .wait_or_release_node(condition, capacity, other_node_possible)
                .await;
        }
        Ok(if refusals.any_temporary {
            ProvisionOutcome::Failed(condition)
        } else {
            ProvisionOutcome::Infeasible(condition)
        })
    }

    /// Waits for a backend. If one could serve the claim on another node, the selected node is released after a pause,
    /// unless provisioning has started on a backend: then the claim stays there until the outcome is known.
    async fn wait_or_release_node(
        &self,
        condition: PlannedCondition,
        capacity: Option<CapacityDemand>,
        other_node_possible: bool,
    ) -> Result<ProvisionOutcome, WriteError> {
        match &self.request.node {
            Some(node) if other_node_possible && pending_backend(self.ctx, &self.volume).is_none() => {
                release_node(self.ctx, self.claim, node, condition).await
            }
            node => {
                let blockers = Blockers {
                    capacity,
                    node: node.clone(),
                    ..Blockers::default()
                };
                Ok(ProvisionOutcome::Waiting(condition, Box::new(blockers)))
            }
        }
    }

    /// Rolls back what was created on a backend that no longer accepts the claim (suspended, over its limit). Returns
    /// true if nothing is left there, so that another backend may be tried.
    async fn leave_backend(&self) -> bool {
        let Some(backend) = pending_backend(self.ctx, &self.volume) else {
            return false;
        };
        let Some(export) = backend.last_probe().store.clone() else {
            return false;
        };
        let uid = self.claim.uid().unwrap_or_default();
        roll_back(self.ctx, &backend, &export, &self.volume, &uid)
            .await
            .unwrap_or(false)
    }

    /// Ends the attempt because the volume cannot be created.
    pub(crate) async fn roll_back_and_fail(
        &self,
        target: &ProvisionTarget,
        reason: Reason,
        message: &str,
    ) -> ProvisionOutcome {
        let uid = self.claim.uid().unwrap_or_default();
        if let Err(error) = roll_back(self.ctx, &target.backend, &target.export, &self.volume, &uid).await {
            let reason = Reason::ProvisioningCleanupFailed;
            let note = format!("failed to remove the directory of volume {}: {error}", self.volume);
            report::event(self.ctx, self.claim, Severity::Warning, reason, &note);
        }
        ProvisionOutcome::Failed(PlannedCondition::fails(reason, message))
    }

    /// Returns the outcome of a failed call on the export for the claim.
    fn export_failed(&self, backend: &Backend, error: &ExportError) -> BackendOutcome {
        let reason = Reason::from(error.kind());
        if reason.is_backend_wide() {
            self.ctx.request_probe(&backend.name);
        }
        if error.definite_refusal() && !error.outcome_unknown() {
            backend.remove_pending(&self.volume);
            // Placement adds the backend's name to each refusal.
            return refused(PlannedCondition::fails(reason, error.to_string()), false);
        }
        // An earlier attempt may have created something there, so its capacity stays reserved.
        BackendOutcome::Ended(unresolved(backend, error))
    }
}

/// Returns the outcome of a failed call on the export of a backend that may have something of the claim.
pub(super) fn unresolved(backend: &Backend, error: &ExportError) -> ProvisionOutcome {
    let reason = Reason::from(error.kind());
    let condition = PlannedCondition::fails(reason, format!("backend {}: {error}", backend.name));
    if error.outcome_unknown() {
        ProvisionOutcome::Unknown(condition)
    } else if reason.is_connectivity() {
        ProvisionOutcome::Unanswered(condition)
    } else {
        ProvisionOutcome::Failed(condition)
    }
}

/// Returns the outcome for a backend that refuses the claim before anything was created there.
fn refused(condition: PlannedCondition, permanent: bool) -> BackendOutcome {
    BackendOutcome::Refused { condition, permanent }
}
