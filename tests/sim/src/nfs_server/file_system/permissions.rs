//! Permission checks by mode bits, as POSIX defines them for AUTH_SYS credentials.

use super::FileSystem;
use super::inode::Inode;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// The user that a call acts as, after squashing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User ID; 0 passes every check.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };

    /// Whether the caller is in a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller may do what only an owner may.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.uid == 0 || self.uid == inode.uid
    }

    /// Whether the mode permits all of this.
    pub fn may(&self, access: Access, inode: &Inode) -> bool {
        let bits = access as u32;
        if self.uid == 0 {
            // Root executes a file only if somebody may.
            return access != Access::Execute || inode.directory().is_some() || inode.mode & 0o111 != 0;
        }
        let shift = if self.uid == inode.uid {
            6
        } else if self.is_in(inode.gid) {
            3
        } else {
            0
        };
        (inode.mode >> shift) & bits == bits
    }
}

/// What a mode bit permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Access {
    /// Reading a file, listing a directory.
    Read = 4,
    /// Writing a file, changing the entries of a directory.
    Write = 2,
    /// Executing a file, looking up names in a directory.
    Execute = 1,
}

impl FileSystem {
    /// Fails with ACCESS unless the mode permits it.
    pub(super) fn check(&self, caller: &Caller, access: Access, inode: &Inode) -> NfsResult<()> {
        if caller.may(access, inode) {
            Ok(())
        } else {
            Err(NfsStat::ACCESS)
        }
    }

    /// Fails unless the caller may change the entries of a directory.
    pub(super) fn check_change_entries(&self, caller: &Caller, directory: &Inode) -> NfsResult<()> {
        self.check(caller, Access::Execute, directory)?;
        self.check(caller, Access::Write, directory)
    }

    /// Fails unless the caller may remove this entry: with the sticky bit, only owners may.
    pub(super) fn check_remove_entry(&self, caller: &Caller, directory: &Inode, entry: &Inode) -> NfsResult<()> {
        self.check_change_entries(caller, directory)?;
        if directory.mode & 0o1000 != 0 && !caller.owns(directory) && !caller.owns(entry) {
            return Err(NfsStat::PERM);
        }
        Ok(())
    }
}
