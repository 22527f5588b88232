//! Decides from orders, directories and what is in force which limit each volume gets. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use export_store::quota::{LimitState, Order, QuotaDirectory, Report, SizeProblem};

use crate::projects::{ProjectRange, ReservedProjects};
use crate::quotas::{Accounted, Limits, Tag};

/// Largest limit, in bytes. A larger one is none: no file system is larger, and tools compute in signed numbers of 64 bits.
const MAX_BYTES: u64 = 1 << 62;

/// A volume: the cluster's ID and the volume's name.
pub(crate) type Key = (Arc<str>, Arc<str>);

/// An order without the name of the volume, which everything that is known of a volume shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub directory: QuotaDirectory,
    pub file_id: u64,
    pub generation: u64,
    pub limits: Limits,
}

impl From<Order> for Wanted {
    fn from(order: Order) -> Self {
        Self {
            directory: order.directory,
            file_id: order.file_id,
            generation: order.generation,
            limits: Limits {
                bytes: order.bytes.filter(|bytes| *bytes <= MAX_BYTES),
                inodes: order.inodes,
            },
        }
    }
}

/// A report without the name of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reported {
    pub file_id: u64,
    pub generation: u64,
    pub project: Option<u32>,
    pub state: LimitState,
    pub visit: Vec<(u64, i64)>,
}

impl From<Report> for Reported {
    fn from(report: Report) -> Self {
        let Report {
            volume: _,
            file_id,
            generation,
            project,
            state,
            visit,
        } = report;
        Self {
            file_id,
            generation,
            project,
            state,
            visit,
        }
    }
}

impl Reported {
    /// Returns the report about a volume.
    pub fn of(&self, volume: &str) -> Report {
        let Self {
            file_id,
            generation,
            project,
            state,
            visit,
        } = self.clone();
        Report {
            volume: volume.to_owned(),
            file_id,
            generation,
            project,
            state,
            visit,
        }
    }
}

/// The directory of an order, as found just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The directory with the order's fileid.
    Directory(Tag),
    /// The directory was not found at its path.
    Missing(SizeProblem, String),
}

/// What is known about a volume with an order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub order: &'a Wanted,
    /// The report, if it can be believed.
    pub report: Option<&'a Reported>,
    pub found: &'a Found,
}

/// What is known about the file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystem<'a> {
    pub accounted: &'a BTreeMap<u32, Accounted>,
    pub range: &'a ProjectRange,
    pub reserved: &'a ReservedProjects,
    /// Projects of volumes that are not among the subjects.
    pub taken: &'a BTreeSet<u32>,
    /// Projects whose order was removed just now, of trees that belong to them completely, by fileid.
    pub released: &'a BTreeMap<u64, u32>,
}

/// What to do for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Enforce the order with a project.
    Enforce(Enforcement),
    /// The order cannot be enforced.
    Fail(SizeProblem, String),
    /// A newer order was enforced already: leave everything as it is.
    Outdated,
}

/// How to enforce an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enforcement {
    pub project: u32,
    pub limits: Limits,
    /// The project was free, as far as is known.
    pub is_new: bool,
    /// The limits in force differ.
    pub set_limits: bool,
    /// The directory does not have the project, or does not pass it on.
    pub tag: bool,
    /// Everything in the directory belongs to the project already.
    pub complete: bool,
}

/// A volume and what is known about it.
type Candidate<'a> = (Key, Subject<'a>);

