//! From a claim to its volume: placement → annotation → record → directory → volume.
//!
//! Every step may be the last one of this process; run again, the claim ends with one directory and one volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::copy::{self, DataSource};
use super::guard::ClaimRequest;
use super::place::{self, PlacementResult};
use super::readoption;
use super::report::{self, Outcome};
use super::restore::{RestoreMode, origin};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, managers, volume_name};
use crate::runtime::concurrency_limiter::Priority;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ArchiveRef, DirectoryRequest, ExportError, ExportStore, RollbackOutcome};

/// How an attempt on one backend ended.
pub(crate) enum BackendOutcome {
    /// Nothing was made there, and another backend may be tried. `lasting`: until somebody changes something.
    Refused { verdict: PlannedCondition, lasting: bool },
    /// Anything else.
    Ended(Outcome),
}

/// The backends that refused the claim on this journey.
#[derive(Default)]
struct Refusals {
    verdicts: Vec<(String, PlannedCondition)>,
    passing: bool,
}

/// A claim on its way.
pub(crate) struct ProvisionAttempt<'a> {
    pub(crate) ctx: &'a Arc<Context>,
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) request: &'a ClaimRequest,
    pub(crate) namespace_uid: String,
    pub(crate) volume: String,
    /// The archive whose directory becomes the volume's.
    pub(crate) restore: Option<ArchiveRef>,
    /// What the volume is to be a copy of.
    pub(crate) copy_of: Option<DataSource>,
    /// Its placement was written down on this journey.
    marked: AtomicBool,
}

/// Provisions a claim.
pub async fn provision(
    ctx: &Arc<Context>,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
) -> Result<Outcome, WriteError> {
    let name = claim.namespace().unwrap_or_default();
    let Some(namespace) = ctx.namespace(&name) else {
        let verdict = PlannedCondition::fails(Reason::Provisioning, format!("namespace {name} is not known yet"));
        return Ok(Outcome::Unknown(verdict));
    };
    let volume = volume_name(&claim.uid().unwrap_or_default());
    if ctx.capacity.is_saved(&volume) {
        return Ok(Outcome::Nothing);
    }
    if let Some(verdict) = readoption::recovery_hold(ctx, claim, request, &namespace) {
        return Ok(Outcome::Waiting(verdict));
    }
    let mut request = request.clone();
    let (mut restore, mut copy_of) = (None, request.source.clone().map(DataSource::Claim));
    if let Some(archive) = request.restore.clone() {
        match origin(ctx, claim, &request, &archive).await? {
            Ok((origin, RestoreMode::Move)) => {
                request.parameters.backends = vec![origin.backend];
                restore = Some(origin.which);
            }
            Ok((origin, RestoreMode::Copy)) => copy_of = Some(DataSource::Archive(origin)),
            Err(verdict) => {
                copy::abandon(ctx, claim, &volume).await?;
                return Ok(Outcome::Infeasible(verdict));
            }
        }
    }
    let request = &request;
    let journey = ProvisionAttempt {
        ctx,
        claim,
        request,
        namespace_uid: namespace.metadata.uid.clone().unwrap_or_default(),
        volume,
        restore,
        copy_of,
        marked: AtomicBool::new(false),
    };
    // Whatever became of its backend meanwhile: the copy tells when it ended.
    if let Some(source) = &journey.copy_of
        && let Some(verdict) = copy::under_way(ctx, claim, source)
    {
        return Ok(Outcome::Copying(verdict));
    }
    let mut refusals = Refusals::default();
    loop {
        match place::place(ctx, claim, request, &namespace, &refusals.verdicts) {
            PlacementResult::On(backend) => match journey.attempt(&backend, !refusals.verdicts.is_empty()).await? {
                BackendOutcome::Refused { verdict, lasting } => {
                    refusals.passing |= !lasting;
                    refusals.verdicts.push((backend.name.clone(), verdict));
                }
                BackendOutcome::Ended(outcome) => return Ok(outcome),
            },
            PlacementResult::Nowhere {
                verdict,
                doubtful: true,
                ..
            } if refusals.verdicts.is_empty() => {
                return Ok(Outcome::Doubtful(verdict));
            }
            PlacementResult::Nowhere { .. } if journey.leave_backend().await => {}
            PlacementResult::Nowhere { verdict, elsewhere, .. } => {
                return journey.nowhere(&refusals, verdict, elsewhere).await;
            }
            PlacementResult::Infeasible(verdict) => return Ok(Outcome::Infeasible(verdict)),
        }
    }
}

