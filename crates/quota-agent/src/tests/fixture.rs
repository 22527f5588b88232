use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use export_store::quota::{
    AgentProblem, Heartbeat, KeyFile, LimitState, Order, QuotaDirectory, QuotaFile, QuotaSeal, Report, SizeProblem,
    Usage,
};
use export_store::{RecordsKey, SignatureStatus};

use super::kills::step;
use crate::agent::{Agent, Settings};
use crate::quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

pub const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
pub const GIB: u64 = 1 << 30;

/// A file system in memory: projects by inode, and limits.
#[derive(Debug, Default)]
pub struct World {
    pub tags: BTreeMap<u64, Tag>,
    pub limits: BTreeMap<u32, Limits>,
    pub problem: Option<(AgentProblem, String)>,
    /// Projects whose limits were set.
    pub set: BTreeSet<u32>,
    /// Inodes that somebody else gives a project when limits are about to be set.
    pub raced: BTreeMap<u64, Tag>,
    /// Inodes that refuse a project.
    pub immutable: Vec<u64>,
    /// Projects that refuse other limits.
    pub fixed: Vec<u32>,
    /// The tool that sets limits fails, and reads nothing back.
    pub is_mute: bool,
    /// Number of runs of tools that change something.
    pub calls: usize,
    /// Number of times that the agent asked what the file system can do: once with each poll.
    pub polls: usize,
    /// Number of all runs of tools.
    pub runs: usize,
    /// Number of files and directories that were assigned, each time.
    pub assigned: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Fake(pub Rc<RefCell<World>>);

impl Fake {
    pub fn tag(&self, path: &Path) -> Tag {
        let inode = fs::symlink_metadata(path).unwrap().ino();
        self.0.borrow().tags.get(&inode).copied().unwrap_or_default()
    }

    pub fn set_tag(&self, path: &Path, tag: Tag) {
        let inode = fs::symlink_metadata(path).unwrap().ino();
        self.0.borrow_mut().tags.insert(inode, tag);
    }

    pub fn limit(&self, project: u32) -> Limits {
        self.0.borrow().limits.get(&project).copied().unwrap_or_default()
    }
}

impl Fake {
    fn count_run(&self) {
        self.0.borrow_mut().runs += 1;
    }

    fn all_accounted(&self) -> BTreeMap<u32, Accounted> {
        let world = self.0.borrow();
        let mut accounted: BTreeMap<u32, Accounted> = BTreeMap::new();
        for tag in world.tags.values().filter(|tag| tag.project != 0) {
            accounted.entry(tag.project).or_default().inodes += 1;
        }
        for (project, limits) in world.limits.iter().filter(|(_, limits)| **limits != Limits::default()) {
            accounted.entry(*project).or_default().limits = *limits;
        }
        accounted
    }

    fn all_tags<'a>(&self, files: impl Iterator<Item = &'a BorrowedFd<'a>>) -> Vec<Option<Tag>> {
        let world = self.0.borrow();
        let tag = |file: &BorrowedFd<'_>| {
            let inode = rustix::fs::fstat(file).unwrap().st_ino;
            Some(world.tags.get(&inode).copied().unwrap_or_default())
        };
        files.map(tag).collect()
    }
}

impl Quotas for Fake {
    async fn capabilities(&self) -> Capabilities {
        self.count_run();
        self.0.borrow_mut().polls += 1;
        let problem = self.0.borrow().problem.clone();
        Capabilities {
            file_system: "memory".to_owned(),
            enforced: problem.is_none(),
            inodes_counted: true,
            problem,
        }
    }

