//! The agent: observes, decides with [`crate::plan`], and acts. What it did so far is on the export and in the file
//! system, so that any step may be its last.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use export_store::layout;
use export_store::quota::{
    AgentProblem, Heartbeat, KeyFile, LimitState, Order, Report, SizeProblem, Usage, VolumeUsage,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::error::AgentError;
use crate::folder::Folder;
use crate::linux::LinuxQuotas;
use crate::plan::{Decision, Enforcement, FileSystem, Found, Key, Subject, plan};
use crate::projects::{ProjectRange, ReservedProjects};
use crate::quotas::{Accounted, Assignment, Capabilities, Limits, Quotas, QuotasError, Tag};
use crate::tree::{TreeVisit, Visited};
use crate::watch::{Interest, Watch};

/// The operator takes an agent for dead after 30 s.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Interval of the usage, and of looking for what inotify did not report.
const POLL: Duration = Duration::from_secs(30);
/// Interval of looking at the directories whose limit is in force: somebody may have changed a project.
const VERIFY: Duration = Duration::from_secs(600);
/// Orders usually come several at a time.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Interval of parts of visits.
const VISIT: Duration = Duration::from_millis(100);
/// Number of trees that are visited at the same time. Each one has at least one open directory.
const MAX_VISITS: usize = 32;
/// Number of directories that are open at once. The usual limit of a process is 1,024 files.
const OPEN: usize = 200;
/// Number of volumes that are changed between two looks at the clock, so that heartbeats are not late.
const ROUND: usize = 500;
/// Maximum size of the identity file, in bytes.
const MAX_IDENTITY_LEN: usize = 4096;

/// Arguments of the agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The exports: directories with the folder `.nfs-operator`.
    pub exports: Vec<PathBuf>,
    /// File with the keys of clusters. Without it, orders are believed if only the owner can enter the folders.
    pub key_file: Option<PathBuf>,
    /// Project IDs to use.
    pub projects: ProjectRange,
    /// Maximum number of existing files to assign to projects, per second.
    pub files_per_second: usize,
}

/// Runs an agent for file systems of this machine until it is cancelled.
///
/// # Errors
/// It cannot start. Problems that can be fixed later are reported in the heartbeat and in the log.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), AgentError> {
    if !rustix::process::geteuid().is_root() {
        return Err(AgentError::NotRoot);
    }
    if settings.exports.is_empty() {
        return Err(AgentError::NoExport);
    }
    let mut locks = BTreeMap::new();
    let mut exports = Vec::new();
    for path in &settings.exports {
        let root = Folder::root(path)?;
        let quotas = LinuxQuotas::new(path, root.device())?;
        if let Entry::Vacant(entry) = locks.entry(root.device()) {
            entry.insert(lock(quotas.mount_point())?);
        }
        exports.push((path.clone(), quotas));
    }
    let mut agent = Agent::new(settings, exports)?;
    let result = agent.serve(stop).await;
    drop(locks);
    result
}

/// Locks a file system for this process.
fn lock(mount_point: &Path) -> Result<OwnedFd, AgentError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let locked = rustix::fs::open(mount_point, flags, Mode::empty()).and_then(|fd| {
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        Ok(fd)
    });
    locked.map_err(|error| match error {
        Errno::WOULDBLOCK => AgentError::AnotherAgent {
            path: mount_point.to_owned(),
        },
        error => AgentError::Export {
            action: format!("lock {}", mount_point.display()),
            source: error.into(),
        },
    })
}

/// The agent of some exports.
pub struct Agent<Q> {
    settings: Settings,
    keys: Option<KeyFile>,
    reserved: ReservedProjects,
    instance: String,
    exports: Vec<Export<Q>>,
    next_heartbeat: Instant,
}

struct Export<Q> {
    path: PathBuf,
    root: Folder,
    quotas: Q,
    capabilities: Capabilities,
    clusters: BTreeMap<String, Cluster>,
    visits: BTreeMap<Key, TreeVisit>,
    /// Trees that wait for a visit, with their projects.
    waiting: BTreeMap<Key, u32>,
    /// What the visit of a tree could not assign. It is tried again with the next verification.
    refused: BTreeMap<Key, String>,
    /// Volumes that were tried since the orders were read.
    tried: BTreeSet<Key>,
    /// The last round left volumes to change.
    is_unfinished: bool,
}

