//! The directory of an order, opened below the export's root.

use std::os::fd::OwnedFd;

use export_store::quota::SizeProblem;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::AgentError;
use crate::folder::Folder;
use crate::plan::Wanted;

/// Opens the directory of an order, without following links or mounts on the way. Returns why if it is not there.
pub(crate) fn open_directory(root: &Folder, order: &Wanted) -> Result<OwnedFd, (SizeProblem, String)> {
    let path = &order.directory;
    let failed = |error: Errno| match error {
        Errno::NOENT => (SizeProblem::DirectoryMissing, format!("{path} does not exist")),
        Errno::NOTDIR | Errno::LOOP => (
            SizeProblem::NotADirectory,
            format!("a segment of {path} is not a directory"),
        ),
        Errno::XDEV => (
            SizeProblem::OtherFileSystem,
            format!("{path} is on another file system than the export's root, or something is mounted in it"),
        ),
        error => (SizeProblem::DirectoryMissing, format!("failed to open {path}: {error}")),
    };
    let directory = open_below(root, path.as_str()).map_err(failed)?;
    let inode = rustix::fs::fstat(&directory).map_err(failed)?.st_ino;
    if inode != order.file_id {
        let message = format!("{path} has fileid {inode}, and the order is for {}", order.file_id);
        return Err((SizeProblem::DirectoryReplaced, message));
    }
    Ok(directory)
}

/// Checks that this kernel can open paths without following links and mounts.
///
/// # Errors
/// It cannot.
pub(crate) fn check_kernel(root: &Folder) -> Result<(), AgentError> {
    match open_below(root, ".") {
        Err(error @ (Errno::NOSYS | Errno::PERM)) => Err(AgentError::Kernel { source: error.into() }),
        _ => Ok(()),
    }
}

fn open_below(root: &Folder, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root.fd(), path, flags, Mode::empty(), beneath)
}