/// Decides for all volumes of an export at once, because no two may share a directory or a project. Returns the decisions
/// in the same order.
pub(crate) fn plan(subjects: &[Candidate<'_>], file_system: FileSystem<'_>) -> Vec<(Key, Decision)> {
    let holders = Holders::of(subjects);
    let refused: Vec<Option<Decision>> = subjects
        .iter()
        .map(|(key, subject)| refusal(key, subject, &holders, &file_system))
        .collect();
    drop(holders);
    let usable: Vec<(usize, &Subject<'_>)> = subjects
        .iter()
        .enumerate()
        .filter(|(at, _)| matches!(refused.get(*at), Some(None)))
        .map(|(at, (_, subject))| (at, subject))
        .collect();
    let projects = choose_projects(&usable, subjects.len(), &file_system);
    let decide = |((key, subject), (refused, project)): (&Candidate<'_>, (Option<Decision>, Option<u32>))| {
        let decision = match (refused, project, subject.found) {
            (Some(refused), ..) => refused,
            (None, Some(project), Found::Missing(reason, message)) if !may_confirm(subject, project, &file_system) => {
                Decision::Fail(*reason, message.clone())
            }
            (None, Some(project), _) => Decision::Enforce(enforcement(subject, project, &file_system)),
            (None, None, Found::Missing(reason, message)) => Decision::Fail(*reason, message.clone()),
            (None, None, Found::Directory(_)) => Decision::Fail(
                SizeProblem::ProjectsExhausted,
                format!(
                    "no project ID of {} is free; start the agent with a larger --project-ids",
                    file_system.range
                ),
            ),
        };
        (key.clone(), decision)
    };
    subjects
        .iter()
        .zip(refused.into_iter().zip(projects))
        .map(decide)
        .collect()
}

/// Which volume has each directory, and which orders are in the way of each other.
#[derive(Default)]
struct Holders<'a> {
    by_file_id: BTreeMap<u64, &'a Key>,
    by_path: BTreeMap<&'a str, &'a Key>,
    /// The volumes that have none because another one has it, one above it, or one in it.
    conflicts: BTreeMap<&'a Key, &'a Key>,
}

impl<'a> Holders<'a> {
    /// Of several orders for a directory, the one whose project it has counts. If there is none, the recorded fileid may
    /// have been reused: the order that names the directory's place counts, otherwise the first one. The same of orders for
    /// a directory and for one in it; without a limit in force, that for the outer one counts.
    fn of(subjects: &'a [Candidate<'_>]) -> Self {
        let mut tags = BTreeMap::new();
        for (_, subject) in subjects {
            if let Found::Directory(tag) = subject.found {
                tags.insert(subject.order.file_id, tag.project);
            }
        }
        let rank = |subject: &Subject<'_>| {
            let recorded = recorded_project(subject);
            let is_agreed =
                recorded.is_some_and(|own| tags.get(&subject.order.file_id).is_none_or(|found| *found == own));
            let is_there = matches!(subject.found, Found::Directory(_));
            let depth = subject.order.directory.above().count();
            (std::cmp::Reverse((is_agreed, is_there, recorded.is_some())), depth)
        };
        let mut ranked: Vec<_> = subjects.iter().collect();
        ranked.sort_by_key(|(_, subject)| rank(subject));
        let mut holders = Self::default();
        for (key, subject) in ranked {
            holders.add(key, subject);
        }
        holders
    }

    fn add(&mut self, key: &'a Key, subject: &'a Subject<'_>) {
        // Where a directory is that was not found at its path is unknown.
        let path = matches!(subject.found, Found::Directory(_)).then_some(subject.order.directory.as_str());
        let same = self.by_file_id.get(&subject.order.file_id);
        let other = same.or_else(|| {
            let above = subject.order.directory.above().filter(|_| path.is_some());
            let above = above.filter_map(|path| self.by_path.get(path)).next();
            above.or_else(|| self.inside(path?))
        });
        match other {
            Some(other) => drop(self.conflicts.insert(key, other)),
            None => {
                self.by_file_id.insert(subject.order.file_id, key);
                self.by_path.extend(path.map(|path| (path, key)));
            }
        }
    }

    /// Returns a volume that has a directory in this one.
    fn inside(&self, path: &str) -> Option<&&'a Key> {
        let start = format!("{path}/");
        let from = (Bound::Included(start.as_str()), Bound::Unbounded);
        let mut from = self.by_path.range::<str, _>(from);
        from.next()
            .filter(|(path, _)| path.starts_with(&start))
            .map(|(_, key)| key)
    }
}

/// Returns why an order is not enforced.
fn refusal(key: &Key, subject: &Subject<'_>, holders: &Holders<'_>, file_system: &FileSystem<'_>) -> Option<Decision> {
    let newest = subject.report.map_or(0, |report| report.generation);
    if newest > subject.order.generation {
        return Some(Decision::Outdated);
    }
    if let Some((_, volume)) = holders.conflicts.get(key) {
        let message =
            format!("the order of volume {volume} is for the same directory, for one above it, or for one in it");
        return Some(Decision::Fail(SizeProblem::DirectoryTaken, message));
    }
    match subject.found {
        Found::Directory(tag) if tag.project != 0 && !may_use(tag.project, file_system) => {
            let project = tag.project;
            let whose = match file_system.reserved.file(project) {
                Some(file) => format!("is listed in {file}: remove that line or, if the project is not the agent's"),
                None => "the agent did not give it: to give the directory to the agent".to_owned(),
            };
            let message = format!(
                "the directory has project {project}, which {whose}, remove the project from it with xfs_io -c 'chproj 0' \
                 DIRECTORY"
            );
            Some(Decision::Fail(SizeProblem::ForeignProject, message))
        }
        _ => None,
    }
}

