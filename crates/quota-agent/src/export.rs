//! One export: observes, decides with [`crate::plan`], and acts. What was done so far is on the export and in the file
//! system, so that any step may be the last.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use export_store::layout;
use export_store::quota::{
    AgentProblem, Heartbeat, KeyFile, LimitState, MAX_VISIT_PLACE, SizeProblem, Usage, VolumeUsage,
};
use tokio::time::Instant;

use crate::cluster::{Cluster, Volume};
use crate::directory::open_directory;
use crate::error::AgentError;
use crate::folder::{Folder, Observer};
use crate::plan::{Decision, Enforcement, FileSystem, Found, Key, Reported, Subject, is_in_force, plan};
use crate::projects::{ProjectRange, ReservedProjects};
use crate::quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, Tag};
use crate::tree::{TreeVisit, Visited};
use crate::visits::{Start, Visits};
use crate::watch::{Changes, Interest};

/// Number of directories that are open at once. The usual limit of a process is 1,024 files.
const OPEN: usize = 200;
/// Number of volumes that are changed between two looks at the clock, so that heartbeats are not late.
const ROUND: usize = 2 * OPEN;
/// Maximum number of clusters, unless the key file has more. Each one has three open folders, and whoever is root on an
/// export can create folders that look like those of clusters.
const MAX_CLUSTERS: usize = 64;
/// Maximum size of the identity file, in bytes.
const MAX_IDENTITY_LEN: usize = 4096;

/// An export and what is known of it.
pub(crate) struct Export<Q> {
    path: PathBuf,
    root: Folder,
    /// The folder `.nfs-operator`, once it is there.
    reserved: Option<Folder>,
    quotas: Q,
    capabilities: Capabilities,
    /// Usage and limits as of the last poll, with what was changed since; `None` until they are read. To read them takes a
    /// time that grows with the number of projects.
    accounted: Option<BTreeMap<u32, Accounted>>,
    clusters: BTreeMap<Arc<str>, Cluster>,
    /// Number of the last heartbeat. Clusters share it, so that it never decreases, whatever happens to their folders and
    /// keys: an operator takes a smaller number for a copy of an earlier heartbeat.
    sequence: u64,
    visits: Visits,
    /// Volumes that were tried since the orders were read.
    tried: BTreeSet<Key>,
    /// Volumes whose limits are in force, and that have no report about it yet.
    completed: Vec<(Key, u32)>,
    /// The last round left volumes to change.
    is_unfinished: bool,
}

