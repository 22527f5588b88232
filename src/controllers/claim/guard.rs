//! Whether a claim is ours to provision, now, or never. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, SELECTED_NODE, STORAGE_PROVISIONER};
use crate::api::parameters::ClassParameters;
use crate::decide::restore_source::requested_archive;
use crate::state::context::Settings;
use export_store::naming::is_object_name;

/// What is to be done about a claim.
#[derive(Debug)]
pub enum Eligibility {
    /// Nothing: not ours, or not yet.
    Ignore,
    /// It has its volume: what is left is to say so.
    Bound,
    /// Its volume is gone.
    Lost,
    /// It cannot be provisioned until somebody changes it or its class.
    Infeasible(PlannedCondition),
    /// It is to be provisioned.
    Provision(Box<ClaimRequest>),
}

/// What a claim asks for.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The class's provisioner: the name that we serve it under.
    pub provisioner: String,
    /// The class's parameters.
    pub parameters: ClassParameters,
    /// The class's mount options.
    pub mount_options: Vec<String>,
    /// The class's reclaim policy.
    pub reclaim_policy: String,
    /// The claim of the same namespace whose data it is to begin with.
    pub source: Option<String>,
    /// Requested size, in bytes.
    pub bytes: u128,
    /// The class's topologies; empty = anywhere.
    pub topologies: Vec<TopologySelectorTerm>,
    /// The archive whose data it is to have.
    pub restore: Option<String>,
    /// The node that the scheduler selected; absent when the class binds immediately, for then nobody selects one.
    pub node: Option<String>,
}

/// The name of a claim's class: the older annotation wins over the field.
pub fn class_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let annotated = claim.annotations().get(BETA_STORAGE_CLASS).cloned();
    annotated
        .or_else(|| claim.spec.as_ref()?.storage_class_name.clone())
        .filter(|name| !name.is_empty())
}

/// The provisioner that the binder asks to provision this claim.
fn asked_provisioner(claim: &PersistentVolumeClaim) -> Option<&String> {
    let annotations = claim.annotations();
    annotations
        .get(STORAGE_PROVISIONER)
        .or_else(|| annotations.get(BETA_STORAGE_PROVISIONER))
}

/// Judges a claim, in the order of design section 5.
///
/// The binder sets the annotation only after it looked for an existing volume: going by the class alone would steal
/// claims from volumes that were made by hand.
pub fn guard(claim: &PersistentVolumeClaim, class: Option<&StorageClass>, settings: &Settings) -> Eligibility {
    if !asked_provisioner(claim).is_some_and(|provisioner| settings.serves(provisioner)) {
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
    let Some(class) = class else {
        let name = class_name(claim).unwrap_or_default();
        return Eligibility::Infeasible(PlannedCondition::fails(
            Reason::StorageClassNotFound,
            format!("StorageClass {name:?} does not exist: create it, and this claim goes on"),
        ));
    };
    if !settings.serves(&class.provisioner) {
        return Eligibility::Ignore;
    }
    let selected_node = claim
        .annotations()
        .get(SELECTED_NODE)
        .filter(|node| !node.is_empty())
        .cloned();
    let late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if late && selected_node.is_none() {
        return Eligibility::Ignore;
    }
    let node = selected_node.filter(|_| late);
    match request(claim, class, node, settings) {
        Ok(request) => Eligibility::Provision(Box::new(request)),
        Err(verdict) => Eligibility::Infeasible(verdict),
    }
}

fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<String>,
    settings: &Settings,
) -> Result<ClaimRequest, PlannedCondition> {
    feasible(claim)?;
    let parameters = settings.class_parameters(class).map_err(|error| {
        PlannedCondition::fails(
            Reason::InvalidParameter,
            format!("StorageClass {}: {error}", class.name_any()),
        )
    })?;
    let storage = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(|quantity| crate::decide::placement::quantity::bytes(&quantity.0))
        .ok_or_else(|| {
            PlannedCondition::fails(
                Reason::LimitExceeded,
                "spec.resources.requests.storage is no amount of storage",
            )
        })?;
    Ok(ClaimRequest {
        source: source(claim)?,
        provisioner: class.provisioner.clone(),
        parameters,
        mount_options: class.mount_options.clone().unwrap_or_default(),
        reclaim_policy: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
        bytes: storage,
        restore: requested_archive(claim).map(str::to_owned),
        topologies: class.allowed_topologies.clone().unwrap_or_default(),
        node,
    })
}

/// What NFS volumes of ours can't be, whatever the backend.
fn feasible(claim: &PersistentVolumeClaim) -> Result<(), PlannedCondition> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(PlannedCondition::fails(
            Reason::BlockVolumeUnsupported,
            "NFS has no block devices: set spec.volumeMode to Filesystem",
        ));
    }
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes
        .iter()
        .find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadOnlyMany" | "ReadWriteMany"))
    {
        return Err(PlannedCondition::fails(
            Reason::AccessModeUnsupported,
            format!("access mode {mode} cannot be kept on NFS: use ReadWriteOnce, ReadOnlyMany or ReadWriteMany"),
        ));
    }
    if spec.selector.is_some() {
        return Err(PlannedCondition::fails(
            Reason::SelectorUnsupported,
            "a claim with spec.selector waits for an existing volume: remove the selector to have one provisioned",
        ));
    }
    if spec
        .volume_attributes_class_name
        .as_deref()
        .is_some_and(|name| !name.is_empty())
    {
        return Err(PlannedCondition::fails(
            Reason::AttributesClassUnsupported,
            "VolumeAttributesClasses are not supported: remove spec.volumeAttributesClassName",
        ));
    }
    Ok(())
}

/// The claim whose data a claim is to begin with, unless it is an archive's. Of the two fields for it, the API server fills in the other.
fn source(claim: &PersistentVolumeClaim) -> Result<Option<String>, PlannedCondition> {
    let spec = claim.spec.clone().unwrap_or_default();
    let unsupported = |what: &str| {
        PlannedCondition::fails(
            Reason::DataSourceUnsupported,
            format!(
                "{what}: a claim of the same namespace can be copied (kind PersistentVolumeClaim), or an archive restored \
                 (kind NfsArchive, apiGroup nfs-operator.io, without a namespace), nothing else"
            ),
        )
    };
    if let Some(archive) = requested_archive(claim) {
        return if is_object_name(archive) {
            Ok(None)
        } else {
            Err(unsupported("the data source's name can't be an archive's"))
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
        return Err(unsupported("the data source's name can't be a claim's"));
    }
    if name == claim.name_any() {
        return Err(unsupported("a claim can't be a copy of itself"));
    }
    Ok(Some(name))
}

#[cfg(test)]
mod tests;
