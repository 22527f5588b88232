//! Gives everything in a directory to its project, a few files at a time.
//!
//! The directory, and each directory in it, gets the project before it is listed. From then on, what is created in it
//! belongs to the project, and file systems refuse to move anything into it that does not (EXDEV). So nothing that the
//! listing misses is left over, and a tree that was interrupted is visited again without harm: from its start, or from
//! the place that was recorded last, if all directories on the way to it are still there and belong to the project.
//!
//! One directory of a visit is open, whatever its depth: a tenant who makes deep trees uses up no descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::quotas::{Assignment, Changed, Quotas, QuotasError, Tag};

/// Maximum depth. Each level takes 24 bytes, in up to 32 visits.
const MAX_DEPTH: usize = 4096;
/// Number of files that are opened and assigned at once.
const BATCH: usize = 128;

/// A visit of a tree. Never leaves the directory or its mount: it opens one name at a time below an open directory,
/// without following links.
pub(crate) struct TreeVisit {
    project: u32,
    /// The directories from the tree's root to the open one, which is not among them.
    above: Vec<Above>,
    /// The directory that is being listed; `None` at the end.
    level: Option<Level>,
    visited: u64,
    /// First problem, and the number of files with one.
    refused: Option<(String, u64)>,
}

/// An open directory.
struct Level {
    dir: Dir,
    inode: u64,
    /// Where the next entry is read.
    position: i64,
}

/// A directory that is listed further once what is in one of its entries was visited.
#[derive(Debug, Clone, Copy)]
struct Above {
    inode: u64,
    /// Where the entry is.
    entry: i64,
    /// Where the next one is.
    next: i64,
}

/// Result of a part of a visit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Visited {
    /// More is left.
    Partly,
    /// A directory was moved while what is in it was visited: the visit must begin again.
    Moved,
    /// Everything was visited, and belongs to the project except what was refused.
    Completely {
        /// The first problem, and the number of files with one.
        refused: Option<(String, u64)>,
    },
}

impl Level {
    fn open(dir: Dir, position: i64) -> rustix::io::Result<Self> {
        let mut dir = dir;
        let inode = dir.stat()?.st_ino;
        dir.seek(position)?;
        Ok(Self { dir, inode, position })
    }

    fn of(directory: OwnedFd) -> rustix::io::Result<Self> {
        Self::open(Dir::new(directory)?, 0)
    }

    /// Returns the next entry.
    fn next(&mut self) -> rustix::io::Result<Option<Entry>> {
        let Some(entry) = self.dir.read() else {
            return Ok(None);
        };
        let entry = entry?;
        self.position = entry.offset();
        open_entry(self.dir.fd()?, entry.file_name()).map(Some)
    }
}

impl TreeVisit {
    /// Begins a visit of a directory that has the project already.
    pub fn new(directory: BorrowedFd<'_>, project: u32) -> std::io::Result<Self> {
        let mut first = Dir::read_from(directory)?;
        let is_empty = !first.any(|entry| !matches!(entry, Ok(entry) if is_dot(entry.file_name())));
        let level = Level::open(first, 0)?;
        Ok(Self {
            project,
            above: Vec::new(),
            level: (!is_empty).then_some(level),
            visited: 0,
            refused: None,
        })
    }

    /// Resumes a visit at a place that another process recorded. Returns `None` if a directory on the way to it was
    /// moved, removed, or lost its project: then anything may have come to where the visit has been.
    ///
    /// # Errors
    /// The tools failed.
    pub async fn resume(
        directory: BorrowedFd<'_>,
        project: u32,
        (place, visited): (&[(u64, i64)], u64),
        quotas: &impl Quotas,
    ) -> Result<Option<Self>, QuotasError> {
        let Some((visit, opened)) = Self::at(directory, project, place, visited) else {
            return Ok(None);
        };
        let opened: Vec<BorrowedFd<'_>> = opened.iter().map(OwnedFd::as_fd).collect();
        let wanted = Some(Tag {
            project,
            inherits: true,
        });
        let tags = quotas.tags(&opened).await?;
        let is_ours = tags.len() == place.len() && tags.iter().all(|tag| *tag == wanted);
        Ok(is_ours.then_some(visit))
    }

    /// Goes to a place. Returns the directories on the way, too.
    fn at(directory: BorrowedFd<'_>, project: u32, place: &[(u64, i64)], visited: u64) -> Option<(Self, Vec<OwnedFd>)> {
        let (last, above) = place.split_last()?;
        let mut opened = vec![directory.try_clone_to_owned().ok()?];
        let mut passed = Vec::new();
        for (inode, entry) in above {
            let mut level = Level::open(Dir::read_from(opened.last()?).ok()?, *entry).ok()?;
            if level.inode != *inode {
                return None;
            }
            let Ok(Some(Entry::Directory(below))) = level.next() else {
                return None;
            };
            passed.push(Above {
                inode: *inode,
                entry: *entry,
                next: level.position,
            });
            opened.push(below);
        }
        let level = Level::open(Dir::read_from(opened.last()?).ok()?, last.1).ok()?;
        let visit = Self {
            project,
            above: passed,
            visited,
            refused: None,
            level: (level.inode == last.0).then_some(level),
        };
        visit.level.is_some().then_some((visit, opened))
    }

