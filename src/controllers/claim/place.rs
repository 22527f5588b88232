//! Places a claim on a backend and holds the room for it, in one step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::guard::Request;
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::{PLACED_ON, WISHED_BACKEND, volume_name};
use crate::api::parameters::ClassParameters;
use crate::operator::backends::{Backend, Known};
use crate::operator::context::Context;
use crate::operator::inventory::Books;
use crate::placement::{self, Candidate, Claim, Placement};

/// Where a claim goes.
pub enum Placed {
    /// To this backend; the room is held.
    On(Arc<Backend>),
    /// Nowhere now.
    Nowhere(Verdict),
    /// Nowhere until somebody changes something.
    Infeasible(Verdict),
}

/// A backend with what is known of it, at one moment.
struct View {
    backend: Arc<Backend>,
    known: Arc<Known>,
    ready: Verdict,
}

impl View {
    fn export_id(&self) -> Option<&str> {
        self.known.identity.as_ref().map(|identity| identity.id.as_str())
    }
}

/// Places a claim; `refused` are the backends that refused it just now, with their verdicts.
pub fn place(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &Request,
    namespace: &PartialObjectMeta<Namespace>,
    refused: &[(String, Verdict)],
) -> Placed {
    let class = match class_under(ctx, request) {
        Ok(class) => class,
        Err(verdict) => return Placed::Infeasible(verdict),
    };
    let views = views(ctx, refused);
    let uid = claim.uid().unwrap_or_default();
    let claim_namespace = namespace.name_any();
    let annotations = claim.annotations();
    // A tenant can write this annotation too: it binds only where something may have been made for the claim.
    let volume = volume_name(&uid);
    let may_hold = |name: &&String| ctx.backends.get(name).is_some_and(|backend| backend.may_hold(&volume));
    let placed_on = annotations.get(PLACED_ON).filter(may_hold);
    let asked = Claim {
        uid: &uid,
        namespace: &claim_namespace,
        namespace_labels: namespace.labels(),
        requested: request.bytes,
        class: &class,
        wish: annotations.get(WISHED_BACKEND).map(String::as_str),
        placed_on: placed_on.map(String::as_str),
    };
    let placement = ctx.inventory.promise(&volume, request.bytes, |books| {
        let candidates: Vec<Candidate<'_>> = views.iter().map(|view| candidate(view, &views, books)).collect();
        let placement = placement::place(&asked, &candidates);
        let chosen = match &placement {
            Placement::On(order) => order.first().cloned(),
            Placement::Nowhere { .. } => None,
        };
        (chosen, placement)
    });
    match placement {
        Placement::On(order) => order
            .first()
            .and_then(|name| views.iter().find(|view| &view.backend.name == name))
            .map_or_else(
                || Placed::Nowhere(Verdict::no(Reason::NoBackendAvailable, "no backend")),
                |view| Placed::On(Arc::clone(&view.backend)),
            ),
        Placement::Nowhere { summary, .. } => Placed::Nowhere(summary),
    }
}

/// The class's parameters; under an alias it reaches that alias' backend only.
fn class_under(ctx: &Context, request: &Request) -> Result<ClassParameters, Verdict> {
    let mut class = request.parameters.clone();
    if let Some(backend) = ctx.settings.aliases.get(&request.provisioner) {
        if class.backends.iter().any(|name| name != backend) {
            return Err(Verdict::no(
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

fn views(ctx: &Context, refused: &[(String, Verdict)]) -> Vec<View> {
    let now = Instant::now();
    let view = |backend: Arc<Backend>| {
        let known = backend.known();
        let verdict = refused
            .iter()
            .find(|(name, _)| *name == backend.name)
            .map(|(_, verdict)| verdict.clone());
        let ready = verdict.unwrap_or_else(|| known.ready_now(now));
        View { backend, known, ready }
    };
    ctx.backends.all().into_iter().map(view).collect()
}

fn candidate<'a>(view: &'a View, all: &[View], books: &Books) -> Candidate<'a> {
    let object = &view.known.object;
    let totals = books.totals(&view.backend.name);
    let on_export: Vec<&View> = all
        .iter()
        .filter(|other| other.export_id().is_some() && other.export_id() == view.export_id())
        .collect();
    let provisioned_on_export = on_export
        .iter()
        .map(|other| books.totals(&other.backend.name).bytes)
        .sum::<u128>();
    let at_probe = on_export.iter().map(|other| other.known.provisioned).sum::<u128>();
    Candidate {
        name: &view.backend.name,
        labels: object.metadata.labels.as_ref().unwrap_or(&NO_LABELS),
        ready: &view.ready,
        suspended: object.spec.suspend,
        deleting: object.metadata.deletion_timestamp.is_some(),
        allowed_namespaces: object.spec.allowed_namespaces.as_ref(),
        limits: object.spec.capacity.as_ref(),
        claim_overrides: &object.spec.claim_overrides,
        total: view.known.statistics.map(|statistics| u128::from(statistics.total)),
        available: view.known.statistics.map(|statistics| u128::from(statistics.available)),
        provisioned_since_probe: provisioned_on_export.saturating_sub(at_probe),
        provisioned: totals.bytes,
        provisioned_on_export,
        volumes: totals.volumes,
    }
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
