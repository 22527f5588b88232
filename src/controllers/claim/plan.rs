//! Plan of the directory and the volume of a claim on a backend. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::directory::DirectoryChoice;
use super::eligibility::ClaimRequest;
use super::volume_object::{VolumeParts, volume_object};
use super::volume_settings::VolumeSettings;
use crate::api::backend::{AllowedNamespaces, Existing, QuotaSettings};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::volume_name;
use crate::decide::directory_pattern::PatternValues;
use crate::decide::topology;
use crate::state::backends::ProbeSnapshot;
use crate::state::volume_metadata::volume_metadata;
use export_store::{ArchiveRef, ClaimRef, DirectoryRequest, ProvisionedDirectory};
use nfs_client::Negotiated;

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Directory and volume to create for a claim on one backend.
pub(crate) struct ProvisionPlan {
    /// The directory, and the metadata of the volume for its record.
    pub(crate) directory: DirectoryRequest,
    /// The settings of directory and volume.
    pub(crate) settings: VolumeSettings,
    /// The nodes that can mount the volume.
    node_affinity: Option<VolumeNodeAffinity>,
}

/// Plans a claim's volume on one backend.
pub(crate) struct Planner<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// The complete metadata of the claim, which the cache may not have.
    pub(crate) metadata: &'a ObjectMeta,
    pub(crate) request: &'a ClaimRequest,
    pub(crate) namespace_uid: &'a str,
    /// The archive that is moved to become the volume's directory.
    pub(crate) restore: Option<&'a ArchiveRef>,
    /// True if the provisioner name of the claim's class is an alias.
    pub(crate) under_alias: bool,
    /// The UID of the kube-system namespace.
    pub(crate) cluster_uid: String,
    pub(crate) snapshot: &'a ProbeSnapshot,
    pub(crate) negotiated: Negotiated,
}

impl Planner<'_> {
    /// Plans the directory and the volume.
    ///
    /// # Errors
    /// The condition that explains why the claim cannot have a volume on this backend.
    pub(crate) fn plan(&self) -> Result<ProvisionPlan, PlannedCondition> {
        let backend = &self.snapshot.object.spec;
        let settings = VolumeSettings::of(backend, &self.request.parameters, self.annotations())?;
        if settings.existing == Existing::Share {
            self.refuse_source()?;
            self.refuse_required_limit()?;
        }
        let directory = self.directory(&settings)?;
        let node_affinity = topology::intersect(backend.node_affinity.as_ref(), &self.request.topologies)
            .map_err(|error| PlannedCondition::fails(Reason::TopologyMismatch, error.to_string()))?
            .map(Cow::into_owned);
        let mut plan = ProvisionPlan {
            directory,
            settings,
            node_affinity,
        };
        // The metadata does not depend on these values.
        let placeholder = ProvisionedDirectory {
            directory: plan.directory.directory.clone(),
            file_id: 0,
            adopted: false,
            shared: plan.settings.existing == Existing::Share,
            mode_not_kept: None,
            group: plan.settings.gid,
        };
        plan.directory.metadata = volume_metadata(&self.volume(&plan, &placeholder), &self.cluster_uid);
        Ok(plan)
    }

    /// Returns true if the only backend of a claim need not be written to the claim before its directory is created: the
    /// record on the export shows what an interrupted process began, and an empty directory that is not needed any more is
    /// removed. That is not enough for data, which the claim must not lose to an empty directory on another backend.
    /// Under an alias, only the annotation distinguishes an unreported volume from one of nfs-subdir.
    pub(crate) fn can_omit_placement(&self, plan: &ProvisionPlan) -> bool {
        self.restore.is_none() && plan.settings.existing == Existing::Refuse && !self.under_alias
    }

    /// Returns the volume object for a directory that was created by this plan.
    pub(crate) fn volume(&self, plan: &ProvisionPlan, directory: &ProvisionedDirectory) -> PersistentVolume {
        volume_object(&VolumeParts {
            claim: self.claim,
            namespace_uid: self.namespace_uid,
            request: self.request,
            settings: &plan.settings,
            backend: &self.snapshot.object,
            // Always set: an export is used only after its identity was read.
            export_id: self.snapshot.export_id().unwrap_or_default(),
            protocol: self.negotiated.protocol,
            peer: self.negotiated.peer,
            node_affinity: plan.node_affinity.clone(),
            directory,
        })
    }

    /// Refuses a claim with a data source: the content of a shared directory is not changed.
    fn refuse_source(&self) -> Result<(), PlannedCondition> {
        if self.request.source.is_none() && self.request.restore.is_none() {
            return Ok(());
        }
        Err(PlannedCondition::fails(
            Reason::DataSourceUnsupported,
            "its volume is a shared directory (existing: Share), whose content is not changed: recreate the claim without \
             spec.dataSource and spec.dataSourceRef, or with another StorageClass",
        ))
    }

    /// Refuses a shared directory on a backend on which every volume must have a limit in force.
    fn refuse_required_limit(&self) -> Result<(), PlannedCondition> {
        let quota = self.snapshot.object.spec.quota.as_ref();
        if !quota.is_some_and(QuotaSettings::is_required) {
            return Ok(());
        }
        Err(PlannedCondition::fails(
            Reason::SharedDirectoryUnlimited,
            "its volume is a shared directory (existing: Share), whose size is not limited, and its backend requires limits \
             (quota.enforce: Required): use another StorageClass",
        ))
    }

    fn annotations(&self) -> &BTreeMap<String, String> {
        self.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    fn directory(&self, settings: &VolumeSettings) -> Result<DirectoryRequest, PlannedCondition> {
        let backend = &self.snapshot.object.spec;
        let defaults = &backend.directory;
        let parameters = &self.request.parameters;
        let name = self.claim.name_any();
        let namespace = self.claim.namespace().unwrap_or_default();
        let uid = self.claim.uid().unwrap_or_default();
        let volume = volume_name(&uid);
        let values = PatternValues {
            namespace: &namespace,
            claim: &name,
            claim_uid: &uid,
            volume: &volume,
            labels: self.metadata.labels.as_ref().unwrap_or(&NONE),
            annotations: self.annotations(),
        };
        let chosen = DirectoryChoice::of(
            parameters.pattern.as_deref(),
            &defaults.pattern,
            self.under_alias,
            backend
                .allowed_namespaces
                .as_ref()
                .is_some_and(AllowedNamespaces::is_single),
            &values,
        )?;
        Ok(DirectoryRequest {
            claim: ClaimRef {
                namespace,
                namespace_uid: self.namespace_uid.to_owned(),
                name,
                uid,
            },
            volume,
            directory: chosen.directory,
            mode: settings.mode,
            mode_requested: settings.mode_requested,
            adopted_mode: settings.adopted_mode,
            uid: settings.uid,
            gid: settings.gid,
            gid_range: settings.gid_range,
            existing: settings.existing.into(),
            adoptable: match settings.existing {
                Existing::Share => chosen.shareable,
                Existing::Refuse | Existing::Adopt => chosen.adoptable,
            },
            restore: self.restore.cloned(),
            metadata: None,
        })
    }
}
