//! Storage capacity of late-binding classes: what `CSIStorageCapacity` objects tell the scheduler.
//!
//! For a class whose provisioner has a `CSIDriver` with `storageCapacity: true`, the scheduler selects only nodes that an
//! object of the class selects by label and whose capacity is at least the request (`hasEnoughCapacity` in
//! kube-scheduler's plugin VolumeBinding). An object that is missing or too small therefore keeps pods from being scheduled,
//! and neither the claim nor the pod shows the reason. An object that promises too much costs only a detour: the operator
//! finds that no backend serves the selected node, and returns it. So each inaccuracy here is in favor of the claim:
//!
//! - Requirements on nodes that a label selector cannot express are dropped or weakened.
//! - Sizes are rounded up.
//! - If no backend of a class accepts volumes, the objects promise everything: the claim is scheduled, and its condition
//!   shows the reason.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::object_name::is_object_name;
use super::placement::{self, Candidate};
use super::{quantity, topology};
use crate::api::parameters::ClassParameters;
use crate::api::selector::is_label_value;
use export_store::text::hexadecimal;

/// Maximum length of a CSI driver name (`ValidateCSIDriverName` of the API server).
const MAX_DRIVER_LEN: usize = 63;
/// Capacity without a limit: the largest value that the scheduler can compare.
pub const UNLIMITED: u64 = i64::MAX as u64;
/// Number of significant bits of a capacity. Fewer than 2 % are rounded up, and a change below that is no write.
const SIGNIFICANT_BITS: u32 = 7;
/// Maximum number of objects of one class. The zones and racks of a cluster need far fewer.
const MAX_SEGMENTS: usize = 100;

/// Returns true if a provisioner name can be that of a `CSIDriver`: a DNS subdomain of at most 63 characters.
pub fn is_csi_driver_name(name: &str) -> bool {
    name.len() <= MAX_DRIVER_LEN && is_object_name(name)
}

/// Properties of a late-binding class that its capacity depends on.
#[derive(Debug, Clone, Copy)]
pub struct LateClass<'a> {
    /// Name of the class.
    pub name: &'a str,
    /// Its provisioner, which is a CSI driver name.
    pub driver: &'a str,
    /// Its parameters; `None` if they are invalid.
    pub parameters: Option<&'a ClassParameters>,
    /// Its `allowedTopologies`. The scheduler checks them itself.
    pub topologies: &'a [TopologySelectorTerm],
}

/// Content of one `CSIStorageCapacity`: nodes, and the largest volume of the class that they can have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// Name of the class.
    pub class: String,
    /// Its provisioner.
    pub driver: String,
    /// Selects the nodes.
    pub nodes: LabelSelector,
    /// Size in bytes.
    #[serde(skip)]
    pub capacity: u64,
}

impl Segment {
    /// Returns the name of the object. It depends on all fields that the API server does not allow to change.
    pub fn object_name(&self) -> String {
        let fields = serde_json::to_vec(self).unwrap_or_default();
        let digest = Sha256::digest(fields);
        format!("nfs-operator-{}", hexadecimal(digest.get(..16).unwrap_or_default()))
    }

    /// Returns the capacity as a quantity.
    pub fn quantity(&self) -> Quantity {
        quantity::exact(self.capacity.into())
    }
}

/// Returns the segments of a class, at least one, or `None` while the probe of a backend of the class is missing: then the
/// existing objects stay as they are.
pub fn segments(class: &LateClass<'_>, backends: &[Candidate<'_>]) -> Option<Vec<Segment>> {
    let permitted: Vec<&Candidate<'_>> = backends
        .iter()
        .filter(|backend| {
            let parameters = class.parameters;
            parameters.is_some_and(|class| placement::class_permits(class, backend.name, backend.labels))
        })
        .collect();
    if permitted.iter().any(|backend| backend.ready.reason.awaits_probe()) {
        return None;
    }
    let reachable: Vec<&Candidate<'_>> = permitted
        .into_iter()
        .filter(|backend| topology::intersect(backend.node_affinity, class.topologies).is_ok())
        .collect();
    let is_served = reachable.iter().any(|backend| accepts_volumes(backend));
    let mut found: BTreeMap<String, (LabelSelector, u64)> = BTreeMap::new();
    for backend in reachable {
        let capacity = capacity(backend, is_served);
        for nodes in selectors(backend.node_affinity) {
            // Backends with the same nodes share an object: a volume is on one of them.
            let key = serde_json::to_string(&nodes).unwrap_or_default();
            let segment = found.entry(key).or_insert((nodes, 0));
            segment.1 = segment.1.max(capacity);
        }
    }
    if found.is_empty() || found.len() > MAX_SEGMENTS {
        let largest = found.values().map(|(_, capacity)| *capacity).max();
        let everywhere = (LabelSelector::default(), largest.unwrap_or(UNLIMITED));
        found = BTreeMap::from([(String::new(), everywhere)]);
    }
    let segment = |(nodes, capacity)| Segment {
        class: class.name.to_owned(),
        driver: class.driver.to_owned(),
        nodes,
        capacity,
    };
    Some(found.into_values().map(segment).collect())
}

