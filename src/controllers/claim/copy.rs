//! A claim that asks for a copy of another claim's or an archive's data: where that is, the copy in the background, and its
//! end.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::plan::Planned;
use super::provision::{BackendOutcome, ProvisionAttempt};
use super::report::Outcome;
use super::restore::ArchiveSource;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::placement::quantity::bytes;
use crate::runtime::writes::WriteError;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::claim_source;
use crate::state::context::Context;
use crate::state::copy_jobs::{CopyLabels, CopyResult};
use export_store::text::format_bytes;
use export_store::{CopyError, CopySource, DirectoryRequest, ExportStore, RollbackOutcome, copy_volume};

/// What a claim is to be a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// A claim of the same namespace.
    Claim(String),
    /// An archive that the claim may have.
    Archive(ArchiveSource),
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "claim {name}"),
            Self::Archive(origin) => origin.fmt(f),
        }
    }
}

/// Where the data is that a claim asks for a copy of.
struct Source {
    export: Arc<ExportStore>,
    original: CopySource,
}

/// What a claim is told while its copy is being made; none when nothing of it is under way.
pub(crate) fn under_way(ctx: &Context, claim: &PersistentVolumeClaim, source: &DataSource) -> Option<PlannedCondition> {
    let progress = ctx.copy_jobs.progress(&claim.uid().unwrap_or_default());
    progress.condition(source)
}

/// Ends the copy of a claim that may not have it any more, and takes back what there is of it. Whatever may be in use
/// stays: a directory that has its volume, one that was moved, one whose backend can't be asked.
pub(crate) async fn abandon(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), WriteError> {
    let uid = claim.uid().unwrap_or_default();
    ctx.copy_jobs.end(&uid).await;
    let backends = ctx.backends.all();
    let Some(backend) = backends.iter().find(|backend| backend.is_open(volume)) else {
        return Ok(());
    };
    let Some(export) = backend.known().export.clone() else {
        return Ok(());
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let saved = volumes
        .get_metadata_opt(volume)
        .await
        .map_err(WriteError::of("look whether the claim has its volume"))?;
    if saved.is_some() || backend.is_move(volume) || backend.is_worked_on(volume) {
        return Ok(());
    }
    match export.rollback(volume, &uid).await {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
            backend.settled(volume);
            ctx.capacity.release(volume);
            backend.trash.notify_one();
        }
        Ok(RollbackOutcome::NotEmpty) => {}
        Err(error) => tracing::warn!(
            backend = backend.name,
            volume,
            "what was copied for a claim that may not have it stays: {error}"
        ),
    }
    Ok(())
}

/// Whether a volume is no larger than what is asked for. Pure.
fn fits(volume: &PersistentVolume, name: &str, asked: u128) -> Result<(), PlannedCondition> {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let size = capacity
        .and_then(|capacity| bytes(&capacity.get("storage")?.0))
        .unwrap_or_default();
    if size <= asked {
        return Ok(());
    }
    Err(claim_source::unsuitable(
        name,
        &format!(
            "it has {}, and this claim asks for {}: ask for at least as much",
            format_bytes(size),
            format_bytes(asked)
        ),
    ))
}

