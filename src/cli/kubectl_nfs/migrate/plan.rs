//! What takes over each volume, and what prevents it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::observed::{LegacyDeployment, Observed};
use crate::api::NfsBackend;
use crate::api::conditions::Reason;
use crate::api::names::PROVISIONED_BY;
use crate::cli::kubectl_nfs::names::condition;
use crate::cli::output::shell_word;
use crate::compat::nfs_subdir::backend::{BACKEND, NfsSubdirExport};
use crate::compat::nfs_subdir::location::{alias_backend, locate, nearest, policy};
use crate::compat::nfs_subdir::volume::class_name;
use crate::decide::object_name::{is_object_name, is_provisioner_name};
use crate::decide::reclaim::{Refusal, annotation, is_released, reclaim_policy, same_server, unsupported_policy};
use crate::state::context::Provisioners;

/// What would happen to the volumes of all provisioners.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPlan {
    /// Each provisioner name, in the order of the names.
    pub provisioners: Vec<ProvisionerPlan>,
    /// Each volume, in the order of provisioners and paths.
    pub volumes: Vec<VolumePlan>,
    /// Classes that the operator would not serve as they are.
    pub classes: Vec<ClassPlan>,
}

/// What the operator needs to serve a provisioner name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerPlan {
    /// Provisioner name.
    pub name: String,
    /// Backend that takes over its volumes.
    pub backend: String,
    /// Number of its volumes.
    pub volumes: u32,
    /// Deployments with the provisioner name.
    pub deployments: Vec<DeploymentPlan>,
    /// Steps that are left, in order.
    pub steps: Vec<Step>,
    /// Why the backend cannot serve anything now.
    pub obstacle: Option<Obstacle>,
}

/// A Deployment with the provisioner name. Whoever can create Deployments can create one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentPlan {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Server, from its environment.
    pub server: String,
    /// Path, from its environment.
    pub path: String,
    /// True if it runs.
    pub is_running: bool,
    /// True if the volumes of the provisioner name are on this export, and have no other directory in common below it.
    pub is_confirmed: bool,
}

/// A step of an administrator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What to do.
    pub description: String,
    /// The command, or the setting of the operator.
    pub command: Option<String>,
}

/// What would happen to a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumePlan {
    /// Name.
    pub name: String,
    /// Namespace and name of its claim.
    pub claim: String,
    /// Provisioner name.
    pub provisioner: String,
    /// Server, as in the volume.
    pub server: String,
    /// Path, as in the volume.
    pub path: String,
    /// Backend that takes it over, by the alias of its provisioner name.
    pub backend: String,
    /// Directory on the backend.
    pub directory: Option<String>,
    /// What happens to the data when the claim is deleted.
    pub on_delete: String,
    /// Why its data would stay where they are, and the remedy.
    pub obstacle: Option<Obstacle>,
}

/// A class that the operator would not serve as it is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassPlan {
    /// Name.
    pub name: String,
    /// Cause and remedy.
    pub obstacle: Obstacle,
}

/// Reason, cause and remedy, as the operator reports them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// Reason.
    pub reason: String,
    /// Cause and remedy.
    pub message: String,
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.reason.to_string(),
            message: refusal.message,
        }
    }
}

/// Reason why no backend is chosen: Deployments with the provisioner name have different exports.
const AMBIGUOUS: &str = "AmbiguousDeployments";

impl ProvisionerPlan {
    /// Returns true if its backend depends on which of several Deployments is the old provisioner.
    pub fn is_undecided(&self) -> bool {
        self.obstacle
            .as_ref()
            .is_some_and(|obstacle| obstacle.reason == AMBIGUOUS)
    }
}

impl DeploymentPlan {
    /// Returns namespace and name.
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns server and path, quoted if they contain anything that could be taken for the text around them.
    pub fn address(&self) -> String {
        shell_word(&format!("{}:{}", self.server, self.path)).into_owned()
    }
}