impl<Q: Quotas> Agent<Q> {
    /// Creates an agent for exports with their file systems.
    ///
    /// # Errors
    /// An export or the key file cannot be read.
    pub fn new(settings: Settings, exports: Vec<(PathBuf, Q)>) -> Result<Self, AgentError> {
        let keys = settings.key_file.as_deref().map(read_keys).transpose()?;
        let exports = exports.into_iter().map(|(path, quotas)| Export::new(path, quotas));
        Ok(Self {
            keys,
            reserved: ReservedProjects::read()?,
            instance: format!("{:016x}", rand::random::<u64>()),
            exports: exports.collect::<Result<_, _>>()?,
            next_heartbeat: Instant::now() + HEARTBEAT,
            settings,
        })
    }

    /// Serves the exports until it is cancelled.
    async fn serve(&mut self, stop: CancellationToken) -> Result<(), AgentError> {
        let failed = |source| AgentError::Export {
            action: "watch folders".to_owned(),
            source,
        };
        let mut watch = Watch::new().map_err(failed)?;
        let now = Instant::now();
        let (mut next_poll, mut next_verification) = (now, now + VERIFY);
        loop {
            if Instant::now() >= next_poll {
                next_poll = Instant::now() + POLL;
                self.reload();
                if Instant::now() >= next_verification {
                    next_verification = Instant::now() + VERIFY;
                    self.exports.iter_mut().for_each(Export::forget_directories);
                }
                self.poll_clusters();
                self.watch(&mut watch);
                self.poll().await;
                self.write_usage().await;
            }
            self.write_due_heartbeats();
            let visiting = self
                .exports
                .iter()
                .any(|export| !(export.visits.is_empty() && export.waiting.is_empty()));
            let pause = if visiting { VISIT } else { HEARTBEAT };
            let next = (Instant::now() + pause).min(next_poll).min(self.next_heartbeat);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = watch.changed() => {
                    tokio::time::sleep(DEBOUNCE).await;
                    // A new cluster may have come.
                    self.poll_clusters();
                    self.enforce().await;
                    self.watch(&mut watch);
                }
                () = tokio::time::sleep_until(next) => {}
            }
            self.visit().await;
        }
    }

    /// Reads again what an administrator may have changed.
    fn reload(&mut self) {
        if let Some(path) = &self.settings.key_file {
            match read_keys(path) {
                Ok(keys) => self.keys = Some(keys),
                Err(error) => tracing::warn!("using the keys from before: {error}"),
            }
        }
        match ReservedProjects::read() {
            Ok(reserved) => self.reserved = reserved,
            Err(error) => tracing::warn!("using the reserved project IDs from before: {error}"),
        }
    }

    /// Looks for clusters, asks the file systems what they can do, and enforces all orders.
    pub async fn poll(&mut self) {
        self.poll_clusters();
        for export in &mut self.exports {
            export.check_capabilities().await;
            export.forget_missing();
        }
        self.enforce().await;
    }

    fn poll_clusters(&mut self) {
        for export in &mut self.exports {
            if let Err(error) = export.open_clusters(self.keys.as_ref()) {
                tracing::warn!(export = %export.path.display(), "cannot read the folders of clusters: {error}");
            }
        }
    }

    /// Enforces the orders as they are now.
    pub async fn enforce(&mut self) {
        self.exports.iter_mut().for_each(|export| export.tried.clear());
        loop {
            self.enforce_some().await;
            if !self.exports.iter().any(|export| export.is_unfinished) {
                return;
            }
            self.write_due_heartbeats();
        }
    }

    async fn enforce_some(&mut self) {
        for position in 0..self.exports.len() {
            let taken = self.taken_elsewhere(position);
            let Some(export) = self.exports.get_mut(position) else {
                continue;
            };
            if let Err(error) = export.enforce(&self.settings.projects, &self.reserved, taken).await {
                tracing::warn!(export = %export.path.display(), "cannot enforce sizes: {error}");
                export.is_unfinished = false;
                export.capabilities.problem = Some((AgentProblem::ToolFailed, error.to_string()));
            }
        }
    }

    /// Returns the projects of other exports on the same file system.
    fn taken_elsewhere(&self, position: usize) -> BTreeSet<u32> {
        let device = self.exports.get(position).map(|export| export.root.device());
        let others = self.exports.iter().enumerate();
        let others = others.filter(|(other, export)| *other != position && Some(export.root.device()) == device);
        others.flat_map(|(_, export)| export.projects()).collect()
    }

    /// Assigns some existing files to their projects.
    pub async fn visit(&mut self) {
        let parts_per_second = 1000 / VISIT.as_millis().max(1) as usize;
        for export in &mut self.exports {
            let mut budget = self.settings.files_per_second.div_ceil(parts_per_second);
            export.visit(&mut budget).await;
        }
    }

    /// Writes the usage of all volumes.
    pub async fn write_usage(&mut self) {
        for export in &mut self.exports {
            if let Err(error) = export.write_usage(&self.instance).await {
                tracing::warn!(export = %export.path.display(), "cannot write the usage: {error}");
            }
        }
    }

    fn write_due_heartbeats(&mut self) {
        if Instant::now() >= self.next_heartbeat {
            self.next_heartbeat = Instant::now() + HEARTBEAT;
            self.write_heartbeats();
        }
    }

    /// Writes a heartbeat for each cluster.
    pub fn write_heartbeats(&mut self) {
        for export in &mut self.exports {
            export.write_heartbeats(&self.instance);
        }
    }

    fn watch(&self, watch: &mut Watch) {
        for export in &self.exports {
            let reserved = export.root.open(layout::RESERVED).ok().flatten();
            // Until an operator uses the export, its folder is expected in the root.
            let top = reserved.as_ref().unwrap_or(&export.root);
            let orders = export
                .clusters
                .values()
                .map(|cluster| (&cluster.orders, Interest::Files));
            for (folder, interest) in orders.chain([(top, Interest::Folders)]) {
                if let Err(error) = watch.add(folder.fd(), interest) {
                    tracing::warn!(
                        "cannot watch a folder, so orders are noticed within {} s: {error}; raise the sysctl \
                         fs.inotify.max_user_watches",
                        POLL.as_secs()
                    );
                }
            }
        }
    }
}

