//! Changing attributes.

use nfs_client::Time;

use super::inode::{Ino, Kind};
use super::{Access, Caller, FileSystem, MutationKind};
use crate::nfs_server::status::{NfsResult, NfsStat};

/// setuid and setgid.
const PRIVILEGES: u32 = 0o6000;

/// Attributes to set; an absent one remains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<TimeChange>,
    /// Last change of the content.
    pub modified: Option<TimeChange>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    /// The server's time.
    Now,
    /// A time of the client's choice.
    To(Time),
}

impl FileSystem {
    /// Sets attributes: all or none.
    pub fn set_attributes(&mut self, caller: &Caller, ino: Ino, changes: AttributeChanges) -> NfsResult<()> {
        self.check_changes(caller, ino, changes)?;
        if let Some(size) = changes.size {
            self.set_size(ino, size)?;
        }
        let now = self.now;
        let at = |change: TimeChange| match change {
            TimeChange::Now => now,
            TimeChange::To(time) => time,
        };
        let inherits_mode = self.options.inherited_mode.is_some();
        let inode = self.inode_mut(ino)?;
        if changes.uid.is_some() || changes.gid.is_some() {
            inode.uid = changes.uid.unwrap_or(inode.uid);
            inode.gid = changes.gid.unwrap_or(inode.gid);
            // As Linux does, for root too.
            if inode.directory().is_none() {
                inode.mode &= !PRIVILEGES;
            }
        }
        if let Some(mode) = changes.mode.filter(|_| inode.directory().is_none() || !inherits_mode) {
            inode.mode = mode & 0o7777;
            if caller.uid != 0 && !caller.is_in(inode.gid) {
                inode.mode &= !0o2000;
            }
        }
        if let Some(time) = changes.accessed {
            inode.accessed = at(time);
        }
        if let Some(time) = changes.modified {
            inode.modified = at(time);
        }
        self.touch(ino, false)?;
        let kind = match changes.size {
            Some(_) => MutationKind::Write,
            None => MutationKind::SetAttributes,
        };
        self.record(kind, ino);
        Ok(())
    }

    fn check_changes(&self, caller: &Caller, ino: Ino, changes: AttributeChanges) -> NfsResult<()> {
        let inode = self.inode(ino)?;
        if changes.size.is_some() {
            match inode.kind {
                Kind::Regular(_) => self.check(caller, Access::Write, inode)?,
                Kind::Directory(_) => return Err(NfsStat::ISDIR),
                _ => return Err(NfsStat::INVAL),
            }
        }
        let may_give = caller.uid == 0 || changes.uid.is_none_or(|uid| uid == inode.uid && caller.owns(inode));
        let may_join = changes
            .gid
            .is_none_or(|gid| caller.uid == 0 || (caller.owns(inode) && (gid == inode.gid || caller.is_in(gid))));
        if !may_give || !may_join || (changes.mode.is_some() && !caller.owns(inode)) {
            return Err(NfsStat::PERM);
        }
        let times = [changes.accessed, changes.modified];
        let sets_time = times.iter().flatten().any(|time| matches!(time, TimeChange::To(_)));
        if sets_time && !caller.owns(inode) {
            return Err(NfsStat::PERM);
        }
        if times.iter().any(Option::is_some) && !caller.owns(inode) {
            self.check(caller, Access::Write, inode)?;
        }
        Ok(())
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> NfsResult<()> {
        let mut content = self.inode(ino)?.content().ok_or(NfsStat::INVAL)?.clone();
        let before = content.used();
        content.set_size(size);
        self.charge(before, content.used())?;
        self.inode_mut(ino)?.kind = Kind::Regular(content);
        self.touch(ino, true)
    }
}