impl MigrationPlan {
    /// Returns true if nothing prevents it.
    pub fn is_possible(&self) -> bool {
        self.classes.is_empty()
            && self.volumes.iter().all(|volume| volume.obstacle.is_none())
            && self
                .provisioners
                .iter()
                .all(|provisioner| provisioner.obstacle.is_none())
    }
}

/// The backend for a provisioner name.
struct Target {
    name: String,
    /// Its manifest if it does not exist.
    missing: Option<Value>,
    basis: Basis,
}

/// What decides which backend a provisioner name has.
enum Basis {
    /// Its alias, or its volumes.
    Volumes,
    /// The Deployments with the name, which have the same export.
    Deployments {
        /// The volumes confirm that export.
        is_confirmed: bool,
    },
    /// Nothing: Deployments have different exports.
    Undecided,
}

impl Target {
    /// Returns true if no Deployment had an influence that the volumes do not confirm.
    fn is_confirmed(&self) -> bool {
        match self.basis {
            Basis::Volumes => true,
            Basis::Deployments { is_confirmed } => is_confirmed,
            Basis::Undecided => false,
        }
    }
}

impl Observed {
    /// Plans the migration of the provisioner names in `only`; of all except those of the operator if it is empty.
    pub fn plan(&self, only: &[String]) -> MigrationPlan {
        let names = self.legacy_names(only);
        let mut served = self.served.clone();
        let mut backends: Vec<NfsBackend> = self.backends.clone();
        // Other provisioner names go to a planned backend with their volumes only if it is confirmed.
        let mut confirmed = self.backends.clone();
        let mut targets = BTreeMap::new();
        for name in &names {
            let target = self.target(name, &backends, &confirmed);
            let planned = target.missing.clone();
            let planned: Option<NfsBackend> = planned.and_then(|manifest| serde_json::from_value(manifest).ok());
            confirmed.extend(planned.clone().filter(|_| target.is_confirmed()));
            backends.extend(planned);
            served.aliases.insert(name.clone(), target.name.clone());
            targets.insert(name.clone(), target);
        }
        let legacy = self.volumes.iter().filter_map(|volume| {
            let name = annotation(volume, PROVISIONED_BY).filter(|name| names.contains(*name))?;
            Some((name, volume, alias_backend(volume, &served.aliases)?))
        });
        let visible = visible_backends(&targets, &backends, &confirmed);
        let occupied = Occupied::of(&self.volumes);
        let mut volumes: Vec<VolumePlan> = legacy
            .map(|(name, volume, alias)| {
                let class = self.class(volume, &served);
                let backends = visible.get(alias).map_or(&[][..], Vec::as_slice);
                plan_volume(volume, name, alias, class, &served, backends, &occupied)
            })
            .collect();
        volumes.sort_by(|one, other| {
            (&one.provisioner, &one.path, &one.name).cmp(&(&other.provisioner, &other.path, &other.name))
        });
        let provisioners = targets
            .into_iter()
            .map(|(name, target)| self.plan_provisioner(name, target, &volumes))
            .collect();
        let classes = self.classes.iter().filter(|class| names.contains(&class.provisioner));
        MigrationPlan {
            provisioners,
            classes: classes.filter_map(|class| plan_class(class, &served)).collect(),
            volumes,
        }
    }

    /// Returns the provisioner names of nfs-subdir: those of volumes with an `nfs` source, and of Deployments.
    fn legacy_names(&self, only: &[String]) -> BTreeSet<String> {
        let of_volumes = self.volumes.iter().filter(|volume| source(volume).is_some());
        let of_volumes = of_volumes.filter_map(|volume| annotation(volume, PROVISIONED_BY));
        let of_deployments = self
            .deployments
            .iter()
            .map(|found| found.environment.provisioner.as_str());
        let all = of_volumes.chain(of_deployments);
        let is_selected = |name: &&str| only.is_empty() || only.iter().any(|selected| selected == name);
        let is_own = |name: &&str| self.served.names.iter().any(|own| own == name);
        let selected = all.filter(|name| is_selected(name) && !is_own(name) && is_provisioner_name(name));
        selected.map(str::to_owned).collect()
    }

