//! Placement: selects the backends that can serve a claim, and the order in which to try them.
//!
//! The order is by free space, most first. The free space of a backend is the smaller of its available space (at the last
//! probe, less what was provisioned since, because that data is not written yet) and of the size that is not provisioned
//! yet. The first is the current state; the second keeps a burst of claims, whose volumes are all still empty, from being
//! placed on the same backend. Overcommitted backends come last, ordered by available space only.
//!
//! Free space within [`EQUAL_PERCENT`] of the best counts as equal. Then the number of volumes decides, so that equal
//! backends fill evenly although their probes differ a little. The last criterion is a hash of claim and backend, so that
//! claims that are placed at the same time, from the same state, are also distributed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use export_store::GroupRange;
use export_store::text::{abbreviate, format_amount};
use k8s_openapi::api::core::v1::{TopologySelectorTerm, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt};

use super::quantity;
use super::topology::{self, SelectedNode, TopologyError};
use crate::api::backend::{AllowedNamespaces, CapacityLimits, ClaimOverride, StorageAmount};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::REQUESTED_BACKEND;
use crate::api::parameters::ClassParameters;

/// Properties of a claim that placement depends on.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// UID of the claim.
    pub uid: &'a str,
    /// Namespace of the claim.
    pub namespace: &'a str,
    /// Labels of the namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Requested storage in bytes.
    pub requested: u128,
    /// Parameters of the StorageClass.
    pub class: &'a ClassParameters,
    /// Backend that the claim requests (annotation `nfs-operator.io/backend`).
    pub requested_backend: Option<&'a str>,
    /// Backend on which the claim was placed before (annotation `nfs-operator.io/placed-on`). A tenant can also write this
    /// annotation, so it is used only for backends that the class and `allowedNamespaces` permit.
    pub placed_on: Option<&'a str>,
    /// Node that the scheduler selected; `None` if the class binds immediately.
    pub node: Option<SelectedNode<'a>>,
    /// The volume will need a group of its own where backends have a range: it has none yet, and restores no archive.
    pub needs_group: bool,
    /// `allowedTopologies` of the StorageClass; empty if there is no restriction.
    pub topologies: &'a [TopologySelectorTerm],
}

/// Properties of a backend that placement depends on. Sums include volumes and reservations, but not the claim to place.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Name of the backend.
    pub name: &'a str,
    /// Labels of the backend.
    pub labels: &'a BTreeMap<String, String>,
    /// Condition Ready of the backend.
    pub ready: &'a PlannedCondition,
    /// `spec.suspend`.
    pub suspended: bool,
    /// True if the backend has a deletion timestamp.
    pub deleting: bool,
    /// `spec.allowedNamespaces`.
    pub allowed_namespaces: Option<&'a AllowedNamespaces>,
    /// `spec.capacity`.
    pub limits: Option<&'a CapacityLimits>,
    /// `spec.claimOverrides`.
    pub claim_overrides: &'a [ClaimOverride],
    /// `spec.nodeAffinity`.
    pub node_affinity: Option<&'a VolumeNodeAffinity>,
    /// Size of the export in bytes, if the server reports it.
    pub total: Option<u128>,
    /// Available space in bytes at the last probe, if the server reports it.
    pub available: Option<u128>,
    /// Bytes provisioned on the export since that probe, whose data is not yet part of `available`.
    pub provisioned_since_probe: u128,
    /// Bytes provisioned on this backend.
    pub provisioned: u128,
    /// Bytes provisioned on all backends of the same export.
    pub provisioned_on_export: u128,
    /// Number of volumes on this backend.
    pub volumes: u64,
    /// `spec.directory.gidRange` and the number of its groups that are free on the export.
    pub groups: Option<(GroupRange, u64)>,
}

/// No backend can currently serve the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoBackend {
    /// Reason per backend that the class permits, sorted by name.
    pub refusals: Vec<BackendRefusal>,
    /// Summary of the refusals for the condition of the claim.
    pub summary: PlannedCondition,
}

/// Reason why a backend cannot serve a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRefusal {
    /// Name of the backend.
    pub backend: String,
    /// Reason; that of the condition Ready if the backend is not ready.
    pub reason: Reason,
    /// Cause and remedy.
    pub message: String,
}

