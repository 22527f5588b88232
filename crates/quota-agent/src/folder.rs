//! Folders and files below a directory, opened without following links. Nothing here takes a path of several segments
//! that somebody else could change meanwhile. Each change is announced before it is made: the process may end at any of them.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::error::AgentError;

/// Prefix of the file to which a file is written before it replaces the previous one.
const DRAFT: &str = ".draft-";

/// Reports whether a name is that of a draft, which nobody reads.
pub(crate) fn is_draft(name: &[u8]) -> bool {
    name.starts_with(b".")
}

/// Maximum number of entries of a folder that is listed: an agent has 10,000 volumes, and its memory is limited.
const MAX_NAMES: usize = 200_000;

/// A directory that is open.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// For messages.
    name: String,
    device: u64,
    /// User and group.
    owner: (Uid, Gid),
    inode: u64,
    /// Called before each change of this folder, and of what is in it.
    observer: Observer,
}

/// Called with the name of a change before it is made.
pub(crate) type Observer = fn(&str);

/// What distinguishes a file from one that was written later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    size: i64,
    changed: (i64, u64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl Folder {
    /// Opens the root of an export.
    pub fn root(path: &Path, observer: Observer) -> Result<Self, AgentError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        Self::new(fd, path.display().to_string(), observer)
    }

    fn new(fd: rustix::io::Result<OwnedFd>, name: String, observer: Observer) -> Result<Self, AgentError> {
        let failed = |error: Errno| AgentError::Export {
            action: format!("open the directory {name}"),
            source: error.into(),
        };
        let fd = fd.map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        Ok(Self {
            fd,
            device: stat.st_dev,
            owner: (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)),
            inode: stat.st_ino,
            name,
            observer,
        })
    }

    /// Opens a directory in this one. Returns `None` if the name does not exist or is something else.
    pub fn open(&self, name: &str) -> Result<Option<Self>, AgentError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            fd => Self::new(fd, format!("{}/{name}", self.name), self.observer).map(Some),
        }
    }

    /// Opens a directory in this one, or creates it for the owner of this one only.
    pub fn ensure(&self, name: &str) -> Result<Self, AgentError> {
        let failed = |action: &str, error: Errno| AgentError::Export {
            action: format!("{action} the directory {}/{name}", self.name),
            source: error.into(),
        };
        let mut folder = match self.open(name)? {
            Some(folder) => folder,
            None => {
                (self.observer)("create folder");
                match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed("create", error)),
                }
                self.open(name)?.ok_or_else(|| failed("open", Errno::NOTDIR))?
            }
        };
        // The operator may be another user than root. A process that was killed may have left a folder to root.
        if folder.owner != self.owner {
            (self.observer)("set owner");
            rustix::fs::fchown(&folder.fd, Some(self.owner.0), Some(self.owner.1))
                .map_err(|error| failed("set the owner of", error))?;
            folder.owner = self.owner;
        }
        Ok(folder)
    }

    pub fn device(&self) -> u64 {
        self.device
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    /// Returns device and inode.
    pub fn id(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Checks that the directory was not removed: in one that was, every file seems to have been removed, one by one.
    pub fn check_exists(&self) -> Result<(), AgentError> {
        match rustix::fs::fstat(&self.fd) {
            Ok(stat) if stat.st_nlink > 0 => Ok(()),
            Ok(_) => Err(self.list_failed(Errno::STALE)),
            Err(error) => Err(self.list_failed(error)),
        }
    }

    fn list_failed(&self, error: Errno) -> AgentError {
        AgentError::Export {
            action: format!("list {}", self.name),
            source: error.into(),
        }
    }

    /// Returns the names of the entries that are valid UTF-8 and no drafts.
    pub fn names(&self) -> Result<Vec<String>, AgentError> {
        let failed = |error: Errno| self.list_failed(error);
        self.check_exists()?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && !is_draft(name.as_bytes())
            {
                names.push(name.to_owned());
            }
            if names.len() > MAX_NAMES {
                let action = format!("list {}", self.name);
                let source = std::io::Error::other(format!("it has more than {MAX_NAMES} entries"));
                return Err(AgentError::Export { action, source });
            }
        }
        Ok(names)
    }

    /// Returns the stamp of a regular file; `None` if it is missing or something else.
    pub fn stamp(&self, name: &str) -> Result<Option<Stamp>, AgentError> {
        let entry = self.entry(name)?.filter(is_regular);
        Ok(entry.as_ref().map(Stamp::of))
    }

    /// Looks up an entry of any kind. Returns `None` if it is missing.
    pub fn entry(&self, name: &str) -> Result<Option<Stat>, AgentError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("look up", name, error.into())),
        }
    }

    /// Reads a regular file of at most `max` bytes; of a longer one, it returns one byte more. Returns `None` if it is
    /// missing or something else.
    pub fn read(&self, name: &str, max: usize) -> Result<Option<(Stamp, Vec<u8>)>, AgentError> {
        // A FIFO does not make the agent wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(self.failed("open", name, error.into())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| self.failed("read", name, error.into()))?;
        if !is_regular(&stat) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let limited = File::from(fd).take(max as u64 + 1).read_to_end(&mut bytes);
        limited.map_err(|error| self.failed("read", name, error))?;
        Ok(Some((Stamp::of(&stat), bytes)))
    }

    /// Writes a file for the owner of this folder: to a draft, which then replaces the file. After a crash of the machine,
    /// the file may be empty.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), AgentError> {
        self.draft(name, bytes)?;
        self.publish(name)
    }

    /// Writes the draft of a file.
    pub fn draft(&self, name: &str, bytes: &[u8]) -> Result<(), AgentError> {
        self.write_draft(&format!("{DRAFT}{name}"), bytes)
            .map_err(|error| self.failed("write", name, error))
    }

    /// Replaces a file by its draft.
    pub fn publish(&self, name: &str) -> Result<(), AgentError> {
        (self.observer)("publish");
        rustix::fs::renameat(&self.fd, format!("{DRAFT}{name}"), &self.fd, name)
            .map_err(|error| self.failed("write", name, error.into()))
    }

    /// Waits until the changes of this folder, and all earlier changes of the file system except for the content of files,
    /// are on stable storage: the journals of XFS and ext4 are written in order.
    pub fn sync(&self) -> Result<(), AgentError> {
        (self.observer)("sync");
        rustix::fs::fsync(&self.fd).map_err(|error| AgentError::Export {
            action: format!("write {} to stable storage", self.name),
            source: error.into(),
        })
    }

    fn write_draft(&self, draft: &str, bytes: &[u8]) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(&self.fd, draft, flags, Mode::RUSR | Mode::WUSR);
        (self.observer)("create");
        let fd = match create() {
            // Left by a process that was killed.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&self.fd, draft, AtFlags::empty())?;
                create()?
            }
            created => created?,
        };
        (self.observer)("set owner");
        rustix::fs::fchown(&fd, Some(self.owner.0), Some(self.owner.1))?;
        (self.observer)("write");
        File::from(fd).write_all(bytes)
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<(), AgentError> {
        (self.observer)("remove");
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed("remove", name, error.into())),
        }
    }

    fn failed(&self, action: &str, name: &str, source: std::io::Error) -> AgentError {
        let source = match source.kind() {
            // Space for the agent's files is taken from outside of all volumes.
            ErrorKind::StorageFull => std::io::Error::other("the file system is full"),
            _ => source,
        };
        AgentError::Export {
            action: format!("{action} {}/{name}", self.name),
            source,
        }
    }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}