    /// Chooses the backend for a provisioner name: that of its alias, else the one of `confirmed` on which most of its volumes are,
    /// else one with the address of its Deployments, else a new one.
    fn target(&self, name: &str, backends: &[NfsBackend], confirmed: &[NfsBackend]) -> Target {
        let exists = |wanted: &str| backends.iter().any(|backend| backend.name_any() == wanted);
        let alias = self.served.aliases.get(name).cloned();
        let selected = alias.or_else(|| self.backend_of_most(name, confirmed));
        if let Some(found) = selected.clone().filter(|found| exists(found)) {
            return Target {
                name: found,
                missing: None,
                basis: Basis::Volumes,
            };
        }
        let (export, basis) = self.export(name);
        let same = export
            .as_ref()
            .filter(|_| selected.is_none() && matches!(basis, Basis::Deployments { .. }))
            .and_then(|export| backends.iter().find(|backend| export.is_of(backend)));
        if let Some(same) = same {
            return Target {
                name: same.name_any(),
                missing: None,
                basis,
            };
        }
        let new = selected.unwrap_or_else(|| free_name(export.as_ref(), exists));
        Target {
            missing: export.map(|export| export.manifest(&new)),
            name: new,
            basis,
        }
    }

    /// Returns the export of a provisioner name: that of its Deployments if they agree, else the directory above all volumes.
    fn export(&self, name: &str) -> (Option<NfsSubdirExport>, Basis) {
        let mut exports = self
            .deployments_of(name)
            .map(|deployment| &deployment.environment.export);
        let Some(first) = exports.next() else {
            return (self.common_parent(name), Basis::Volumes);
        };
        if exports.any(|other| !first.is_same(other)) {
            return (self.common_parent(name), Basis::Undecided);
        }
        let is_confirmed = self.confirms(name, first);
        (Some(first.clone()), Basis::Deployments { is_confirmed })
    }

    fn deployments_of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a LegacyDeployment> {
        let deployments = self.deployments.iter();
        deployments.filter(move |deployment| deployment.environment.provisioner == name)
    }

    /// Returns true if all volumes of a provisioner name are on the server of this export, and the deepest directory above them is
    /// its path. Tenants choose neither: they cannot create volumes.
    fn confirms(&self, name: &str, export: &NfsSubdirExport) -> bool {
        let mut sources = self.volumes_of(name).filter_map(source);
        sources.all(|(server, _)| same_server(server, export.server()))
            && self.common_parent(name).is_some_and(|parent| parent.is_same(export))
    }

    fn volumes_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a PersistentVolume> {
        let volumes = self.volumes.iter();
        volumes.filter(move |volume| source(volume).is_some() && annotation(volume, PROVISIONED_BY) == Some(name))
    }

    fn backend_of_most(&self, name: &str, backends: &[NfsBackend]) -> Option<String> {
        let backends: Vec<&NfsBackend> = backends.iter().collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for volume in self.volumes_of(name) {
            for (backend, _) in nearest(volume, &backends) {
                *counts.entry(backend).or_default() += 1;
            }
        }
        let most = counts.values().max().copied();
        let mut counts = counts.into_iter();
        counts
            .find(|(_, count)| Some(*count) == most)
            .map(|(backend, _)| backend.to_owned())
    }

    /// Returns the deepest directory above all volumes that are on the server of the first one.
    fn common_parent(&self, name: &str) -> Option<NfsSubdirExport> {
        let sources: Vec<(&str, &str)> = self.volumes_of(name).filter_map(source).collect();
        let (server, first) = *sources.first()?;
        let mut common = parent(first);
        for (_, path) in sources.iter().filter(|(other, _)| same_server(server, other)) {
            while !common.is_empty() && !is_at_or_below(path, common) {
                common = parent(common);
            }
        }
        Some(NfsSubdirExport::new(
            server,
            if common.is_empty() { "/" } else { common },
        ))
    }