/// Selects the backend for a claim: the first one of [`rank`], which takes longer. Another one may be tried only after a
/// definite refusal by this one.
///
/// # Errors
/// No backend can serve the claim.
pub fn place<'b>(claim: &Claim<'_>, backends: &'b [Candidate<'_>]) -> Result<&'b str, NoBackend> {
    serving(claim, backends).map(|serving| first_by_free_space(claim.uid, &serving))
}

/// Returns the names of the backends that can serve a claim, at least one, in the order in which they would be tried.
///
/// # Errors
/// No backend can serve the claim.
pub fn rank(claim: &Claim<'_>, backends: &[Candidate<'_>]) -> Result<Vec<String>, NoBackend> {
    serving(claim, backends).map(|serving| order_by_free_space(claim.uid, serving))
}

/// Returns the backends that can serve a claim, at least one.
///
/// If a previous placement is still permitted, only that backend is considered, whether it is ready or not: objects may
/// already exist there, so the claim stays until that is known. A caller that knows that nothing exists there clears
/// `placed_on` and calls this function again.
fn serving<'a, 'b>(claim: &Claim<'_>, backends: &'b [Candidate<'a>]) -> Result<Vec<&'b Candidate<'a>>, NoBackend> {
    let permitted: Vec<&Candidate<'_>> = backends
        .iter()
        .filter(|backend| class_permits(claim.class, backend.name, backend.labels))
        .collect();
    if permitted.is_empty() {
        return Err(NoBackend {
            refusals: missing_backends(claim, backends),
            summary: no_permitted_backend(claim.class, backends.is_empty()),
        });
    }
    let placed = permitted
        .iter()
        .find(|backend| Some(backend.name) == claim.placed_on && !is_namespace_refused(claim, backend));
    let (considered, are_all) = match (placed, claim.requested_backend) {
        (Some(placed), _) => (vec![*placed], false),
        (None, Some(requested)) => match find_requested(requested, &permitted) {
            Ok(backend) => (vec![backend], false),
            Err(refusal) => {
                return Err(NoBackend {
                    summary: PlannedCondition::fails(refusal.reason, refusal.message.clone()),
                    refusals: vec![refusal],
                });
            }
        },
        (None, None) => (permitted, true),
    };
    let (mut serving, mut refusals) = (Vec::new(), Vec::new());
    for backend in considered {
        match check_backend(claim, backend) {
            Ok(()) => serving.push(backend),
            Err(refusal) => refusals.push(refusal),
        }
    }
    if serving.is_empty() {
        if are_all {
            refusals.extend(missing_backends(claim, backends));
        }
        refusals.sort_by(|a, b| a.backend.cmp(&b.backend));
        let mut summary = summarize(&refusals);
        if claim.topologies.is_empty() && other_node_possible(&refusals) {
            summary.message.push_str(NO_TOPOLOGIES);
        }
        return Err(NoBackend { refusals, summary });
    }
    Ok(serving)
}

/// Returns true if exactly one of the backends can have a volume of the claim, whatever the state of the backends is: only
/// another backend, another label or another class changes that.
pub fn has_only_choice(claim: &Claim<'_>, backends: &[Candidate<'_>]) -> bool {
    let mut choices = backends.iter().filter(|backend| {
        class_permits(claim.class, backend.name, backend.labels) && !is_namespace_refused(claim, backend)
    });
    choices.next().is_some() && choices.next().is_none()
}

/// Checks whether a backend that the class permits can serve a claim now.
///
/// # Errors
/// The first reason why it cannot.
pub fn check_backend(claim: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), BackendRefusal> {
    let checked = CHECKS.iter().try_for_each(|check| check(claim, backend));
    checked.map_err(|(reason, message)| BackendRefusal {
        backend: backend.name.to_owned(),
        reason,
        message,
    })
}

/// The scheduler considers the topologies of a class, and the node affinity of backends only as storage capacity.
const NO_TOPOLOGIES: &str = "; the StorageClass has no allowedTopologies, so the scheduler may select any node: set them to \
                             match nodeAffinity of its backends";

/// Returns true if a backend could serve the claim on a node other than the selected one.
pub fn other_node_possible(refusals: &[BackendRefusal]) -> bool {
    refusals.iter().any(|refusal| refusal.reason == Reason::NodeNotServed)
}

/// Returns true if a backend was refused only because it was not probed yet, or because its last probe is outdated.
pub fn awaits_probe(refusals: &[BackendRefusal]) -> bool {
    refusals.iter().any(|refusal| refusal.reason.awaits_probe())
}