impl ProvisionAttempt<'_> {
    /// Tries one backend. `again`: another refused just before, and the annotation may name that one.
    async fn attempt(&self, backend: &Arc<Backend>, again: bool) -> Result<BackendOutcome, WriteError> {
        let known = backend.known();
        let (Some(export), Some(_)) = (known.export.clone(), &known.identity) else {
            self.ctx.capacity.release(&self.volume);
            return Ok(BackendOutcome::Refused {
                verdict: known.ready.clone(),
                lasting: false,
            });
        };
        let coming = self.ctx.claim_retries.coming(&self.claim.uid().unwrap_or_default());
        let Some(_slot) = backend
            .claims
            .enter(&ObjectRef::from_obj(self.claim), coming, &self.ctx.waiting_claims)
        else {
            self.ctx.capacity.release(&self.volume);
            return Ok(BackendOutcome::Ended(Outcome::Queued));
        };
        let (request, wanted, affinity) = match self.plan(&known, &export) {
            Ok(planned) => planned,
            Err(verdict) => {
                self.ctx.capacity.release(&self.volume);
                return Ok(BackendOutcome::Refused { verdict, lasting: true });
            }
        };
        if let Some(source) = &self.copy_of {
            return Box::pin(self.copy(backend, &known, (request, wanted, affinity), (source, again))).await;
        }
        if coming == Priority::Retry
            && let Some(error) = self.foreseen(backend, &export, &request).await
        {
            return Ok(self.refusal(backend, &error));
        }
        let Some(_active) = backend.begin(&self.volume, &request.claim) else {
            return Ok(BackendOutcome::Ended(Outcome::Queued));
        };
        if self.restore.is_some() {
            backend.note_move(&self.volume);
        }
        if let Some(gone) = self.set_placed_on(backend, again).await? {
            return Ok(BackendOutcome::Ended(gone));
        }
        let made = export.provision(&request).await;
        self.requeue_archive();
        match made {
            Ok(directory) => {
                let outcome = self.save(&known, &export, &wanted, affinity, &directory).await;
                if matches!(outcome, Outcome::Provisioned { now: true, .. }) {
                    backend.settled(&self.volume);
                    self.requeue_archive();
                }
                Ok(BackendOutcome::Ended(outcome))
            }
            Err(error) => Ok(self.refusal(backend, &error)),
        }
    }

    /// What will refuse a claim that failed before once more, if that can be seen: then its placement is neither written down
    /// nor taken back. Thousands of failing claims cost the API server nothing.
    async fn foreseen(
        &self,
        backend: &Backend,
        export: &ExportStore,
        request: &DirectoryRequest,
    ) -> Option<ExportError> {
        if request.restore.is_some() || backend.is_open(&self.volume) {
            return None;
        }
        let looked = export.dry_run(request).await;
        looked.err().filter(ExportError::definite_refusal)
    }

    /// The archive that is restored says how far that is, and goes when the volume is there, or when nobody is copying it
    /// any more and its time is over.
    pub(crate) fn requeue_archive(&self) {
        let copied = self.copy_of.as_ref().and_then(DataSource::archive);
        if let Some(which) = self.restore.as_ref().or(copied) {
            self.ctx.requeue_archive(ObjectRef::new(&which.volume));
        }
    }

    /// Writes down where the claim is placed, before anything is made there. An outcome: the claim is gone.
    pub(crate) async fn set_placed_on(&self, backend: &Backend, again: bool) -> Result<Option<Outcome>, WriteError> {
        if !again && self.claim.annotations().get(PLACED_ON) == Some(&backend.name) {
            return Ok(None);
        }
        if report::condition(self.claim).is_none() && !again {
            let note = format!("provisioning volume {} on backend {}", self.volume, backend.name);
            report::event(self.ctx, self.claim, Severity::Normal, Reason::Provisioning, &note);
        }
        let fields = json!({"metadata": {"annotations": {PLACED_ON: backend.name}}});
        let (claims, action) = (self.claims(), "note the claim's placement");
        self.marked.store(true, Ordering::Relaxed);
        let noted = writes::apply(&claims, self.claim, managers::PLACEMENT, fields, false, action).await;
        let Err(error) = noted else { return Ok(None) };
        self.ctx.capacity.release(&self.volume);
        backend.settled(&self.volume);
        if matches!(error, WriteError::NotFound) {
            Ok(Some(Outcome::Gone))
        } else {
            Err(error)
        }
    }

    /// No backend takes the claim now.
    async fn nowhere(
        &self,
        refusals: &Refusals,
        verdict: PlannedCondition,
        elsewhere: bool,
    ) -> Result<Outcome, WriteError> {
        if refusals.verdicts.is_empty() {
            return self.wait_or_reschedule(verdict, elsewhere).await;
        }
        let marked = self.marked.load(Ordering::Relaxed) || self.claim.annotations().contains_key(PLACED_ON);
        if !marked && !refusals.passing {
            return Ok(Outcome::Infeasible(verdict));
        }
        if marked {
            self.clear_placed_on().await?;
        }
        if elsewhere {
            return self.wait_or_reschedule(verdict, elsewhere).await;
        }
        Ok(if refusals.passing {
            Outcome::Failed(verdict)
        } else {
            Outcome::Infeasible(verdict)
        })
    }

    /// Every backend that was tried refused, and nothing was made there: the placement is taken back.
    async fn clear_placed_on(&self) -> Result<(), WriteError> {
        let (claims, action) = (self.claims(), "take back the claim's placement");
        match writes::apply(&claims, self.claim, managers::PLACEMENT, json!({}), false, action).await {
            Err(WriteError::NotFound) => Ok(()),
            written => written,
        }
    }

    /// A backend on which the claim was begun and that will not have it any more (suspended, over its limit): what was
    /// begun is undone, if the export can be asked. True: nothing is left there, and the claim may go elsewhere.
    async fn leave_backend(&self) -> bool {
        let Some(backend) = self
            .ctx
            .backends
            .all()
            .into_iter()
            .find(|backend| backend.is_open(&self.volume))
        else {
            return false;
        };
        let Some(export) = backend.known().export.clone() else {
            return false;
        };
        let uid = self.claim.uid().unwrap_or_default();
        let undone = matches!(
            export.rollback(&self.volume, &uid).await,
            Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept)
        );
        if undone {
            backend.settled(&self.volume);
            self.ctx.capacity.release(&self.volume);
        }
        undone
    }

    /// Removes what was made for a volume that will not be: by rmdir only, and never where a volume names the path.
    pub(crate) async fn withdraw(&self, export: &ExportStore, reason: Reason, message: &str) -> Outcome {
        match export
            .rollback(&self.volume, &self.claim.uid().unwrap_or_default())
            .await
        {
            Ok(_) => self.ctx.capacity.release(&self.volume),
            Err(error) => {
                let note = format!("the directory made for {} could not be removed: {error}", self.volume);
                report::event(
                    self.ctx,
                    self.claim,
                    Severity::Warning,
                    Reason::ProvisioningCleanupFailed,
                    &note,
                );
            }
        }
        Outcome::Failed(PlannedCondition::fails(reason, message))
    }

    /// What a refusal of the export means for the claim.
    fn refusal(&self, backend: &Backend, error: &ExportError) -> BackendOutcome {
        let reason = Reason::from(error.kind());
        // Placement names the backend beside each refusal.
        let verdict = |text: String| PlannedCondition::fails(reason, text);
        let named = || verdict(format!("backend {}: {error}", backend.name));
        if reason.is_backend_wide() {
            self.ctx.request_probe(&backend.name);
        }
        if error.outcome_unknown() {
            return BackendOutcome::Ended(Outcome::Unknown(named()));
        }
        if error.definite_refusal() {
            self.ctx.capacity.release(&self.volume);
            backend.settled(&self.volume);
            return BackendOutcome::Refused {
                verdict: verdict(error.to_string()),
                lasting: false,
            };
        }
        // Something may have been made there by an earlier attempt: the room stays promised.
        BackendOutcome::Ended(if reason.is_connectivity() {
            Outcome::Waiting(named())
        } else {
            Outcome::Failed(named())
        })
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(
            self.ctx.clients.calls.clone(),
            &self.claim.namespace().unwrap_or_default(),
        )
    }
}
