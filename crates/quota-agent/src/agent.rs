//! The agent: when each of its exports is looked at. What it does to one is in [`crate::export`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use export_store::quota::KeyFile;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::directory::check_kernel;
use crate::error::AgentError;
use crate::export::Export;
use crate::folder::{Folder, Observer};
use crate::linux::LinuxQuotas;
use crate::projects::{ProjectRange, ReservedProjects};
use crate::quotas::Quotas;
use crate::watch::{Changes, Watch};

/// The operator takes an agent for dead after 30 s.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Interval of the usage, and of looking for what inotify did not report.
const POLL: Duration = Duration::from_secs(30);
/// Interval of looking at the directories whose limit is in force: somebody may have changed a project.
const VERIFY: Duration = Duration::from_secs(600);
/// Orders usually come several at a time.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Longest time for which orders are collected after a round with several: more are on their way, and each round runs the
/// tools, however many orders there are.
const COLLECT: Duration = Duration::from_millis(200);
/// Interval of parts of visits.
const VISIT: Duration = Duration::from_millis(100);
/// Longest time for which one part of the visits makes up: the tools may take longer than the interval.
const MAX_VISIT: Duration = Duration::from_secs(1);

/// Arguments of the agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The exports: directories with the folder `.nfs-operator`.
    pub exports: Vec<PathBuf>,
    /// File with the keys of clusters, which is read again regularly.
    pub key_file: PathBuf,
    /// Project IDs to use.
    pub projects: ProjectRange,
    /// Maximum number of existing files to assign to projects, per second, on all exports together.
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
    run_locked(settings, stop, |root, path, locks| {
        let quotas = LinuxQuotas::new(path, root.device())?;
        locks.lock(quotas.mount_point())?;
        Ok(quotas)
    })
    .await
}

/// Runs an agent for other file systems until it is cancelled: `quotas` returns that of an export. An export has one agent.
/// Agents for several exports on one file system need different project IDs.
///
/// # Errors
/// As of [`run`], or `quotas` failed.
pub async fn run_with<Q: Quotas>(
    settings: Settings,
    mut quotas: impl FnMut(&Path) -> Result<Q, AgentError>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    run_locked(settings, stop, |_, path, _| quotas(path)).await
}

async fn run_locked<Q: Quotas>(
    settings: Settings,
    stop: CancellationToken,
    mut quotas: impl FnMut(&Folder, &Path, &mut Locks) -> Result<Q, AgentError>,
) -> Result<(), AgentError> {
    if settings.exports.is_empty() {
        return Err(AgentError::NoExport);
    }
    let mut locks = Locks::default();
    let mut exports = Vec::new();
    for path in &settings.exports {
        let root = Folder::root(path, |_| {})?;
        check_kernel(&root)?;
        let quotas = quotas(&root, path, &mut locks)?;
        locks.lock(path)?;
        exports.push((path.clone(), quotas));
    }
    let mut agent = Agent::new(settings, exports)?;
    let result = agent.serve(stop).await;
    drop(locks);
    result
}

/// Directories that are locked for this process: the roots of file systems and of exports. In a container, the root of a
/// file system may not be visible, only an export on it.
#[derive(Default)]
struct Locks(BTreeMap<(u64, u64), OwnedFd>);

impl Locks {
    /// Locks a directory, which may be locked by this process already. It has the same lock at all of its mounts.
    fn lock(&mut self, directory: &Path) -> Result<(), AgentError> {
        let failed = |error: Errno| match error {
            Errno::WOULDBLOCK => AgentError::AnotherAgent {
                path: directory.to_owned(),
            },
            error => AgentError::Export {
                action: format!("lock {}", directory.display()),
                source: error.into(),
            },
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty()).map_err(failed)?;
        let found = rustix::fs::fstat(&fd).map_err(failed)?;
        if let Entry::Vacant(entry) = self.0.entry((found.st_dev, found.st_ino)) {
            rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
            entry.insert(fd);
        }
        Ok(())
    }
}

/// When orders are enforced: a lone one at once, many together.
#[derive(Default)]
struct Pace {
    /// The last round had several orders.
    is_stream: bool,
}

impl Pace {
    /// Returns the time of the next round, from when its first and its last order were noticed.
    fn next_round(&self, first: Instant, last: Instant) -> Instant {
        match self.is_stream {
            true => (last + DEBOUNCE).min(first + COLLECT),
            false => first + DEBOUNCE,
        }
    }

    /// Waits for the time of the next round, after its first order was noticed.
    async fn collect(&self, watch: &Watch) {
        let first = Instant::now();
        let mut last = first;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next_round(first, last)) => return,
                () = watch.changed() => last = Instant::now(),
            }
        }
    }

    /// Records the number of orders of a round.
    fn record(&mut self, orders: usize) {
        self.is_stream = orders > 1;
    }
}

