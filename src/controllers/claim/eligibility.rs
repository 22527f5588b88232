//! Eligibility of a claim for provisioning by this operator: now, later or never. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::cached_fields::{MAX_METADATA, is_oversized};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{
    BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, GROUP, SELECTED_NODE, SOURCE_SNAPSHOT, STORAGE_PROVISIONER,
};
use crate::api::parameters::ClassParameters;
use crate::decide::object_name::is_object_name;
use crate::decide::quantity::bytes;
use crate::decide::restore_source::RestoreSource;
use crate::state::context::Provisioners;
use export_store::naming::snapshot_name;
use export_store::text::format_amount;

/// The access modes of claims. The scheduler enforces `ReadWriteOncePod` by the claim, whatever the kind of its volume
/// (plugin `VolumeRestrictions`, Kubernetes 1.29 and later). The kubelet does not: to it, an in-tree NFS volume is another
/// one for each pod, as any volume that is neither attached nor staged (`GetUniqueVolumeNameFromSpecWithPod`).
const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// Eligibility of a claim.
#[derive(Debug)]
pub enum Eligibility {
    /// Ignore the claim: this operator is not responsible for it, or it must not be provisioned yet.
    Ignore,
    /// The claim has its volume, which has yet to be reported.
    Bound,
    /// The claim's volume was deleted, or bound to another claim.
    Lost,
    /// The claim cannot be provisioned until a user changes it or its class.
    Infeasible(PlannedCondition),
    /// Provision the claim.
    Provision(Box<ClaimRequest>),
}

/// Request of a claim.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The class's provisioner: one of the names that this operator serves.
    pub provisioner: String,
    /// The class's parameters.
    pub parameters: ClassParameters,
    /// The class's mount options.
    pub mount_options: Vec<String>,
    /// The class's reclaim policy.
    pub reclaim_policy: String,
    /// The claim of the same namespace that is copied to the volume.
    pub source: Option<String>,
    /// The snapshot of the server from which it is copied.
    pub snapshot: Option<String>,
    /// Requested size, in bytes.
    pub bytes: u128,
    /// The class's topologies; all nodes if empty.
    pub topologies: Vec<TopologySelectorTerm>,
    /// The archive to restore.
    pub restore: Option<RestoreSource>,
    /// The node that the scheduler selected. `None` if the class binds immediately: then no node is selected.
    pub node: Option<String>,
}

/// Returns the name of a claim's class. The older annotation takes precedence over the field.
pub fn class_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let annotated = claim.annotations().get(BETA_STORAGE_CLASS).cloned();
    annotated
        .or_else(|| claim.spec.as_ref()?.storage_class_name.clone())
        .filter(|name| !name.is_empty())
}

/// Returns the provisioner that the binder requests for this claim.
pub(super) fn requested_provisioner(claim: &PersistentVolumeClaim) -> Option<&String> {
    let annotations = claim.annotations();
    annotations
        .get(STORAGE_PROVISIONER)
        .or_else(|| annotations.get(BETA_STORAGE_PROVISIONER))
}

/// Returns true if another controller gives the claim its volume: a volume populator, such as one that uses
/// lib-volume-populator, or KubeVirt's CDI. It requests the volume with a claim of its own, fills it, and binds it to this
/// claim. The binder requests a volume from the class' provisioner nevertheless.
///
/// Snapshots are not left to a populator: the provisioner of the class has to restore them.
fn has_other_populator(claim: &PersistentVolumeClaim) -> bool {
    let source = claim.spec.as_ref().and_then(|spec| spec.data_source_ref.as_ref());
    source.is_some_and(|source| match source.api_group.as_deref() {
        None | Some("" | GROUP) => false,
        Some("snapshot.storage.k8s.io") => source.kind != "VolumeSnapshot",
        Some(_) => true,
    })
}

/// Checks whether a claim is to be provisioned.
///
/// The binder sets the provisioner annotation only after it has searched for an existing volume. The class alone is not
/// sufficient: it would take claims away from manually created volumes.
pub fn check_eligibility(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    served: &Provisioners,
) -> Eligibility {
    if !requested_provisioner(claim).is_some_and(|provisioner| served.serves(provisioner)) {
        return Eligibility::Ignore;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Eligibility::Ignore;
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
        return Eligibility::Lost;
    }
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Eligibility::Bound;
    }
    if has_other_populator(claim) {
        return Eligibility::Ignore;
    }
    let Some(class) = class else {
        let name = class_name(claim).unwrap_or_default();
        return Eligibility::Infeasible(PlannedCondition::fails(
            Reason::StorageClassNotFound,
            format!("StorageClass {name:?} does not exist: create it to have the claim provisioned"),
        ));
    };
    if !served.serves(&class.provisioner) {
        return Eligibility::Ignore;
    }
    let selected_node = claim
        .annotations()
        .get(SELECTED_NODE)
        .filter(|node| !node.is_empty())
        .cloned();
    let late_binding = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if late_binding && selected_node.is_none() {
        return Eligibility::Ignore;
    }
    let node = selected_node.filter(|_| late_binding);
    match claim_request(claim, class, node, served) {
        Ok(request) => Eligibility::Provision(Box::new(request)),
        Err(condition) => Eligibility::Infeasible(condition),
    }
}

