//! A file system in memory, which the agent's own cost is measured with.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::rc::Rc;

use quota_agent::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

use crate::Failure;

/// Number of files for which the agent would run a tool once.
const BATCH: usize = 200;

/// Projects by inode, and limits by project.
#[derive(Debug, Clone, Default)]
pub struct MemoryQuotas(Rc<State>);

#[derive(Debug, Default)]
struct State {
    tags: RefCell<BTreeMap<u64, Tag>>,
    /// Projects in `tags`.
    used: RefCell<BTreeSet<u32>>,
    limits: RefCell<BTreeMap<u32, Limits>>,
    runs: Cell<u32>,
}

impl MemoryQuotas {
    /// Loads what another process saved.
    pub fn load(file: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let quotas = Self::default();
        for line in text.lines() {
            let [inode, project, bytes, inodes] = line
                .split(' ')
                .map(str::parse)
                .collect::<Result<Vec<u64>, _>>()?
                .try_into()
                .map_err(|_| "four numbers are expected")?;
            let project = u32::try_from(project)?;
            let inherits = true;
            quotas.tag(inode, Tag { project, inherits });
            let (bytes, inodes) = (Some(bytes), Some(inodes));
            quotas.0.limits.borrow_mut().insert(project, Limits { bytes, inodes });
        }
        Ok(quotas)
    }

    /// Saves it for another process.
    pub fn save(&self, file: &Path) -> Result<(), Failure> {
        let mut text = String::new();
        let limits = self.0.limits.borrow();
        for (inode, tag) in self.0.tags.borrow().iter() {
            let found = limits.get(&tag.project).copied().unwrap_or_default();
            let (bytes, inodes) = (found.bytes.unwrap_or(0), found.inodes.unwrap_or(0));
            writeln!(text, "{inode} {} {bytes} {inodes}", tag.project)?;
        }
        Ok(fs::write(file, text)?)
    }

    /// Returns how often a tool would have been run.
    pub fn runs(&self) -> u32 {
        self.0.runs.get()
    }

    fn tag(&self, inode: u64, tag: Tag) {
        self.0.tags.borrow_mut().insert(inode, tag);
        self.0.used.borrow_mut().insert(tag.project);
    }

    /// Returns what is accounted for a project: an empty directory, if it has one.
    fn of_project(&self, project: u32, limits: Limits) -> Accounted {
        let (bytes, inodes) = match self.0.used.borrow().contains(&project) {
            true => (4096, 1),
            false => (0, 0),
        };
        Accounted { bytes, inodes, limits }
    }

    fn count_runs(&self, files: usize) {
        let runs = u32::try_from(files.div_ceil(BATCH)).unwrap_or(u32::MAX);
        self.0.runs.set(self.0.runs.get().saturating_add(runs));
    }
}

fn inode(file: BorrowedFd<'_>) -> Result<u64, QuotasError> {
    let found = rustix::fs::fstat(file).map_err(|error| QuotasError::Failed {
        tool: "memory",
        output: error.to_string(),
    })?;
    Ok(found.st_ino)
}

impl Quotas for MemoryQuotas {
    async fn capabilities(&self) -> Capabilities {
        self.count_runs(1);
        Capabilities {
            file_system: "memory".to_owned(),
            enforced: true,
            inodes_counted: true,
            problem: None,
        }
    }

    async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        self.count_runs(1);
        let limits = self.0.limits.borrow();
        Ok(limits
            .iter()
            .map(|(project, limits)| (*project, self.of_project(*project, *limits)))
            .collect())
    }

    async fn accounted_for(&self, projects: &[u32]) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        self.count_runs(1);
        let limits = self.0.limits.borrow();
        let limited = projects
            .iter()
            .filter_map(|project| Some((*project, self.of_project(*project, *limits.get(project)?))));
        Ok(limited.collect())
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
        self.count_runs(1);
        self.0.limits.borrow_mut().extend(limits.iter().copied());
        let found = limits
            .iter()
            .map(|(project, limits)| (*project, self.of_project(*project, *limits)));
        Ok(Changed {
            found: found.collect(),
            refused: None,
        })
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        self.count_runs(directories.len());
        let tags = self.0.tags.borrow();
        let tag = |directory: &BorrowedFd<'_>| Ok(Some(tags.get(&inode(*directory)?).copied().unwrap_or_default()));
        directories.iter().map(tag).collect()
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
        self.count_runs(assignments.len());
        let mut found = Vec::new();
        for assignment in assignments {
            let (project, inherits) = (assignment.project, assignment.inherits);
            self.tag(inode(assignment.file.as_fd())?, Tag { project, inherits });
            found.push(Some(Tag { project, inherits }));
        }
        Ok(Changed { found, refused: None })
    }
}
