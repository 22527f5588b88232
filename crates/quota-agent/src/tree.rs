//! Gives everything in a directory to its project, a few files at a time.
//!
//! The directory, and each directory in it, gets the project before it is listed. From then on, what is created in it
//! belongs to the project, and file systems refuse to move anything into it that does not (EXDEV). So nothing that the
//! listing misses is left over, and a tree that was interrupted is visited again from the start without harm.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::quotas::{Assignment, Quotas, QuotasError};

/// Maximum depth. Each level has an open directory and a buffer.
const MAX_DEPTH: usize = 256;
/// Number of files that are opened and assigned at once.
const BATCH: usize = 128;

/// A visit of a tree. Never leaves the directory or its file system: it opens one name at a time below an open directory,
/// without following links.
pub(crate) struct TreeVisit {
    project: u32,
    device: u64,
    levels: Vec<Dir>,
    visited: u64,
    /// First problem, and the number of files with one.
    refused: Option<(String, u64)>,
}

/// Result of a part of a visit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Visited {
    /// More is left.
    Partly,
    /// Everything was visited, and belongs to the project except what was refused.
    Completely {
        /// The first problem, and the number of files with one.
        refused: Option<(String, u64)>,
    },
}

impl TreeVisit {
    /// Begins a visit of a directory that has the project already.
    pub fn new(directory: BorrowedFd<'_>, project: u32) -> std::io::Result<Self> {
        let device = rustix::fs::fstat(directory)?.st_dev;
        let mut first = Dir::read_from(directory)?;
        let is_empty = !first.any(|entry| !matches!(entry, Ok(entry) if is_dot(entry.file_name())));
        first.rewind();
        Ok(Self {
            project,
            device,
            levels: if is_empty { Vec::new() } else { vec![first] },
            visited: 0,
            refused: None,
        })
    }

    /// Reports whether nothing is left to visit.
    pub fn is_done(&self) -> bool {
        self.levels.is_empty()
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
    /// The tools failed altogether.
    pub async fn advance(&mut self, quotas: &impl Quotas, budget: &mut usize) -> Result<Visited, QuotasError> {
        loop {
            let Some(level) = self.levels.last_mut() else {
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
                match next(level, self.device) {
                    Ok(Some(Entry::File(file))) => files.push(file),
                    Ok(Some(Entry::Directory(found))) => directory = Some(found),
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
            if let Some(problem) = problem {
                self.refuse(problem);
            }
            if ended {
                self.levels.pop();
            }
            *budget = budget.saturating_sub(seen);
            self.visited += (files.len() + usize::from(directory.is_some())) as u64;
            self.assign(quotas, &files, false).await?;
            if let Some(directory) = directory {
                self.enter(quotas, directory).await?;
            }
        }
    }

    async fn enter(&mut self, quotas: &impl Quotas, directory: OwnedFd) -> Result<(), QuotasError> {
        let directory = [directory];
        self.assign(quotas, &directory, true).await?;
        if self.levels.len() >= MAX_DEPTH {
            self.refuse(format!("a directory is deeper than {MAX_DEPTH} levels"));
            return Ok(());
        }
        for found in &directory {
            match Dir::read_from(found) {
                Ok(level) => self.levels.push(level),
                Err(error) => self.refuse(error.to_string()),
            }
        }
        Ok(())
    }

    /// Assigns files at once, and one by one if that fails, so that one file hinders no other.
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
        match quotas.assign(&all).await {
            Ok(()) => return Ok(()),
            Err(QuotasError::Failed { .. }) => {}
            Err(error) => return Err(error),
        }
        for one in all {
            match quotas.assign(&[one]).await {
                Ok(()) => {}
                Err(QuotasError::Failed { output, .. }) => self.refuse(output),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, why: String) {
        let (_, count) = self.refused.get_or_insert((why, 0));
        *count += 1;
    }
}

fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

enum Entry {
    File(OwnedFd),
    Directory(OwnedFd),
    /// Neither: the file system cannot give it a project. Or it was removed just now, or is on another file system.
    Skipped,
}

/// Returns the next entry of a directory.
fn next(level: &mut Dir, device: u64) -> rustix::io::Result<Option<Entry>> {
    let Some(entry) = level.read() else {
        return Ok(None);
    };
    let entry = entry?;
    let name = entry.file_name();
    if is_dot(name) {
        return Ok(Some(Entry::Skipped));
    }
    // Without O_PATH, opening a FIFO or device has effects.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(level.fd()?, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Some(Entry::Skipped)),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_dev != device {
        return Ok(Some(Entry::Skipped));
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        return Ok(Some(Entry::File(file)));
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(Some(Entry::Skipped));
    }
    // What was opened with O_PATH cannot be listed. "." of it is the same directory, whatever its name is now.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&file, ".", flags, Mode::empty())?;
    let same = rustix::fs::fstat(&directory)?.st_dev == device;
    Ok(Some(if same {
        Entry::Directory(directory)
    } else {
        Entry::Skipped
    }))
}