/// Returns the backends that refused the claim only because their capacity, their space or their groups are used up. They
/// accept it once there is room for it.
pub fn backends_without_capacity(refusals: &[BackendRefusal]) -> BTreeSet<String> {
    let is_full = |reason: Reason| reason.is_lack_of_space() || reason == Reason::GroupsExhausted;
    let full = refusals.iter().filter(|refusal| is_full(refusal.reason));
    full.map(|refusal| refusal.backend.clone()).collect()
}

/// Returns true if a class permits a backend by name and by labels. If the class specifies both, both must match.
pub fn class_permits(class: &ClassParameters, backend: &str, labels: &BTreeMap<String, String>) -> bool {
    let by_name = class.backends.is_empty() || class.backends.iter().any(|name| name == backend);
    let selector = class.backend_selector.as_ref();
    by_name && selector.is_none_or(|selector| selector.matches(labels))
}

/// Returns the backend that the claim requests, if claims may select it.
fn find_requested<'a, 'b>(name: &str, permitted: &[&'b Candidate<'a>]) -> Result<&'b Candidate<'a>, BackendRefusal> {
    let refusal = |message: &str| BackendRefusal {
        backend: shorten(name),
        reason: Reason::OverrideRefused,
        message: format!("annotation {REQUESTED_BACKEND}: {} {message}", shorten(name)),
    };
    // The message is the same for a backend that does not exist and one that the class does not permit: a tenant must not
    // be able to find out which backends exist.
    let backend = permitted
        .iter()
        .find(|backend| backend.name == name)
        .ok_or_else(|| refusal("is not a backend of the StorageClass of this claim: remove the annotation"))?;
    if !backend.claim_overrides.contains(&ClaimOverride::Backend) {
        return Err(refusal(
            "may not be selected by claims: remove the annotation, or add `Backend` to its claimOverrides",
        ));
    }
    Ok(backend)
}

/// Returns a refusal for each backend that the class names but that does not exist.
fn missing_backends(claim: &Claim<'_>, backends: &[Candidate<'_>]) -> Vec<BackendRefusal> {
    let names = claim.class.backends.iter();
    names
        .filter(|name| backends.iter().all(|backend| backend.name != name.as_str()))
        .map(|name| BackendRefusal {
            backend: name.clone(),
            reason: Reason::BackendNotFound,
            message:
                "it is named by the StorageClass but does not exist: create it, or correct the parameter `backend`"
                    .into(),
        })
        .collect()
}

type CheckResult = Result<(), (Reason, String)>;
type Check = fn(&Claim<'_>, &Candidate<'_>) -> CheckResult;

/// Checks that a backend must pass, permanent reasons first. The selected node is last: a backend that fails only this check
/// can serve the claim on another node, and only then does selecting another node help.
const CHECKS: &[Check] = &[
    check_namespace,
    check_topology,
    check_accepts_volumes,
    check_ready,
    |claim, backend| check_capacity(claim.requested, backend),
    check_group,
    check_node,
];

/// Returns true if a namespace is allowed. An invalid selector selects no namespace.
pub fn is_namespace_allowed(allowed: &AllowedNamespaces, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let is_selected = || {
        let selector = allowed.selector.as_ref();
        selector.and_then(|selector| selects(selector, labels)) == Some(true)
    };
    allowed.match_names.iter().any(|allowed| allowed == name) || is_selected()
}

fn check_namespace(claim: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    let Some(allowed) = backend.allowed_namespaces else {
        return Ok(());
    };
    if allowed.match_names.iter().any(|name| name == claim.namespace) {
        return Ok(());
    }
    if let Some(selector) = &allowed.selector {
        let is_selected = selects(selector, claim.namespace_labels).ok_or_else(|| {
            let message = "allowedNamespaces.selector is not a valid label selector: correct it";
            (Reason::InvalidSpec, message.to_owned())
        })?;
        if is_selected {
            return Ok(());
        }
    }
    Err((
        Reason::NamespaceNotAllowed,
        format!(
            "namespace {} is not allowed: add it to allowedNamespaces of the backend",
            claim.namespace
        ),
    ))
}

/// Returns true if the namespace is definitely not allowed. With an invalid selector, the claim stays on the backend and
/// waits, because objects may already exist there.
fn is_namespace_refused(claim: &Claim<'_>, backend: &Candidate<'_>) -> bool {
    matches!(check_namespace(claim, backend), Err((Reason::NamespaceNotAllowed, _)))
}

