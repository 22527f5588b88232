//! Which backend for this claim: first who may serve it, then in which order to try. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{TopologySelectorTerm, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};

use crate::api::backend::{AllowedNamespaces, CapacityLimits, ClaimOverride};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::WISHED_BACKEND;
use crate::api::parameters::ClassParameters;

pub mod quantity;
pub mod room;
mod score;
mod summary;
pub mod topology;

use topology::{SelectedNode, Unreachable};

/// What placement needs to know of a claim.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Its uid.
    pub uid: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// The labels of its namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// What it requests, in bytes.
    pub requested: u128,
    /// What its class asks for.
    pub class: &'a ClassParameters,
    /// The backend that its author wishes for (annotation `nfs-operator.io/backend`).
    pub wish: Option<&'a str>,
    /// Where it stands that we placed it (annotation `nfs-operator.io/placed-on`). A tenant can write that too, so it
    /// counts only among the backends that the class and `allowedNamespaces` permit.
    pub placed_on: Option<&'a str>,
    /// The node that the scheduler selected; absent when the class binds immediately.
    pub node: Option<SelectedNode<'a>>,
    /// The class's `allowedTopologies`; empty = anywhere.
    pub topologies: &'a [TopologySelectorTerm],
}

/// What placement needs to know of a backend. Sums count volumes and reservations, without the claim to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its condition Ready.
    pub ready: &'a PlannedCondition,
    /// `spec.suspend`.
    pub suspended: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// `spec.allowedNamespaces`.
    pub allowed_namespaces: Option<&'a AllowedNamespaces>,
    /// `spec.capacity`.
    pub limits: Option<&'a CapacityLimits>,
    /// `spec.claimOverrides`.
    pub claim_overrides: &'a [ClaimOverride],
    /// `spec.nodeAffinity`.
    pub node_affinity: Option<&'a VolumeNodeAffinity>,
    /// Size of the export, in bytes, where the server says it.
    pub total: Option<u128>,
    /// Free space at the last probe, in bytes, where the server says it.
    pub available: Option<u128>,
    /// Requests provisioned on the export since that probe, in bytes: their data is not in `available` yet.
    pub provisioned_since_probe: u128,
    /// Requests on this backend, in bytes.
    pub provisioned: u128,
    /// Requests on all backends with the same export, in bytes.
    pub provisioned_on_export: u128,
    /// Volumes on this backend.
    pub volumes: u64,
}

/// Where a claim goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// These backends, in the order in which to try them; at least one. The next is for a definite refusal only.
    On(Vec<String>),
    /// No backend can serve it now.
    Nowhere {
        /// Why each one that the class permits cannot, by name.
        refusals: Vec<Refusal>,
        /// The same for the claim's condition.
        summary: PlannedCondition,
    },
}

/// Why one backend cannot serve a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The backend.
    pub backend: String,
    /// The reason, the backend's own when it is not ready.
    pub reason: Reason,
    /// What it is, and the remedy.
    pub message: String,
}

/// Decides where a claim goes.
///
/// A former placement that is still permitted stands alone, ready or not: what was begun there may exist, so the
/// claim stays until that is known. A caller who knows that nothing was begun asks again without it.
pub fn place(claim: &Claim<'_>, backends: &[Candidate<'_>]) -> Placement {
    let permitted: Vec<&Candidate<'_>> = backends
        .iter()
        .filter(|backend| class_permits(claim.class, backend.name, backend.labels))
        .collect();
    if permitted.is_empty() {
        return nowhere(
            missing(claim, backends),
            summary::nothing_permitted(claim.class, backends.is_empty()),
        );
    }
    let placed = permitted
        .iter()
        .find(|backend| Some(backend.name) == claim.placed_on && !namespace_refused(claim, backend));
    let (considered, mut refusals) = match (placed, claim.wish) {
        (Some(placed), _) => (vec![*placed], Vec::new()),
        (None, Some(wish)) => match wished(wish, &permitted) {
            Ok(backend) => (vec![backend], Vec::new()),
            Err(refusal) => {
                let summary = PlannedCondition::fails(refusal.reason, refusal.message.clone());
                return nowhere(vec![refusal], summary);
            }
        },
        (None, None) => (permitted, missing(claim, backends)),
    };
    let mut serving = Vec::new();
    for backend in considered {
        match CHECKS.iter().try_for_each(|check| check(claim, backend)) {
            Ok(()) => serving.push(backend),
            Err((reason, message)) => refusals.push(Refusal {
                backend: backend.name.to_owned(),
                reason,
                message,
            }),
        }
    }
    if serving.is_empty() {
        refusals.sort_by(|a, b| a.backend.cmp(&b.backend));
        let mut summary = summary::of(&refusals);
        if claim.topologies.is_empty() && other_node_possible(&refusals) {
            summary.message.push_str(NO_TOPOLOGIES);
        }
        return nowhere(refusals, summary);
    }
    Placement::On(score::ordered(claim.uid, serving))
}

