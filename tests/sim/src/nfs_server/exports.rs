//! Exports: what of its disks a server offers, under which paths, to whom.
//!
//! NFSv4 joins all exports in one tree. Its directories above the exports are the pseudo file system (RFC 8881 section 7.3).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nfs_client::FsId;
use nfs_client::wire::{Decoder, Encoder, XdrError};

use super::file_system::{Caller, FileSystem, Ino, Object};
use super::status::{NfsResult, NfsStat};

/// Which users an export maps to the anonymous user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// None.
    #[default]
    Nobody,
    /// Root.
    Root,
    /// Every user.
    All,
}

/// An export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Absolute path that clients use.
    pub path: String,
    /// The disk with the exported directory.
    pub disk: String,
    /// Path of the directory on the disk, without a leading `/`; empty for its root.
    pub directory: String,
    /// Whether changes fail with ROFS.
    pub read_only: bool,
    /// Which users become anonymous.
    pub squash: Squash,
    /// The anonymous user and group.
    pub anonymous: (u32, u32),
    /// Whether clients must connect from a port below 1024.
    pub secure: bool,
    /// Whether it is offered now. Its handles are stale while it is not.
    pub offered: bool,
}

impl Export {
    /// Returns a writable export of a whole disk, without squashing.
    pub fn new(path: impl Into<String>, disk: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            disk: disk.into(),
            directory: String::new(),
            read_only: false,
            squash: Squash::Nobody,
            anonymous: (65534, 65534),
            secure: false,
            offered: true,
        }
    }

    /// The user that a call acts as here.
    pub fn caller(&self, credential: Option<&Caller>) -> Caller {
        let squashed = match (self.squash, credential) {
            (_, None) | (Squash::All, _) => true,
            (Squash::Root, Some(caller)) => caller.uid == 0,
            (Squash::Nobody, Some(_)) => false,
        };
        let (uid, gid) = self.anonymous;
        match credential {
            Some(caller) if !squashed => caller.clone(),
            _ => Caller {
                uid,
                gid,
                groups: Vec::new(),
            },
        }
    }

    /// Whether a client at this port may use it.
    pub fn admits(&self, port: u16) -> bool {
        !self.secure || port < 1024
    }
}

/// Returns the components of a path.
pub fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|component| !component.is_empty()).collect()
}

/// What a file handle identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A directory of the pseudo file system, by number.
    Pseudo(u32),
    /// An object of an export.
    Object {
        /// Number of the export.
        export: u32,
        /// Its file system.
        fsid: FsNumber,
        /// Number and generation.
        object: Object,
    },
}

/// A file system's number, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsNumber(pub u64, pub u64);

impl From<FsId> for FsNumber {
    fn from(fsid: FsId) -> Self {
        Self(fsid.major, fsid.minor)
    }
}

const PSEUDO: u32 = 0;
const OBJECT: u32 = 1;

impl Node {
    /// Encodes the handle: at most 36 bytes, so that NFSv3 can use it too.
    pub fn handle(&self) -> Vec<u8> {
        let mut handle = Encoder::new();
        match self {
            Self::Pseudo(number) => handle.u32(PSEUDO).u32(*number),
            Self::Object { export, fsid, object } => {
                handle.u32(OBJECT).u32(*export).u64(fsid.0).u64(fsid.1);
                handle.u64(object.ino).u32(object.generation)
            }
        };
        handle.into_bytes()
    }

    /// Decodes a handle.
    pub fn from_handle(handle: &[u8]) -> NfsResult<Self> {
        let decode = |handle: &mut Decoder| {
            let node = match handle.u32("kind")? {
                PSEUDO => Self::Pseudo(handle.u32("number")?),
                OBJECT => Self::Object {
                    export: handle.u32("export")?,
                    fsid: FsNumber(handle.u64("fsid")?, handle.u64("fsid")?),
                    object: Object {
                        ino: handle.u64("inode")?,
                        generation: handle.u32("generation")?,
                    },
                },
                value => return Err(XdrError::Invalid { what: "kind", value }),
            };
            Ok(node)
        };
        decode(&mut Decoder::new(Bytes::copy_from_slice(handle))).map_err(|_| NfsStat::BADHANDLE)
    }
}