impl<Q: Quotas> Export<Q> {
    pub fn new(path: PathBuf, quotas: Q, observer: Observer) -> Result<Self, AgentError> {
        let root = Folder::root(&path, observer)?;
        let unknown = Capabilities {
            file_system: "unknown".to_owned(),
            enforced: false,
            inodes_counted: false,
            problem: None,
        };
        Ok(Self {
            path,
            root,
            reserved: None,
            quotas,
            capabilities: unknown,
            accounted: None,
            clusters: BTreeMap::new(),
            sequence: 0,
            visits: Visits::default(),
            tried: BTreeSet::new(),
            completed: Vec::new(),
            is_unfinished: false,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path still names the directory that is served.
    pub fn check_root(&self) -> Result<(), AgentError> {
        match Folder::root(&self.path, |_| {}) {
            Ok(found) if !found.is_same(&self.root) => Err(AgentError::ExportReplaced {
                path: self.path.clone(),
            }),
            Ok(_) => Ok(()),
            // Other exports are served.
            Err(error) => {
                tracing::warn!("an export is not at its path: {error}");
                Ok(())
            }
        }
    }

    pub fn device(&self) -> u64 {
        self.root.device()
    }

    /// Reports whether the last round left volumes to change.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Reports whether a tree is visited, or waits for that.
    pub fn is_visiting_any(&self) -> bool {
        !self.visits.is_idle()
    }

    /// Tries all volumes again.
    pub fn begin_round(&mut self) {
        self.tried.clear();
    }

    /// Returns the number of volumes that were tried since then.
    pub fn count_tried(&self) -> usize {
        self.tried.len()
    }

    /// Ends a round that failed.
    pub fn give_up(&mut self, error: &AgentError) {
        tracing::warn!(export = %self.path.display(), "cannot enforce sizes: {error}");
        self.is_unfinished = false;
        self.accounted = None;
        self.capabilities.problem = Some((AgentProblem::ToolFailed, error.to_string()));
    }

    /// Returns the folders in which changes matter.
    pub fn watched(&self) -> Vec<(&Folder, Interest)> {
        let orders = self.clusters.values().map(|cluster| (&cluster.orders, Interest::Files));
        // Until an operator uses the export, its folder is expected in the root.
        let top = self.reserved.as_ref().unwrap_or(&self.root);
        orders.chain([(top, Interest::Folders)]).collect()
    }

    /// Opens the folders of new clusters and of those whose key changed.
    pub fn open_clusters(&mut self, keys: &KeyFile) -> Result<(), AgentError> {
        self.reserved = self.root.open(layout::RESERVED)?;
        let Some(reserved) = &self.reserved else {
            self.clusters.clear();
            return Ok(());
        };
        let Some((_, identity)) = reserved.read(layout::IDENTITY, MAX_IDENTITY_LEN)? else {
            return Ok(());
        };
        let Some(export_id) = export_store::parse_export_id(&identity).map_err(|error| AgentError::NotAnExport {
            path: self.path.clone(),
            why: error.to_string(),
        })?
        else {
            return Ok(());
        };
        let has_key = |id: &String| keys.key(id).is_some();
        let (with_key, without): (Vec<_>, Vec<_>) = reserved.names()?.into_iter().partition(has_key);
        // What is in force for clusters whose folders are gone stays.
        let names: BTreeSet<&str> = with_key.iter().chain(&without).map(String::as_str).collect();
        self.clusters.retain(|id, _| names.contains(&**id));
        for (id, is_expected) in with_key
            .into_iter()
            .map(|id| (id, true))
            .chain(without.into_iter().map(|id| (id, false)))
        {
            let known = self.clusters.get(id.as_str());
            if known.is_some_and(|known| known.is_current(reserved, &id, &export_id, keys)) {
                continue;
            }
            if known.is_none() && !is_expected && self.clusters.len() >= MAX_CLUSTERS {
                tracing::warn!(
                    cluster = id,
                    "not served: the export has folders of more than {MAX_CLUSTERS} clusters"
                );
                break;
            }
            match Cluster::open(reserved, &id, &export_id, keys) {
                Ok(Some(mut cluster)) => {
                    if let Some(former) = known {
                        cluster.continue_from(former);
                    }
                    self.clusters.insert(id.into(), cluster);
                }
                Ok(None) => drop(self.clusters.remove(id.as_str())),
                Err(error) => tracing::warn!(cluster = id, "cannot serve a cluster: {error}"),
            }
        }
        Ok(())
    }

    pub async fn check_capabilities(&mut self) {
        let mut capabilities = self.quotas.capabilities().await;
        if capabilities.problem.is_none() {
            capabilities.problem = match self.quotas.tags(&[self.root.fd()]).await {
                Ok(tags) if tags.iter().flatten().any(|tag| tag.inherits && tag.project != 0) => Some((
                    AgentProblem::RootInheritsProject,
                    inherited(&capabilities.file_system, &self.path),
                )),
                Ok(_) => None,
                Err(error) => Some((AgentProblem::ToolFailed, error.to_string())),
            };
        }
        if capabilities != self.capabilities {
            match &capabilities.problem {
                Some((_, message)) => tracing::error!(export = %self.path.display(), "cannot enforce sizes: {message}"),
                None => tracing::info!(
                    export = %self.path.display(),
                    file_system = capabilities.file_system,
                    "enforcing sizes"
                ),
            }
        }
        self.capabilities = capabilities;
    }

    /// Reads usage and limits again: somebody may have changed them.
    pub fn forget_accounted(&mut self) {
        self.accounted = None;
    }

    /// Looks up all directories again.
    pub fn forget_directories(&mut self) {
        let volumes = volumes_of(&mut self.clusters);
        volumes.for_each(|volume| volume.found = None);
        self.visits.forget_refusals();
    }

    /// Looks up the directories again that were not found.
    pub fn forget_missing(&mut self) {
        let volumes = volumes_of(&mut self.clusters);
        let missing = volumes.filter(|volume| matches!(volume.found, Some(Found::Missing(..))));
        missing.for_each(|volume| volume.found = None);
    }

    /// Looks up the directories again in whose project nothing is: they are gone.
    fn forget_unused(&mut self) {
        let accounted = self.accounted.get_or_insert_default();
        let volumes = volumes_of(&mut self.clusters);
        for volume in volumes {
            if let Some(Found::Directory(tag)) = &volume.found
                && !accounted.get(&tag.project).is_some_and(Accounted::is_used)
            {
                volume.found = None;
            }
        }
    }

    pub fn projects(&self) -> impl Iterator<Item = u32> {
        let reports = self.clusters.values().flat_map(|cluster| cluster.written.values());
        reports.filter_map(|report| report.project)
    }

    /// Enforces the orders, after reading those that changed.
    pub async fn enforce(
        &mut self,
        changes: &Changes,
        range: &ProjectRange,
        reserved: &ReservedProjects,
        mut taken: BTreeSet<u32>,
        until: Instant,
    ) -> Result<(), AgentError> {
        self.is_unfinished = false;
        if self.capabilities.problem.is_some() {
            return Ok(());
        }
        for cluster in self.clusters.values_mut() {
            cluster.read_orders(changes.files_in(&cluster.orders));
        }
        self.forget_disputed();
        if self.accounted.is_none() {
            self.accounted = Some(self.quotas.accounted().await?);
            self.forget_unused();
        }
        self.look_up().await?;
        taken.extend(self.clusters.values().flat_map(Cluster::held));
        let released = self.released();
        let by_file_id = released
            .iter()
            .filter(|(_, report)| report.state == LimitState::InForce);
        let by_file_id = by_file_id.filter_map(|(_, report)| Some((report.file_id, report.project?)));
        let decisions = plan(
            &self.subjects(),
            FileSystem {
                accounted: self.accounted.as_ref().unwrap_or(&BTreeMap::new()),
                range,
                reserved,
                taken: &taken,
                released: &by_file_id.collect(),
            },
        );
        let kept = self.release(&released, &decisions, &taken).await?;
        let decisions = decisions.into_iter().filter(|(key, _)| !kept.contains(key));
        self.carry_out(decisions.collect(), until).await
    }

    /// Looks up the directories again that several orders name: which one has it is decided by where it is now.
    fn forget_disputed(&mut self) {
        let volumes = || self.clusters.values().flat_map(|cluster| cluster.volumes.values());
        let (mut once, mut disputed) = (BTreeSet::new(), BTreeSet::new());
        for volume in volumes() {
            if !once.insert(volume.order.file_id) {
                disputed.insert(volume.order.file_id);
            }
        }
        let volumes = volumes_of(&mut self.clusters);
        let disputed = volumes.filter(|volume| disputed.contains(&volume.order.file_id));
        disputed.for_each(|volume| volume.found = None);
    }

    /// Looks up the directories that are not known.
    async fn look_up(&mut self) -> Result<(), AgentError> {
        let volumes = volumes_of(&mut self.clusters);
        let mut unknown: Vec<_> = volumes.filter(|volume| volume.found.is_none()).collect();
        for batch in unknown.chunks_mut(OPEN) {
            let opened: Vec<_> = batch
                .iter()
                .map(|volume| open_directory(&self.root, &volume.order))
                .collect();
            let directories: Vec<BorrowedFd<'_>> = opened.iter().flatten().map(OwnedFd::as_fd).collect();
            let mut tags = self.quotas.tags(&directories).await?.into_iter();
            for (volume, opened) in batch.iter_mut().zip(&opened) {
                volume.found = match opened {
                    // An unreadable tag is looked up again in the next round.
                    Ok(_) => tags.next().flatten().map(Found::Directory),
                    Err((reason, message)) => Some(Found::Missing(*reason, message.clone())),
                };
            }
        }
        Ok(())
    }

    fn subjects(&self) -> Vec<(Key, Subject<'_>)> {
        let mut subjects = Vec::with_capacity(self.clusters.values().map(|cluster| cluster.volumes.len()).sum());
        for (id, cluster) in &self.clusters {
            for (name, volume) in &cluster.volumes {
                let Some(found) = &volume.found else { continue };
                let subject = Subject {
                    order: &volume.order,
                    report: cluster.written.get(name),
                    found,
                };
                subjects.push(((Arc::clone(id), Arc::clone(name)), subject));
            }
        }
        subjects
    }

    /// Returns the reports of volumes without an order, or whose order is for another directory by now.
    fn released(&self) -> Vec<(Key, Reported)> {
        let clusters = self.clusters.iter();
        let released = clusters.flat_map(|(id, cluster)| {
            let released = cluster.released();
            released.map(|(name, report)| ((Arc::clone(id), Arc::clone(name)), report.clone()))
        });
        released.collect()
    }

    /// Removes limits that are no longer ordered, then the reports of volumes without an order. Returns the volumes whose
    /// limits could not be removed: their reports stay, so that it is tried again.
    async fn release(
        &mut self,
        released: &[(Key, Reported)],
        decisions: &[(Key, Decision)],
        taken: &BTreeSet<u32>,
    ) -> Result<BTreeSet<Key>, AgentError> {
        let mut used = taken.clone();
        used.extend(decisions.iter().filter_map(|(_, decision)| match decision {
            Decision::Enforce(enforcement) => Some(enforcement.project),
            Decision::Fail(..) | Decision::Outdated => None,
        }));
        // The volumes that are left as they are.
        for cluster in self.clusters.values() {
            let kept = cluster
                .written
                .iter()
                .filter(|(name, report)| cluster.volumes.contains_key(*name) && !cluster.is_replaced(name, report));
            used.extend(kept.filter_map(|(_, report)| report.project));
        }
        let to_lift = |report: &Reported| report.project.filter(|project| !used.contains(project));
        let limited = released.iter().filter_map(|(_, report)| to_lift(report));
        let limited = limited.filter(|project| self.is_limited(*project));
        let unlimited: Vec<(u32, Limits)> = limited.map(|project| (project, Limits::default())).collect();
        let refused = self.change_limits(&unlimited).await?;
        let mut kept = BTreeSet::new();
        for (key, report) in released {
            let (id, volume) = key;
            if to_lift(report).is_some_and(|project| self.is_limited(project)) {
                kept.insert(key.clone());
                let why = refused.as_deref().unwrap_or("it is still in force");
                tracing::warn!(cluster = &**id, volume = &**volume, "cannot remove the limit: {why}");
                continue;
            }
            self.visits.forget(key);
            match self.clusters.get_mut(id).map(|cluster| cluster.release(volume)) {
                Some(Err(error)) => tracing::warn!(cluster = &**id, "{error}"),
                _ => tracing::info!(cluster = &**id, volume = &**volume, "removed the limit"),
            }
        }
        Ok(kept)
    }

    /// Returns what the file system accounts for a project, as far as is known.
    fn accounted_for(&self, project: u32) -> Accounted {
        let accounted = self.accounted.as_ref().and_then(|all| all.get(&project));
        accounted.copied().unwrap_or_default()
    }

    fn is_limited(&self, project: u32) -> bool {
        self.accounted_for(project).limits != Limits::default()
    }

    /// Sets limits, and remembers what is in force then. Returns why some were refused.
    async fn change_limits(&mut self, limits: &[(u32, Limits)]) -> Result<Option<String>, AgentError> {
        if limits.is_empty() {
            return Ok(None);
        }
        let Changed { mut found, refused } = self.quotas.set_limits(limits).await?;
        let accounted = self.accounted.get_or_insert_default();
        for (project, _) in limits {
            match found.remove(project) {
                Some(entry) => accounted.insert(*project, entry),
                // Nothing was read about it: what was in force may still be.
                None if refused.is_some() => None,
                None => accounted.remove(project),
            };
        }
        Ok(refused)
    }

    /// Carries out decisions until a time, some at once.
    async fn carry_out(&mut self, decisions: Vec<(Key, Decision)>, until: Instant) -> Result<(), AgentError> {
        let mut enforced: BTreeMap<Key, Enforcement> = BTreeMap::new();
        for (key, decision) in decisions {
            match decision {
                Decision::Outdated => tracing::warn!(volume = &*key.1, "ignoring an order that a newer one replaced"),
                Decision::Fail(reason, message) => self.fail(&key, self.recorded_project(&key), reason, message),
                Decision::Enforce(enforcement) if self.tried.contains(&key) || self.is_settled(&key, enforcement) => {}
                Decision::Enforce(_) if self.is_unfinished => {}
                Decision::Enforce(enforcement) => {
                    self.tried.insert(key.clone());
                    // Recorded before the file system changes, so that nobody else gets the project.
                    let pending = LimitState::Pending { visited: 0 };
                    if enforcement.complete
                        || self.is_recorded(&key, enforcement.project)
                        || self.report(&key, Some(enforcement.project), pending)
                    {
                        enforced.insert(key, enforcement);
                    }
                    if enforced.len() >= ROUND {
                        self.enforce_some(std::mem::take(&mut enforced)).await?;
                        // The rest is decided again, from the orders as they are then.
                        self.is_unfinished |= Instant::now() >= until;
                    }
                }
            }
        }
        self.enforce_some(enforced).await
    }

    async fn enforce_some(&mut self, mut enforced: BTreeMap<Key, Enforcement>) -> Result<(), AgentError> {
        self.set_limits(&mut enforced).await?;
        self.tag(&mut enforced).await?;
        for (key, enforcement) in enforced {
            let project = enforcement.project;
            if enforcement.complete {
                self.completed.push((key, project));
            } else if enforcement.tag {
                self.begin_visit(key, project, Start::New).await;
            } else if let Some(why) = self.visits.refusal(&key).cloned() {
                self.fail(&key, Some(project), SizeProblem::ChangeRefused, why);
            } else if !self.visits.contains(&key) {
                self.begin_visit(key, project, Start::Recorded).await;
            }
        }
        self.report_completed();
        Ok(())
    }

    /// Returns the project that a volume had before its order failed: its limit is removed with the order.
    fn recorded_project(&self, key: &Key) -> Option<u32> {
        let report = self.clusters.get(&key.0)?.written.get(&key.1)?;
        report.project.filter(|_| {
            self.volume(key)
                .is_some_and(|volume| volume.order.file_id == report.file_id)
        })
    }

    /// Reports whether the volume has a report with the project that does not promise a limit.
    fn is_recorded(&self, key: &Key, project: u32) -> bool {
        let report = self
            .clusters
            .get(&key.0)
            .and_then(|cluster| cluster.written.get(&key.1));
        report.is_some_and(|report| report.project == Some(project) && report.state != LimitState::InForce)
    }

    /// Reports whether nothing is left to do for a volume, except for what a visit does.
    fn is_settled(&self, key: &Key, enforcement: Enforcement) -> bool {
        let (Some(volume), Some(cluster)) = (self.volume(key), self.clusters.get(&key.0)) else {
            return true;
        };
        let is_reported = cluster.written.get(&key.1).is_some_and(|report| {
            report.generation == volume.order.generation
                && (enforcement.complete == (report.state == LimitState::InForce))
        });
        let is_underway = enforcement.complete || self.visits.contains(key) || self.visits.refusal(key).is_some();
        is_reported && is_underway && !enforcement.tag && !enforcement.set_limits
    }

    /// Leaves projects that somebody began to use since they were read: their volumes get others in this round.
    async fn leave_foreign(&mut self, enforced: &mut BTreeMap<Key, Enforcement>) -> Result<(), AgentError> {
        let new = enforced.values().filter(|change| change.is_new);
        let new: Vec<u32> = new.map(|change| change.project).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut found = self.quotas.accounted_for(&new).await?;
        found.retain(|_, accounted| !accounted.is_free());
        let is_foreign = |_: &Key, change: &mut Enforcement| change.is_new && found.contains_key(&change.project);
        for (key, _) in enforced.extract_if(.., is_foreign) {
            self.try_another_project(&key);
        }
        self.accounted.get_or_insert_default().extend(found);
        Ok(())
    }

    /// Has the rest of this round choose another project for a volume.
    fn try_another_project(&mut self, key: &Key) {
        self.report(key, None, LimitState::Pending { visited: 0 });
        self.tried.remove(key);
        self.is_unfinished = true;
    }

    /// Sets limits, and reads back whether they are in force. What failed is reported and removed from `enforced`.
    async fn set_limits(&mut self, enforced: &mut BTreeMap<Key, Enforcement>) -> Result<(), AgentError> {
        self.leave_foreign(enforced).await?;
        // Also those that were in force at the last poll: what is reported now was read now.
        let changes: Vec<(Key, Enforcement)> = enforced.iter().map(|(key, change)| (key.clone(), *change)).collect();
        let limits: Vec<(u32, Limits)> = changes
            .iter()
            .map(|(_, change)| (change.project, change.limits))
            .collect();
        let refused = self.change_limits(&limits).await?;
        let mut foreign = Vec::new();
        for (key, change) in changes {
            let found = self.accounted_for(change.project);
            if change.is_new && found.inodes > 0 {
                // Somebody began to use the project just now. It had no limit.
                foreign.push((change.project, Limits::default()));
                enforced.remove(&key);
                self.try_another_project(&key);
            } else if !is_in_force(change.limits, found.limits) {
                let why = refused.as_deref().unwrap_or("the file system has another limit");
                enforced.remove(&key);
                self.fail(&key, Some(change.project), SizeProblem::ChangeRefused, why.to_owned());
            } else if let Some(Found::Missing(reason, why)) = self.volume(&key).and_then(|volume| volume.found.clone())
                && !found.is_used()
            {
                // Not moved, but removed since the last poll.
                enforced.remove(&key);
                self.fail(&key, Some(change.project), reason, why);
            }
        }
        self.change_limits(&foreign).await.map(drop)
    }

    /// Gives directories to their projects, and reads back whether they have them. What failed is reported and removed
    /// from `enforced`.
    async fn tag(&mut self, enforced: &mut BTreeMap<Key, Enforcement>) -> Result<(), AgentError> {
        let keys = enforced
            .iter()
            .filter(|(_, enforcement)| enforcement.tag)
            .map(|(key, _)| key.clone());
        let keys: Vec<Key> = keys.collect();
        for batch in keys.chunks(OPEN) {
            let mut opened = Vec::new();
            for key in batch {
                let (Some(volume), Some(enforcement)) = (self.volume(key), enforced.get(key)) else {
                    continue;
                };
                match open_directory(&self.root, &volume.order) {
                    Ok(directory) => opened.push((key, enforcement.project, directory)),
                    // Moved or replaced since it was looked up: it is looked up again.
                    Err(_) => {
                        enforced.remove(key);
                        self.set_found(key, None);
                    }
                }
            }
            let assignments = opened.iter().map(|(_, project, directory)| Assignment {
                file: directory.as_fd(),
                project: *project,
                inherits: true,
            });
            let assignments: Vec<Assignment<'_>> = assignments.collect();
            let Changed { found: tags, refused } = self.quotas.assign(&assignments).await?;
            for ((key, project, _), tag) in opened.iter().zip(tags) {
                let wanted = Tag {
                    project: *project,
                    inherits: true,
                };
                self.set_found(key, tag.map(Found::Directory));
                // Nobody else gets it, and it is in use.
                let accounted = self.accounted.get_or_insert_default().entry(*project).or_default();
                accounted.inodes = accounted.inodes.max(1);
                if tag != Some(wanted) {
                    enforced.remove(*key);
                    let message = refused
                        .clone()
                        .unwrap_or_else(|| "the directory did not get its project".to_owned());
                    self.fail(key, Some(*project), SizeProblem::ChangeRefused, message);
                }
            }
        }
        Ok(())
    }

    fn volume(&self, key: &Key) -> Option<&Volume> {
        self.clusters.get(&key.0)?.volumes.get(&key.1)
    }

    fn set_found(&mut self, key: &Key, found: Option<Found>) {
        let cluster = self.clusters.get_mut(&key.0);
        if let Some(volume) = cluster.and_then(|cluster| cluster.volumes.get_mut(&key.1)) {
            volume.found = found;
        }
    }

    /// Begins to visit a tree. Most are empty, and done at once.
    async fn begin_visit(&mut self, key: Key, project: u32, start: Start) {
        self.visits.forget(&key);
        let Some(volume) = self.volume(&key) else { return };
        let directory = match open_directory(&self.root, &volume.order) {
            Ok(directory) => directory,
            Err((_, why)) => {
                // Moved after it got the project. It is found again when its order names its place.
                tracing::warn!(volume = &*key.1, "cannot assign existing files to the project: {why}");
                self.set_found(&key, None);
                return;
            }
        };
        let visit = match TreeVisit::new(directory.as_fd(), project) {
            Ok(visit) => visit,
            Err(error) => {
                tracing::warn!(volume = &*key.1, "failed to list the directory: {error}");
                return;
            }
        };
        if !visit.is_done() && !self.visits.has_room() {
            if start == Start::New {
                // A place in the report is no longer one.
                self.report(&key, Some(project), LimitState::Pending { visited: 0 });
            }
            self.visits.wait(key, project, start);
            return;
        }
        let resumed = match start {
            Start::Recorded if !visit.is_done() => self.resume(&key, &directory, project).await,
            Start::Recorded | Start::New => None,
        };
        self.visits.put(key.clone(), resumed.unwrap_or(visit));
        self.visit_one(&key, &mut 0).await;
    }

    /// Returns the visit of a tree at the place in its report, if there is one that can be used.
    async fn resume(&self, key: &Key, directory: &OwnedFd, project: u32) -> Option<TreeVisit> {
        let report = self.clusters.get(&key.0)?.written.get(&key.1)?;
        let LimitState::Pending { visited } = report.state else {
            return None;
        };
        let is_same = report.project == Some(project) && report.file_id == self.volume(key)?.order.file_id;
        if !is_same || report.visit.is_empty() {
            return None;
        }
        let place = (report.visit.as_slice(), visited);
        match TreeVisit::resume(directory.as_fd(), project, place, &self.quotas).await {
            Ok(Some(visit)) => {
                tracing::info!(volume = &*key.1, visited, "resuming to assign existing files");
                Some(visit)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(volume = &*key.1, "beginning again to assign existing files: {error}");
                None
            }
        }
    }

    /// Assigns some existing files.
    pub async fn visit(&mut self, budget: &mut usize) {
        while let Some((key, project, start)) = self.visits.take_waiting() {
            self.begin_visit(key, project, start).await;
        }
        // A part for each, so that a large volume does not delay the others.
        let keys: Vec<Key> = self.visits.running().map(|(key, _)| key.clone()).collect();
        let part = budget.div_ceil(keys.len().max(1));
        for key in keys {
            let mut own = part.min(*budget);
            *budget -= own;
            self.visit_one(&key, &mut own).await;
            *budget += own;
        }
        self.report_completed();
    }

    async fn visit_one(&mut self, key: &Key, budget: &mut usize) {
        let Some(mut visit) = self.visits.take(key) else {
            return;
        };
        let project = visit.project();
        match visit.advance(&self.quotas, budget).await {
            Ok(Visited::Partly) => self.visits.put(key.clone(), visit),
            Ok(Visited::Moved) => {
                self.report(key, Some(project), LimitState::Pending { visited: 0 });
                self.visits.wait(key.clone(), project, Start::New);
            }
            Ok(Visited::Completely { refused: None }) => self.completed.push((key.clone(), project)),
            Ok(Visited::Completely {
                refused: Some((why, count)),
            }) => {
                let why = format!("{count} files or directories do not count towards the size: {why}");
                self.visits.refuse(key.clone(), why.clone());
                self.fail(key, Some(project), SizeProblem::ChangeRefused, why);
            }
            // Begun again in the next round.
            Err(error) => tracing::warn!(volume = &*key.1, "cannot assign files to a project: {error}"),
        }
    }

    /// Reports how far the visits are.
    fn report_progress(&mut self) {
        let progress = self.visits.running().map(|(key, visit)| {
            let state = LimitState::Pending {
                visited: visit.visited(),
            };
            (key.clone(), visit.project(), state, visit.place(MAX_VISIT_PLACE))
        });
        for (key, project, state, place) in progress.collect::<Vec<_>>() {
            self.report_at(&key, Some(project), state, place);
        }
    }

    fn fail(&mut self, key: &Key, project: Option<u32>, reason: SizeProblem, why: String) {
        let message = message(why);
        self.report(key, project, LimitState::Failed { reason, message });
    }

    fn report(&mut self, key: &Key, project: Option<u32>, state: LimitState) -> bool {
        self.report_at(key, project, state, Vec::new())
    }

    /// Writes a report with the place of a visit. Returns false if it cannot be written: that hinders no other volume.
    fn report_at(&mut self, key: &Key, project: Option<u32>, state: LimitState, visit: Vec<(u64, i64)>) -> bool {
        let Some(report) = self.report_of(key, project, state, visit) else {
            return false;
        };
        let Some(cluster) = self.clusters.get_mut(&key.0) else {
            return false;
        };
        if let LimitState::Failed { message, .. } = &report.state
            && cluster.written.get(&key.1) != Some(&report)
        {
            tracing::warn!(volume = &*key.1, "cannot enforce a size: {message}");
        }
        let written = cluster.write_report(&key.1, report);
        if let Err(error) = &written {
            tracing::warn!(volume = &*key.1, "cannot report about a volume: {error}");
        }
        written.is_ok()
    }

    fn report_of(
        &self,
        key: &Key,
        project: Option<u32>,
        state: LimitState,
        visit: Vec<(u64, i64)>,
    ) -> Option<Reported> {
        let order = &self.volume(key)?.order;
        Some(Reported {
            file_id: order.file_id,
            generation: order.generation,
            project,
            state,
            visit,
        })
    }

    /// Reports all limits that are in force and were not reported yet.
    fn report_completed(&mut self) {
        let mut reports: BTreeMap<Arc<str>, Vec<(Arc<str>, Reported)>> = BTreeMap::new();
        for (key, project) in std::mem::take(&mut self.completed) {
            if let Some(report) = self.report_of(&key, Some(project), LimitState::InForce, Vec::new()) {
                reports.entry(key.0).or_default().push((key.1, report));
            }
        }
        for (id, reports) in reports {
            let written = self
                .clusters
                .get_mut(&id)
                .map(|cluster| cluster.write_in_force(reports));
            if let Some(Err(error)) = written {
                // They are written in the next round.
                tracing::warn!(cluster = &*id, "cannot report which limits are in force: {error}");
            }
        }
    }

    /// Writes the usage as of the last poll: to read it takes another run of a tool.
    pub async fn write_usage(&mut self, instance: &str) -> Result<(), AgentError> {
        if self.capabilities.problem.is_some() {
            return Ok(());
        }
        let accounted = match &mut self.accounted {
            Some(accounted) => accounted,
            unread => unread.insert(self.quotas.accounted().await?),
        };
        for (id, cluster) in self.clusters.iter().filter(|(_, cluster)| cluster.has_key()) {
            let enforced = cluster
                .written
                .iter()
                .filter(|(_, report)| report.state == LimitState::InForce);
            let volumes = enforced.filter_map(|(volume, report)| {
                let used = accounted.get(&report.project?).copied().unwrap_or_default();
                let usage = VolumeUsage {
                    bytes: used.bytes,
                    inodes: used.inodes,
                };
                Some((volume.to_string(), usage))
            });
            let usage = Usage {
                instance: instance.to_owned(),
                sequence: self.sequence,
                volumes: volumes.collect(),
            };
            if let Err(error) = cluster.write_usage(&usage) {
                tracing::warn!(cluster = &**id, "cannot write the usage: {error}");
            }
        }
        Ok(())
    }

    pub fn write_heartbeats(&mut self, instance: &str) {
        self.report_progress();
        self.sequence += 1;
        self.write_each_heartbeat(instance, |_| true);
    }

    /// Tells operators that wait for reports that there are some, with the sequence of the last heartbeat: what else is in
    /// it, such as the usage, is dated by it.
    pub fn announce_reports(&mut self, instance: &str) {
        self.write_each_heartbeat(instance, Cluster::has_news);
    }

    fn write_each_heartbeat(&mut self, instance: &str, is_due: fn(&Cluster) -> bool) {
        for (id, cluster) in self.clusters.iter_mut().filter(|(_, cluster)| is_due(cluster)) {
            let keyless = || {
                let message = "the key file has no line for this cluster: add the line that kubectl nfs secret \
                               quota-key prints";
                (AgentProblem::KeyMissing, message.to_owned())
            };
            let unread = || Some((AgentProblem::ToolFailed, cluster.problem()?.to_owned()));
            let problem = match cluster.has_key() {
                true => self.capabilities.problem.clone().or_else(unread),
                false => Some(keyless()),
            };
            let (reason, why) = problem.unzip();
            let heartbeat = Heartbeat {
                instance: instance.to_owned(),
                sequence: self.sequence,
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                file_system: self.capabilities.file_system.clone(),
                enforced: self.capabilities.enforced && reason.is_none(),
                inodes_counted: self.capabilities.inodes_counted,
                ignored_orders: 0,
                reported: 0,
                reason,
                message: why.map(message),
            };
            if let Err(error) = cluster.write_heartbeat(heartbeat) {
                tracing::warn!(cluster = &**id, "{error}");
            }
        }
    }
}

/// Returns the volumes of all clusters.
fn volumes_of(clusters: &mut BTreeMap<Arc<str>, Cluster>) -> impl Iterator<Item = &mut Volume> {
    clusters.values_mut().flat_map(|cluster| cluster.volumes.values_mut())
}

/// Describes what a project of the root does, with the remedy: what was created meanwhile passes it on, too.
fn inherited(file_system: &str, root: &Path) -> String {
    let (root, reserved) = (root.display(), layout::RESERVED);
    let remedy = match file_system {
        "zfs" => format!("zfs project -C {root}; zfs project -C -r {root}/{reserved}"),
        _ => format!(
            "xfs_io -c 'chattr -P' -c 'chproj 0' {root}; xfs_io -c 'chattr -D -P' -c 'chproj -D 0' {root}/{reserved}"
        ),
    };
    format!(
        "the directory {root} passes its project on to new directories, so deleted volumes cannot be moved to the trash; \
         run {remedy}"
    )
}

/// Shortens a message to what a file may contain.
fn message(text: String) -> String {
    export_store::text::abbreviate(&text, 1000)
}
