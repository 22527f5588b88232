//! Places a claim on a backend and holds the room for it, in one step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::guard::ClaimRequest;
use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, WISHED_BACKEND, volume_name};
use crate::api::parameters::ClassParameters;
use crate::decide::placement::topology::SelectedNode;
use crate::decide::placement::{self, Candidate, Claim, Placement};
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::capacity::CapacityState;
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

/// A backend at one moment: its object as it is now, and what the last probe found, if there was one.
pub struct View {
    object: Arc<NfsBackend>,
    backend: Option<Arc<Backend>>,
    known: Option<Arc<ProbeSnapshot>>,
    ready: PlannedCondition,
}

impl View {
    /// The backend's name.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether a probe ever ended.
    pub fn is_probed(&self) -> bool {
        self.known
            .as_ref()
            .is_some_and(|known| known.ready.reason != Reason::NotProbed)
    }

    fn export_id(&self) -> Option<&str> {
        self.known
            .as_ref()?
            .identity
            .as_ref()
            .map(|identity| identity.id.as_str())
    }
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
    let views = views(ctx, refused);
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
        let candidates: Vec<Candidate<'_>> = views.iter().map(|view| candidate(view, &views, books)).collect();
        let placement = placement::place(&asked, &candidates);
        let chosen = match &placement {
            Placement::On(order) => order.first().cloned(),
            Placement::Nowhere { .. } => None,
        };
        (chosen, placement)
    });
    match placement {
        Placement::On(order) => {
            let chosen = |view: &&View| order.first().is_some_and(|name| name == view.name());
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

/// All backends as they are now; those in `refused` with that verdict instead of their own.
pub fn views(ctx: &Context, refused: &[(String, PlannedCondition)]) -> Vec<View> {
    let now = Instant::now();
    let view = |object: Arc<NfsBackend>| {
        let name = object.metadata.name.clone().unwrap_or_default();
        let backend = ctx
            .backends
            .get(&name)
            .filter(|backend| Some(&backend.uid) == object.metadata.uid.as_ref());
        let known = backend.as_ref().map(|backend| backend.known());
        let verdict = refused
            .iter()
            .find(|(refused, _)| *refused == name)
            .map(|(_, verdict)| verdict.clone());
        let probed = || known.as_ref().map(|known| known.ready_now(now));
        let ready = verdict
            .or_else(probed)
            .unwrap_or_else(|| PlannedCondition::unknown(Reason::NotProbed, "not probed yet"));
        View {
            object,
            backend,
            known,
            ready,
        }
    };
    ctx.stores.backends.state().into_iter().map(view).collect()
}

/// What placement needs to know of a backend.
pub fn candidate<'a>(view: &'a View, all: &[View], books: &CapacityState) -> Candidate<'a> {
    let spec = &view.object.spec;
    let totals = books.totals(view.name());
    let on_export: Vec<&View> = all
        .iter()
        .filter(|other| other.export_id().is_some() && other.export_id() == view.export_id())
        .collect();
    let provisioned_on_export = on_export
        .iter()
        .map(|other| books.totals(other.name()).bytes)
        .sum::<u128>();
    let at_probe = on_export
        .iter()
        .filter_map(|other| Some(other.known.as_ref()?.provisioned))
        .sum::<u128>();
    let statistics = view.known.as_ref().and_then(|known| known.statistics);
    Candidate {
        name: view.name(),
        labels: view.object.metadata.labels.as_ref().unwrap_or(&NO_LABELS),
        ready: &view.ready,
        suspended: spec.suspend,
        deleting: view.object.metadata.deletion_timestamp.is_some(),
        allowed_namespaces: spec.allowed_namespaces.as_ref(),
        limits: spec.capacity.as_ref(),
        claim_overrides: &spec.claim_overrides,
        node_affinity: spec.node_affinity.as_ref(),
        total: statistics.map(|statistics| u128::from(statistics.total)),
        available: statistics.map(|statistics| u128::from(statistics.available)),
        provisioned_since_probe: provisioned_on_export.saturating_sub(at_probe),
        provisioned: totals.bytes,
        provisioned_on_export,
        volumes: totals.volumes,
    }
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