/// The scheduler knows a class's topologies, and nothing of backends.
const NO_TOPOLOGIES: &str = "; the StorageClass has no allowedTopologies, so the scheduler selects any node: give it those of \
                             its backends' nodeAffinity";

/// Whether a backend would serve the claim on another node than the selected one.
pub fn other_node_possible(refusals: &[Refusal]) -> bool {
    refusals.iter().any(|refusal| refusal.reason == Reason::NodeNotServed)
}

/// Whether a backend would perhaps serve the claim, were its last probe not too old to be believed.
pub fn probe_is_stale(refusals: &[Refusal]) -> bool {
    refusals.iter().any(|refusal| refusal.reason == Reason::ProbeOutdated)
}

fn nowhere(refusals: Vec<Refusal>, summary: PlannedCondition) -> Placement {
    Placement::Nowhere { refusals, summary }
}

/// Does the class let its claims go there? By name and by labels: where both are given, both must hold.
pub fn class_permits(class: &ClassParameters, backend: &str, labels: &BTreeMap<String, String>) -> bool {
    let by_name = class.backends.is_empty() || class.backends.iter().any(|name| name == backend);
    let selector = class.backend_selector.as_ref();
    by_name && selector.is_none_or(|selector| selector.matches(labels))
}

/// The backend that the claim wishes for, if its author may choose it.
fn wished<'a, 'b>(wish: &str, permitted: &[&'b Candidate<'a>]) -> Result<&'b Candidate<'a>, Refusal> {
    let refused = |message: String| Refusal {
        backend: summary::short(wish),
        reason: Reason::OverrideRefused,
        message: format!("annotation {WISHED_BACKEND}: {} {message}", summary::short(wish)),
    };
    // One answer for a backend that does not exist and one that the class keeps from its claims: which backends there
    // are is not the tenant's to find out.
    let backend = permitted
        .iter()
        .find(|backend| backend.name == wish)
        .ok_or_else(|| refused("is no backend of this claim's class: remove the annotation".into()))?;
    if !backend.claim_overrides.contains(&ClaimOverride::Backend) {
        return Err(refused(
            "does not let claims choose it: remove the annotation, or have `backend` added to its claimOverrides"
                .into(),
        ));
    }
    Ok(backend)
}

/// A refusal for each backend that the class names and that does not exist.
fn missing(claim: &Claim<'_>, backends: &[Candidate<'_>]) -> Vec<Refusal> {
    let names = claim.class.backends.iter();
    names
        .filter(|name| backends.iter().all(|backend| backend.name != name.as_str()))
        .map(|name| Refusal {
            backend: name.clone(),
            reason: Reason::BackendNotFound,
            message: "the StorageClass names it and it does not exist: create it, or correct the parameter `backend`"
                .into(),
        })
        .collect()
}

type Check = fn(&Claim<'_>, &Candidate<'_>) -> Result<(), (Reason, String)>;