    async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        self.count_run();
        Ok(self.all_accounted())
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
        if self.0.borrow().is_mute {
            return Ok(Changed {
                found: BTreeMap::new(),
                refused: Some("cannot find the mount point".to_owned()),
            });
        }
        step("set limits");
        {
            let mut world = self.0.borrow_mut();
            world.calls += 1;
            world.runs += 1;
            let raced = std::mem::take(&mut world.raced);
            world.tags.extend(raced);
            world.set.extend(limits.iter().map(|(project, _)| *project));
            let fixed = world.fixed.clone();
            let changed = limits.iter().filter(|(project, _)| !fixed.contains(project));
            world.limits.extend(changed.copied());
        }
        step("limits are set");
        let mut found = self.all_accounted();
        found.retain(|project, _| limits.iter().any(|(limited, _)| limited == project));
        let fixed = &self.0.borrow().fixed;
        let is_refused = limits.iter().any(|(project, _)| fixed.contains(project));
        Ok(Changed {
            found,
            refused: is_refused.then(|| "cannot set limits: Invalid argument".to_owned()),
        })
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        self.count_run();
        Ok(self.all_tags(directories.iter()))
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
        step("assign");
        let mut is_refused = false;
        {
            let mut world = self.0.borrow_mut();
            world.calls += 1;
            world.runs += 1;
            for assignment in assignments {
                let inode = rustix::fs::fstat(assignment.file.as_fd()).unwrap().st_ino;
                if world.immutable.contains(&inode) {
                    is_refused = true;
                    continue;
                }
                let (project, inherits) = (assignment.project, assignment.inherits);
                world.tags.insert(inode, Tag { project, inherits });
                world.assigned += 1;
            }
        }
        step("assigned");
        Ok(Changed {
            found: self.all_tags(assignments.iter().map(|assignment| &assignment.file)),
            refused: is_refused.then(|| "Operation not permitted".to_owned()),
        })
    }
}

/// An export in a temporary folder that an operator uses.
pub struct Fixture {
    pub root: PathBuf,
    pub fake: Fake,
    pub range: String,
    /// Changes when the keys are rotated.
    pub salt: u8,
    pub files_per_second: usize,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_file(self.key_file());
    }
}

impl Fixture {
    pub fn new() -> Self {
        // In memory, where it is there: the tests write thousands of files.
        let folder = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let root = folder
            .unwrap_or_else(std::env::temp_dir)
            .join(format!("quota-agent-{:016x}", rand::random::<u64>()));
        let fixture = Self {
            root,
            fake: Fake::default(),
            range: "1000-1999".to_owned(),
            salt: 0,
            files_per_second: 1_000_000,
        };
        fixture.add_cluster(CLUSTER);
        let identity = r#"{"version":1,"id":"export","rootFileID":2}"#;
        fs::write(fixture.root.join(".nfs-operator/identity"), identity).unwrap();
        fixture
    }