    fn class(&self, volume: &PersistentVolume, served: &Provisioners) -> Option<&StorageClass> {
        let name = class_name(volume)?;
        let class = self.classes.iter().find(|class| class.name_any() == name);
        class.filter(|class| served.serves(&class.provisioner))
    }

    fn plan_provisioner(&self, name: String, target: Target, volumes: &[VolumePlan]) -> ProvisionerPlan {
        let own = volumes.iter().filter(|volume| volume.provisioner == name).count();
        let deployments = self
            .deployments_of(&name)
            .map(|deployment| self.plan_deployment(&name, deployment));
        let deployments: Vec<DeploymentPlan> = deployments.collect();
        ProvisionerPlan {
            steps: self.steps(&name, &target, &deployments),
            obstacle: self.obstacle(&target, &deployments),
            name,
            backend: target.name,
            volumes: u32::try_from(own).unwrap_or(u32::MAX),
            deployments,
        }
    }

    fn plan_deployment(&self, name: &str, deployment: &LegacyDeployment) -> DeploymentPlan {
        let export = &deployment.environment.export;
        DeploymentPlan {
            namespace: deployment.namespace.clone(),
            name: deployment.name.clone(),
            server: export.server().to_owned(),
            path: export.path().to_owned(),
            is_running: deployment.is_running,
            is_confirmed: self.confirms(name, export),
        }
    }

    fn steps(&self, name: &str, target: &Target, deployments: &[DeploymentPlan]) -> Vec<Step> {
        let mut steps = Vec::new();
        if matches!(target.basis, Basis::Undecided) {
            return steps;
        }
        steps.extend(
            target
                .missing
                .as_ref()
                .map(|manifest| creation(manifest, &target.basis, deployments)),
        );
        if self.served.aliases.get(name) != Some(&target.name) {
            steps.push(alias(name, target, deployments));
        }
        steps.extend(deployments.iter().filter(|deployment| deployment.is_running).map(stop));
        steps
    }

    /// Returns why the backend cannot serve anything now.
    fn obstacle(&self, target: &Target, deployments: &[DeploymentPlan]) -> Option<Obstacle> {
        let backend = self.backends.iter().find(|backend| backend.name_any() == target.name);
        match (backend, &target.basis, &target.missing) {
            (Some(backend), ..) => not_ready(backend),
            (None, Basis::Undecided, _) => Some(ambiguous(deployments)),
            (None, _, Some(_)) => None,
            (None, _, None) => Some(Obstacle {
                reason: Reason::BackendNotFound.to_string(),
                message: "it does not exist, and neither a volume nor a Deployment shows its address: create it"
                    .to_owned(),
            }),
        }
    }
}

/// Returns the backends that matter to the volumes of each target: those that are confirmed, and its own.
fn visible_backends<'a>(
    targets: &BTreeMap<String, Target>,
    backends: &'a [NfsBackend],
    confirmed: &'a [NfsBackend],
) -> BTreeMap<String, Vec<&'a NfsBackend>> {
    let of = |target: &Target| {
        let is_confirmed = confirmed.iter().any(|backend| backend.name_any() == target.name);
        let own = backends.iter().filter(|backend| backend.name_any() == target.name);
        confirmed.iter().chain(own.filter(|_| !is_confirmed)).collect()
    };
    targets
        .values()
        .map(|target| (target.name.clone(), of(target)))
        .collect()
}

fn ambiguous(deployments: &[DeploymentPlan]) -> Obstacle {
    let named = deployments
        .iter()
        .map(|found| format!("{} ({})", found.qualified_name(), found.address()));
    Obstacle {
        reason: AMBIGUOUS.to_owned(),
        message: format!(
            "Deployments with this provisioner name have different exports: {}; set --provisioner-namespace to the namespace of \
             the old provisioner",
            named.collect::<Vec<_>>().join(", ")
        ),
    }
}

/// What to check about an export that is only that of a Deployment.
const UNCONFIRMED: &str = "NOT CONFIRMED by its volumes: before you do this, check that this Deployment is the old \
                           provisioner, because new claims get their volumes on its export";

