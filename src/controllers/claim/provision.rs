//! From a claim to its volume: placement → annotation → record → directory → volume.
//!
//! Every step may be the last one of this process; run again, the claim ends with one directory and one volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::guard::Request;
use super::overrides::{Wanted, wanted};
use super::place::{self, Placed};
use super::report::{self, Outcome};
use super::volume::{self, Parts};
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::{PLACED_ON, managers, volume_name};
use crate::controllers::volume::cache;
use crate::export::{ClaimRef, DirectoryRequest, ExportError, ManagedExport, ProvisionedDirectory};
use crate::naming::{Pattern, PatternValues};
use crate::operator::backends::{Backend, Known};
use crate::operator::context::Context;
use crate::operator::events::Severity;
use crate::operator::writes::{self, WriteError};

/// The longest name that servers take, in bytes; one that takes fewer refuses, and the claim says so.
const NAME_MAX: usize = 255;

/// How an attempt on one backend ended.
enum Attempt {
    /// The backend refused, and nothing was made there: another may be tried.
    Refused(Verdict),
    /// Anything else.
    Ended(Outcome),
}

/// A claim on its way.
struct Journey<'a> {
    ctx: &'a Arc<Context>,
    claim: &'a PersistentVolumeClaim,
    request: &'a Request,
    namespace_uid: String,
    volume: String,
}

/// Provisions a claim.
pub async fn provision(
    ctx: &Arc<Context>,
    claim: &PersistentVolumeClaim,
    request: &Request,
) -> Result<Outcome, WriteError> {
    let name = claim.namespace().unwrap_or_default();
    let Some(namespace) = ctx.namespace(&name) else {
        return Ok(Outcome::Unknown(Verdict::no(
            Reason::Provisioning,
            format!("namespace {name} is not known yet"),
        )));
    };
    let journey = Journey {
        ctx,
        claim,
        request,
        namespace_uid: namespace.metadata.uid.clone().unwrap_or_default(),
        volume: volume_name(&claim.uid().unwrap_or_default()),
    };
    if ctx.inventory.is_saved(&journey.volume) {
        return Ok(Outcome::Nothing);
    }
    let mut refused = Vec::new();
    loop {
        let backend = match place::place(ctx, claim, request, &namespace, &refused) {
            Placed::On(backend) => backend,
            Placed::Nowhere(verdict) => {
                journey.unmark(!refused.is_empty()).await?;
                return Ok(Outcome::Waiting(verdict));
            }
            Placed::Infeasible(verdict) => return Ok(Outcome::Infeasible(verdict)),
        };
        match journey.attempt(&backend).await? {
            Attempt::Refused(verdict) => refused.push((backend.name.clone(), verdict)),
            Attempt::Ended(outcome) => return Ok(outcome),
        }
    }
}

