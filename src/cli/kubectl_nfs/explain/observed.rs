//! The input of placement, from the objects that a user can read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt};

use super::Verdict;
use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{REQUESTED_BACKEND, SELECTED_NODE};
use crate::cli::cluster::{CommandError, all, failed};
use crate::cli::kubectl_nfs::names::condition;
use crate::controllers::claim::{ClaimRequest, Eligibility, check_eligibility, class_name};
use crate::decide::placement::{Candidate, Claim, check_backend, class_permits, rank};
use crate::decide::quantity;
use crate::decide::topology::SelectedNode;
use crate::runtime::reads;
use crate::state::context::Provisioners;

type Labels = BTreeMap<String, String>;

/// What placement depends on.
pub struct Observed {
    uid: String,
    namespace: String,
    namespace_labels: Labels,
    request: ClaimRequest,
    requested_backend: Option<String>,
    node: Option<(String, Option<Labels>)>,
    backends: Vec<ObservedBackend>,
}

struct ObservedBackend {
    object: NfsBackend,
    ready: PlannedCondition,
}

impl Observed {
    /// Reads the class, the namespace, the node and the backends. Returns the reason if the claim is not placed at all.
    pub async fn read(
        client: &Client,
        claim: &PersistentVolumeClaim,
        served: &Provisioners,
    ) -> Result<Result<Self, String>, CommandError> {
        let classes: Api<StorageClass> = Api::all(client.clone());
        let class = match class_name(claim) {
            Some(name) => reads::get_opt(&classes, &name)
                .await
                .map_err(failed("read the StorageClass"))?,
            None => {
                return Ok(Err(
                    "the claim has no StorageClass: set spec.storageClassName".to_owned()
                ));
            }
        };
        let mut request = match check_eligibility(claim, class.as_ref(), served) {
            Eligibility::Provision(request) => *request,
            Eligibility::Infeasible(condition) => {
                return Ok(Err(format!("{}: {}", condition.reason, condition.message)));
            }
            Eligibility::Bound => return Ok(Err("it has a volume".to_owned())),
            Eligibility::Lost => return Ok(Err("its volume was deleted".to_owned())),
            Eligibility::Ignore => return Ok(Err(why_ignored(claim, class.as_ref(), served))),
        };
        if let Err(condition) = served.restrict(&request.provisioner, &mut request.parameters) {
            return Ok(Err(format!("{}: {}", condition.reason, condition.message)));
        }
        let namespace = claim.namespace().unwrap_or_default();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let labels = reads::get_metadata_opt(&namespaces, &namespace)
            .await
            .map_err(failed("read the namespace"))?;
        let node = match &request.node {
            Some(name) => Some(read_node(client, name.clone()).await?),
            None => None,
        };
        let backends: Vec<NfsBackend> = all(&Api::all(client.clone()), "NfsBackends").await?;
        Ok(Ok(Self {
            uid: claim.uid().unwrap_or_default(),
            namespace,
            namespace_labels: labels.map(|found| found.labels().clone()).unwrap_or_default(),
            request,
            requested_backend: claim.annotations().get(REQUESTED_BACKEND).cloned(),
            node,
            backends: backends.into_iter().map(ObservedBackend::of).collect(),
        }))
    }

    /// Returns what placement says about each backend, those that serve the claim first, in the order of placement.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let claim = self.claim();
        let candidates: Vec<Candidate<'_>> = self.backends.iter().map(|backend| self.candidate(backend)).collect();
        let ranked = rank(&claim, &candidates);
        let (order, refusals) = match &ranked {
            Ok(order) => (order.as_slice(), &[][..]),
            Err(refused) => (&[][..], refused.refusals.as_slice()),
        };
        let refused = |backend: &str| refusals.iter().find(|refusal| refusal.backend == backend);
        let verdict = |candidate: &Candidate<'_>| {
            let name = candidate.name;
            let rank = order.iter().position(|ranked| ranked == name).map(|index| index + 1);
            let (reason, message) = if !class_permits(&self.request.parameters, name, candidate.labels) {
                let message = "the StorageClass does not permit it: see its parameters backend and backendSelector";
                (NOT_PERMITTED.to_owned(), message.to_owned())
            } else if rank.is_some() {
                (String::new(), String::new())
            } else {
                let checked = check_backend(&claim, candidate).err();
                match refused(name).cloned().or(checked) {
                    Some(refusal) => (refusal.reason.to_string(), refusal.message),
                    None => (
                        NOT_REQUESTED.to_owned(),
                        "the claim requests another backend by annotation".to_owned(),
                    ),
                }
            };
            Verdict {
                backend: name.to_owned(),
                serves: rank.is_some(),
                rank,
                reason,
                message,
            }
        };
        let mut verdicts: Vec<Verdict> = candidates.iter().map(verdict).collect();
        // Backends that the class or the claim names, and that do not exist.
        let unknown = refusals
            .iter()
            .filter(|refusal| candidates.iter().all(|known| known.name != refusal.backend));
        verdicts.extend(unknown.map(|refusal| Verdict {
            backend: refusal.backend.clone(),
            serves: false,
            rank: None,
            reason: refusal.reason.to_string(),
            message: refusal.message.clone(),
        }));
        verdicts.sort_by_key(|verdict| (verdict.rank.is_none(), verdict.rank, verdict.backend.clone()));
        verdicts
    }

    fn claim(&self) -> Claim<'_> {
        Claim {
            uid: &self.uid,
            namespace: &self.namespace,
            namespace_labels: &self.namespace_labels,
            requested: self.request.bytes,
            class: &self.request.parameters,
            requested_backend: self.requested_backend.as_deref(),
            // Whether something exists there already is known to the operator only.
            placed_on: None,
            node: self.node.as_ref().map(|(name, labels)| SelectedNode {
                name,
                labels: labels.as_ref(),
            }),
            needs_group: false,
            topologies: &self.request.topologies,
        }
    }

    fn candidate<'a>(&'a self, backend: &'a ObservedBackend) -> Candidate<'a> {
        let (object, spec) = (&backend.object, &backend.object.spec);
        let on_export = self.backends.iter().filter(|other| shares_export(backend, other));
        Candidate {
            name: object.metadata.name.as_deref().unwrap_or_default(),
            labels: object.labels(),
            ready: &backend.ready,
            suspended: spec.suspend,
            deleting: object.metadata.deletion_timestamp.is_some(),
            allowed_namespaces: spec.allowed_namespaces.as_ref(),
            limits: spec.capacity.as_ref(),
            claim_overrides: &spec.claim_overrides,
            node_affinity: spec.node_affinity.as_ref(),
            total: backend.capacity(|capacity| capacity.total.as_ref()),
            available: backend.capacity(|capacity| capacity.available.as_ref()),
            provisioned_since_probe: 0,
            provisioned: backend.provisioned(),
            provisioned_on_export: on_export.map(ObservedBackend::provisioned).sum(),
            volumes: backend.volumes(),
            groups: None,
        }
    }
}