/// An object on a disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the disk.
    pub disk: String,
    /// Inode number.
    pub ino: Ino,
}

/// The object that a call works on.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its place on a disk.
    pub place: Place,
    /// The export through which it was reached.
    pub export: u32,
    /// What its handle holds.
    pub object: Object,
    /// The user, after squashing.
    pub caller: Caller,
}

/// The disks of a server, and its exports.
#[derive(Debug, Clone, Default)]
pub struct Namespace {
    /// File systems by name.
    pub disks: BTreeMap<String, FileSystem>,
    /// Exports. One that was withdrawn keeps its number.
    pub exports: Vec<Export>,
    /// Disks that are mounted on a directory of another one.
    pub mounts: BTreeMap<Place, String>,
    /// Paths of the pseudo file system's directories, by number.
    pseudo: Vec<Vec<String>>,
}

impl Namespace {
    /// Adds an export, or changes the one with this path.
    pub fn offer(&mut self, export: Export) {
        let path = components(&export.path);
        for length in 0..path.len() {
            let above: Vec<_> = path.iter().take(length).map(ToString::to_string).collect();
            if !self.pseudo.contains(&above) {
                self.pseudo.push(above);
            }
        }
        match self
            .exports
            .iter_mut()
            .find(|known| components(&known.path) == components(&export.path))
        {
            Some(known) => *known = export,
            None => self.exports.push(export),
        }
    }

    /// Returns an offered export by number.
    pub fn export(&self, number: u32) -> NfsResult<&Export> {
        let export = self.exports.get(number as usize).filter(|export| export.offered);
        export.ok_or(NfsStat::STALE)
    }

    /// Returns the offered export with exactly this path.
    fn export_at(&self, path: &[&str]) -> Option<u32> {
        let index = self
            .exports
            .iter()
            .position(|export| export.offered && components(&export.path) == path)?;
        u32::try_from(index).ok()
    }

    /// Returns a disk.
    pub fn disk(&self, name: &str) -> NfsResult<&FileSystem> {
        self.disks.get(name).ok_or(NfsStat::IO)
    }

    /// Returns a disk, to change it.
    pub fn disk_mut(&mut self, name: &str) -> NfsResult<&mut FileSystem> {
        self.disks.get_mut(name).ok_or(NfsStat::IO)
    }

    /// The root of NFSv4's tree.
    pub fn root(&self, port: u16) -> NfsResult<Node> {
        match self.export_at(&[]) {
            Some(export) => self.export_root(export, port),
            None => Ok(Node::Pseudo(self.pseudo_number(&[]).unwrap_or(0))),
        }
    }

    fn pseudo_number(&self, path: &[&str]) -> Option<u32> {
        let index = self.pseudo.iter().position(|known| known == path)?;
        u32::try_from(index).ok()
    }

    /// Returns the root of an export; hides it from a client that may not use it, as nfs-ganesha does.
    pub fn export_root(&self, number: u32, port: u16) -> NfsResult<Node> {
        let export = self.export(number)?;
        if !export.admits(port) {
            return Err(NfsStat::NOENT);
        }
        let disk = self.disk(&export.disk)?;
        let mut ino = disk.root();
        for name in components(&export.directory) {
            ino = disk.lookup(&Caller::ROOT, ino, name.as_bytes())?;
        }
        self.node(
            number,
            &Place {
                disk: export.disk.clone(),
                ino,
            },
        )
    }