    /// Returns the place at which another process can resume the visit: the inode of each directory from the tree's root
    /// on, and the position in it; of a deep one, only the first `max` directories. Empty if it must begin again.
    pub fn place(&self, max: usize) -> Vec<(u64, i64)> {
        let Some(level) = self.level.as_ref().filter(|_| self.refused.is_none()) else {
            return Vec::new();
        };
        let above = self.above.iter().map(|above| (above.inode, above.entry));
        above.chain([(level.inode, level.position)]).take(max).collect()
    }

    /// Reports whether nothing is left to visit.
    pub fn is_done(&self) -> bool {
        self.level.is_none()
    }

    /// Returns the project.
    pub fn project(&self) -> u32 {
        self.project
    }

    /// Returns the number of files and directories that were visited.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// Visits up to `budget` files and directories, and subtracts them from it.
    ///
    /// # Errors
    /// The tools failed altogether. The visit must be dropped.
    pub async fn advance(&mut self, quotas: &impl Quotas, budget: &mut usize) -> Result<Visited, QuotasError> {
        loop {
            let Some(level) = self.level.as_mut() else {
                return Ok(Visited::Completely {
                    refused: self.refused.take(),
                });
            };
            if *budget == 0 {
                return Ok(Visited::Partly);
            }
            let (mut files, mut directory) = (Vec::new(), None);
            let (mut ended, mut problem) = (false, None);
            let mut seen = 0;
            while seen < BATCH.min(*budget) && directory.is_none() {
                seen += 1;
                let entry = level.position;
                match level.next() {
                    Ok(Some(Entry::File(file))) => files.push(file),
                    Ok(Some(Entry::Directory(found))) => directory = Some((entry, found)),
                    Ok(Some(Entry::Skipped)) => {}
                    Ok(None) => {
                        ended = true;
                        break;
                    }
                    Err(error) => {
                        // The rest of this directory cannot be listed.
                        problem = Some(error.to_string());
                        ended = true;
                        break;
                    }
                }
            }
            *budget = budget.saturating_sub(seen);
            self.visited += (files.len() + usize::from(directory.is_some())) as u64;
            if let Some(problem) = problem {
                self.refuse(&problem);
            }
            self.assign(quotas, &files, false).await?;
            if let Some((entry, directory)) = directory {
                self.enter(quotas, entry, directory).await?;
            }
            if ended && !self.leave() {
                return Ok(Visited::Moved);
            }
        }
    }

    /// Returns to the directory above the open one. Returns false if that is another one than before.
    fn leave(&mut self) -> bool {
        let Some(level) = self.level.take() else { return true };
        let Some(above) = self.above.pop() else { return true };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = level
            .dir
            .fd()
            .and_then(|fd| rustix::fs::openat(fd, "..", flags, Mode::empty()));
        let parent = parent.and_then(|fd| Level::open(Dir::new(fd)?, above.next));
        // Below the tree's root, nothing can be moved to another file system, so the inode suffices.
        self.level = parent.ok().filter(|parent| parent.inode == above.inode);
        self.level.is_some()
    }

    async fn enter(&mut self, quotas: &impl Quotas, entry: i64, directory: OwnedFd) -> Result<(), QuotasError> {
        let directory = [directory];
        self.assign(quotas, &directory, true).await?;
        let [directory] = directory;
        if self.above.len() >= MAX_DEPTH {
            self.refuse(&format!("a directory is deeper than {MAX_DEPTH} levels"));
            return Ok(());
        }
        match (Level::of(directory), self.level.take()) {
            (Ok(below), Some(level)) => {
                self.above.push(Above {
                    inode: level.inode,
                    entry,
                    next: level.position,
                });
                self.level = Some(below);
            }
            (Ok(_), None) => {}
            (Err(error), level) => {
                self.level = level;
                self.refuse(&error.to_string());
            }
        }
        Ok(())
    }

    /// Assigns files at once. One that is refused hinders no other.
    async fn assign(&mut self, quotas: &impl Quotas, files: &[OwnedFd], inherits: bool) -> Result<(), QuotasError> {
        if files.is_empty() {
            return Ok(());
        }
        let project = self.project;
        let assignment = files.iter().map(|file| Assignment {
            file: file.as_fd(),
            project,
            inherits,
        });
        let all: Vec<Assignment<'_>> = assignment.collect();
        let Changed { found, refused } = quotas.assign(&all).await?;
        let is_done = |tag: &Option<Tag>| tag.is_some_and(|tag| tag.project == project && (tag.inherits || !inherits));
        for _ in found.iter().filter(|tag| !is_done(tag)) {
            self.refuse(refused.as_deref().unwrap_or("the file did not get its project"));
        }
        Ok(())
    }

    fn refuse(&mut self, why: &str) {
        let (_, count) = self.refused.get_or_insert_with(|| (why.to_owned(), 0));
        *count += 1;
    }
}

fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

enum Entry {
    File(OwnedFd),
    Directory(OwnedFd),
    /// Neither: the file system cannot give it a project. Or it was removed just now, or something is mounted there.
    Skipped,
}

/// Opens an entry of a directory, unless something is mounted there.
fn open_entry(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Entry> {
    if is_dot(name) {
        return Ok(Entry::Skipped);
    }
    // Without O_PATH, opening a FIFO or device has effects.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
        Err(Errno::NOENT | Errno::XDEV) => return Ok(Entry::Skipped),
        opened => opened?,
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => return Ok(Entry::File(file)),
        FileType::Directory => {}
        _ => return Ok(Entry::Skipped),
    }
    // What was opened with O_PATH cannot be listed. "." of it is the same directory, whatever its name is now.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(Entry::Directory(rustix::fs::openat(&file, ".", flags, Mode::empty())?))
}