fn accepts_volumes(backend: &Candidate<'_>) -> bool {
    backend.ready.status == Some(true) && !backend.suspended && !backend.deleting
}

/// Returns the capacity of a backend. `is_served`: at least one backend of the class accepts volumes.
fn capacity(backend: &Candidate<'_>, is_served: bool) -> u64 {
    if accepts_volumes(backend) {
        return round_up(placement::room(backend));
    }
    match is_served || backend.ready.reason.is_lack_of_space() {
        // Pods go to nodes of the other backends, or wait for space.
        true => 0,
        false => UNLIMITED,
    }
}

/// Rounds up to [`SIGNIFICANT_BITS`].
fn round_up(bytes: u128) -> u64 {
    let bytes = u64::try_from(bytes).unwrap_or(UNLIMITED).min(UNLIMITED);
    let bits = u64::BITS - bytes.leading_zeros();
    let unit = 1_u64 << bits.saturating_sub(SIGNIFICANT_BITS);
    bytes.div_ceil(unit).saturating_mul(unit).min(UNLIMITED)
}

/// Returns label selectors that together select all nodes that an affinity selects, and possibly others.
fn selectors(affinity: Option<&VolumeNodeAffinity>) -> Vec<LabelSelector> {
    match affinity.and_then(|affinity| affinity.required.as_ref()) {
        None => vec![LabelSelector::default()],
        Some(required) => required.node_selector_terms.iter().filter_map(selector).collect(),
    }
}

/// Returns a selector for the nodes of a term, or `None` if it selects no node. A term that is left without requirements,
/// because label selectors cannot express them, selects all nodes.
fn selector(term: &NodeSelectorTerm) -> Option<LabelSelector> {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return None;
    }
    let mut requirements = Vec::new();
    for expression in expressions {
        match translate(expression) {
            Translation::Requirement(requirement) => requirements.push(requirement),
            Translation::AllNodes => {}
            Translation::NoNode => return None,
        }
    }
    requirements.sort_by(|a, b| (&a.key, &a.operator, &a.values).cmp(&(&b.key, &b.operator, &b.values)));
    requirements.dedup();
    Some(LabelSelector {
        match_expressions: (!requirements.is_empty()).then_some(requirements),
        match_labels: None,
    })
}

/// A requirement of a node selector as one of a label selector.
enum Translation {
    Requirement(LabelSelectorRequirement),
    AllNodes,
    NoNode,
}

/// Translates a requirement. Keys and values that no label can have are valid in a node selector only.
fn translate(expression: &NodeSelectorRequirement) -> Translation {
    let possible = is_label_key(&expression.key);
    let mut values: Vec<String> = expression.values.clone().unwrap_or_default();
    values.retain(|value| is_label_value(value));
    values.sort();
    values.dedup();
    let requirement = |operator: &str, values: Vec<String>| {
        Translation::Requirement(LabelSelectorRequirement {
            key: expression.key.clone(),
            operator: operator.to_owned(),
            values: (!values.is_empty()).then_some(values),
        })
    };
    match (expression.operator.as_str(), possible) {
        ("In" | "Exists" | "Gt" | "Lt", false) => Translation::NoNode,
        ("In", true) if values.is_empty() => Translation::NoNode,
        ("In", true) => requirement("In", values),
        ("NotIn", true) if !values.is_empty() => requirement("NotIn", values),
        // Both compare the value of a label that the node has.
        ("Exists" | "Gt" | "Lt", true) => requirement("Exists", Vec::new()),
        ("DoesNotExist", true) => requirement("DoesNotExist", Vec::new()),
        _ => Translation::AllNodes,
    }
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_object_name) && !name.is_empty() && is_label_value(name)
}

#[cfg(test)]
mod tests;