    pub fn add_cluster(&self, id: &str) {
        fs::create_dir_all(self.root.join(".nfs-operator").join(id).join("records")).unwrap();
        for closed in [
            self.root.join(".nfs-operator"),
            self.root.join(".nfs-operator").join(id),
        ] {
            fs::set_permissions(closed, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    fn key(&self, id: &str) -> RecordsKey {
        RecordsKey::new(&std::array::from_fn(|at| id.as_bytes()[at % id.len()] ^ self.salt))
    }

    fn key_file(&self) -> PathBuf {
        self.root.with_extension("keys")
    }

    /// Returns the lines of the key file.
    pub fn key_lines(&self) -> String {
        let lines = |cluster| KeyFile::lines(cluster, &self.key(cluster));
        lines(CLUSTER) + &lines("99999999-2222-3333-4444-555555555555")
    }

    pub fn write_keys(&self, lines: &str) {
        fs::write(self.key_file(), lines).unwrap();
        fs::set_permissions(self.key_file(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn seal(&self, cluster: &str) -> QuotaSeal {
        QuotaSeal::new(Some(self.key(cluster).quota_key()), cluster, "export")
    }

    /// Returns the settings of an agent for several exports.
    pub fn settings(&self, exports: &[&Self]) -> Settings {
        self.write_keys(&self.key_lines());
        Settings {
            exports: exports.iter().map(|export| export.root.clone()).collect(),
            key_file: self.key_file(),
            projects: self.range.parse().unwrap(),
            files_per_second: self.files_per_second,
        }
    }

    /// Starts an agent, as a new process would.
    pub fn agent(&self) -> Agent<Fake> {
        self.agent_of(&[self])
    }

    /// Starts an agent for several exports, with the settings of this one.
    pub fn agent_of(&self, exports: &[&Self]) -> Agent<Fake> {
        let settings = self.settings(exports);
        let exports = exports.iter().map(|export| (export.root.clone(), export.fake.clone()));
        Agent::observed(settings, exports.collect(), step).unwrap()
    }

    pub fn quota(&self, cluster: &str) -> PathBuf {
        self.root.join(".nfs-operator").join(cluster).join("quota")
    }

    pub fn make(&self, directory: &str) -> PathBuf {
        let path = self.root.join(directory);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Removes an empty directory.
    pub fn remove(&self, directory: &str) {
        let path = self.root.join(directory);
        let inode = fs::metadata(&path).unwrap().ino();
        fs::remove_dir(path).unwrap();
        self.fake.0.borrow_mut().tags.remove(&inode);
    }

    /// Returns an order for a directory that exists.
    pub fn order(&self, volume: &str, directory: &str, generation: u64, bytes: u64) -> Order {
        Order {
            volume: volume.to_owned(),
            directory: QuotaDirectory::parse(directory).unwrap(),
            file_id: fs::metadata(self.root.join(directory)).unwrap().ino(),
            generation,
            bytes: Some(bytes),
            inodes: None,
        }
    }

    pub fn place(&self, cluster: &str, order: &Order) {
        let bytes = self.seal(cluster).seal(order).unwrap();
        self.place_bytes(cluster, &order.volume, &bytes);
    }

    pub fn place_bytes(&self, cluster: &str, volume: &str, bytes: &[u8]) {
        let folder = self.quota(cluster).join("orders");
        fs::create_dir_all(&folder).unwrap();
        let draft = folder.join(format!(".draft-{volume}"));
        fs::write(&draft, bytes).unwrap();
        fs::rename(draft, folder.join(volume)).unwrap();
    }

    pub fn withdraw(&self, cluster: &str, volume: &str) {
        fs::remove_file(self.quota(cluster).join("orders").join(volume)).unwrap();
    }

    fn open<F: QuotaFile>(&self, cluster: &str, path: &str, name: &str) -> Option<F> {
        let bytes = fs::read(self.quota(cluster).join(path)).ok()?;
        let (file, status) = self.seal(cluster).open::<F>(name, &bytes).unwrap();
        assert_eq!(status, SignatureStatus::Signed);
        Some(file)
    }

    pub fn place_report(&self, cluster: &str, report: &Report) {
        let folder = self.quota(cluster).join("reports");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(&report.volume), self.seal(cluster).seal(report).unwrap()).unwrap();
    }

    pub fn report(&self, volume: &str) -> Option<Report> {
        self.report_in(CLUSTER, volume)
    }

    pub fn report_in(&self, cluster: &str, volume: &str) -> Option<Report> {
        self.open(cluster, &format!("reports/{volume}"), volume)
    }

    pub fn heartbeat(&self) -> Heartbeat {
        self.open(CLUSTER, "agent", "agent").unwrap()
    }

    pub fn usage(&self) -> Usage {
        self.open(CLUSTER, "usage", "usage").unwrap()
    }

    /// Has an agent set the first limit of a volume, and returns the agent and the project.
    pub async fn limited(&self, volume: &str, directory: &str, bytes: u64) -> (Agent<Fake>, u32) {
        self.place(CLUSTER, &self.order(volume, directory, 1, bytes));
        let mut agent = self.agent();
        agent.poll().await;
        let project = self.assert_in_force(volume, directory, bytes);
        (agent, project)
    }

    /// Checks that a volume has a limit, and returns its project.
    pub fn assert_in_force(&self, volume: &str, directory: &str, bytes: u64) -> u32 {
        let report = self.report(volume).unwrap();
        assert_eq!(report.state, LimitState::InForce, "{volume}");
        let project = report.project.unwrap();
        let inherits = true;
        assert_eq!(self.fake.tag(&self.root.join(directory)), Tag { project, inherits });
        assert_eq!(self.fake.limit(project).bytes, Some(bytes));
        project
    }

    pub fn assert_failed(&self, volume: &str, expected: SizeProblem) {
        let state = self.report(volume).unwrap().state;
        assert!(
            matches!(&state, LimitState::Failed { reason, .. } if *reason == expected),
            "{state:?}"
        );
    }
}