/// How many existing files are assigned to projects, by the time that passed.
struct VisitPace {
    files_per_second: usize,
    /// Time of the last part; `None` if nothing was visited then.
    last: Option<Instant>,
}

impl VisitPace {
    /// Returns the number of files to assign now. It is 0 until an interval has passed.
    fn take(&mut self, now: Instant) -> usize {
        const NANOS: u128 = Duration::from_secs(1).as_nanos();
        let rate = self.files_per_second as u128;
        let interval = VISIT.as_nanos().max(NANOS.div_ceil(rate.max(1)));
        let passed = self
            .last
            .map_or(interval, |last| now.saturating_duration_since(last).as_nanos());
        if passed < interval {
            return 0;
        }
        self.last = Some(now);
        let made_up = passed.min(interval.max(MAX_VISIT.as_nanos()));
        usize::try_from(made_up * rate / NANOS).unwrap_or(usize::MAX)
    }

    /// Records that there is nothing to visit now.
    fn pause(&mut self) {
        self.last = None;
    }
}

/// The agent of some exports.
pub struct Agent<Q> {
    settings: Settings,
    keys: KeyFile,
    reserved: ReservedProjects,
    instance: String,
    exports: Vec<Export<Q>>,
    next_heartbeat: Instant,
    visit_pace: VisitPace,
}

impl<Q: Quotas> Agent<Q> {
    /// Creates an agent for exports with their file systems.
    ///
    /// # Errors
    /// An export or the key file cannot be read.
    pub fn new(settings: Settings, exports: Vec<(PathBuf, Q)>) -> Result<Self, AgentError> {
        Self::observed(settings, exports, |_| {})
    }

    /// Creates an agent whose changes of files and folders are announced to an observer.
    pub(crate) fn observed(
        settings: Settings,
        exports: Vec<(PathBuf, Q)>,
        observer: Observer,
    ) -> Result<Self, AgentError> {
        let exports = exports
            .into_iter()
            .map(|(path, quotas)| Export::new(path, quotas, observer));
        Ok(Self {
            keys: read_keys(&settings.key_file)?,
            reserved: ReservedProjects::read()?,
            instance: format!("{:016x}", rand::random::<u64>()),
            exports: exports.collect::<Result<_, _>>()?,
            next_heartbeat: Instant::now() + HEARTBEAT,
            visit_pace: VisitPace {
                files_per_second: settings.files_per_second,
                last: None,
            },
            settings,
        })
    }

