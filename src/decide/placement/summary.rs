//! Why nothing can serve a claim, in one message for its condition.
//!
//! The same refusals give the same text, whatever order the backends were read in: a condition that is not changed is not
//! written.

use std::fmt::Display;

use super::Refusal;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::parameters::ClassParameters;

/// Backends that a message names in one group; the rest is counted.
const NAMED: usize = 10;
/// The longest message of one backend, in bytes: with its remedy it is a few sentences.
const LONGEST_MESSAGE: usize = 1024;
/// The longest name that a message repeats, in bytes; Kubernetes allows 253.
const LONGEST_NAME: usize = 253;

/// The condition for refusals, sorted by backend, of which there is at least one.
pub(crate) fn of(refusals: &[Refusal]) -> PlannedCondition {
    let mut able = refusals.iter().filter(|refusal| might_serve(refusal));
    if let (Some(only), None) = (able.next(), able.next()) {
        let others: Vec<&Refusal> = refusals.iter().filter(|other| other.backend != only.backend).collect();
        let own = format!("backend {}: {}", only.backend, cut(&only.message, LONGEST_MESSAGE));
        let mut parts = vec![own];
        parts.extend(left_out(&others));
        return PlannedCondition::fails(only.reason, parts.join("; "));
    }
    if let [only] = refusals {
        let message = format!("backend {}: {}", only.backend, cut(&only.message, LONGEST_MESSAGE));
        return PlannedCondition::fails(only.reason, message);
    }
    if let Some(same) = one_for_all(refusals) {
        return same;
    }
    let (unready, others): (Vec<&Refusal>, Vec<&Refusal>) = refusals
        .iter()
        .partition(|refusal| short_text(refusal.reason).is_none());
    let mut parts = Vec::new();
    if !unready.is_empty() {
        let names = named(
            unready
                .iter()
                .map(|refusal| format!("{} ({})", refusal.backend, refusal.reason)),
        );
        parts.push(format!(
            "{} of {} backends not ready: {names}",
            unready.len(),
            refusals.len()
        ));
    }
    parts.extend(left_out(&others));
    PlannedCondition::fails(common_reason(refusals), parts.join("; "))
}

/// What all that could serve it say in the same words, such as an annotation that none of them allows.
fn one_for_all(refusals: &[Refusal]) -> Option<PlannedCondition> {
    let (able, others): (Vec<&Refusal>, Vec<&Refusal>) = refusals.iter().partition(|refusal| might_serve(refusal));
    let first = able.first().filter(|first| short_text(first.reason).is_none())?;
    let same = |other: &&Refusal| other.reason == first.reason && other.message == first.message;
    if !able.iter().all(same) {
        return None;
    }
    let names = named(able.iter().map(|refusal| short(&refusal.backend)));
    let mut parts = vec![format!("backends {names}: {}", cut(&first.message, LONGEST_MESSAGE))];
    parts.extend(left_out(&others));
    Some(PlannedCondition::fails(first.reason, parts.join("; ")))
}

/// Whether a backend is there and the namespace may use it.
fn might_serve(refusal: &Refusal) -> bool {
    !matches!(refusal.reason, Reason::NamespaceNotAllowed | Reason::BackendNotFound)
}

/// The condition when the class permits none of the backends that there are.
pub(crate) fn nothing_permitted(class: &ClassParameters, no_backends: bool) -> PlannedCondition {
    if class.backends.is_empty() && no_backends {
        return PlannedCondition::fails(
            Reason::NoBackendAvailable,
            "there is no NfsBackend: create one with the server and path of an export",
        );
    }
    match (&class.backend_selector, class.backends.is_empty()) {
        (Some(selector), true) => PlannedCondition::fails(
            Reason::NoBackendAvailable,
            format!(
                "no backend has the labels of the class's backendSelector {}: label one, or correct the parameter",
                short(selector)
            ),
        ),
        (selector, _) => PlannedCondition::fails(
            Reason::BackendNotFound,
            format!(
                "the StorageClass names the backends {}, and none of them exists{}: create one, or correct the parameter \
                 `backend`",
                named(class.backends.iter().map(short)),
                selector.as_ref().map_or(String::new(), |selector| format!(
                    " with the labels of its backendSelector {}",
                    short(selector)
                ))
            ),
        ),
    }
}

/// A name or other short text for a message, bounded.
pub(crate) fn short(text: impl Display) -> String {
    cut(&text.to_string(), LONGEST_NAME)
}

/// The reason that all have in common, where it says more than that there is no backend.
fn common_reason(refusals: &[Refusal]) -> Reason {
    let all = |reasons: &[Reason]| refusals.iter().all(|refusal| reasons.contains(&refusal.reason));
    if super::other_node_possible(refusals) {
        Reason::NodeNotServed
    } else if all(&[Reason::BackendNotFound]) {
        Reason::BackendNotFound
    } else if all(&[Reason::NamespaceNotAllowed, Reason::BackendNotFound]) {
        Reason::NamespaceNotAllowed
    } else if all(&[
        Reason::CapacityExceeded,
        Reason::NamespaceNotAllowed,
        Reason::BackendNotFound,
    ]) {
        Reason::CapacityExceeded
    } else {
        Reason::NoBackendAvailable
    }
}

/// What keeps a claim from a backend that may well be ready.
fn short_text(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::NamespaceNotAllowed => Some("namespace not allowed"),
        Reason::CapacityExceeded => Some("capacity exceeded"),
        Reason::BackendNotFound => Some("not found"),
        Reason::NodeNotServed => Some("selected node not served"),
        Reason::TopologyMismatch => Some("no node in both its nodeAffinity and the class's allowedTopologies"),
        _ => None,
    }
}

/// `c, d: namespace not allowed` for each reason.
fn left_out(refusals: &[&Refusal]) -> Vec<String> {
    let mut groups: Vec<(&'static str, Vec<&str>)> = Vec::new();
    for refusal in refusals {
        let Some(text) = short_text(refusal.reason) else {
            continue;
        };
        match groups.iter_mut().find(|(group, _)| *group == text) {
            Some((_, names)) => names.push(&refusal.backend),
            None => groups.push((text, vec![&refusal.backend])),
        }
    }
    groups
        .into_iter()
        .map(|(text, names)| format!("{}: {text}", named(names.into_iter().map(short))))
        .collect()
}

fn named(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(NAMED);
    let mut text = items.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn cut(text: &str, limit: usize) -> String {
    match text.get(..text.floor_char_boundary(limit)) {
        Some(start) if start.len() < text.len() => format!("{start}…"),
        _ => text.to_owned(),
    }
}