/// Parses a label selector; `None` if it is not valid.
pub fn parse_selector(selector: &LabelSelector) -> Option<Selector> {
    is_valid(selector).then(|| selector.clone().try_into().ok()).flatten()
}

/// Returns true if a label selector is valid by the rules of Kubernetes, which kube leaves to the API server: `In` and `NotIn`
/// require values (an empty `NotIn` would select everything), `Exists` and `DoesNotExist` forbid them.
fn is_valid(selector: &LabelSelector) -> bool {
    selector.match_expressions.iter().flatten().all(|requirement| {
        let has_values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
        match requirement.operator.as_str() {
            "In" | "NotIn" => has_values,
            "Exists" | "DoesNotExist" => !has_values,
            _ => false,
        }
    })
}

/// Returns true if a selector selects these labels; `None` if it is not valid. The same as to parse it and to match the
/// labels, without a copy of the selector: each claim asks each of perhaps a thousand backends.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Option<bool> {
    let has_labels = || {
        let mut required = selector.match_labels.iter().flatten();
        required.all(|(key, value)| labels.get(key) == Some(value))
    };
    let satisfies = |requirement: &LabelSelectorRequirement| {
        let (value, values) = (labels.get(&requirement.key), requirement.values.as_deref());
        let is_one = || value.is_some_and(|value| values.unwrap_or_default().contains(value));
        match requirement.operator.as_str() {
            "In" => is_one(),
            "NotIn" => !is_one(),
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    };
    is_valid(selector).then(|| has_labels() && selector.match_expressions.iter().flatten().all(satisfies))
}

fn check_accepts_volumes(_: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    if backend.deleting {
        return Err((
            Reason::Deleting,
            "the backend is being deleted and accepts no new volumes".into(),
        ));
    }
    if backend.suspended {
        return Err((
            Reason::Suspended,
            "the backend is suspended and accepts no new volumes: set `suspend` to false".into(),
        ));
    }
    Ok(())
}

fn check_ready(_: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    match backend.ready.status {
        Some(true) => Ok(()),
        Some(false) | None => Err((backend.ready.reason, backend.ready.message.clone())),
    }
}

fn check_group(claim: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    match backend.groups {
        Some((range, 0)) if claim.needs_group => Err((
            Reason::GroupsExhausted,
            format!(
                "each group of directory.gidRange {range} is in use on the export: extend the range, or delete volumes and \
                 archives (with deletionPolicy: Delete) that are no longer needed"
            ),
        )),
        _ => Ok(()),
    }
}

fn check_topology(claim: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    match topology::intersect(backend.node_affinity, claim.topologies) {
        Ok(_) => Ok(()),
        Err(invalid @ TopologyError::Invalid(_)) => Err((Reason::InvalidSpec, format!("{invalid}: correct it"))),
        Err(error) => Err((Reason::TopologyMismatch, format!("{error}: correct one of them"))),
    }
}

fn check_node(claim: &Claim<'_>, backend: &Candidate<'_>) -> CheckResult {
    let Some(node) = &claim.node else { return Ok(()) };
    let both = topology::intersect(backend.node_affinity, claim.topologies)
        .ok()
        .flatten();
    if topology::selects(both.as_deref(), node) {
        return Ok(());
    }
    let problem = match node.labels {
        Some(_) if topology::selects(backend.node_affinity, node) => {
            "does not match allowedTopologies of the StorageClass"
        }
        Some(_) => "does not match nodeAffinity of the backend",
        None => "does not exist",
    };
    let name = shorten(node.name);
    Err((
        Reason::NodeNotServed,
        format!("node {name}, which the scheduler selected, {problem}; requesting another node"),
    ))
}

/// Checks that the limits of a backend leave capacity for `requested` bytes.
///
/// # Errors
/// Reason and message with the limit that is exceeded, and the remedy.
pub fn check_capacity(requested: u128, backend: &Candidate<'_>) -> CheckResult {
    check_limit(requested, backend)?;
    check_overcommit(requested, backend)?;
    check_reserve(backend)
}

