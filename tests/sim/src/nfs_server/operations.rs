//! Operations that both versions of the protocol have, on resolved objects: what they add to those of a file system is exports,
//! mounts and stable storage.

use super::events::Actor;
use super::exports::{Place, Target};
use super::file_system::Removal;
use super::state::State;
use super::status::{NfsResult, NfsStat};

/// Stability of written data (`stable_how`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// A crash may lose it until COMMIT.
    Unstable,
    /// It is on stable storage.
    FileSync,
}

impl Stability {
    /// Decodes `stable_how`; DATA_SYNC is treated as FILE_SYNC.
    pub fn from_number(number: u32) -> Self {
        if number == 0 { Self::Unstable } else { Self::FileSync }
    }

    /// The number in `stable_how`.
    pub fn number(self) -> u32 {
        match self {
            Self::Unstable => 0,
            Self::FileSync => 2,
        }
    }
}

impl State {
    /// The change attribute of an object now.
    pub fn change_of(&self, target: &Target) -> NfsResult<u64> {
        Ok(self.namespace.disk(&target.place.disk)?.inode(target.place.ino)?.change)
    }

    /// Adds a name to an object, in a directory of the same export and disk.
    pub fn link(&mut self, actor: &Actor, object: &Target, directory: &Target, name: &[u8]) -> NfsResult<()> {
        if object.export != directory.export || object.place.disk != directory.place.disk {
            return Err(NfsStat::XDEV);
        }
        self.change(actor, directory.export, &directory.place.disk, |disk| {
            disk.link(&directory.caller, object.place.ino, directory.place.ino, name)
        })
    }

    /// Removes a name.
    pub fn remove(&mut self, actor: &Actor, directory: &Target, name: &[u8], removal: Removal) -> NfsResult<()> {
        self.check_not_mounted(&directory.place, name)?;
        self.change(actor, directory.export, &directory.place.disk, |disk| {
            disk.remove(&directory.caller, directory.place.ino, name, removal)
        })
    }

    /// Renames within an export and a disk.
    pub fn rename(
        &mut self,
        actor: &Actor,
        (source, from): (&Target, &[u8]),
        (target, to): (&Target, &[u8]),
    ) -> NfsResult<()> {
        if source.export != target.export || source.place.disk != target.place.disk {
            return Err(NfsStat::XDEV);
        }
        self.check_not_mounted(&source.place, from)?;
        self.check_not_mounted(&target.place, to)?;
        self.change(actor, target.export, &target.place.disk, |disk| {
            disk.rename(&target.caller, (source.place.ino, from), (target.place.ino, to))
        })
    }

    /// Writes to a file. Returns the number of bytes.
    pub fn write(
        &mut self,
        actor: &Actor,
        target: &Target,
        offset: u64,
        stability: Stability,
        data: &[u8],
    ) -> NfsResult<u32> {
        if stability == Stability::Unstable {
            self.before_unstable_write(&target.place)?;
        }
        let data = data.get(..self.options.max_transfer as usize).unwrap_or(data);
        let count = self.change(actor, target.export, &target.place.disk, |disk| {
            disk.write(&target.caller, target.place.ino, offset, data)
        })?;
        if stability == Stability::FileSync {
            self.commit(&target.place)?;
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Fails if a disk is mounted on a name.
    fn check_not_mounted(&self, directory: &Place, name: &[u8]) -> NfsResult<()> {
        let mut mounts = self
            .namespace
            .mounts
            .keys()
            .filter(|place| place.disk == directory.disk);
        let disk = self.namespace.disk(&directory.disk)?;
        let is_name = |place: &Place| {
            let inode = disk.inode(place.ino);
            inode.is_ok_and(|inode| {
                inode
                    .names
                    .iter()
                    .any(|(parent, known)| *parent == directory.ino && known == name)
            })
        };
        if mounts.any(is_name) {
            Err(NfsStat::XDEV)
        } else {
            Ok(())
        }
    }
}