/// What a backend must pass, the lasting reasons first. The selected node comes last: who is left out for it alone would
/// serve the claim on another node, and only then does it help to have another one selected.
const CHECKS: &[Check] = &[
    namespace_allowed,
    topology_possible,
    open,
    ready,
    room::enough,
    node_served,
];

/// Whether a namespace is among those that are allowed. A selector that is none admits nobody.
pub fn admits(allowed: &AllowedNamespaces, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let selected = || {
        let selector = allowed.selector.as_ref().and_then(checked);
        selector.is_some_and(|selector| selector.matches(labels))
    };
    allowed.match_names.iter().any(|admitted| admitted == name) || selected()
}

fn namespace_allowed(claim: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    let Some(allowed) = backend.allowed_namespaces else {
        return Ok(());
    };
    if allowed.match_names.iter().any(|name| name == claim.namespace) {
        return Ok(());
    }
    if let Some(selector) = &allowed.selector {
        let selector = checked(selector).ok_or_else(|| {
            let message = "allowedNamespaces.selector is no valid label selector: correct it";
            (Reason::InvalidSpec, message.to_owned())
        })?;
        if selector.matches(claim.namespace_labels) {
            return Ok(());
        }
    }
    Err((
        Reason::NamespaceNotAllowed,
        format!(
            "namespace {} is not allowed: have it added to the backend's allowedNamespaces",
            claim.namespace
        ),
    ))
}

/// Is it certain that the namespace may not go there? A selector that cannot be read leaves the claim where it is:
/// it waits there, since the selector is checked again, and does not move away from what it may have begun.
fn namespace_refused(claim: &Claim<'_>, backend: &Candidate<'_>) -> bool {
    matches!(namespace_allowed(claim, backend), Err((Reason::NamespaceNotAllowed, _)))
}

/// A label selector by the rules of Kubernetes, which kube leaves to the API server: `In` and `NotIn` need values
/// (an empty `NotIn` would admit everybody), `Exists` and `DoesNotExist` take none.
fn checked(selector: &LabelSelector) -> Option<Selector> {
    let fits = selector.match_expressions.iter().flatten().all(|requirement| {
        let values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
        match requirement.operator.as_str() {
            "In" | "NotIn" => values,
            "Exists" | "DoesNotExist" => !values,
            _ => false,
        }
    });
    fits.then(|| selector.clone().try_into().ok()).flatten()
}

fn open(_: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    if backend.deleting {
        return Err((
            Reason::Deleting,
            "the backend is being deleted: it takes no new volumes".into(),
        ));
    }
    if backend.suspended {
        return Err((
            Reason::Suspended,
            "the backend is suspended: it takes no new volumes until `suspend` is false".into(),
        ));
    }
    Ok(())
}

fn ready(_: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    match backend.ready.status {
        Some(true) => Ok(()),
        Some(false) | None => Err((backend.ready.reason, backend.ready.message.clone())),
    }
}

fn topology_possible(claim: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    match topology::common(backend.node_affinity, claim.topologies) {
        Ok(_) => Ok(()),
        Err(invalid @ Unreachable::Invalid(_)) => Err((Reason::InvalidSpec, format!("{invalid}: correct it"))),
        Err(error) => Err((Reason::TopologyMismatch, format!("{error}: correct one of them"))),
    }
}

fn node_served(claim: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    let Some(node) = &claim.node else { return Ok(()) };
    let both = topology::common(backend.node_affinity, claim.topologies).ok().flatten();
    if topology::selects(both.as_ref(), node) {
        return Ok(());
    }
    let name = summary::short(node.name);
    let message = match node.labels {
        Some(_) if topology::selects(backend.node_affinity, node) => {
            format!("node {name} is selected, which the class's allowedTopologies leave out: another one is asked for")
        }
        Some(_) => {
            format!("node {name} is selected, which the backend's nodeAffinity leaves out: another one is asked for")
        }
        None => format!("node {name} is selected, which does not exist: another one is asked for"),
    };
    Err((Reason::NodeNotServed, message))
}

#[cfg(test)]
mod tests;