impl<Q: Quotas> Export<Q> {
    fn new(path: PathBuf, quotas: Q) -> Result<Self, AgentError> {
        let root = Folder::root(&path)?;
        let unknown = Capabilities {
            file_system: "unknown".to_owned(),
            enforced: false,
            inodes_counted: false,
            problem: None,
        };
        Ok(Self {
            path,
            root,
            quotas,
            capabilities: unknown,
            clusters: BTreeMap::new(),
            visits: BTreeMap::new(),
            waiting: BTreeMap::new(),
            refused: BTreeMap::new(),
            tried: BTreeSet::new(),
            is_unfinished: false,
        })
    }

    /// Opens the folders of new clusters and of those whose key changed.
    fn open_clusters(&mut self, keys: Option<&KeyFile>) -> Result<(), AgentError> {
        let Some(reserved) = self.root.open(layout::RESERVED)? else {
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
        for id in reserved.names()? {
            let known = self.clusters.get(&id);
            if known.is_some_and(|known| known.is_current(&reserved, &id, &export_id, keys)) {
                continue;
            }
            match Cluster::open(&reserved, &id, &export_id, keys) {
                Ok(Some(cluster)) => drop(self.clusters.insert(id, cluster)),
                Ok(None) => drop(self.clusters.remove(&id)),
                Err(error) => tracing::warn!(cluster = id, "cannot serve a cluster: {error}"),
            }
        }
        Ok(())
    }

    async fn check_capabilities(&mut self) {
        let mut capabilities = self.quotas.capabilities().await;
        if capabilities.problem.is_none() {
            capabilities.problem = match self.quotas.tags(&[self.root.fd()]).await {
                Ok(tags) if tags.iter().flatten().any(|tag| tag.inherits && tag.project != 0) => Some((
                    AgentProblem::RootInheritsProject,
                    format!(
                        "the directory {0} passes its project on to new directories, so deleted volumes cannot be \
                         moved to the trash; run xfs_io -c 'chattr -P' -c 'chproj 0' {0}",
                        self.path.display()
                    ),
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

    /// Looks up all directories again.
    fn forget_directories(&mut self) {
        let volumes = self
            .clusters
            .values_mut()
            .flat_map(|cluster| cluster.volumes.values_mut());
        volumes.for_each(|volume| volume.found = None);
        self.refused.clear();
    }

    /// Looks up the directories again that were not found.
    fn forget_missing(&mut self) {
        let volumes = self
            .clusters
            .values_mut()
            .flat_map(|cluster| cluster.volumes.values_mut());
        let missing = volumes.filter(|volume| matches!(volume.found, Some(Found::Missing(..))));
        missing.for_each(|volume| volume.found = None);
    }

    fn projects(&self) -> impl Iterator<Item = u32> {
        let reports = self.clusters.values().flat_map(|cluster| cluster.written.values());
        reports.filter_map(|report| report.project)
    }

    async fn enforce(
        &mut self,
        range: &ProjectRange,
        reserved: &ReservedProjects,
        mut taken: BTreeSet<u32>,
    ) -> Result<(), AgentError> {
        self.is_unfinished = false;
        if self.capabilities.problem.is_some() {
            return Ok(());
        }
        for cluster in self.clusters.values_mut() {
            cluster.read_orders()?;
        }
        let accounted = self.quotas.accounted().await?;
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
                accounted: &accounted,
                range,
                reserved,
                taken: &taken,
                released: &by_file_id.collect(),
            },
        );
        self.release(&released, &decisions, &accounted, &taken).await?;
        self.carry_out(decisions).await
    }

    /// Looks up the directories that are not known.
    async fn look_up(&mut self) -> Result<(), AgentError> {
        let volumes = self
            .clusters
            .values_mut()
            .flat_map(|cluster| cluster.volumes.values_mut());
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

    fn subjects(&self) -> BTreeMap<Key, Subject<'_>> {
        let mut subjects = BTreeMap::new();
        for (id, cluster) in &self.clusters {
            for (name, volume) in &cluster.volumes {
                let Some(found) = &volume.found else { continue };
                let subject = Subject {
                    order: &volume.order,
                    report: cluster.written.get(name),
                    found,
                };
                subjects.insert((id.clone(), name.clone()), subject);
            }
        }
        subjects
    }

    /// Returns the reports of volumes without an order, with their clusters.
    fn released(&self) -> Vec<(String, Report)> {
        let clusters = self.clusters.iter();
        let released = clusters.flat_map(|(id, cluster)| cluster.released().map(|report| (id.clone(), report.clone())));
        released.collect()
    }

    /// Removes the limits of volumes without an order, then their reports.
    async fn release(
        &mut self,
        released: &[(String, Report)],
        decisions: &BTreeMap<Key, Decision>,
        accounted: &BTreeMap<u32, Accounted>,
        taken: &BTreeSet<u32>,
    ) -> Result<(), AgentError> {
        let mut used = taken.clone();
        used.extend(decisions.values().filter_map(|decision| match decision {
            Decision::Enforce(enforcement) => Some(enforcement.project),
            Decision::Fail(..) | Decision::Outdated => None,
        }));
        // The volumes that are left as they are.
        for cluster in self.clusters.values() {
            let kept = cluster
                .written
                .iter()
                .filter(|(name, _)| cluster.volumes.contains_key(*name));
            used.extend(kept.filter_map(|(_, report)| report.project));
        }
        let is_limited = |project: &u32| {
            accounted
                .get(project)
                .is_some_and(|entry| entry.limits != Limits::default())
        };
        let unlimited: Vec<(u32, Limits)> = released
            .iter()
            .filter_map(|(_, report)| report.project)
            .filter(|project| !used.contains(project) && is_limited(project))
            .map(|project| (project, Limits::default()))
            .collect();
        if !unlimited.is_empty() {
            self.quotas.set_limits(&unlimited).await?;
        }
        for (id, report) in released {
            let key = (id.clone(), report.volume.clone());
            self.visits.remove(&key);
            self.waiting.remove(&key);
            self.refused.remove(&key);
            if let Some(cluster) = self.clusters.get_mut(id) {
                cluster.remove_report(&report.volume)?;
                tracing::info!(cluster = id, volume = report.volume, "removed the limit");
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, decisions: BTreeMap<Key, Decision>) -> Result<(), AgentError> {
        let mut enforced: BTreeMap<Key, Enforcement> = BTreeMap::new();
        for (key, decision) in decisions {
            match decision {
                Decision::Outdated => tracing::warn!(volume = key.1, "ignoring an order that a newer one replaced"),
                Decision::Fail(reason, message) => self.fail(&key, None, reason, message)?,
                Decision::Enforce(enforcement) if self.tried.contains(&key) || self.is_settled(&key, enforcement) => {}
                Decision::Enforce(_) if enforced.len() >= ROUND => {
                    self.is_unfinished = true;
                    break;
                }
                Decision::Enforce(enforcement) => {
                    self.tried.insert(key.clone());
                    // Recorded before the file system changes, so that nobody else gets the project.
                    if !enforcement.complete && !self.is_recorded(&key, enforcement.project) {
                        self.report(&key, Some(enforcement.project), LimitState::Pending { visited: 0 })?;
                    }
                    enforced.insert(key, enforcement);
                }
            }
        }
        self.set_limits(&mut enforced).await?;
        self.tag(&mut enforced).await?;
        for (key, enforcement) in enforced {
            if enforcement.complete {
                self.report(&key, Some(enforcement.project), LimitState::InForce)?;
            } else if enforcement.tag || !(self.is_visiting(&key) || self.refused.contains_key(&key)) {
                self.begin_visit(key, enforcement.project).await;
            } else if let Some(why) = self.refused.get(&key).cloned() {
                self.fail(&key, Some(enforcement.project), SizeProblem::ChangeRefused, why)?;
            }
        }
        Ok(())
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
        let is_underway = enforcement.complete || self.is_visiting(key) || self.refused.contains_key(key);
        is_reported && is_underway && !enforcement.tag && !enforcement.set_limits
    }

    /// Sets all limits at once; if that fails, one by one, and what fails then is reported and removed from `enforced`.
    async fn set_limits(&mut self, enforced: &mut BTreeMap<Key, Enforcement>) -> Result<(), AgentError> {
        let changes = enforced.iter().filter(|(_, enforcement)| enforcement.set_limits);
        let changes: Vec<(Key, (u32, Limits))> = changes
            .map(|(key, enforcement)| (key.clone(), (enforcement.project, enforcement.limits)))
            .collect();
        let all: Vec<(u32, Limits)> = changes.iter().map(|(_, limits)| *limits).collect();
        if all.is_empty() {
            return Ok(());
        }
        match self.quotas.set_limits(&all).await {
            Ok(()) => return Ok(()),
            Err(QuotasError::Failed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        for (key, limits) in changes {
            match self.quotas.set_limits(&[limits]).await {
                Ok(()) => {}
                Err(QuotasError::Failed { output, .. }) => {
                    enforced.remove(&key);
                    self.fail(&key, Some(limits.0), SizeProblem::ChangeRefused, output)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
            let refused = match self.quotas.assign(&assignments).await {
                Ok(()) => None,
                Err(QuotasError::Failed { output, .. }) => Some(output),
                Err(error) => return Err(error.into()),
            };
            let directories: Vec<BorrowedFd<'_>> = opened.iter().map(|(_, _, directory)| directory.as_fd()).collect();
            let tags = self.quotas.tags(&directories).await?;
            for ((key, project, _), tag) in opened.iter().zip(tags) {
                let wanted = Tag {
                    project: *project,
                    inherits: true,
                };
                self.set_found(key, tag.map(Found::Directory));
                if tag != Some(wanted) {
                    enforced.remove(*key);
                    let message = refused
                        .clone()
                        .unwrap_or_else(|| "the directory did not get its project".to_owned());
                    self.fail(key, Some(*project), SizeProblem::ChangeRefused, message)?;
                }
            }
        }
        Ok(())
    }

    fn volume(&self, key: &Key) -> Option<&crate::cluster::Volume> {
        self.clusters.get(&key.0)?.volumes.get(&key.1)
    }

    fn set_found(&mut self, key: &Key, found: Option<Found>) {
        let cluster = self.clusters.get_mut(&key.0);
        if let Some(volume) = cluster.and_then(|cluster| cluster.volumes.get_mut(&key.1)) {
            volume.found = found;
        }
    }

    fn is_visiting(&self, key: &Key) -> bool {
        self.visits.contains_key(key) || self.waiting.contains_key(key)
    }

    /// Begins to visit a tree. Most are empty, and done at once.
    async fn begin_visit(&mut self, key: Key, project: u32) {
        self.visits.remove(&key);
        self.waiting.remove(&key);
        self.refused.remove(&key);
        let Some(volume) = self.volume(&key) else { return };
        let opened = open_directory(&self.root, &volume.order).map_err(|(_, why)| why);
        let visit = opened.and_then(|directory| {
            TreeVisit::new(directory.as_fd(), project).map_err(|error| format!("failed to list its directory: {error}"))
        });
        match visit {
            Ok(visit) if visit.is_done() || self.visits.len() < MAX_VISITS => {
                self.visits.insert(key.clone(), visit);
                self.visit_one(&key, &mut 0).await;
            }
            Ok(_) => drop(self.waiting.insert(key, project)),
            Err(why) => {
                // Moved after it got the project. It is found again when its order names its place.
                tracing::warn!(volume = key.1, "cannot assign existing files to the project: {why}");
                self.set_found(&key, None);
            }
        }
    }

    async fn visit(&mut self, budget: &mut usize) {
        while self.visits.len() < MAX_VISITS
            && let Some((key, project)) = self.waiting.pop_first()
        {
            self.begin_visit(key, project).await;
        }
        // A part for each, so that a large volume does not delay the others.
        let keys: Vec<Key> = self.visits.keys().cloned().collect();
        let part = budget.div_ceil(keys.len().max(1));
        for key in keys {
            let mut own = part.min(*budget);
            *budget -= own;
            self.visit_one(&key, &mut own).await;
            *budget += own;
        }
    }

    async fn visit_one(&mut self, key: &Key, budget: &mut usize) {
        let Some(mut visit) = self.visits.remove(key) else {
            return;
        };
        let reported = match visit.advance(&self.quotas, budget).await {
            Ok(Visited::Partly) => {
                self.visits.insert(key.clone(), visit);
                return;
            }
            Ok(Visited::Completely { refused: None }) => self.report(key, Some(visit.project()), LimitState::InForce),
            Ok(Visited::Completely {
                refused: Some((why, count)),
            }) => {
                let why = format!("{count} files or directories do not count towards the size: {why}");
                self.refused.insert(key.clone(), why.clone());
                self.fail(key, Some(visit.project()), SizeProblem::ChangeRefused, why)
            }
            // Begun again in the next round.
            Err(error) => Err(error.into()),
        };
        if let Err(error) = reported {
            tracing::warn!(volume = key.1, "cannot assign files to a project: {error}");
        }
    }

    /// Reports how far the visits are.
    fn report_progress(&mut self) {
        let progress = self
            .visits
            .iter()
            .map(|(key, visit)| (key.clone(), visit.project(), visit.visited()));
        for (key, project, visited) in progress.collect::<Vec<_>>() {
            if let Err(error) = self.report(&key, Some(project), LimitState::Pending { visited }) {
                tracing::warn!(volume = key.1, "{error}");
            }
        }
    }

    fn fail(&mut self, key: &Key, project: Option<u32>, reason: SizeProblem, why: String) -> Result<(), AgentError> {
        let message = message(why);
        self.report(key, project, LimitState::Failed { reason, message })
    }

    fn report(&mut self, key: &Key, project: Option<u32>, state: LimitState) -> Result<(), AgentError> {
        let Some(cluster) = self.clusters.get_mut(&key.0) else {
            return Ok(());
        };
        let Some(volume) = cluster.volumes.get(&key.1) else {
            return Ok(());
        };
        let report = Report {
            volume: volume.order.volume.clone(),
            file_id: volume.order.file_id,
            generation: volume.order.generation,
            project,
            state,
        };
        if let LimitState::Failed { message, .. } = &report.state
            && cluster.written.get(&key.1) != Some(&report)
        {
            tracing::warn!(volume = key.1, "cannot enforce a size: {message}");
        }
        cluster.write_report(report)
    }

    async fn write_usage(&mut self, instance: &str) -> Result<(), AgentError> {
        if self.capabilities.problem.is_some() {
            return Ok(());
        }
        let accounted = self.quotas.accounted().await?;
        for cluster in self.clusters.values().filter(|cluster| cluster.is_trusted()) {
            let enforced = cluster
                .written
                .values()
                .filter(|report| report.state == LimitState::InForce);
            let volumes = enforced.filter_map(|report| {
                let used = accounted.get(&report.project?).copied().unwrap_or_default();
                let usage = VolumeUsage {
                    bytes: used.bytes,
                    inodes: used.inodes,
                };
                Some((report.volume.clone(), usage))
            });
            cluster.write_usage(Usage {
                instance: instance.to_owned(),
                sequence: 0,
                volumes: volumes.collect(),
            })?;
        }
        Ok(())
    }

    fn write_heartbeats(&mut self, instance: &str) {
        self.report_progress();
        for (id, cluster) in &mut self.clusters {
            let untrusted = || {
                let message = "the key file has no line for this cluster, or without a key file, others than the owner \
                               can enter the folder .nfs-operator; add the line that kubectl nfs secret quota-key prints";
                (AgentProblem::KeyMissing, message.to_owned())
            };
            let problem = match cluster.is_trusted() {
                true => self.capabilities.problem.clone(),
                false => Some(untrusted()),
            };
            let (reason, why) = problem.unzip();
            let heartbeat = Heartbeat {
                instance: instance.to_owned(),
                sequence: 0,
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                file_system: self.capabilities.file_system.clone(),
                enforced: self.capabilities.enforced && reason.is_none(),
                inodes_counted: self.capabilities.inodes_counted,
                ignored_orders: 0,
                reason,
                message: why.map(message),
            };
            if let Err(error) = cluster.write_heartbeat(heartbeat) {
                tracing::warn!(cluster = id, "{error}");
            }
        }
    }
}

/// Shortens a message to what a file may contain.
fn message(text: String) -> String {
    export_store::text::abbreviate(&text, 1000)
}

/// Opens the directory of an order, one segment after the other, without following links. Returns why if it is not there.
fn open_directory(root: &Folder, order: &Order) -> Result<OwnedFd, (SizeProblem, String)> {
    let path = &order.directory;
    let missing = |error: Errno| match error {
        Errno::NOENT => (SizeProblem::DirectoryMissing, format!("{path} does not exist")),
        Errno::NOTDIR | Errno::LOOP => (
            SizeProblem::NotADirectory,
            format!("a segment of {path} is not a directory"),
        ),
        error => (SizeProblem::DirectoryMissing, format!("failed to open {path}: {error}")),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory: Option<OwnedFd> = None;
    for segment in path.segments() {
        let above = directory.as_ref().map_or(root.fd(), OwnedFd::as_fd);
        let below = rustix::fs::openat(above, segment.as_str(), flags, Mode::empty()).map_err(missing)?;
        directory = Some(below);
    }
    let directory = directory.ok_or_else(|| missing(Errno::NOENT))?;
    let stat = rustix::fs::fstat(&directory).map_err(missing)?;
    if stat.st_dev != root.device() {
        let message = format!("{path} is on another file system than the export's root");
        return Err((SizeProblem::OtherFileSystem, message));
    }
    if stat.st_ino != order.file_id {
        let message = format!(
            "{path} has fileid {}, and the order is for {}",
            stat.st_ino, order.file_id
        );
        return Err((SizeProblem::DirectoryReplaced, message));
    }
    Ok(directory)
}

/// Reads the key file, which only root may read or write.
fn read_keys(path: &Path) -> Result<KeyFile, AgentError> {
    let failed = |source| AgentError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let closed = Permissions::mode(&metadata.permissions()) & 0o077 == 0;
    if !closed || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(AgentError::KeyFileOpen { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    KeyFile::parse(&text).map_err(|source| AgentError::KeyFile {
        path: path.to_owned(),
        source,
    })
}