fn may_use(project: u32, file_system: &FileSystem<'_>) -> bool {
    file_system.range.contains(project) && !file_system.reserved.contains(project)
}

/// Returns the project in a report about the directory of the order.
fn recorded_project(subject: &Subject<'_>) -> Option<u32> {
    let report = subject
        .report
        .filter(|report| report.file_id == subject.order.file_id)?;
    report.project
}

/// Chooses a project for each volume: the one that its directory and its report agree on, then that of the directory,
/// then that of the report, then a free one. A directory that was copied with its project loses the project.
/// Of the `count` subjects, `usable` has those that can get one, by position.
fn choose_projects(usable: &[(usize, &Subject<'_>)], count: usize, file_system: &FileSystem<'_>) -> Vec<Option<u32>> {
    let tagged = |subject: &Subject<'_>| match subject.found {
        Found::Directory(tag) => Some(tag.project),
        Found::Missing(..) => None,
    };
    let agreed = |subject: &Subject<'_>| recorded_project(subject).filter(|project| tagged(subject) == Some(*project));
    let mut chosen = vec![None; count];
    let mut used = file_system.taken.clone();
    for candidate in [&agreed, &tagged, &recorded_project] as [&dyn Fn(&Subject<'_>) -> Option<u32>; 3] {
        for (at, subject) in usable {
            if let Some(chosen @ None) = chosen.get_mut(*at)
                && let Some(project) = candidate(subject)
                && may_use(project, file_system)
                && used.insert(project)
            {
                *chosen = Some(project);
            }
        }
    }
    let mut free = file_system.range.iter().filter(|project| {
        !used.contains(project) && !file_system.accounted.contains_key(project) && may_use(*project, file_system)
    });
    for (at, subject) in usable {
        if let Some(chosen @ None) = chosen.get_mut(*at)
            && matches!(subject.found, Found::Directory(_))
        {
            *chosen = free.next();
        }
    }
    chosen
}

/// Reports whether a volume whose directory was not found at its path may have its limit: the directory was moved, and its
/// order is going to name the new place. If something else is at the path, only what was confirmed before stays so, because
/// the volume may be what is there: somebody restored it.
fn may_confirm(subject: &Subject<'_>, project: u32, file_system: &FileSystem<'_>) -> bool {
    let is_used = file_system.accounted.get(&project).is_some_and(Accounted::is_used);
    let is_gone = matches!(subject.found, Found::Missing(SizeProblem::DirectoryMissing, _));
    let is_confirmed = subject
        .report
        .is_some_and(|report| report.state == LimitState::InForce && report.generation == subject.order.generation);
    is_used && (is_gone || is_confirmed)
}

fn enforcement(subject: &Subject<'_>, project: u32, file_system: &FileSystem<'_>) -> Enforcement {
    let limits = subject.order.limits;
    let accounted = file_system.accounted.get(&project).copied().unwrap_or_default();
    let tag = match subject.found {
        Found::Directory(tag) => tag.project != project || !tag.inherits,
        Found::Missing(..) => false,
    };
    let is_tagged = matches!(subject.found, Found::Directory(tag) if tag.project == project);
    let file_id = subject.order.file_id;
    let reported = subject.report.is_some_and(|report| {
        report.file_id == file_id && report.project == Some(project) && report.state == LimitState::InForce
    });
    // A process may have ended between its report and the change, and somebody uses the project since then.
    let is_taken = matches!(subject.found, Found::Directory(_)) && !reported && accounted.is_used();
    Enforcement {
        project,
        limits,
        is_new: !is_tagged && (recorded_project(subject) != Some(project) || is_taken),
        set_limits: !is_in_force(limits, accounted.limits),
        tag,
        complete: !tag && (reported || file_system.released.get(&file_id) == Some(&project)),
    }
}

/// Reports whether limits are what the file system makes of those that were set: it rounds up to its blocks.
pub(crate) fn is_in_force(set: Limits, found: Limits) -> bool {
    const LARGEST_BLOCK: u64 = 64 * 1024;
    let bytes = match (set.bytes, found.bytes) {
        (Some(set), Some(found)) => found >= set && found - set < LARGEST_BLOCK,
        (set, found) => set == found,
    };
    bytes && set.inodes == found.inodes
}
