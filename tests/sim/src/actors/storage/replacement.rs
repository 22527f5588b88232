//! Exports that take the place of the right one: an empty one, a copy, and a former state.

use std::collections::BTreeMap;

use nfs_client::FsId;
use nfs_operator::api::conditions::Reason;
use serde_json::Value;

use super::backends;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::nfs_server::NfsServer;
use crate::nfs_server::file_system::{
    AttributeChanges, Caller, Content, Directory, FileSystem, FileSystemOptions, Ino, Kind,
};
use crate::nfs_server::status::NfsResult;
use crate::objects::text;
use crate::oracle::DISK;

/// What takes the place of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// An empty disk: for example, that of the mount point after the right one was not mounted.
    Empty,
    /// A copy that was made file by file.
    Copy,
    /// A snapshot: the same file system, as it was some time ago.
    Former,
}

/// The reasons of a backend that found a replacement.
const REASONS: [Reason; 3] = [
    Reason::IdentityMismatch,
    Reason::BeaconMismatch,
    Reason::ReservedDirectoryUnsafe,
];

/// Chooses a replacement. Returns `None` if the operator could not recognize one: as long as nothing in the cluster knows
/// the export, any is as good as another.
pub fn choose(
    api: &ApiServer,
    server: &NfsServer,
    chance: &Chance,
    snapshots: &[FileSystem],
) -> Option<(Replacement, FileSystem)> {
    let backends = backends(api);
    let is_known = |backend: &Value| {
        let is_set = |path| !text(backend, path).is_empty();
        is_set("/status/export/id") && is_set("/status/export/beacon") && is_set("/status/export/clusterID")
    };
    if backends.is_empty() || !backends.iter().all(|backend| is_known(backend)) {
        return None;
    }
    let current = server.snapshot(DISK).ok()?;
    match chance.below(4) {
        0 => {
            let options = other_options(current.options(), chance);
            Some((Replacement::Empty, FileSystem::new(options)))
        }
        1 => Some((Replacement::Copy, copy(&current, chance).ok()?)),
        _ => {
            let is_outdated = |snapshot: &&FileSystem| {
                let beacon = beacon(snapshot);
                backends.iter().all(|backend| {
                    let known = [
                        text(backend, "/status/export/beacon"),
                        text(backend, "/status/export/nextBeacon"),
                    ];
                    beacon.as_deref().is_none_or(|found| !known.contains(&found))
                })
            };
            let outdated: Vec<&FileSystem> = snapshots.iter().filter(is_outdated).collect();
            let snapshot = chance.choose(&outdated)?;
            Some((Replacement::Former, (*snapshot).clone()))
        }
    }
}

/// Returns true if a backend reports a replacement.
pub fn is_reported(api: &ApiServer) -> bool {
    backends(api).iter().any(|backend| {
        let conditions = backend.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|condition| {
            text(condition, "/type") == "Ready"
                && REASONS
                    .iter()
                    .any(|reason| text(condition, "/reason") == format!("{reason:?}"))
        })
    })
}

/// Properties of another file system: with another number, or the same one, as a server assigns it to whatever it exports.
fn other_options(options: &FileSystemOptions, chance: &Chance) -> FileSystemOptions {
    let major = if chance.in_thousand(500) { options.fsid.major } else { 7 };
    FileSystemOptions {
        fsid: FsId { major, ..options.fsid },
        first_ino: options.first_ino + 10_000,
        ..options.clone()
    }
}

/// Copies every file, as `rsync` does.
fn copy(disk: &FileSystem, chance: &Chance) -> NfsResult<FileSystem> {
    let mut copy = FileSystem::new(other_options(disk.options(), chance));
    // A directory is found before what is in it.
    let mut copies: BTreeMap<Ino, Ino> = [(disk.root(), copy.root())].into();
    for found in disk.walk(disk.root()) {
        // The root, and further names of a file, have been copied already.
        if copies.contains_key(&found.ino) {
            continue;
        }
        let Some((parent, name)) = found.inode.names.first() else {
            continue;
        };
        let Some(parent) = copies.get(parent).copied() else {
            continue;
        };
        let kind = match &found.inode.kind {
            Kind::Directory(_) => Kind::Directory(Directory::new(parent)),
            Kind::Regular(_) => Kind::Regular(Content::default()),
            other => other.clone(),
        };
        let set = AttributeChanges {
            mode: Some(found.inode.mode),
            uid: Some(found.inode.uid),
            gid: Some(found.inode.gid),
            ..AttributeChanges::default()
        };
        let ino = copy.create(&Caller::ROOT, parent, name, kind, set)?;
        if let Some(content) = found.inode.content() {
            copy.write(&Caller::ROOT, ino, 0, &content.bytes())?;
        }
        copies.insert(found.ino, ino);
    }
    copy.take_mutations();
    Ok(copy)
}

/// Returns the beacon on a disk.
pub fn beacon(disk: &FileSystem) -> Option<String> {
    let found = disk.walk(disk.root());
    let file = found
        .iter()
        .find(|found| found.path.starts_with(b".nfs-operator/") && found.path.ends_with(b"/beacon"))?;
    let content: Value = serde_json::from_slice(&file.inode.content()?.bytes()).ok()?;
    Some(text(&content, "/beacon").to_owned())
}
