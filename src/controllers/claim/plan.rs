//! What is to be made for a claim on a backend: the directory, and the volume that it is for.

use k8s_openapi::api::core::v1::VolumeNodeAffinity;
use kube::ResourceExt;

use super::directory::Chosen;
use super::overrides::{VolumeSettings, wanted};
use super::provision::ProvisionAttempt;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::placement::topology;
use crate::state::backends::ProbeSnapshot;
use export_store::naming::PatternValues;
use export_store::{ClaimRef, DirectoryRequest, ExportStore};

/// The directory, what was asked for it, and the nodes that reach the volume.
pub(crate) type Planned = (DirectoryRequest, VolumeSettings, Option<VolumeNodeAffinity>);

impl ProvisionAttempt<'_> {
    /// What is to be made on a backend, and what its record is to say of the volume.
    pub(crate) fn plan(&self, known: &ProbeSnapshot, export: &ExportStore) -> Result<Planned, PlannedCondition> {
        let wanted = wanted(&known.object.spec, &self.request.parameters, self.claim.annotations())?;
        let request = self.directory_request(known, &wanted)?;
        let affinity = self.node_affinity(known)?;
        let note = self.note(known, export, &wanted, affinity.clone(), &request.directory);
        Ok((DirectoryRequest { note, ..request }, wanted, affinity))
    }

    /// The nodes that reach the volume.
    fn node_affinity(&self, known: &ProbeSnapshot) -> Result<Option<VolumeNodeAffinity>, PlannedCondition> {
        topology::common(known.object.spec.node_affinity.as_ref(), &self.request.topologies)
            .map_err(|error| PlannedCondition::fails(Reason::TopologyMismatch, error.to_string()))
    }

    /// What the directory is to be.
    fn directory_request(
        &self,
        known: &ProbeSnapshot,
        wanted: &VolumeSettings,
    ) -> Result<DirectoryRequest, PlannedCondition> {
        let settings = &known.object.spec.directory;
        let name = self.claim.name_any();
        let namespace = self.claim.namespace().unwrap_or_default();
        let uid = self.claim.uid().unwrap_or_default();
        let values = PatternValues {
            namespace: &namespace,
            claim: &name,
            claim_uid: &uid,
            volume: &self.volume,
            labels: self.claim.labels(),
            annotations: self.claim.annotations(),
        };
        let chosen = Chosen::of(
            self.request.parameters.pattern.as_deref(),
            &settings.pattern,
            self.ctx.settings.aliases.contains_key(&self.request.provisioner),
            &values,
        )?;
        Ok(DirectoryRequest {
            claim: ClaimRef {
                namespace,
                namespace_uid: self.namespace_uid.clone(),
                name,
                uid,
            },
            volume: self.volume.clone(),
            directory: chosen.directory,
            mode: wanted.mode,
            mode_asked: wanted.mode_asked,
            uid: wanted.uid,
            gid: wanted.gid,
            existing: self.request.parameters.existing.unwrap_or(settings.existing).into(),
            adoptable: chosen.adoptable,
            restore: self.restore.clone(),
            note: None,
        })
    }
}
