//! A machine of the cluster that mounted a directory, and the files that its pods use.
//!
//! A mount holds the directory by handle, not by path: it follows the directory when it is renamed, and is stale once it is
//! removed. Nothing of this takes time or meets faults, because it is the kernel's business.

use super::events::Actor;
use super::exports::{Place, components};
use super::file_system::{AttributeChanges, Caller, Content, Directory, Ino, Kind, Object, Removal};
use super::server::NfsServer;
use super::status::{NfsResult, NfsStat};

/// A directory that a node mounted.
#[derive(Debug, Clone)]
pub struct Mount {
    server: NfsServer,
    node: String,
    disk: String,
    root: Object,
    caller: Caller,
}

impl Mount {
    /// Mounts a path of the server (an export's path, or a directory below) as a node does, and uses it as this user.
    ///
    /// # Errors
    /// NOENT if there is no such directory.
    pub fn new(server: &NfsServer, node: &str, path: &str, caller: Caller) -> NfsResult<Self> {
        let state = server.state();
        let namespace = &state.namespace;
        let (number, below) = namespace.closest(path).ok_or(NfsStat::NOENT)?;
        // A kernel connects from a reserved port.
        let mut found = namespace.export_root(number, 1023)?;
        for name in below {
            let mut place = namespace.place(found)?;
            place.ino = namespace
                .disk(&place.disk)?
                .lookup(&Caller::ROOT, place.ino, name.as_bytes())?;
            found = namespace.node(number, &place)?;
        }
        let Place { disk, ino } = namespace.place(found)?;
        let file_system = namespace.disk(&disk)?;
        file_system.directory(ino)?;
        Ok(Self {
            server: server.clone(),
            node: node.to_owned(),
            root: file_system.object(ino)?,
            disk,
            caller: namespace.export(number)?.caller(Some(&caller)),
        })
    }

    /// The disk of the mounted directory.
    pub fn disk(&self) -> &str {
        &self.disk
    }

    /// The mounted directory.
    pub fn root(&self) -> Object {
        self.root
    }

    /// Resolves a path below the mounted directory: the directory of its last component, and the component.
    fn parent<'a>(&self, disk: &super::FileSystem, path: &'a str) -> NfsResult<(Ino, &'a str)> {
        let mut directory = disk.resolve(self.root)?;
        let mut names = components(path);
        let last = names.pop().ok_or(NfsStat::INVAL)?;
        for name in names {
            directory = disk.lookup(&self.caller, directory, name.as_bytes())?;
        }
        Ok((directory, last))
    }

    fn with_disk<T>(&self, work: impl FnOnce(&mut super::FileSystem) -> NfsResult<T>) -> NfsResult<T> {
        let actor = Actor::Node(self.node.clone());
        self.server.state().with_disk(&actor, &self.disk, work)
    }

    /// Creates or replaces a file's content.
    pub fn write(&self, path: &str, content: &[u8]) -> NfsResult<Object> {
        self.with_disk(|disk| {
            let (directory, name) = self.parent(disk, path)?;
            let created = disk.create(
                &self.caller,
                directory,
                name.as_bytes(),
                Kind::Regular(Content::default()),
                AttributeChanges::default(),
            );
            let ino = match created {
                Err(NfsStat::EXIST) => disk.lookup(&self.caller, directory, name.as_bytes())?,
                created => created?,
            };
            let truncate = AttributeChanges {
                size: Some(0),
                ..AttributeChanges::default()
            };
            disk.set_attributes(&self.caller, ino, truncate)?;
            if disk.write(&self.caller, ino, 0, content)? < content.len() {
                return Err(NfsStat::NOSPC);
            }
            disk.object(ino)
        })
    }

    /// Writes at the end of an open file, by its handle: wherever it was moved, and STALE once it is removed.
    pub fn append(&self, file: Object, data: &[u8]) -> NfsResult<()> {
        self.with_disk(|disk| {
            let ino = disk.resolve(file)?;
            let end = disk.inode(ino)?.size();
            if disk.write(&self.caller, ino, end, data)? < data.len() {
                return Err(NfsStat::NOSPC);
            }
            Ok(())
        })
    }

    /// Reads a file.
    pub fn read(&self, path: &str) -> NfsResult<Vec<u8>> {
        self.with_disk(|disk| {
            let (directory, name) = self.parent(disk, path)?;
            let ino = disk.lookup(&self.caller, directory, name.as_bytes())?;
            disk.read(&self.caller, ino, 0, u64::MAX).map(|(bytes, _)| bytes)
        })
    }

    /// Creates a directory.
    pub fn make_directory(&self, path: &str) -> NfsResult<Object> {
        self.create(path, Kind::Directory(Directory::new(0)))
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, path: &str, target: &str) -> NfsResult<Object> {
        self.create(path, Kind::Symlink(target.to_owned().into()))
    }

    /// Creates a FIFO, socket or device, by its number in `nfs_ftype4`.
    pub fn make_special(&self, path: &str, number: u32) -> NfsResult<Object> {
        self.create(path, Kind::Special(number))
    }

    fn create(&self, path: &str, kind: Kind) -> NfsResult<Object> {
        self.with_disk(|disk| {
            let (directory, name) = self.parent(disk, path)?;
            let set = AttributeChanges::default();
            let ino = disk.create(&self.caller, directory, name.as_bytes(), kind, set)?;
            disk.object(ino)
        })
    }

    /// Adds a name to a file.
    pub fn link(&self, from: &str, to: &str) -> NfsResult<()> {
        self.with_disk(|disk| {
            let (directory, name) = self.parent(disk, from)?;
            let ino = disk.lookup(&self.caller, directory, name.as_bytes())?;
            let (directory, name) = self.parent(disk, to)?;
            disk.link(&self.caller, ino, directory, name.as_bytes())
        })
    }

    /// Renames within the mounted directory.
    pub fn rename(&self, from: &str, to: &str) -> NfsResult<()> {
        self.with_disk(|disk| {
            let (from_directory, from) = self.parent(disk, from)?;
            let (to_directory, to) = self.parent(disk, to)?;
            disk.rename(
                &self.caller,
                (from_directory, from.as_bytes()),
                (to_directory, to.as_bytes()),
            )
        })
    }

    /// Removes a file or an empty directory.
    pub fn remove(&self, path: &str) -> NfsResult<()> {
        self.with_disk(|disk| {
            let (directory, name) = self.parent(disk, path)?;
            disk.remove(&self.caller, directory, name.as_bytes(), Removal::Any)
        })
    }

    /// Changes attributes; an empty path means the mounted directory.
    pub fn set_attributes(&self, path: &str, set: AttributeChanges) -> NfsResult<()> {
        self.with_disk(|disk| {
            let ino = if components(path).is_empty() {
                disk.resolve(self.root)?
            } else {
                let (directory, name) = self.parent(disk, path)?;
                disk.lookup(&self.caller, directory, name.as_bytes())?
            };
            disk.set_attributes(&self.caller, ino, set)
        })
    }
}
