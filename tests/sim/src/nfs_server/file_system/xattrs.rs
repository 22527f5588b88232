//! User attributes (RFC 8276).

use bytes::Bytes;

use super::inode::{Ino, Inode};
use super::{Access, Caller, FileSystem, MutationKind};
use crate::nfs_server::status::{NfsResult, NfsStat};

impl FileSystem {
    fn with_xattrs(&self, caller: &Caller, ino: Ino, access: Access) -> NfsResult<&Inode> {
        if !self.options.xattrs {
            return Err(NfsStat::NOTSUPP);
        }
        let inode = self.inode(ino)?;
        self.check(caller, access, inode)?;
        Ok(inode)
    }

    /// Reads a user attribute.
    pub fn get_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> NfsResult<Bytes> {
        let inode = self.with_xattrs(caller, ino, Access::Read)?;
        inode.xattrs.get(name).cloned().ok_or(NfsStat::NOXATTR)
    }

    /// Lists the names of all user attributes.
    pub fn list_xattrs(&self, caller: &Caller, ino: Ino) -> NfsResult<Vec<Bytes>> {
        let inode = self.with_xattrs(caller, ino, Access::Read)?;
        Ok(inode.xattrs.keys().cloned().collect())
    }

    /// Sets a user attribute.
    pub fn set_xattr(&mut self, caller: &Caller, ino: Ino, name: Bytes, value: Bytes) -> NfsResult<()> {
        self.with_xattrs(caller, ino, Access::Write)?;
        self.inode_mut(ino)?.xattrs.insert(name, value);
        self.touch(ino, false)?;
        self.record(MutationKind::SetAttributes, ino);
        Ok(())
    }
}
