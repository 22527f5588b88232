//! Which nodes reach a volume: the backend's `nodeAffinity` and the class's `allowedTopologies`, both of which must
//! hold. Pure.
//!
//! The rules are those of `NodeSelector` in core/v1: terms are ORed, the requirements of a term ANDed, and an empty
//! term selects no node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorLabelRequirement, TopologySelectorTerm,
    VolumeNodeAffinity,
};

/// The one field that `matchFields` may name (core/v1 `NodeSelectorTerm`).
const NAME_FIELD: &str = "metadata.name";
/// Both lists are multiplied. What a cluster has of zones and racks is far below this.
const MOST_TERMS: usize = 1000;

/// The node that the scheduler selected for a late-binding claim.
#[derive(Debug, Clone, Copy)]
pub struct SelectedNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels; absent when there is no such Node.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Why no node reaches a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The affinity is not one that the API server would take on a volume.
    #[error("nodeAffinity cannot be used: {0}")]
    Invalid(&'static str),
    /// There are more combinations than a volume should carry.
    #[error("nodeAffinity and allowedTopologies have more than {MOST_TERMS} combinations")]
    TooMany,
    /// No node can be in both.
    #[error("no node can be in both the backend's nodeAffinity and the class's allowedTopologies")]
    Disjoint,
}

/// The affinity of a volume on a backend for a class: what both allow. Absent when neither restricts anything.
///
/// # Errors
/// [`Unreachable`] when there is nothing that both allow, or the affinity is none.
pub fn common(
    affinity: Option<&VolumeNodeAffinity>,
    allowed: &[TopologySelectorTerm],
) -> Result<Option<VolumeNodeAffinity>, Unreachable> {
    let required = checked(affinity)?;
    if allowed.is_empty() {
        return Ok(affinity.filter(|_| required.is_some()).cloned());
    }
    let everywhere = [NodeSelectorTerm::default()];
    let own = required.unwrap_or(&everywhere);
    if own.len().saturating_mul(allowed.len()) > MOST_TERMS {
        return Err(Unreachable::TooMany);
    }
    let mut terms: Vec<NodeSelectorTerm> = Vec::new();
    // An empty term of the backend's selects nothing; the one that stands in for an absent affinity selects all.
    for term in own.iter().filter(|term| required.is_none() || !is_empty(term)) {
        for topology in allowed {
            let both = narrowed(term, topology);
            terms.extend(both.filter(satisfiable).filter(|both| !terms.contains(both)));
        }
    }
    if terms.is_empty() {
        return Err(Unreachable::Disjoint);
    }
    Ok(Some(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: terms,
        }),
    }))
}

/// Whether a node is one that an affinity selects. A node that does not exist is in none that restricts anything.
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
    expressions.all(|requirement| holds(requirement, labels.get(&requirement.key).map(String::as_str)))
        && fields.all(|requirement| requirement.key == NAME_FIELD && holds(requirement, Some(name)))
}

/// Whether a requirement holds for a label's value; absent: there is no such label.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|one| one == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers(value, values).is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers(value, values).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn numbers(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    Some((value?.parse().ok()?, values.first()?.parse().ok()?))
}

/// The terms of an affinity that restricts something, if the API server would take them on a volume.
fn checked(affinity: Option<&VolumeNodeAffinity>) -> Result<Option<&[NodeSelectorTerm]>, Unreachable> {
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return Ok(None);
    };
    let terms = required.node_selector_terms.as_slice();
    if terms.iter().all(is_empty) {
        return Err(Unreachable::Invalid("it has no term that selects a node"));
    }
    if !terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten())
        .all(is_expression)
    {
        return Err(Unreachable::Invalid(
            "an operator of matchExpressions is unknown or does not fit its values",
        ));
    }
    if !terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .all(is_field)
    {
        return Err(Unreachable::Invalid(
            "matchFields takes metadata.name with In or NotIn and one value",
        ));
    }
    Ok(Some(terms))
}

fn is_expression(requirement: &NodeSelectorRequirement) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" => !values.is_empty(),
        "Exists" | "DoesNotExist" => values.is_empty(),
        "Gt" | "Lt" => matches!(values, [bound] if bound.parse::<i64>().is_ok()),
        _ => false,
    }
}

fn is_field(requirement: &NodeSelectorRequirement) -> bool {
    let one = requirement.values.as_ref().is_some_and(|values| values.len() == 1);
    requirement.key == NAME_FIELD && matches!(requirement.operator.as_str(), "In" | "NotIn") && one
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let none =
        |requirements: &Option<Vec<NodeSelectorRequirement>>| requirements.as_ref().is_none_or(|list| list.is_empty());
    none(&term.match_expressions) && none(&term.match_fields)
}

/// A term with what a topology asks for besides; none when the topology selects nothing.
fn narrowed(term: &NodeSelectorTerm, topology: &TopologySelectorTerm) -> Option<NodeSelectorTerm> {
    let asked = topology
        .match_label_expressions
        .as_ref()
        .filter(|asked| !asked.is_empty())?;
    let mut both = term.clone();
    let expressions = both.match_expressions.get_or_insert_default();
    for one in asked {
        narrow(expressions, one);
    }
    Some(both)
}

/// Adds one requirement: into the `In` that is there for its label, or beside the others.
fn narrow(expressions: &mut Vec<NodeSelectorRequirement>, asked: &TopologySelectorLabelRequirement) {
    let same = expressions
        .iter_mut()
        .find(|one| one.key == asked.key && one.operator == "In");
    match same {
        Some(same) => same
            .values
            .get_or_insert_default()
            .retain(|value| asked.values.contains(value)),
        None => expressions.push(NodeSelectorRequirement {
            key: asked.key.clone(),
            operator: "In".to_owned(),
            values: Some(asked.values.clone()),
        }),
    }
}

/// Whether a node could fulfil a term, as far as its requirements can contradict each other. The term of a backend
/// alone is not doubted: it is the administrator's.
fn satisfiable(term: &NodeSelectorTerm) -> bool {
    let possible = |all: &[NodeSelectorRequirement]| {
        all.iter().filter(|one| one.operator == "In").all(|one| {
            let mut values = one.values.iter().flatten();
            values.any(|value| {
                let of_same_key = all.iter().filter(|other| other.key == one.key);
                of_same_key.into_iter().all(|other| holds(other, Some(value)))
            })
        })
    };
    possible(term.match_expressions.as_deref().unwrap_or_default())
        && possible(term.match_fields.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
