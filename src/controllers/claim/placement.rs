//! Places a claim on a backend and reserves its capacity, in one step.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::eligibility::ClaimRequest;
use super::restore::ArchiveSource;
use crate::api::backend::Existing;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, REQUESTED_BACKEND, volume_name};
use crate::api::parameters::ClassParameters;
use crate::decide::placement::{self, BackendRefusal, Claim, NoBackend};
use crate::decide::topology::SelectedNode;
use crate::runtime::waiting::CapacityDemand;
use crate::state::backends::Backend;
use crate::state::candidates::BackendView;
use crate::state::context::Context;

/// The result of placing a claim.
pub enum PlacementResult {
    /// Placed on this backend; the capacity is reserved.
    Placed {
        /// The backend.
        backend: Arc<Backend>,
        /// True if no other backend can have the claim.
        is_only_choice: bool,
    },
    /// No backend accepts it now.
    NoBackend {
        /// The condition, with the reason of each backend.
        condition: PlannedCondition,
        /// The capacity that the claim waits for, if backends refused it only for that.
        capacity: Option<CapacityDemand>,
        /// True if a backend could serve it on another node than the selected one.
        other_node_possible: bool,
        /// True if a backend was not probed yet, or its probe is late, and the result may change this.
        awaits_probe: bool,
    },
    /// No backend accepts it until a user changes something.
    Infeasible(PlannedCondition),
}

/// Places a claim. The bytes of an archive that is `moved` are counted already.
/// `refused` are the backends that refused it in this attempt, with their conditions.
pub fn place(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    moved: Option<&ArchiveSource>,
    namespace: &PartialObjectMeta<Namespace>,
    refused: &[(String, PlannedCondition)],
) -> PlacementResult {
    let class = match class_for_placement(ctx, request, moved) {
        Ok(class) => class,
        Err(condition) => return PlacementResult::Infeasible(condition),
    };
    let additional = request.bytes.saturating_sub(moved.map_or(0, |archive| archive.bytes));
    let views = BackendView::all(ctx, refused);
    let uid = claim.uid().unwrap_or_default();
    let claim_namespace = namespace.name_any();
    let annotations = claim.annotations();
    let volume = volume_name(&uid);
    let placed_on = pinned_backend(ctx, claim, &volume);
    let node = request.node.as_deref().and_then(|name| ctx.node(name));
    let claim = Claim {
        uid: &uid,
        namespace: &claim_namespace,
        namespace_labels: namespace.labels(),
        requested: additional,
        class: &class,
        requested_backend: annotations.get(REQUESTED_BACKEND).map(String::as_str),
        placed_on: placed_on.as_deref(),
        node: request.node.as_deref().map(|name| SelectedNode {
            name,
            labels: node.as_ref().map(|node| node.labels()),
        }),
        // A shared directory keeps its group.
        needs_group: moved.is_none() && placed_on.is_none() && request.parameters.existing != Some(Existing::Share),
        topologies: &request.topologies,
    };
    let mut is_only_choice = false;
    let placement = ctx.capacity.reserve(&volume, request.bytes, |allocated| {
        let candidates = BackendView::candidates(&views, allocated);
        let placement = placement::place(&claim, &candidates).map(str::to_owned);
        is_only_choice = placement::has_only_choice(&claim, &candidates);
        (placement.as_ref().ok().cloned(), placement)
    });
    match placement {
        Ok(chosen) => {
            let chosen = views.iter().find(|view| view.name() == chosen);
            match chosen.and_then(|view| view.backend.clone()) {
                Some(backend) => PlacementResult::Placed {
                    backend,
                    is_only_choice,
                },
                // Unreachable: only a probed backend can be ready.
                None => PlacementResult::NoBackend {
                    condition: PlannedCondition::fails(Reason::NotProbed, "the backend is not probed yet"),
                    capacity: None,
                    other_node_possible: false,
                    awaits_probe: true,
                },
            }
        }
        Err(NoBackend { refusals, summary }) => PlacementResult::NoBackend {
            condition: summary,
            capacity: capacity_demand(&refusals, claim.namespace, additional),
            other_node_possible: placement::other_node_possible(&refusals),
            awaits_probe: placement::awaits_probe(&refusals),
        },
    }
}

fn capacity_demand(refusals: &[BackendRefusal], namespace: &str, bytes: u128) -> Option<CapacityDemand> {
    let backends = placement::backends_without_capacity(refusals);
    (!backends.is_empty()).then(|| CapacityDemand {
        namespace: namespace.to_owned(),
        backends: backends.into_iter().collect(),
        bytes,
    })
}

/// Returns the class's parameters for placement. An archive that is `moved` stays on its backend, and a class under an alias
/// is restricted to the alias's backend.
pub(crate) fn class_for_placement(
    ctx: &Context,
    request: &ClaimRequest,
    moved: Option<&ArchiveSource>,
) -> Result<ClassParameters, PlannedCondition> {
    let mut class = request.parameters.clone();
    if let Some(archive) = moved {
        class.backends = vec![archive.backend.clone()];
    }
    ctx.settings.served.restrict(&request.provisioner, &mut class)?;
    Ok(class)
}

/// Returns the backend on which something may already exist for this claim. The claim stays there until that is known.
///
/// Tenants can write the annotation too. It is used only while it is unknown what a previous process began on that
/// backend.
fn pinned_backend(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> Option<String> {
    if let Some(backend) = pending_backend(ctx, volume) {
        return Some(backend.name.clone());
    }
    let annotated = claim.annotations().get(PLACED_ON)?;
    let unknown = ctx
        .backends
        .get(annotated)
        .is_none_or(|backend| !backend.is_recovered());
    unknown.then(|| annotated.clone())
}

/// Returns the backend on which provisioning of a volume has started.
pub(super) fn pending_backend(ctx: &Context, volume: &str) -> Option<Arc<Backend>> {
    ctx.backends.find(|backend| backend.has_pending(volume))
}