/// Returns the names of the Deployments that decided, and what to check about them.
fn origin(basis: &Basis, deployments: &[DeploymentPlan]) -> Option<String> {
    let Basis::Deployments { is_confirmed } = basis else {
        return None;
    };
    let names: Vec<_> = deployments.iter().map(DeploymentPlan::qualified_name).collect();
    let note = if *is_confirmed {
        "confirmed by its volumes"
    } else {
        UNCONFIRMED
    };
    Some(format!("with the export of Deployment {}, {note}", names.join(" and ")))
}

fn creation(manifest: &Value, basis: &Basis, deployments: &[DeploymentPlan]) -> Step {
    let description = match origin(basis, deployments) {
        Some(origin) => format!("create the backend, {origin}"),
        None => "create the backend; its path is the directory above all volumes: correct it if NFS_PATH of the old \
                 Deployment was another"
            .to_owned(),
    };
    Step {
        description,
        // `echo` would interpret the escape sequences of JSON in some shells.
        command: Some(format!(
            "printf '%s\\n' {} | kubectl apply -f -",
            shell_word(&manifest.to_string())
        )),
    }
}

fn alias(name: &str, target: &Target, deployments: &[DeploymentPlan]) -> Step {
    // Of a new backend, the step before this one says it.
    let origin = origin(&target.basis, deployments).filter(|_| target.missing.is_none());
    let origin = origin.map(|origin| format!(", one {origin}")).unwrap_or_default();
    Step {
        description: format!(
            "let the operator serve the provisioner name with this backend{origin}: the value operator.provisionerAliases of \
             the chart; without the chart, the argument below, and the name in the ValidatingAdmissionPolicy of the operator's \
             account"
        ),
        command: Some(format!(
            "--provisioner-alias={}={}",
            shell_word(name),
            shell_word(&target.name)
        )),
    }
}

fn stop(deployment: &DeploymentPlan) -> Step {
    let DeploymentPlan { namespace, name, .. } = deployment;
    Step {
        description: match deployment.is_confirmed {
            true => "stop the old provisioner, now or later".to_owned(),
            false => format!(
                "stop Deployment {}, now or later, if it is the old provisioner",
                deployment.qualified_name()
            ),
        },
        command: Some(format!(
            "kubectl scale deployment {} -n {} --replicas=0",
            shell_word(name),
            shell_word(namespace)
        )),
    }
}

fn not_ready(backend: &NfsBackend) -> Option<Obstacle> {
    let conditions = backend.status.as_ref().map(|status| status.conditions.as_slice());
    match condition(conditions.unwrap_or_default(), "Ready") {
        Some(ready) if ready.status == "True" || ready.reason == Reason::Suspended.to_string() => None,
        Some(ready) => Some(Obstacle {
            reason: ready.reason.clone(),
            message: ready.message.clone(),
        }),
        None => Some(Obstacle {
            reason: Reason::NotProbed.to_string(),
            message: "the operator has not probed it yet: check that it runs, with `kubectl nfs status`".to_owned(),
        }),
    }
}

/// Returns a name for a backend that does not exist: the last segment of the path, as far as an object can have it.
fn free_name(export: Option<&NfsSubdirExport>, exists: impl Fn(&str) -> bool) -> String {
    let segment = export.and_then(|export| export.path().rsplit('/').next());
    let name = segment.unwrap_or_default().to_ascii_lowercase().replace('_', "-");
    let base = if is_object_name(&name) { &name } else { BACKEND };
    let numbered = (2..).map(|number| format!("{base}-{number}"));
    let mut candidates = std::iter::once(base.to_owned()).chain(numbered);
    candidates.find(|name| !exists(name)).unwrap_or_default()
}