    /// Returns the handle's content for an object; for a directory on which a disk is mounted, that of the disk's root.
    pub fn node(&self, export: u32, place: &Place) -> NfsResult<Node> {
        if let Some(mounted) = self.mounts.get(place) {
            let ino = self.disk(mounted)?.root();
            return self.node(
                export,
                &Place {
                    disk: mounted.clone(),
                    ino,
                },
            );
        }
        let disk = self.disk(&place.disk)?;
        Ok(Node::Object {
            export,
            fsid: disk.options().fsid.into(),
            object: disk.object(place.ino)?,
        })
    }

    /// Resolves a handle's object; fails with STALE if it is removed, or no disk below the export has its fsid.
    pub fn place(&self, node: Node) -> NfsResult<Place> {
        let Node::Object { export, fsid, object } = node else {
            return Err(NfsStat::ROFS);
        };
        let first = &self.export(export)?.disk;
        let mut reachable = vec![first];
        while let Some(disk) = reachable.pop() {
            let file_system = self.disk(disk)?;
            if FsNumber::from(file_system.options().fsid) == fsid {
                let ino = file_system.resolve(object)?;
                return Ok(Place {
                    disk: disk.clone(),
                    ino,
                });
            }
            let below = self.mounts.iter().filter(|(place, _)| place.disk == *disk);
            reachable.extend(below.map(|(_, mounted)| mounted));
        }
        Err(NfsStat::STALE)
    }

    /// Resolves a handle for a call of this user, from this port.
    pub fn target(&self, node: Node, credential: Option<&Caller>, port: u16) -> NfsResult<Target> {
        let place = self.place(node)?;
        match node {
            Node::Object { export, object, .. } => {
                let offered = self.export(export)?;
                if !offered.admits(port) {
                    return Err(NfsStat::ACCESS);
                }
                Ok(Target {
                    place,
                    export,
                    object,
                    caller: offered.caller(credential),
                })
            }
            Node::Pseudo(_) => Err(NfsStat::ROFS),
        }
    }

    /// Looks up a name in a directory of the pseudo file system.
    pub fn lookup_pseudo(&self, number: u32, name: &[u8], port: u16) -> NfsResult<Node> {
        let above = self.pseudo.get(number as usize).ok_or(NfsStat::STALE)?;
        let name = std::str::from_utf8(name).map_err(|_| NfsStat::NOENT)?;
        let mut path: Vec<&str> = above.iter().map(String::as_str).collect();
        path.push(name);
        if let Some(export) = self.export_at(&path) {
            return self.export_root(export, port);
        }
        let is_above_an_export = self
            .exports
            .iter()
            .any(|export| export.offered && components(&export.path).starts_with(&path));
        match self.pseudo_number(&path) {
            Some(number) if is_above_an_export => Ok(Node::Pseudo(number)),
            _ => Err(NfsStat::NOENT),
        }
    }

    /// Returns the names in a directory of the pseudo file system.
    pub fn pseudo_names(&self, number: u32) -> NfsResult<BTreeSet<String>> {
        let above = self.pseudo.get(number as usize).ok_or(NfsStat::STALE)?;
        let offered = self.exports.iter().filter(|export| export.offered);
        let below = offered.filter_map(|export| {
            let path = components(&export.path);
            let rest = path.strip_prefix(above.iter().map(String::as_str).collect::<Vec<_>>().as_slice())?;
            rest.first().map(ToString::to_string)
        });
        Ok(below.collect())
    }

    /// Returns the export with the longest path that contains `path`, and the components below it (for MOUNT).
    pub fn closest<'a>(&self, path: &'a str) -> Option<(u32, Vec<&'a str>)> {
        let path = components(path);
        let offered = self.exports.iter().enumerate().filter(|(_, export)| export.offered);
        let containing = offered.filter(|(_, export)| path.starts_with(&components(&export.path)));
        let (index, export) = containing.max_by_key(|(_, export)| components(&export.path).len())?;
        let below = path.get(components(&export.path).len()..)?.to_vec();
        Some((u32::try_from(index).ok()?, below))
    }
}