fn claim_request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<String>,
    served: &Provisioners,
) -> Result<ClaimRequest, PlannedCondition> {
    check_supported(claim)?;
    let parameters = served.class_parameters(class).map_err(|error| {
        PlannedCondition::fails(
            Reason::InvalidParameter,
            format!("StorageClass {}: {error}", class.name_any()),
        )
    })?;
    let bytes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(|quantity| bytes(&quantity.0))
        .ok_or_else(|| {
            PlannedCondition::fails(
                Reason::LimitExceeded,
                "spec.resources.requests.storage is not an amount of storage",
            )
        })?;
    let source = source_claim(claim)?;
    Ok(ClaimRequest {
        snapshot: source_snapshot(claim, source.as_deref())?,
        source,
        provisioner: class.provisioner.clone(),
        parameters,
        mount_options: class.mount_options.clone().unwrap_or_default(),
        reclaim_policy: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
        bytes,
        restore: RestoreSource::of(claim),
        topologies: class.allowed_topologies.clone().unwrap_or_default(),
        node,
    })
}

/// Returns the condition of a claim with too many labels and annotations.
pub(super) fn oversized() -> PlannedCondition {
    PlannedCondition::fails(
        Reason::LimitExceeded,
        format!(
            "the labels and annotations of this claim have more than {} together: remove some",
            format_amount(MAX_METADATA as u128)
        ),
    )
}

/// Checks that a claim requests nothing that no backend supports.
fn check_supported(claim: &PersistentVolumeClaim) -> Result<(), PlannedCondition> {
    if is_oversized(&claim.metadata) {
        return Err(oversized());
    }
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(PlannedCondition::fails(
            Reason::BlockVolumeUnsupported,
            "NFS has no block devices: recreate the claim with spec.volumeMode Filesystem",
        ));
    }
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes.iter().find(|mode| !ACCESS_MODES.contains(&mode.as_str())) {
        return Err(PlannedCondition::fails(
            Reason::AccessModeUnsupported,
            format!(
                "access mode {mode} is not supported: recreate the claim with one of {}",
                ACCESS_MODES.join(", ")
            ),
        ));
    }
    if spec.selector.is_some() {
        return Err(PlannedCondition::fails(
            Reason::SelectorUnsupported,
            "a claim with spec.selector waits for an existing volume: recreate it without the selector to have one provisioned",
        ));
    }
    if spec
        .volume_attributes_class_name
        .as_deref()
        .is_some_and(|name| !name.is_empty())
    {
        return Err(PlannedCondition::fails(
            Reason::AttributesClassUnsupported,
            "VolumeAttributesClasses are not supported: recreate the claim without spec.volumeAttributesClassName",
        ));
    }
    Ok(())
}

/// Returns the claim to copy, if the data source is not an archive. If one of the two fields for it is set, the API
/// server fills in the other.
pub(super) fn source_claim(claim: &PersistentVolumeClaim) -> Result<Option<String>, PlannedCondition> {
    let spec = claim.spec.clone().unwrap_or_default();
    let unsupported = |what: &str| {
        PlannedCondition::fails(
            Reason::DataSourceUnsupported,
            format!(
                "{what}: the only supported sources are a claim of the same namespace (kind PersistentVolumeClaim), and a \
                 backup or an archive (kind NfsBackup or NfsArchive, apiGroup nfs-operator.io, without a namespace)"
            ),
        )
    };
    if let Some(archive) = RestoreSource::of(claim) {
        return if is_object_name(archive.name()) {
            Ok(None)
        } else {
            Err(unsupported("the data source's name is not a valid name of an archive"))
        };
    }
    let (kind, group, name, namespace) = match (spec.data_source_ref, spec.data_source) {
        (Some(source), _) => (source.kind, source.api_group, source.name, source.namespace),
        (None, Some(source)) => (source.kind, source.api_group, source.name, None),
        (None, None) => return Ok(None),
    };
    if kind != "PersistentVolumeClaim" || group.is_some_and(|group| !group.is_empty()) {
        return Err(unsupported(&format!("a data source of kind {kind} is not supported")));
    }
    if namespace.is_some() && namespace != claim.namespace() {
        return Err(unsupported("a data source in another namespace is not supported"));
    }
    if !is_object_name(&name) {
        return Err(unsupported("the data source's name is not a valid name of a claim"));
    }
    if name == claim.name_any() {
        return Err(unsupported("a claim cannot be a copy of itself"));
    }
    Ok(Some(name))
}

/// Returns the snapshot from which the source is copied.
fn source_snapshot(claim: &PersistentVolumeClaim, source: Option<&str>) -> Result<Option<String>, PlannedCondition> {
    let Some(name) = claim.annotations().get(SOURCE_SNAPSHOT) else {
        return Ok(None);
    };
    let invalid = |why: &str| {
        let message = format!("annotation {SOURCE_SNAPSHOT}: {why}");
        PlannedCondition::fails(Reason::DataSourceUnsupported, message)
    };
    if source.is_none() {
        return Err(invalid(
            "only a copy of a claim can be made from a snapshot: name a claim in spec.dataSourceRef",
        ));
    }
    if snapshot_name(name).is_none() {
        return Err(invalid(
            "expected the name of a snapshot, of at most 255 letters, digits, and `._:@+-`",
        ));
    }
    Ok(Some(name.clone()))
}

/// Returns the kind of the supported data source of a claim, or an empty text.
pub fn source_kind(claim: &PersistentVolumeClaim) -> &'static str {
    let has_source = claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.data_source_ref.is_some() || spec.data_source.is_some());
    match (has_source, RestoreSource::of(claim)) {
        (false, _) => "",
        (true, Some(source)) => source.kind(),
        (true, None) => "PersistentVolumeClaim",
    }
}

#[cfg(test)]
mod tests;