impl ProvisionAttempt<'_> {
    /// Takes the end of the copy and saves the volume, or begins the copy.
    pub(crate) async fn copy(
        &self,
        backend: &Arc<Backend>,
        known: &Arc<ProbeSnapshot>,
        (request, wanted, affinity): Planned,
        (source, again): (&DataSource, bool),
    ) -> Result<BackendOutcome, WriteError> {
        let Some(export) = known.export.clone() else {
            return Ok(BackendOutcome::Ended(Outcome::Waiting(known.ready.clone())));
        };
        let uid = self.claim.uid().unwrap_or_default();
        let ended = self.ctx.copy_jobs.take(&uid);
        if ended.is_some() {
            self.requeue_archive();
        }
        match ended {
            Some((Ok(CopyResult::Directory(directory)), tally)) => {
                let Some(_active) = backend.begin(&self.volume, &request.claim) else {
                    return Ok(BackendOutcome::Ended(Outcome::Queued));
                };
                let mut outcome = self.save(known, &export, &wanted, affinity, &directory).await;
                if let Outcome::Provisioned { verdict, now: true } = &mut outcome {
                    backend.settled(&self.volume);
                    verdict.message = format!("{}, a copy of {source} ({tally})", verdict.message);
                }
                // The staging folder is in the trash.
                backend.trash.notify_one();
                Ok(BackendOutcome::Ended(outcome))
            }
            Some((Err(error), _)) => Ok(self.not_copied(backend, &export, &error).await),
            // Nothing else is made for a claim.
            Some((Ok(CopyResult::Archive), _)) | None => {
                let found = match source {
                    DataSource::Claim(name) => self.claimed_source(name).await?,
                    DataSource::Archive(origin) => self.archived_source(origin),
                };
                let found = match found {
                    Ok(found) => found,
                    Err(outcome) => {
                        // Of a copy that was begun by a former life something may be there: its room stays promised.
                        if !backend.is_open(&self.volume) {
                            self.ctx.capacity.release(&self.volume);
                        }
                        return Ok(BackendOutcome::Ended(outcome));
                    }
                };
                if let Some(gone) = self.set_placed_on(backend, again).await? {
                    return Ok(BackendOutcome::Ended(gone));
                }
                self.begin_copy(backend, export, request, found);
                let verdict = under_way(self.ctx, self.claim, source);
                Ok(BackendOutcome::Ended(verdict.map_or(Outcome::Queued, Outcome::Copying)))
            }
        }
    }

    fn begin_copy(&self, backend: &Arc<Backend>, export: Arc<ExportStore>, request: DirectoryRequest, from: Source) {
        let of = CopyLabels {
            uid: request.claim.uid.clone(),
            namespace: request.claim.namespace.clone(),
            claim: request.claim.name.clone(),
            archive: String::new(),
        };
        let (backend, volume) = (Arc::clone(backend), self.volume.clone());
        let (waiting, claim) = (Arc::clone(&self.ctx.waiting_claims), ObjectRef::from_obj(self.claim));
        self.ctx.copy_jobs.begin(
            of,
            |budget, tally| async move {
                // The sweep keeps its hands off as long as this is held.
                let Some(_active) = backend.begin(&volume, &request.claim) else {
                    return Err(CopyError::ExportChanged);
                };
                let copied = copy_volume((&from.export, &from.original), (&export, &request), &budget, &tally);
                copied.await.map(CopyResult::Directory)
            },
            move || waiting.wake(claim),
        );
    }

    /// Where the data of that claim is: claim and volume read live, and all that the volume says of itself compared.
    async fn claimed_source(&self, name: &str) -> Result<Result<Source, Outcome>, WriteError> {
        let namespace = self.claim.namespace().unwrap_or_default();
        let (claim, volume) = match claim_source::read_bound_claim(self.ctx, &namespace, name).await? {
            Ok(bound) => bound,
            Err(verdict) => return Ok(Err(Outcome::Copying(verdict))),
        };
        let suitable = claim_source::check_ownership(&volume, &claim, &self.ctx.settings.provisioners());
        if let Err(verdict) = suitable.and_then(|()| fits(&volume, name, self.request.bytes)) {
            return Ok(Err(Outcome::Infeasible(verdict)));
        }
        let located = claim_source::locate(self.ctx, name, &volume);
        Ok(located.map_err(Outcome::Copying).map(|located| Source {
            export: located.export,
            original: CopySource::Volume(located.request),
        }))
    }

    /// Where an archive is that this claim may have: what the record says of it is compared when it is opened.
    fn archived_source(&self, origin: &ArchiveSource) -> Result<Source, Outcome> {
        let not_ready = |why: String| {
            let message = format!("{origin} to copy lies on backend {}: {why}", origin.backend);
            Outcome::Copying(PlannedCondition::fails(Reason::CopySourceNotReady, message))
        };
        let Some(backend) = self.ctx.backends.get(&origin.backend) else {
            return Err(not_ready("it does not exist or is not probed yet".into()));
        };
        let known = backend.known();
        let Some(export) = known.export.clone() else {
            return Err(not_ready(known.ready.message.clone()));
        };
        if known.identity.as_ref().map(|identity| &identity.id) != Some(&origin.export_id) {
            return Err(not_ready("it is on another export than the archive".into()));
        }
        let original = CopySource::Archive(origin.which.clone());
        Ok(Source { export, original })
    }

    /// A copy that came to nothing: what there is of it is taken back where another backend may do better.
    async fn not_copied(&self, backend: &Backend, export: &ExportStore, error: &CopyError) -> BackendOutcome {
        let reason = Reason::from(error.kind());
        if reason.is_backend_wide() {
            self.ctx.request_probe(&backend.name);
        }
        let verdict = PlannedCondition::fails(reason, format!("backend {}: {error}", backend.name));
        if !error.is_of_the_target() {
            return BackendOutcome::Ended(if reason.is_connectivity() {
                Outcome::Waiting(verdict)
            } else {
                Outcome::Failed(verdict)
            });
        }
        let uid = self.claim.uid().unwrap_or_default();
        match export.rollback(&self.volume, &uid).await {
            Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
                self.ctx.capacity.release(&self.volume);
                backend.settled(&self.volume);
                backend.trash.notify_one();
                BackendOutcome::Refused {
                    verdict: PlannedCondition::fails(reason, error.to_string()),
                    lasting: false,
                }
            }
            _ => BackendOutcome::Ended(Outcome::Failed(verdict)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_volume_that_is_no_larger_is_copied_to_a_claim() {
        let volume = json!({"metadata": {"name": "pvc-u1"}, "spec": {"capacity": {"storage": "1Gi"}}});
        let volume = serde_json::from_value(volume).unwrap();
        let told = |asked: u128| fits(&volume, "old", asked).map_err(|verdict| verdict.reason);
        assert_eq!(told(1 << 30), Ok(()));
        assert_eq!(told((1 << 30) - 1), Err(Reason::CopySourceUnsuitable));
    }
}