/// Returns the largest request in bytes that the limits of a backend leave capacity for: none if the backend is not ready.
pub fn room(backend: &Candidate<'_>) -> u128 {
    if backend.ready.status != Some(true) {
        return 0;
    }
    let limit = limit_room(backend).map(|room| room.map_or(u128::MAX, |(room, _)| room));
    let overcommit = overcommit_room(backend).map(|room| room.map_or(u128::MAX, |(room, _)| room));
    match (check_reserve(backend), limit, overcommit) {
        (Ok(()), Ok(limit), Ok(overcommit)) => limit.min(overcommit),
        _ => 0,
    }
}

// The messages contain no figure that changes with other claims: otherwise, each volume that is created or deleted would
// cause a write for each waiting claim (docs/security.md, Budget).

fn check_limit(requested: u128, backend: &Candidate<'_>) -> CheckResult {
    match limit_room(backend)? {
        Some((room, limit)) if requested > room => Err(capacity_exceeded(format!(
            "{} requested, which is more than capacity.limit {} has left: request less, delete archives (with \
             deletionPolicy: Delete), or raise the limit",
            format_amount(requested),
            format_amount(limit)
        ))),
        _ => Ok(()),
    }
}

/// Returns the bytes that `capacity.limit` has left, and the limit.
fn limit_room(backend: &Candidate<'_>) -> Result<Option<(u128, u128)>, (Reason, String)> {
    let limit = parse_amount("limit", backend.limits.and_then(|limits| limits.limit.as_ref()))?;
    Ok(limit.map(|limit| (limit.saturating_sub(backend.provisioned), limit)))
}

fn check_overcommit(requested: u128, backend: &Candidate<'_>) -> CheckResult {
    match overcommit_room(backend)? {
        Some((room, percent)) if requested > room => Err(capacity_exceeded(format!(
            "{} requested, which is more than capacity.overcommitPercent {percent} has left on all backends of the export: \
             request less, delete archives (with deletionPolicy: Delete), or raise the percentage",
            format_amount(requested),
        ))),
        _ => Ok(()),
    }
}

/// Returns the bytes that `capacity.overcommitPercent` has left, and the percentage.
fn overcommit_room(backend: &Candidate<'_>) -> Result<Option<(u128, u128)>, (Reason, String)> {
    let Some(percent) = backend.limits.and_then(|limits| limits.overcommit_percent) else {
        return Ok(None);
    };
    let Some(total) = backend.total else {
        return Err(capacity_exceeded(
            "capacity.overcommitPercent is set, but the server does not report the size of the export: use capacity.limit"
                .into(),
        ));
    };
    let percent = u128::try_from(percent).unwrap_or(0);
    // The remainder is scaled separately, so that sizes near 2^128 do not overflow and 100 bytes do not become 0.
    let share = (total / 100)
        .saturating_mul(percent)
        .saturating_add(total % 100 * percent / 100);
    Ok(Some((share.saturating_sub(backend.provisioned_on_export), percent)))
}

fn check_reserve(backend: &Candidate<'_>) -> CheckResult {
    let Some(reserve) = parse_amount("reserve", backend.limits.and_then(|limits| limits.reserve.as_ref()))? else {
        return Ok(());
    };
    match backend.available {
        Some(available) if available >= reserve => Ok(()),
        Some(_) => Err(capacity_exceeded(format!(
            "the free space is below capacity.reserve {}: free space, or lower the reserve",
            format_amount(reserve)
        ))),
        None => Err(capacity_exceeded(
            "capacity.reserve is set, but the server does not report the free space: remove it".into(),
        )),
    }
}

fn capacity_exceeded(message: String) -> (Reason, String) {
    (Reason::CapacityExceeded, message)
}

fn parse_amount(field: &str, amount: Option<&StorageAmount>) -> Result<Option<u128>, (Reason, String)> {
    amount
        .map(|amount| {
            quantity::bytes(amount).ok_or_else(|| {
                let message = format!(
                    "capacity.{field} {} is not a valid quantity: correct it",
                    shorten(amount)
                );
                (Reason::InvalidSpec, message)
            })
        })
        .transpose()
}

/// Difference in free space up to which backends count as equal. It is more than what a few volumes change between two
/// probes, and less than what an administrator would notice.
const EQUAL_PERCENT: u128 = 10;