    /// Serves the exports until it is cancelled.
    ///
    /// # Errors
    /// An export is another directory by now.
    pub(crate) async fn serve(&mut self, stop: CancellationToken) -> Result<(), AgentError> {
        let failed = |source| AgentError::Export {
            action: "watch folders".to_owned(),
            source,
        };
        let mut watch = Watch::new().map_err(failed)?;
        let mut pace = Pace::default();
        let now = Instant::now();
        let (mut next_poll, mut next_verification) = (now, now + VERIFY);
        loop {
            if Instant::now() >= next_poll {
                next_poll = Instant::now() + POLL;
                self.exports.iter().try_for_each(Export::check_root)?;
                self.reload();
                if Instant::now() >= next_verification {
                    next_verification = Instant::now() + VERIFY;
                    self.forget_directories();
                }
                self.poll_clusters();
                self.watch(&mut watch);
                self.poll().await;
                self.write_usage().await;
            }
            self.write_due_heartbeats();
            let visiting = self.exports.iter().any(Export::is_visiting_any);
            let pause = if visiting { VISIT } else { HEARTBEAT };
            let next = (Instant::now() + pause).min(next_poll).min(self.next_heartbeat);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = watch.changed() => {
                    pace.collect(&watch).await;
                    let changes = watch.take_changes();
                    if matches!(changes, Changes::Any) {
                        // A new cluster may have come.
                        self.poll_clusters();
                        self.watch(&mut watch);
                    }
                    let enforced = self.enforce_changed(changes).await;
                    pace.record(enforced);
                }
                () = tokio::time::sleep_until(next) => {}
            }
            self.visit().await;
        }
    }

    /// Reads again what an administrator may have changed.
    pub(crate) fn reload(&mut self) {
        match read_keys(&self.settings.key_file) {
            Ok(keys) => self.keys = keys,
            Err(error) => tracing::warn!("using the keys from before: {error}"),
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
            export.forget_accounted();
            export.forget_missing();
        }
        self.enforce().await;
    }

    /// Looks up all directories again.
    pub(crate) fn forget_directories(&mut self) {
        self.exports.iter_mut().for_each(Export::forget_directories);
    }

    /// Opens the folders of new clusters.
    pub(crate) fn poll_clusters(&mut self) {
        for export in &mut self.exports {
            if let Err(error) = export.open_clusters(&self.keys) {
                tracing::warn!(export = %export.path().display(), "cannot read the folders of clusters: {error}");
            }
        }
    }

    /// Enforces the orders as they are now. Returns for how many something was done.
    pub async fn enforce(&mut self) -> usize {
        self.enforce_changed(Changes::Any).await
    }

    /// Enforces the orders, after reading those that changed. Returns for how many something was done.
    pub(crate) async fn enforce_changed(&mut self, mut changes: Changes) -> usize {
        self.exports.iter_mut().for_each(Export::begin_round);
        loop {
            self.enforce_some(&changes).await;
            self.announce_reports();
            if !self.exports.iter().any(Export::is_unfinished) {
                return self.exports.iter().map(Export::count_tried).sum();
            }
            self.write_due_heartbeats();
            // Meanwhile, others may have changed.
            changes = Changes::Any;
        }
    }

    async fn enforce_some(&mut self, changes: &Changes) {
        for position in 0..self.exports.len() {
            let taken = self.taken_elsewhere(position);
            let until = self.next_heartbeat;
            let Some(export) = self.exports.get_mut(position) else {
                continue;
            };
            if let Err(error) = export
                .enforce(changes, &self.settings.projects, &self.reserved, taken, until)
                .await
            {
                export.give_up(&error);
            }
        }
    }

    /// Returns the projects of other exports on the same file system.
    fn taken_elsewhere(&self, position: usize) -> BTreeSet<u32> {
        let device = self.exports.get(position).map(Export::device);
        let others = self.exports.iter().enumerate();
        let others = others.filter(|(other, export)| *other != position && Some(export.device()) == device);
        others.flat_map(|(_, export)| export.projects()).collect()
    }

    /// Assigns some existing files to their projects: as many for each export, and what one leaves over for the next ones.
    pub async fn visit(&mut self) {
        let mut visiting: Vec<_> = self
            .exports
            .iter_mut()
            .filter(|export| export.is_visiting_any())
            .collect();
        if visiting.is_empty() {
            self.visit_pace.pause();
            return;
        }
        let mut budget = self.visit_pace.take(Instant::now());
        let mut left = visiting.len();
        for export in &mut visiting {
            let mut own = budget.div_ceil(left);
            (budget, left) = (budget - own, left - 1);
            export.visit(&mut own).await;
            budget += own;
        }
        self.announce_reports();
    }

    fn announce_reports(&mut self) {
        for export in &mut self.exports {
            export.announce_reports(&self.instance);
        }
    }

    /// Writes the usage of all volumes, as of the last poll.
    pub async fn write_usage(&mut self) {
        for export in &mut self.exports {
            if let Err(error) = export.write_usage(&self.instance).await {
                tracing::warn!(export = %export.path().display(), "cannot write the usage: {error}");
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
            for (folder, interest) in export.watched() {
                if let Err(error) = watch.add(folder, interest) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_lone_order_is_enforced_at_once_and_a_stream_of_orders_together() {
        let (mut pace, first) = (Pace::default(), Instant::now());
        let last = first + DEBOUNCE / 2;
        assert_eq!(pace.next_round(first, last), first + DEBOUNCE);
        pace.record(1);
        assert_eq!(pace.next_round(first, last), first + DEBOUNCE);
        pace.record(2);
        assert_eq!(pace.next_round(first, first), first + DEBOUNCE, "nothing follows");
        assert_eq!(pace.next_round(first, last), last + DEBOUNCE);
        let late = first + COLLECT - DEBOUNCE / 2;
        assert_eq!(pace.next_round(first, late), first + COLLECT, "the stream does not end");
    }

    #[test]
    fn a_directory_is_locked_by_one_agent_under_all_of_its_names() {
        let root = std::env::temp_dir().join(format!("quota-agent-locks-{:016x}", rand::random::<u64>()));
        let export = root.join("export");
        std::fs::create_dir_all(&export).unwrap();
        let mut first = Locks::default();
        for path in [&root, &export, &root.join("export/.")] {
            first.lock(path).unwrap();
        }
        // As in a container that sees only the export.
        let mut second = Locks::default();
        assert!(matches!(second.lock(&export), Err(AgentError::AnotherAgent { .. })));
        drop(first);
        // A process that another test starts has all files of this one open until it runs its program.
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = second.lock(&export) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
