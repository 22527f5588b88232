//! Input of placement: the current object of each backend, with the result of its last probe.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use tokio::time::Instant;

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::placement::{self, Candidate};
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::capacity::CapacityState;
use crate::state::context::Context;
use export_store::GroupRange;

/// State of one backend at one point in time.
pub struct BackendView {
    object: Arc<NfsBackend>,
    /// Runtime state of the backend; `None` before its first reconciliation.
    pub backend: Option<Arc<Backend>>,
    snapshot: Option<Arc<ProbeSnapshot>>,
    /// The condition Ready, unless it is that of the snapshot.
    ready: Option<PlannedCondition>,
    /// The backend's groups, and how many of them are free on its export.
    groups: Option<(GroupRange, u64)>,
}

impl BackendView {
    /// Returns all current backends. A backend in `refused` has that condition instead of its own.
    pub fn all(ctx: &Context, refused: &[(String, PlannedCondition)]) -> Vec<Self> {
        let now = Instant::now();
        let view = |object: Arc<NfsBackend>| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let backend = ctx
                .backends
                .get(name)
                .filter(|backend| Some(&backend.uid) == object.metadata.uid.as_ref());
            let snapshot = backend.as_ref().map(|backend| backend.last_probe());
            let refusal = refused
                .iter()
                .find(|(refused, _)| *refused == name)
                .map(|(_, condition)| condition.clone());
            let ready = refusal.or_else(|| snapshot.as_ref()?.outdated(&object, now));
            let export = snapshot.as_ref().and_then(|snapshot| snapshot.export_id());
            let range = object.spec.directory.group_range();
            let free = |(range, export)| (range, ctx.path_reservations.groups.free(export, range));
            let groups = range.zip(export).map(free);
            Self {
                object,
                backend,
                snapshot,
                ready,
                groups,
            }
        };
        ctx.stores.backends.state().into_iter().map(view).collect()
    }

    /// Returns the name of the backend.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns true once a probe has completed.
    pub fn is_probed(&self) -> bool {
        self.snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.ready.reason != Reason::NotProbed)
    }

    /// Returns the placement candidates for all backends, in the same order.
    pub fn candidates<'a>(all: &'a [Self], allocated: &CapacityState) -> Vec<Candidate<'a>> {
        let exports = ExportTotals::of(all, allocated);
        all.iter().map(|view| view.candidate(&exports, allocated)).collect()
    }

    /// Returns the placement candidate for this backend. `exports` are the totals of all backends' exports.
    pub fn candidate(&self, exports: &ExportTotals<'_>, allocated: &CapacityState) -> Candidate<'_> {
        let spec = &self.object.spec;
        let totals = allocated.totals(self.name());
        let on_export = exports.get(self);
        let statistics = self.snapshot.as_ref().and_then(|snapshot| snapshot.statistics);
        Candidate {
            name: self.name(),
            labels: self.object.metadata.labels.as_ref().unwrap_or(&NO_LABELS),
            ready: self.ready(),
            suspended: spec.suspend,
            deleting: self.object.metadata.deletion_timestamp.is_some(),
            allowed_namespaces: spec.allowed_namespaces.as_ref(),
            limits: spec.capacity.as_ref(),
            claim_overrides: &spec.claim_overrides,
            node_affinity: spec.node_affinity.as_ref(),
            total: statistics.map(|statistics| u128::from(statistics.total)),
            available: statistics.map(|statistics| u128::from(statistics.available)),
            provisioned_since_probe: on_export.provisioned.saturating_sub(on_export.at_probe),
            provisioned: totals.bytes,
            provisioned_on_export: on_export.provisioned,
            volumes: totals.volumes,
            groups: self.groups,
        }
    }

    fn export_id(&self) -> Option<&str> {
        self.snapshot.as_ref()?.export_id()
    }

    fn ready(&self) -> &PlannedCondition {
        let snapshot = self.snapshot.as_ref();
        let own = self.ready.as_ref();
        own.or(snapshot.map(|snapshot| &snapshot.ready)).unwrap_or(&NOT_PROBED)
    }
}

/// Wakes the claims that wait for capacity or for a group, and fit in now.
pub fn wake_fitting_claims(ctx: &Context) {
    let demanded: HashSet<String> = ctx.waiting_claims.demanded_backends().into_iter().collect();
    if demanded.is_empty() {
        return;
    }
    let views = BackendView::all(ctx, &[]);
    let room: Vec<(&str, u128, usize)> = ctx.capacity.read(|allocated| {
        let exports = ExportTotals::of(&views, allocated);
        let demanded = views.iter().filter(|view| demanded.contains(view.name()));
        demanded
            .map(|view| {
                let room = placement::room(&view.candidate(&exports, allocated));
                let groups = view.groups.map(|(_, free)| usize::try_from(free).unwrap_or(usize::MAX));
                (view.name(), room, groups.unwrap_or(usize::MAX))
            })
            .collect()
    });
    for (backend, room, groups) in room {
        ctx.waiting_claims.wake_fitting(backend, room, groups);
    }
}

/// The provisioned bytes of each export, added up over the backends that share it.
pub struct ExportTotals<'a>(HashMap<&'a str, ExportTotal>);

#[derive(Debug, Clone, Copy, Default)]
struct ExportTotal {
    /// Bytes now.
    provisioned: u128,
    /// Bytes at the time of the last probe of each backend.
    at_probe: u128,
}

impl<'a> ExportTotals<'a> {
    /// Adds up the totals of these backends.
    pub fn of(all: &'a [BackendView], allocated: &CapacityState) -> Self {
        let mut exports: HashMap<&str, ExportTotal> = HashMap::new();
        for view in all {
            let (Some(id), Some(snapshot)) = (view.export_id(), &view.snapshot) else {
                continue;
            };
            let export = exports.entry(id).or_default();
            export.provisioned += allocated.totals(view.name()).bytes;
            export.at_probe += snapshot.provisioned;
        }
        Self(exports)
    }

    /// Returns the totals of a backend's export: zero as long as the export is unknown.
    fn get(&self, view: &BackendView) -> ExportTotal {
        let export = view.export_id().and_then(|id| self.0.get(id));
        export.copied().unwrap_or_default()
    }
}

/// The condition Ready of a backend that was not probed yet.
static NOT_PROBED: LazyLock<PlannedCondition> =
    LazyLock::new(|| PlannedCondition::unknown(Reason::NotProbed, "not probed yet"));

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