/// Returns the first of [`order_by_free_space`], without comparing backends that are not equal to the best one.
fn first_by_free_space<'b>(claim_uid: &str, backends: &[&'b Candidate<'_>]) -> &'b str {
    let best = backends.iter().map(|backend| FreeSpace::of(backend)).max();
    let is_equal = |backend: &Candidate<'_>| best.is_some_and(|best| FreeSpace::of(backend).equals(best));
    let equal = backends.iter().copied().filter(|backend| is_equal(backend));
    let first = equal.min_by_key(|backend| preference(claim_uid, backend));
    first.map(|backend| backend.name).unwrap_or_default()
}

/// Returns the names of the backends in the order in which to try them.
fn order_by_free_space(claim_uid: &str, backends: Vec<&Candidate<'_>>) -> Vec<String> {
    let mut rest: Vec<(FreeSpace, &Candidate<'_>)> = backends
        .into_iter()
        .map(|backend| (FreeSpace::of(backend), backend))
        .collect();
    rest.sort_by_key(|&(space, _)| Reverse(space));
    let mut names = Vec::with_capacity(rest.len());
    while let Some(&(best, _)) = rest.first() {
        let equal = rest.partition_point(|(space, _)| space.equals(best));
        let later = rest.split_off(equal);
        rest.sort_by_cached_key(|&(_, backend)| preference(claim_uid, backend));
        names.extend(rest.iter().map(|(_, backend)| backend.name.to_owned()));
        rest = later;
    }
    names
}

/// Free space of a backend. Backends that are not overcommitted are greater than those that are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FreeSpace {
    is_uncommitted: bool,
    bytes: u128,
}

impl FreeSpace {
    /// If the server does not report the available space, it counts as 0.
    fn of(backend: &Candidate<'_>) -> Self {
        let available = backend
            .available
            .map_or(0, |available| available.saturating_sub(backend.provisioned_since_probe));
        let uncommitted = backend
            .total
            .map_or(available, |total| total.saturating_sub(backend.provisioned_on_export));
        let is_uncommitted = uncommitted > 0;
        Self {
            is_uncommitted,
            bytes: if is_uncommitted {
                available.min(uncommitted)
            } else {
                available
            },
        }
    }

    fn equals(self, best: Self) -> bool {
        // Divided first, so that sizes near 2^128 do not overflow.
        let minimum = best.bytes - best.bytes / 100 * EQUAL_PERCENT;
        self.is_uncommitted == best.is_uncommitted && self.bytes >= minimum
    }
}

/// Returns what orders backends with equal free space: the number of volumes, then a number that distributes claims over the
/// backends. Nothing that is stored depends on it.
fn preference<'a>(claim_uid: &str, backend: &Candidate<'a>) -> (u64, u64, &'a str) {
    let mut hasher = DefaultHasher::new();
    (claim_uid, backend.name).hash(&mut hasher);
    (backend.volumes, hasher.finish(), backend.name)
}

/// Maximum number of backends that a message names per group. The others are counted.
const MAX_NAMES: usize = 10;
/// Maximum length of the message of one backend in bytes: enough for a few sentences and the remedy.
const MAX_MESSAGE: usize = 1024;
/// Maximum length of a name in a message in bytes; Kubernetes allows 253.
const MAX_NAME: usize = 253;