/// Verdict on a backend that the class does not permit.
const NOT_PERMITTED: &str = "NotPermittedByClass";
/// Verdict on a backend other than the one that the claim requests.
const NOT_REQUESTED: &str = "NotRequested";

impl ObservedBackend {
    fn of(object: NfsBackend) -> Self {
        let conditions = object.status.as_ref().map(|status| status.conditions.as_slice());
        let ready = condition(conditions.unwrap_or_default(), "Ready").map(planned);
        let ready = ready.unwrap_or_else(|| PlannedCondition::unknown(Reason::NotProbed, "not probed yet"));
        Self { object, ready }
    }

    fn capacity(&self, field: fn(&crate::api::backend::CapacityStatus) -> Option<&Quantity>) -> Option<u128> {
        let capacity = self.object.status.as_ref()?.capacity.as_ref()?;
        quantity::bytes(&field(capacity)?.0)
    }

    fn provisioned(&self) -> u128 {
        self.capacity(|capacity| capacity.provisioned.as_ref())
            .unwrap_or_default()
    }

    fn volumes(&self) -> u64 {
        let volumes = self.object.status.as_ref().and_then(|status| status.volumes);
        volumes
            .and_then(|volumes| u64::try_from(volumes).ok())
            .unwrap_or_default()
    }

    fn export(&self) -> Option<&str> {
        self.object.status.as_ref()?.export.id.as_deref()
    }
}

fn shares_export(backend: &ObservedBackend, other: &ObservedBackend) -> bool {
    let is_same = backend.object.metadata.name == other.object.metadata.name;
    is_same || backend.export().is_some_and(|export| other.export() == Some(export))
}

/// Returns a condition as placement uses it. A reason of a newer release counts as `ServerRefused`; the message has it.
fn planned(condition: &Condition) -> PlannedCondition {
    let known = Reason::ALL.iter().find(|reason| reason.to_string() == condition.reason);
    let message = match known {
        Some(_) => condition.message.clone(),
        None => format!("{}: {}", condition.reason, condition.message),
    };
    let reason = known.copied().unwrap_or(Reason::ServerRefused);
    match condition.status.as_str() {
        "True" => PlannedCondition::holds(reason, message),
        "False" => PlannedCondition::fails(reason, message),
        _ => PlannedCondition::unknown(reason, message),
    }
}

/// Returns why the operator does not consider a claim that it ignores.
fn why_ignored(claim: &PersistentVolumeClaim, class: Option<&StorageClass>, served: &Provisioners) -> String {
    if claim.metadata.deletion_timestamp.is_some() {
        return "the claim is being deleted".to_owned();
    }
    let Some(class) = class else {
        return "its StorageClass does not exist: create it, or recreate the claim with another one".to_owned();
    };
    if !served.serves(&class.provisioner) {
        return format!(
            "its class names the provisioner {}: if that is a name of nfs-operator, set --provisioner-name or \
             --provisioner-alias as the operator has them, or --operator-namespace",
            class.provisioner
        );
    }
    let is_late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if is_late && !claim.annotations().contains_key(SELECTED_NODE) {
        return "the class has volumeBindingMode WaitForFirstConsumer, and no pod that uses the claim is scheduled: create \
                one"
        .to_owned();
    }
    "Kubernetes has not requested a volume for it: an existing volume fits, another controller fills it, or the controller \
     manager is not running"
        .to_owned()
}

async fn read_node(client: &Client, name: String) -> Result<(String, Option<Labels>), CommandError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let found = reads::get_metadata_opt(&nodes, &name)
        .await
        .map_err(failed("read the selected node"))?;
    Ok((name, found.map(|node| node.labels().clone())))
}