impl Journey<'_> {
    /// Tries one backend.
    async fn attempt(&self, backend: &Arc<Backend>) -> Result<Attempt, WriteError> {
        let known = backend.known();
        let (Some(export), Some(identity)) = (known.export.clone(), known.identity.clone()) else {
            self.ctx.inventory.release(&self.volume);
            return Ok(Attempt::Refused(known.ready.clone()));
        };
        let Some(_slot) = backend.enter(&ObjectRef::from_obj(self.claim), &self.ctx.waiting) else {
            self.ctx.inventory.release(&self.volume);
            return Ok(Attempt::Ended(Outcome::Queued));
        };
        let planned = wanted(&known.object.spec, &self.request.parameters, self.claim.annotations())
            .and_then(|wanted| Ok((self.directory_request(&known, &wanted)?, wanted)));
        let (request, wanted) = match planned {
            Ok(planned) => planned,
            Err(verdict) => {
                self.ctx.inventory.release(&self.volume);
                return Ok(Attempt::Ended(Outcome::Infeasible(verdict)));
            }
        };
        let Some(_active) = backend.begin(&self.volume, &request.claim) else {
            return Ok(Attempt::Ended(Outcome::Queued));
        };
        if let Err(error) = self.mark(&backend.name).await {
            self.ctx.inventory.release(&self.volume);
            return if matches!(error, WriteError::Gone) {
                Ok(Attempt::Ended(Outcome::Gone))
            } else {
                Err(error)
            };
        }
        match export.provision(&request).await {
            Ok(directory) => {
                let outcome = self.save(&known, &export, &identity.id, &wanted, &directory).await;
                if matches!(outcome, Outcome::Provisioned { .. }) {
                    backend.settled(&self.volume);
                }
                Ok(Attempt::Ended(outcome))
            }
            Err(error) => Ok(self.refusal(backend, &error)),
        }
    }

    /// What the directory is to be.
    fn directory_request(&self, known: &Known, wanted: &Wanted) -> Result<DirectoryRequest, Verdict> {
        let settings = &known.object.spec.directory;
        let text = self.request.parameters.pattern.as_deref().unwrap_or(&settings.pattern);
        let invalid =
            |error: &dyn std::fmt::Display| Verdict::no(Reason::InvalidDirectoryName, format!("{text:?}: {error}"));
        let pattern = Pattern::parse(text).map_err(|error| invalid(&error))?;
        let claim_name = self.claim.name_any();
        let namespace = self.claim.namespace().unwrap_or_default();
        let claim_uid = self.claim.uid().unwrap_or_default();
        let directory = pattern
            .expand(&PatternValues {
                namespace: &namespace,
                claim: &claim_name,
                claim_uid: &claim_uid,
                volume: &self.volume,
                labels: self.claim.labels(),
                annotations: self.claim.annotations(),
            })
            .and_then(|directory| directory.fit(NAME_MAX))
            .map_err(|error| invalid(&error))?;
        Ok(DirectoryRequest {
            claim: ClaimRef {
                namespace,
                namespace_uid: self.namespace_uid.clone(),
                name: claim_name,
                uid: claim_uid,
            },
            volume: self.volume.clone(),
            directory,
            mode: wanted.mode,
            mode_asked: wanted.mode_asked,
            uid: wanted.uid,
            gid: wanted.gid,
            existing: self.request.parameters.existing.unwrap_or(settings.existing),
            adoptable: !pattern.uses_tenant_values(),
        })
    }

    /// Writes down where the claim is placed, before anything is made there.
    async fn mark(&self, backend: &str) -> Result<(), WriteError> {
        if self
            .claim
            .annotations()
            .get(PLACED_ON)
            .is_some_and(|placed| placed == backend)
        {
            return Ok(());
        }
        report::event(
            self.ctx,
            self.claim,
            Severity::Normal,
            Reason::Provisioning,
            &format!("provisioning volume {} on backend {backend}", self.volume),
        );
        let fields = json!({"metadata": {"annotations": {PLACED_ON: backend}}});
        writes::apply(
            &self.claims(),
            self.claim,
            managers::PLACEMENT,
            fields,
            false,
            "note the claim's placement",
        )
        .await
    }

    /// Takes the placement back: the backend refused, and nothing was made there.
    async fn unmark(&self, refused: bool) -> Result<(), WriteError> {
        if !refused {
            return Ok(());
        }
        match writes::apply(
            &self.claims(),
            self.claim,
            managers::PLACEMENT,
            json!({}),
            false,
            "take back the placement",
        )
        .await
        {
            Err(WriteError::Gone) => Ok(()),
            written => written,
        }
    }

    /// Creates the volume. Its directory is there.
    async fn save(
        &self,
        known: &Known,
        export: &ManagedExport,
        export_id: &str,
        wanted: &Wanted,
        directory: &ProvisionedDirectory,
    ) -> Outcome {
        let object = volume::volume(&Parts {
            claim: self.claim,
            namespace_uid: &self.namespace_uid,
            request: self.request,
            wanted,
            backend: &known.object,
            export_id,
            protocol: export.nfs().negotiated().protocol,
            directory,
        });
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let saved = match api.create(&PostParams::default(), &object).await {
            Ok(saved) => Ok(saved),
            // 409 is a question: is it ours?
            Err(error) if writes::http_status(&error) == Some(409) => match api.get(&self.volume).await {
                Ok(there) if volume::is_for(&there, self.claim, &self.request.provisioner) => Ok(there),
                Ok(_) => Err(self
                    .withdraw(
                        export,
                        Reason::VolumeNameTaken,
                        "a volume of this name belongs to another claim",
                    )
                    .await),
                Err(error) => Err(unknown(&error)),
            },
            Err(error) if refused_for_good(&error) => Err(self
                .withdraw(
                    export,
                    Reason::VolumeRefused,
                    &format!("the API server refuses the volume: {error}"),
                )
                .await),
            Err(error) => Err(unknown(&error)),
        };
        match saved {
            Ok(saved) => {
                cache::saved(&saved, &self.ctx.settings, &self.ctx.inventory, &self.ctx.ledger);
                if let Some(mode) = directory.mode_not_kept {
                    let note = format!(
                        "the server made the directory with mode {mode:04o} instead of {:04o}",
                        wanted.mode
                    );
                    report::event(self.ctx, self.claim, Severity::Warning, Reason::ModeNotKept, &note);
                }
                let message = located(&self.volume, known, directory);
                Outcome::Provisioned {
                    verdict: Verdict::yes(Reason::Provisioned, message),
                    now: true,
                }
            }
            Err(outcome) => outcome,
        }
    }

    /// Removes what was made for a volume that will not be: by rmdir only, and never where a volume names the path.
    async fn withdraw(&self, export: &ManagedExport, reason: Reason, message: &str) -> Outcome {
        match export.undo(&self.volume, &self.claim.uid().unwrap_or_default()).await {
            Ok(_) => self.ctx.inventory.release(&self.volume),
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
        Outcome::Failed(Verdict::no(reason, message))
    }

    /// What a refusal of the export means for the claim.
    fn refusal(&self, backend: &Backend, error: &ExportError) -> Attempt {
        let verdict = Verdict::no(error.reason(), format!("backend {}: {error}", backend.name));
        if error.outcome_unknown() {
            self.ctx.doubt(&backend.name);
            return Attempt::Ended(Outcome::Unknown(verdict));
        }
        self.ctx.inventory.release(&self.volume);
        if error.definite_refusal() {
            backend.settled(&self.volume);
            self.ctx.doubt(&backend.name);
            return Attempt::Refused(verdict);
        }
        Attempt::Ended(Outcome::Failed(verdict))
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(
            self.ctx.clients.calls.clone(),
            &self.claim.namespace().unwrap_or_default(),
        )
    }
}

fn located(volume: &str, known: &Known, directory: &ProvisionedDirectory) -> String {
    let spec = &known.object.spec;
    let path = volume::absolute(&spec.path, &directory.directory.to_string());
    format!(
        "volume {volume} is {}:{path} on backend {}",
        spec.server,
        known.object.name_any()
    )
}

fn unknown(error: &kube::Error) -> Outcome {
    Outcome::Unknown(Verdict::no(
        Reason::OutcomeUnknown,
        format!("the volume may or may not have been saved: {error}"),
    ))
}

/// Validation, RBAC, a request that no repetition cures; never a timeout, throttling or a fault of the server.
fn refused_for_good(error: &kube::Error) -> bool {
    writes::http_status(error).is_some_and(|code| (400..500).contains(&code) && !matches!(code, 408 | 409 | 429))
}