/// Returns the condition for at least one refusal, sorted by backend.
///
/// The message depends only on the refusals, not on the order in which the backends were read: an unchanged condition is
/// not written.
fn summarize(refusals: &[BackendRefusal]) -> PlannedCondition {
    let mut usable = refusals.iter().filter(|refusal| is_usable(refusal));
    if let (Some(only), None) = (usable.next(), usable.next()) {
        let others: Vec<&BackendRefusal> = refusals.iter().filter(|other| other.backend != only.backend).collect();
        return with_groups(only.reason, message_of(only), &others);
    }
    if let [only] = refusals {
        return PlannedCondition::fails(only.reason, message_of(only));
    }
    if let Some(common) = common_refusal(refusals) {
        return common;
    }
    let (unready, others): (Vec<&BackendRefusal>, Vec<&BackendRefusal>) = refusals
        .iter()
        .partition(|refusal| group_text(refusal.reason).is_none());
    let mut parts = Vec::new();
    if !unready.is_empty() {
        let names = list(
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
    parts.extend(groups(&others));
    PlannedCondition::fails(common_reason(refusals), parts.join("; "))
}

fn message_of(refusal: &BackendRefusal) -> String {
    format!(
        "backend {}: {}",
        refusal.backend,
        abbreviate(&refusal.message, MAX_MESSAGE)
    )
}

fn with_groups(reason: Reason, message: String, others: &[&BackendRefusal]) -> PlannedCondition {
    let parts: Vec<String> = std::iter::once(message).chain(groups(others)).collect();
    PlannedCondition::fails(reason, parts.join("; "))
}

/// Returns the refusal that all usable backends have in common, such as an annotation that none of them allows.
fn common_refusal(refusals: &[BackendRefusal]) -> Option<PlannedCondition> {
    let (usable, others): (Vec<&BackendRefusal>, Vec<&BackendRefusal>) =
        refusals.iter().partition(|refusal| is_usable(refusal));
    let first = usable.first().filter(|first| group_text(first.reason).is_none())?;
    let is_same = |other: &&BackendRefusal| other.reason == first.reason && other.message == first.message;
    if !usable.iter().all(is_same) {
        return None;
    }
    let names = list(usable.iter().map(|refusal| shorten(&refusal.backend)));
    let message = format!("backends {names}: {}", abbreviate(&first.message, MAX_MESSAGE));
    Some(with_groups(first.reason, message, &others))
}

/// Returns true if the backend exists and the namespace may use it.
fn is_usable(refusal: &BackendRefusal) -> bool {
    !matches!(refusal.reason, Reason::NamespaceNotAllowed | Reason::BackendNotFound)
}

/// Returns the condition if the class permits no existing backend.
fn no_permitted_backend(class: &ClassParameters, no_backends: bool) -> PlannedCondition {
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
                "no backend matches backendSelector {} of the StorageClass: label a backend, or correct the parameter",
                shorten(selector)
            ),
        ),
        (selector, _) => PlannedCondition::fails(
            Reason::BackendNotFound,
            named_backends_missing(class, selector.as_ref()),
        ),
    }
}

/// Returns the message about backends that a class names, if none of them exists and matches its selector.
fn named_backends_missing(class: &ClassParameters, selector: Option<&impl Display>) -> String {
    let names = list(class.backends.iter().map(shorten));
    let matching = selector.map_or_else(String::new, |selector| {
        format!(" and matches its backendSelector {}", shorten(selector))
    });
    let (which, missing) = match class.backends.len() {
        1 => (
            "it",
            format!("the backend {names}, and no backend with this name exists{matching}"),
        ),
        _ => (
            "one",
            format!("the backends {names}, but none of them exists{matching}"),
        ),
    };
    let remedy = match selector {
        Some(_) => format!("create or label {which}, or correct the parameters `backend` and `backendSelector`"),
        None => format!("create {which}, or correct the parameter `backend`"),
    };
    format!("the StorageClass names {missing}: {remedy}")
}

/// Limits the length of a name or another short text in a message.
fn shorten(text: impl Display) -> String {
    abbreviate(&text.to_string(), MAX_NAME)
}

/// Returns the reason that all refusals have in common, or else `NoBackendAvailable`.
fn common_reason(refusals: &[BackendRefusal]) -> Reason {
    let all = |reasons: &[Reason]| refusals.iter().all(|refusal| reasons.contains(&refusal.reason));
    if other_node_possible(refusals) {
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

/// Returns a short text for reasons that are not about the readiness of the backend.
fn group_text(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::NamespaceNotAllowed => Some("namespace not allowed"),
        Reason::CapacityExceeded => Some("capacity exceeded"),
        Reason::GroupsExhausted => Some("no free group"),
        Reason::BackendNotFound => Some("not found"),
        Reason::NodeNotServed => Some("selected node not served"),
        Reason::TopologyMismatch => Some("no node matches both its nodeAffinity and allowedTopologies"),
        _ => None,
    }
}

/// Groups refusals by their short text, such as `c, d: namespace not allowed`.
fn groups(refusals: &[&BackendRefusal]) -> Vec<String> {
    let mut groups: Vec<(&'static str, Vec<&str>)> = Vec::new();
    for refusal in refusals {
        let Some(text) = group_text(refusal.reason) else {
            continue;
        };
        match groups.iter_mut().find(|(group, _)| *group == text) {
            Some((_, names)) => names.push(&refusal.backend),
            None => groups.push((text, vec![&refusal.backend])),
        }
    }
    groups
        .into_iter()
        .map(|(text, names)| format!("{}: {text}", list(names.into_iter().map(shorten))))
        .collect()
}

fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(MAX_NAMES);
    let mut text = items.take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests;
