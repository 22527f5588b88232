//! Nodes that can reach a volume: those that match both `nodeAffinity` of the backend and `allowedTopologies` of the class.
//!
//! The rules are those of `NodeSelector` in core/v1: terms are ORed, the requirements of a term are ANDed, and an empty
//! term selects no node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorLabelRequirement, TopologySelectorTerm,
    VolumeNodeAffinity,
};

/// The only field that `matchFields` supports (core/v1 `NodeSelectorTerm`).
const NAME_FIELD: &str = "metadata.name";
/// Maximum number of combined terms. The zones and racks of a cluster need far fewer.
const MAX_TERMS: usize = 1000;

/// Node that the scheduler selected for a claim with delayed binding.
#[derive(Debug, Clone, Copy)]
pub struct SelectedNode<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Labels of the node; `None` if it does not exist.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Reason why no node can reach a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The API server would reject the affinity on a volume.
    #[error("invalid nodeAffinity: {0}")]
    Invalid(&'static str),
    /// There are too many combinations of terms.
    #[error("nodeAffinity and allowedTopologies have more than {MAX_TERMS} combinations")]
    TooMany,
    /// No node can match both.
    #[error("no node can match both nodeAffinity of the backend and allowedTopologies of the StorageClass")]
    Disjoint,
}

/// Returns the node affinity of a volume: the intersection of that of its backend and of the topologies of its class. `None`
/// if neither restricts anything.
///
/// # Errors
/// The intersection is empty, or the affinity is invalid.
pub fn intersect<'a>(
    affinity: Option<&'a VolumeNodeAffinity>,
    allowed: &[TopologySelectorTerm],
) -> Result<Option<Cow<'a, VolumeNodeAffinity>>, TopologyError> {
    let required = valid_terms(affinity)?;
    if allowed.is_empty() {
        return Ok(affinity.filter(|_| required.is_some()).map(Cow::Borrowed));
    }
    let everywhere = [NodeSelectorTerm::default()];
    let own = required.unwrap_or(&everywhere);
    if own.len().saturating_mul(allowed.len()) > MAX_TERMS {
        return Err(TopologyError::TooMany);
    }
    let mut terms: Vec<NodeSelectorTerm> = Vec::new();
    // An empty term of the backend selects no node; the one that replaces an unset affinity selects all nodes.
    for term in own.iter().filter(|term| required.is_none() || !is_empty(term)) {
        for topology in allowed {
            let both = with_topology(term, topology);
            terms.extend(both.filter(is_satisfiable).filter(|both| !terms.contains(both)));
        }
    }
    if terms.is_empty() {
        return Err(TopologyError::Disjoint);
    }
    Ok(Some(Cow::Owned(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: terms,
        }),
    })))
}

/// Returns true if an affinity selects a node. A node that does not exist is selected only if there is no restriction.
pub fn selects(affinity: Option<&VolumeNodeAffinity>, node: &SelectedNode<'_>) -> bool {
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return true;
    };
    node.labels.is_some_and(|labels| {
        required
            .node_selector_terms
            .iter()
            .any(|term| !is_empty(term) && term_selects(term, node.name, labels))
    })
}

fn term_selects(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let mut expressions = term.match_expressions.iter().flatten();
    let mut fields = term.match_fields.iter().flatten();
    expressions.all(|requirement| matches_value(requirement, labels.get(&requirement.key).map(String::as_str)))
        && fields.all(|requirement| requirement.key == NAME_FIELD && matches_value(requirement, Some(name)))
}

/// Returns true if the value of a label, or `None` if the label does not exist, satisfies a requirement.
fn matches_value(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|one| one == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => parse_numbers(value, values).is_some_and(|(value, bound)| value > bound),
        "Lt" => parse_numbers(value, values).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn parse_numbers(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    Some((value?.parse().ok()?, values.first()?.parse().ok()?))
}

/// Returns the terms of an affinity that restricts nodes, if the API server would accept them on a volume.
fn valid_terms(affinity: Option<&VolumeNodeAffinity>) -> Result<Option<&[NodeSelectorTerm]>, TopologyError> {
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return Ok(None);
    };
    let terms = required.node_selector_terms.as_slice();
    if terms.iter().all(is_empty) {
        return Err(TopologyError::Invalid("no term selects a node"));
    }
    if !terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten())
        .all(is_valid_expression)
    {
        return Err(TopologyError::Invalid(
            "matchExpressions has an unknown operator or invalid values",
        ));
    }
    if !terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .all(is_valid_field)
    {
        return Err(TopologyError::Invalid(
            "matchFields only supports metadata.name with In or NotIn and one value",
        ));
    }
    Ok(Some(terms))
}

fn is_valid_expression(requirement: &NodeSelectorRequirement) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" => !values.is_empty(),
        "Exists" | "DoesNotExist" => values.is_empty(),
        "Gt" | "Lt" => matches!(values, [bound] if bound.parse::<i64>().is_ok()),
        _ => false,
    }
}

fn is_valid_field(requirement: &NodeSelectorRequirement) -> bool {
    let one = requirement.values.as_ref().is_some_and(|values| values.len() == 1);
    requirement.key == NAME_FIELD && matches!(requirement.operator.as_str(), "In" | "NotIn") && one
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let none =
        |requirements: &Option<Vec<NodeSelectorRequirement>>| requirements.as_ref().is_none_or(|list| list.is_empty());
    none(&term.match_expressions) && none(&term.match_fields)
}

/// Adds the requirements of a topology to a term. Returns `None` if the topology selects no node.
fn with_topology(term: &NodeSelectorTerm, topology: &TopologySelectorTerm) -> Option<NodeSelectorTerm> {
    let requirements = topology
        .match_label_expressions
        .as_ref()
        .filter(|requirements| !requirements.is_empty())?;
    let mut both = term.clone();
    let expressions = both.match_expressions.get_or_insert_default();
    for requirement in requirements {
        add_requirement(expressions, requirement);
    }
    Some(both)
}

/// Adds a requirement: restricts an existing `In` for the same label, or appends one.
fn add_requirement(expressions: &mut Vec<NodeSelectorRequirement>, added: &TopologySelectorLabelRequirement) {
    let same = expressions
        .iter_mut()
        .find(|one| one.key == added.key && one.operator == "In");
    match same {
        Some(same) => same
            .values
            .get_or_insert_default()
            .retain(|value| added.values.contains(value)),
        None => expressions.push(NodeSelectorRequirement {
            key: added.key.clone(),
            operator: "In".to_owned(),
            values: Some(added.values.clone()),
        }),
    }
}

/// Returns false if the `In` requirements of a term contradict its other requirements, so that no node can match. Terms of
/// a backend without topologies are not checked: they are up to the administrator.
fn is_satisfiable(term: &NodeSelectorTerm) -> bool {
    let possible = |all: &[NodeSelectorRequirement]| {
        all.iter().filter(|one| one.operator == "In").all(|one| {
            let mut values = one.values.iter().flatten();
            values.any(|value| {
                let of_same_key = all.iter().filter(|other| other.key == one.key);
                of_same_key.into_iter().all(|other| matches_value(other, Some(value)))
            })
        })
    };
    possible(term.match_expressions.as_deref().unwrap_or_default())
        && possible(term.match_fields.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
