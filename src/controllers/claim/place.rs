//! Places a claim on a backend and holds the room for it, in one step.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::guard::ClaimRequest;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, WISHED_BACKEND, volume_name};
use crate::api::parameters::ClassParameters;
use crate::decide::placement::topology::SelectedNode;
use crate::decide::placement::{self, Candidate, Claim, Placement};
use crate::state::backends::Backend;
use crate::state::candidates::BackendView;
use crate::state::context::Context;

/// Where a claim goes.
pub enum PlacementResult {
    /// To this backend; the room is held.
    On(Arc<Backend>),
    /// Nowhere now.
    Nowhere {
        /// Why.
        verdict: PlannedCondition,
        /// A backend would serve it on another node than the selected one.
        elsewhere: bool,
        /// The next probe of a backend may say otherwise, and comes soon.
        doubtful: bool,
    },
    /// Nowhere until somebody changes something.
    Infeasible(PlannedCondition),
}

/// Places a claim; `refused` are the backends that refused it just now, with their verdicts.
pub fn place(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
    refused: &[(String, PlannedCondition)],
) -> PlacementResult {
    let class = match class_under(ctx, request) {
        Ok(class) => class,
        Err(verdict) => return PlacementResult::Infeasible(verdict),
    };
    let views = BackendView::all(ctx, refused);
    let uid = claim.uid().unwrap_or_default();
    let claim_namespace = namespace.name_any();
    let annotations = claim.annotations();
    let volume = volume_name(&uid);
    let placed_on = pinned_backend(ctx, claim, &volume);
    let node = request.node.as_deref().and_then(|name| ctx.node(name));
    let asked = Claim {
        uid: &uid,
        namespace: &claim_namespace,
        namespace_labels: namespace.labels(),
        requested: request.bytes,
        class: &class,
        wish: annotations.get(WISHED_BACKEND).map(String::as_str),
        placed_on: placed_on.as_deref(),
        node: request.node.as_deref().map(|name| SelectedNode {
            name,
            labels: node.as_ref().map(|node| node.labels()),
        }),
        topologies: &request.topologies,
    };
    let placement = ctx.capacity.promise(&volume, request.bytes, |books| {
        let candidates: Vec<Candidate<'_>> = views.iter().map(|view| view.candidate(&views, books)).collect();
        let placement = placement::place(&asked, &candidates);
        let chosen = match &placement {
            Placement::On(order) => order.first().cloned(),
            Placement::Nowhere { .. } => None,
        };
        (chosen, placement)
    });
    match placement {
        Placement::On(order) => {
            let chosen = |view: &&BackendView| order.first().is_some_and(|name| name == view.name());
            match views.iter().find(chosen).and_then(|view| view.backend.clone()) {
                Some(backend) => PlacementResult::On(backend),
                // Only a backend that was probed can be ready.
                None => PlacementResult::Nowhere {
                    verdict: PlannedCondition::fails(Reason::NotProbed, "the backend is not probed yet"),
                    elsewhere: false,
                    doubtful: false,
                },
            }
        }
        Placement::Nowhere { refusals, summary } => PlacementResult::Nowhere {
            verdict: summary,
            elsewhere: placement::other_node_possible(&refusals),
            doubtful: placement::probe_is_stale(&refusals),
        },
    }
}

/// The class's parameters; under an alias it reaches that alias' backend only.
pub(crate) fn class_under(ctx: &Context, request: &ClaimRequest) -> Result<ClassParameters, PlannedCondition> {
    let mut class = request.parameters.clone();
    if let Some(backend) = ctx.settings.aliases.get(&request.provisioner) {
        if class.backends.iter().any(|name| name != backend) {
            return Err(PlannedCondition::fails(
                Reason::InvalidParameter,
                format!(
                    "classes of provisioner {} reach backend {backend} only: remove the parameter `backend`",
                    request.provisioner
                ),
            ));
        }
        class.backends = vec![backend.clone()];
    }
    Ok(class)
}

/// The backend on which something may have been made for this claim already: there it stays until that is known.
///
/// A tenant can write the annotation too, so it counts only where nobody could look yet what a former life began.
fn pinned_backend(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> Option<String> {
    if let Some(backend) = ctx.backends.all().iter().find(|backend| backend.is_open(volume)) {
        return Some(backend.name.clone());
    }
    let annotated = claim.annotations().get(PLACED_ON)?;
    let unknown = ctx.backends.get(annotated).is_none_or(|backend| !backend.is_taken_in());
    unknown.then(|| annotated.clone())
}