fn plan_volume(
    volume: &PersistentVolume,
    provisioner: &str,
    alias: &str,
    class: Option<&StorageClass>,
    served: &Provisioners,
    backends: &[&NfsBackend],
    occupied: &Occupied<'_>,
) -> VolumePlan {
    let (server, path) = source(volume).unwrap_or_default();
    let located = locate(volume, alias, backends);
    let reclaimed = plan_reclaim(volume, class, served);
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let claim = claim.map(|claim| {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        format!("{}/{}", text(&claim.namespace), text(&claim.name))
    });
    let overlap = || occupied.overlapping(volume).map(overlaps);
    VolumePlan {
        name: volume.name_any(),
        claim: claim.unwrap_or_default(),
        provisioner: provisioner.to_owned(),
        server: server.to_owned(),
        path: path.to_owned(),
        backend: alias.to_owned(),
        directory: located.as_ref().ok().map(ToString::to_string),
        on_delete: reclaimed.as_ref().cloned().unwrap_or_default(),
        obstacle: located.err().or_else(overlap).or(reclaimed.err()).map(Obstacle::from),
    }
}

fn overlaps(other: &str) -> Refusal {
    Refusal {
        reason: Reason::DirectoryOverlaps,
        message: format!(
            "volume {other} has the same directory, or one inside or around it: the data stay until only one of them is left"
        ),
    }
}

/// Returns what happens to the data when the claim is deleted.
fn plan_reclaim(
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
    served: &Provisioners,
) -> Result<String, Refusal> {
    match reclaim_policy(volume) {
        "Retain" => return Ok("retain (reclaim policy)".to_owned()),
        "Delete" => {}
        other => return Err(unsupported_policy(other)),
    }
    let action = policy(class.map(|class| served.class_parameters(class)))?.annotation_value();
    Ok(match is_released(volume) {
        true => format!("{action}, as soon as it is taken over: its claim is gone"),
        false => action.to_owned(),
    })
}

fn plan_class(class: &StorageClass, served: &Provisioners) -> Option<ClassPlan> {
    let obstacle = match served.class_parameters(class) {
        Err(error) => Obstacle {
            reason: Reason::InvalidParameter.to_string(),
            message: format!("{error}; new claims are refused, and the data of its volumes stay: recreate the class"),
        },
        Ok(mut parameters) => {
            let refused = served.restrict(&class.provisioner, &mut parameters).err()?;
            Obstacle {
                reason: refused.reason.to_string(),
                message: refused.message,
            }
        }
    };
    Some(ClassPlan {
        name: class.name_any(),
        obstacle,
    })
}

/// Paths of all volumes with an `nfs` source.
struct Occupied<'a>(BTreeMap<&'a str, Vec<(&'a str, &'a PersistentVolume)>>);

impl<'a> Occupied<'a> {
    fn of(volumes: &'a [PersistentVolume]) -> Self {
        let mut paths: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for volume in volumes {
            if let Some((server, path)) = source(volume) {
                paths
                    .entry(path.trim_end_matches('/'))
                    .or_default()
                    .push((server, volume));
            }
        }
        Self(paths)
    }

    /// Returns the name of another volume on the same server with this directory, or one inside or around it.
    fn overlapping(&self, volume: &PersistentVolume) -> Option<&'a str> {
        let (server, path) = source(volume)?;
        let path = path.trim_end_matches('/');
        let around = std::iter::successors(Some(path), |path| {
            path.rfind('/').map(|end| path.get(..end).unwrap_or_default())
        });
        let inside = format!("{path}/");
        let inside = self
            .0
            .range(inside.as_str()..)
            .take_while(|(other, _)| is_at_or_below(other, path));
        let near = around
            .filter_map(|path| self.0.get(path))
            .chain(inside.map(|(_, volumes)| volumes));
        let mut others = near.flatten();
        let other =
            others.find(|(other, found)| found.metadata.name != volume.metadata.name && same_server(server, other));
        other.and_then(|(_, found)| found.metadata.name.as_deref())
    }
}

fn source(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let source = volume.spec.as_ref()?.nfs.as_ref()?;
    Some((&source.server, &source.path))
}

fn parent(path: &str) -> &str {
    path.trim_end_matches('/')
        .rsplit_once('/')
        .map_or("", |(parent, _)| parent)
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
