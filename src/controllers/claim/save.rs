//! The last step of a claim: its directory is there, and the volume object is created.

use k8s_openapi::api::core::v1::{PersistentVolume, VolumeNodeAffinity};
use kube::Api;
use kube::api::PostParams;

use super::overrides::VolumeSettings;
use super::provision::ProvisionAttempt;
use super::report::{self, Outcome};
use super::volume::{self, Parts, located};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::events::Severity;
use crate::runtime::writes;
use crate::state::backends::ProbeSnapshot;
use crate::state::volume_indexer::index_volume;
use crate::state::volume_metadata::volume_metadata;
use export_store::naming::DirectoryPath;
use export_store::{ExportStore, ProvisionedDirectory, VolumeMetadata};

impl ProvisionAttempt<'_> {
    /// The volume as it is to be.
    fn object(
        &self,
        known: &ProbeSnapshot,
        export: &ExportStore,
        wanted: &VolumeSettings,
        node_affinity: Option<VolumeNodeAffinity>,
        directory: &ProvisionedDirectory,
    ) -> PersistentVolume {
        let negotiated = export.nfs().negotiated();
        volume::volume(&Parts {
            claim: self.claim,
            namespace_uid: &self.namespace_uid,
            request: self.request,
            wanted,
            backend: &known.object,
            // No export is handed out before its identity was read.
            export_id: known.identity.as_ref().map_or("", |identity| &identity.id),
            protocol: negotiated.protocol,
            peer: negotiated.peer,
            node_affinity,
            directory,
        })
    }

    /// What the record is to say of the volume, before there is a directory.
    pub(crate) fn note(
        &self,
        known: &ProbeSnapshot,
        export: &ExportStore,
        wanted: &VolumeSettings,
        node_affinity: Option<VolumeNodeAffinity>,
        directory: &DirectoryPath,
    ) -> Option<VolumeMetadata> {
        // Neither is in the note.
        let directory = ProvisionedDirectory {
            directory: directory.clone(),
            file_id: 0,
            adopted: false,
            mode_not_kept: None,
        };
        let object = self.object(known, export, wanted, node_affinity, &directory);
        volume_metadata(&object, &self.ctx.cluster_uid())
    }

    /// Creates the volume.
    pub(crate) async fn save(
        &self,
        known: &ProbeSnapshot,
        export: &ExportStore,
        wanted: &VolumeSettings,
        node_affinity: Option<VolumeNodeAffinity>,
        directory: &ProvisionedDirectory,
    ) -> Outcome {
        let object = self.object(known, export, wanted, node_affinity, directory);
        let saved = match self.create(export, &object).await {
            Ok(saved) => saved,
            Err(outcome) => return outcome,
        };
        index_volume(
            &saved,
            &self.ctx.settings,
            &self.ctx.capacity,
            &self.ctx.path_reservations,
        );
        if !volume::is_of_this_operator(&saved) {
            // An nfs-subdir that still runs under the same name was faster. What was begun here stays open: the sweep
            // takes it back where the volume names another directory.
            return Outcome::Provisioned {
                verdict: PlannedCondition::holds(Reason::Provisioned, located(&saved)),
                now: false,
            };
        }
        for note in &self.request.parameters.ignored {
            let note = format!("{note}: it is ignored");
            report::event(self.ctx, self.claim, Severity::Warning, Reason::ParameterIgnored, &note);
        }
        if let Some(mode) = directory.mode_not_kept {
            let note = format!(
                "the server made the directory with mode {mode:04o} instead of {:04o}",
                wanted.mode
            );
            report::event(self.ctx, self.claim, Severity::Warning, Reason::ModeNotKept, &note);
        }
        Outcome::Provisioned {
            verdict: PlannedCondition::holds(Reason::Provisioned, located(&saved)),
            now: true,
        }
    }

    /// Creates the object, or finds that it is there and ours: 409 is a question, not a success.
    async fn create(&self, export: &ExportStore, object: &PersistentVolume) -> Result<PersistentVolume, Outcome> {
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let error = match api.create(&PostParams::default(), object).await {
            Ok(saved) => return Ok(saved),
            Err(error) => error,
        };
        if writes::http_status(&error) == Some(409) {
            return match api.get(&self.volume).await {
                Ok(there) if volume::is_for(&there, self.claim, &self.request.provisioner) => Ok(there),
                Ok(_) => {
                    let message = format!(
                        "volume {} is there and belongs to another claim: remove it",
                        self.volume
                    );
                    Err(self.withdraw(export, Reason::VolumeNameTaken, &message).await)
                }
                Err(error) => Err(unknown(&error)),
            };
        }
        if refused_for_good(&error) {
            let message = format!("the API server refuses the volume: {error}");
            return Err(self.withdraw(export, Reason::VolumeRefused, &message).await);
        }
        Err(unknown(&error))
    }
}

fn unknown(error: &kube::Error) -> Outcome {
    let message = format!("the volume may or may not have been saved: {error}");
    Outcome::Unknown(PlannedCondition::fails(Reason::OutcomeUnknown, message))
}

/// Validation, RBAC, a request that no repetition cures; never a timeout, throttling or a fault of the server.
fn refused_for_good(error: &kube::Error) -> bool {
    writes::http_status(error).is_some_and(|code| (400..500).contains(&code) && !matches!(code, 408 | 409 | 429))
}
