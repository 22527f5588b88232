use super::*;

use crate::api::backend::StorageAmount;

mod filter;
mod nodes;
mod score;
mod summary;

const GI: u128 = 1 << 30;

/// Backend that a test changes and converts to a [`Candidate`].
#[derive(Clone)]
struct Backend {
    name: String,
    labels: BTreeMap<String, String>,
    ready: PlannedCondition,
    suspended: bool,
    deleting: bool,
    allowed: Option<AllowedNamespaces>,
    limits: CapacityLimits,
    overrides: Vec<ClaimOverride>,
    affinity: Option<VolumeNodeAffinity>,
    total: Option<u128>,
    available: Option<u128>,
    since_probe: u128,
    provisioned: u128,
    on_export: u128,
    volumes: u64,
    groups: Option<(GroupRange, u64)>,
}

impl Backend {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            ready: PlannedCondition::holds(Reason::AllChecksPassed, ""),
            suspended: false,
            deleting: false,
            allowed: None,
            limits: CapacityLimits::default(),
            overrides: Vec::new(),
            affinity: None,
            total: Some(1000 * GI),
            available: Some(1000 * GI),
            since_probe: 0,
            provisioned: 0,
            on_export: 0,
            volumes: 0,
            groups: None,
        }
    }

    fn with(name: &str, change: impl FnOnce(&mut Self)) -> Self {
        let mut backend = Self::new(name);
        change(&mut backend);
        backend
    }

    fn broken(name: &str, reason: Reason) -> Self {
        Self::with(name, |backend| {
            backend.ready = PlannedCondition::fails(reason, format!("{name} is broken"))
        })
    }

    fn elsewhere(name: &str) -> Self {
        Self::with(name, |backend| backend.allowed = Some(AllowedNamespaces::default()))
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            name: &self.name,
            labels: &self.labels,
            ready: &self.ready,
            suspended: self.suspended,
            deleting: self.deleting,
            allowed_namespaces: self.allowed.as_ref(),
            limits: Some(&self.limits),
            claim_overrides: &self.overrides,
            node_affinity: self.affinity.as_ref(),
            total: self.total,
            available: self.available,
            provisioned_since_probe: self.since_probe,
            provisioned: self.provisioned,
            provisioned_on_export: self.on_export,
            volumes: self.volumes,
            groups: self.groups,
        }
    }

    fn take(&mut self, bytes: u128) {
        self.provisioned += bytes;
        self.on_export += bytes;
        self.since_probe += bytes;
        self.volumes += 1;
    }
}

#[derive(Clone, Default)]
struct TestClaim {
    uid: String,
    class: ClassParameters,
    requested_backend: Option<&'static str>,
    placed_on: Option<&'static str>,
    node: Option<(&'static str, Option<&'static str>)>,
    topologies: Vec<TopologySelectorTerm>,
    requested: u128,
    needs_group: bool,
}

/// Returns the ranking, of which a claim gets the first.
fn placed(claim: &TestClaim, backends: &[Backend]) -> Result<Vec<String>, NoBackend> {
    let ranked = with_claim(claim, backends, rank);
    let first = with_claim(claim, backends, |claim, candidates| {
        place(claim, candidates).map(str::to_owned)
    });
    let first_ranked = ranked.clone().map(|names| names.first().cloned().unwrap_or_default());
    assert_eq!(first, first_ranked);
    ranked
}

fn with_claim<T>(claim: &TestClaim, backends: &[Backend], decide: impl FnOnce(&Claim<'_>, &[Candidate<'_>]) -> T) -> T {
    let namespace_labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
    let zone = claim.node.and_then(|(_, zone)| zone);
    let labels = zone.map(|zone| BTreeMap::from([("zone".to_owned(), zone.to_owned())]));
    let claim = Claim {
        uid: &claim.uid,
        namespace: "shop",
        namespace_labels: &namespace_labels,
        requested: claim.requested,
        class: &claim.class,
        requested_backend: claim.requested_backend,
        placed_on: claim.placed_on,
        node: claim.node.map(|(name, _)| SelectedNode {
            name,
            labels: labels.as_ref(),
        }),
        needs_group: claim.needs_group,
        topologies: &claim.topologies,
    };
    let candidates: Vec<Candidate<'_>> = backends.iter().map(Backend::candidate).collect();
    decide(&claim, &candidates)
}

fn on(claim: &TestClaim, backends: &[Backend]) -> Vec<String> {
    match placed(claim, backends) {
        Ok(names) => names,
        Err(refused) => unreachable!("{refused:?}"),
    }
}

fn nowhere(claim: &TestClaim, backends: &[Backend]) -> (Vec<BackendRefusal>, PlannedCondition) {
    match placed(claim, backends) {
        Ok(names) => unreachable!("placed on {names:?}"),
        Err(NoBackend { refusals, summary }) => (refusals, summary),
    }
}

fn reason(backend: Backend) -> Reason {
    let (refusals, summary) = nowhere(
        &TestClaim {
            requested: 10 * GI,
            ..TestClaim::default()
        },
        &[backend],
    );
    assert_eq!(refusals.len(), 1);
    // With a single usable backend, the claim has its reason.
    assert_eq!(Some(summary.reason), refusals.first().map(|refusal| refusal.reason));
    summary.reason
}

fn class(parameters: &[(&str, &str)]) -> ClassParameters {
    let parameters = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
    ClassParameters::parse(&parameters).unwrap_or_default()
}

fn namespaces(names: &[&str], selector: Option<serde_json::Value>) -> AllowedNamespaces {
    AllowedNamespaces {
        match_names: names.iter().map(|&name| name.into()).collect(),
        selector: selector.and_then(|selector| serde_json::from_value(selector).ok()),
    }
}
