//! MOUNT: from the export's path to its root's handle (RFC 1813 appendix I).

use std::net::SocketAddr;

use tokio::time::{Instant, timeout_at};

use super::attributes::LONGEST_HANDLE;
use super::call::{ask, senseless};
use super::client::Client;
use super::numbers::{EXPORT, MNT};
use super::rpcbind;
use super::status::status;
use crate::address::{AddressError, path_components};
use crate::rpc::connection::Connection;
use crate::terms::CallOptions;
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{FileHandle, FileKind, Name, NfsError, Status};

pub(super) const MOUNT: &str = "mounting the export (MNT)";

/// How long MOUNT's answer is kept. A burst of calls asks once, and every probe asks anew: that is how a disk that was
/// unmounted below the export is noticed.
const KEPT: std::time::Duration = std::time::Duration::from_secs(5);

/// MNTPATHLEN: the longest path that MOUNT takes, in bytes.
const LONGEST_PATH: usize = 1024;
/// MNTNAMLEN: the longest name of a group.
const LONGEST_GROUP: usize = 255;
/// The most exports, and groups of all exports, that we read of a list.
const MOST_EXPORTS: usize = 65_536;
/// AUTH_SYS in the list of flavours.
const AUTH_SYS: u32 = 1;

/// MOUNT's answer.
#[derive(Debug, Clone)]
pub(super) struct Mounted {
    root: FileHandle,
    at: Instant,
    /// The connection that it was for: after another one it is asked again.
    generation: u64,
}

impl Client {
    /// The root's handle as MOUNT says it, now or a moment ago.
    pub(super) async fn mount(&self, terms: CallOptions) -> Result<FileHandle, NfsError> {
        let late = NfsError::NotResponding {
            action: MOUNT,
            after: terms.deadline.saturating_duration_since(Instant::now()),
            outcome_unknown: false,
        };
        let mut mounted = timeout_at(terms.deadline, self.shared.mounted.lock())
            .await
            .map_err(|_| late)?;
        // Whoever is at the other end now, NFS and MOUNT shall be of the same server.
        let connection = self.shared.ready(MOUNT, terms.deadline, true).await?;
        let generation = self.shared.generation.load(std::sync::atomic::Ordering::Relaxed);
        if let Some(known) = &*mounted
            && known.generation == generation
            && known.at.elapsed() < KEPT
        {
            return Ok(known.root.clone());
        }
        let root = self.ask_for_root(connection.peer(), terms).await?;
        *mounted = Some(Mounted {
            root: root.clone(),
            at: Instant::now(),
            generation,
        });
        Ok(root)
    }

    /// The handle was refused: it is asked for anew.
    pub(super) async fn unmount(&self) {
        *self.shared.mounted.lock().await = None;
    }

    async fn ask_for_root(&self, server: SocketAddr, terms: CallOptions) -> Result<FileHandle, NfsError> {
        let port = match self.shared.target.mount_port {
            Some(port) => port,
            None => rpcbind::mount_port(server, terms.deadline).await?,
        };
        let peer = SocketAddr::new(server.ip(), port);
        let connection = rpcbind::open(peer, self.shared.target.source_port, MOUNT, terms.deadline).await?;
        let path = &self.shared.target.path;
        let argument = argument(path).map_err(|error| NfsError::ExportNotFound {
            path: path.clone(),
            missing: error.to_string(),
            local: connection.local(),
            reserved_port: connection.local().port() < 1024,
        })?;
        match mnt(&connection, &argument, terms).await? {
            Ok(root) => Ok(root),
            Err(refusal) => Err(self.explain(&connection, refusal, terms).await),
        }
    }
}

/// MNT's argument for the path of an export, if it is one: a `..` in it would be the server's to resolve.
fn argument(path: &str) -> Result<Encoder, AddressError> {
    path_components(path)?;
    Ok(dirpath(path))
}

/// `dirpath`, as it is.
fn dirpath(path: &str) -> Encoder {
    let mut argument = Encoder::new();
    argument.opaque(path.as_bytes());
    argument
}

/// The handle of a path, or the status that refuses it.
async fn mnt(connection: &Connection, path: &Encoder, terms: CallOptions) -> Result<Result<FileHandle, u32>, NfsError> {
    let mut results = ask(connection, MOUNT, MNT, terms.credential, path, terms.deadline).await?;
    let answer = read_mnt(&mut results).map_err(|error| senseless(MOUNT, &error))?;
    match answer {
        // An empty list says nothing (RFC 2623 section 2.7 leaves it to the server).
        Ok((_, flavours)) if !flavours.is_empty() && !flavours.contains(&AUTH_SYS) => Err(NfsError::SecurityFlavor {
            action: MOUNT,
            cause: format!("it offers flavours {flavours:?}"),
        }),
        Ok((root, _)) => Ok(Ok(root)),
        Err(code) => Ok(Err(code)),
    }
}

pub(super) fn read_mnt(results: &mut Decoder) -> Result<Result<(FileHandle, Vec<u32>), u32>, XdrError> {
    match results.u32("status")? {
        0 => {}
        code => return Ok(Err(code)),
    }
    let root = results.opaque("file handle", LONGEST_HANDLE)?;
    let count = results.count("flavours", 4)?;
    let flavours = (0..count).map(|_| results.u32("flavour")).collect::<Result<_, _>>()?;
    Ok(Ok((FileHandle(bytes::Bytes::copy_from_slice(&root)), flavours)))
}

/// The paths that the server exports, to whomever.
async fn exports(connection: &Connection, terms: CallOptions) -> Result<Vec<String>, NfsError> {
    const ACTION: &str = "asking for the exports (EXPORT)";
    let nothing = Encoder::new();
    let mut results = ask(connection, ACTION, EXPORT, terms.credential, &nothing, terms.deadline).await?;
    read_exports(&mut results).map_err(|error| senseless(ACTION, &error))
}

pub(super) fn read_exports(results: &mut Decoder) -> Result<Vec<String>, XdrError> {
    let mut paths = Vec::new();
    let mut items = 0;
    let mut follows = |results: &mut Decoder| {
        items += 1;
        let length = items;
        let follows = results.boolean("list goes on")?;
        if follows && length > MOST_EXPORTS {
            return Err(XdrError::TooLong {
                what: "list of exports",
                length,
                limit: MOST_EXPORTS,
            });
        }
        Ok(follows)
    };
    while follows(results)? {
        let path = results.opaque("export's path", LONGEST_PATH)?;
        paths.push(String::from_utf8_lossy(&path).into_owned());
        while follows(results)? {
            results.opaque("group", LONGEST_GROUP)?;
        }
    }
    Ok(paths)
}

/// The components of a path that lead from an export to `path`; none unless it lies strictly inside.
pub(super) fn below<'a>(path: &'a str, export: &str) -> Option<Vec<&'a str>> {
    let segments = |path: &'a str| path.split('/').filter(|segment| !segment.is_empty());
    let mut rest = segments(path);
    for segment in export.split('/').filter(|segment| !segment.is_empty()) {
        if rest.next()? != segment {
            return None;
        }
    }
    let rest: Vec<_> = rest.collect();
    (!rest.is_empty()).then_some(rest)
}

impl Client {
    /// What a refusal by MOUNT means, with the help of the server's list of exports.
    async fn explain(&self, connection: &Connection, code: u32, terms: CallOptions) -> NfsError {
        let path = &self.shared.target.path;
        let (local, reserved_port) = (connection.local(), connection.local().port() < 1024);
        let status = status(code);
        // A server may keep its list to itself: then the refusal alone has to do.
        let exports = exports(connection, terms).await.unwrap_or_default();
        let closest = exports
            .iter()
            .filter_map(|export| below(path, export).map(|rest| (export, rest)))
            .min_by_key(|(_, rest)| rest.len());
        let itself = exports.iter().any(|export| same(export, path));
        if let (Some((export, rest)), false) = (closest, itself)
            && let Some(error) = self.explain_below(connection, export, &rest, terms).await
        {
            return error;
        }
        let not_found = || NfsError::ExportNotFound {
            path: path.clone(),
            missing: path.clone(),
            local,
            reserved_port,
        };
        match status {
            Status::NotFound => not_found(),
            // To others too, as far as the list tells; where there is none, the refusal is what we know.
            Status::Access if !itself && !exports.is_empty() && reserved_port => not_found(),
            Status::Access | Status::NotPermitted => NfsError::AccessDenied {
                action: MOUNT,
                local,
                reserved_port,
            },
            Status::NotDirectory => NfsError::NotADirectory {
                path: path.clone(),
                component: path.rsplit('/').next().unwrap_or_default().to_owned(),
            },
            status => NfsError::Status { action: MOUNT, status },
        }
    }

    /// What stands in the way between an export and the path below it; none when the export can't be entered either.
    async fn explain_below(
        &self,
        connection: &Connection,
        export: &str,
        rest: &[&str],
        terms: CallOptions,
    ) -> Option<NfsError> {
        // In the words of the server itself.
        let root = mnt(connection, &dirpath(export), terms).await.ok()?.ok()?;
        Some(match self.walk_below(&root, rest, terms).await {
            Ok(()) => NfsError::SubdirectoryMountRefused {
                path: self.shared.target.path.clone(),
                export: export.to_owned(),
            },
            Err(error) => error,
        })
    }

    /// Walks down from an export's root, and says what is missing or no directory.
    async fn walk_below(&self, root: &FileHandle, rest: &[&str], terms: CallOptions) -> Result<(), NfsError> {
        let negotiated = self.negotiated();
        let mut directory = root.clone();
        for segment in rest {
            let path = self.shared.target.path.clone();
            let component = (*segment).to_owned();
            let missing = || NfsError::ExportNotFound {
                path: path.clone(),
                missing: component.clone(),
                local: negotiated.local,
                reserved_port: negotiated.reserved_port,
            };
            // `..` is not looked up, here as anywhere.
            let name = Name::new(segment.as_bytes().to_vec()).map_err(|_| missing())?;
            let found = self.look_up(MOUNT, &directory, &name, terms).await?;
            let found = found.ok_or_else(missing)?;
            directory = match found.attributes.kind {
                FileKind::Directory => found.handle,
                FileKind::Symlink => return Err(NfsError::SymlinkInPath { path, component }),
                _ => return Err(NfsError::NotADirectory { path, component }),
            };
        }
        Ok(())
    }
}

/// Whether two paths have the same segments.
fn same(one: &str, other: &str) -> bool {
    let segments = |path: &str| {
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        segments.map(str::to_owned).collect::<Vec<_>>()
    };
    segments(one) == segments(other)
}

/// Whether a path is one that MOUNT is asked for.
#[cfg(any(test, feature = "fuzzing"))]
pub fn mounts(path: &str) -> bool {
    argument(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_below_an_export_by_whole_segments() {
        assert_eq!(below("/a/b/c", "/a"), Some(vec!["b", "c"]));
        assert_eq!(below("/a//b/", "/a/"), Some(vec!["b"]));
        assert_eq!(below("/a", "/"), Some(vec!["a"]));
        assert_eq!(below("/a", "/a"), None);
        assert_eq!(below("/ab", "/a"), None);
        assert_eq!(below("/a", "/a/b"), None);
        assert!(same("/a/b/", "/a/b") && !same("/a/b", "/a"));
    }

    #[test]
    fn a_list_of_exports_is_read_and_an_endless_one_is_not() {
        let mut list = Encoder::new();
        list.boolean(true)
            .opaque(b"/a")
            .boolean(true)
            .opaque(b"10.0.0.0/8")
            .boolean(false);
        list.boolean(true).opaque(b"/b").boolean(false).boolean(false);
        let mut results = Decoder::new(list.into_bytes().into());
        assert_eq!(read_exports(&mut results), Ok(vec!["/a".to_owned(), "/b".to_owned()]));
        let mut list = Encoder::new();
        for _ in 0..70_000 {
            list.boolean(true).opaque(b"").boolean(false);
        }
        let mut results = Decoder::new(list.into_bytes().into());
        assert!(matches!(read_exports(&mut results), Err(XdrError::TooLong { .. })));
    }

    #[test]
    fn a_handle_and_its_flavours_are_read_within_limits() {
        let mut answer = Encoder::new();
        answer.u32(0).opaque(b"handle").u32(2).u32(390_003).u32(1);
        let read = read_mnt(&mut Decoder::new(answer.into_bytes().into()));
        assert_eq!(
            read,
            Ok(Ok((FileHandle(bytes::Bytes::from_static(b"handle")), vec![390_003, 1])))
        );
        let mut answer = Encoder::new();
        answer.u32(0).opaque(&[7; 65]).u32(0);
        assert!(read_mnt(&mut Decoder::new(answer.into_bytes().into())).is_err());
        let mut answer = Encoder::new();
        answer.u32(0).opaque(b"handle").u32(u32::MAX);
        assert!(read_mnt(&mut Decoder::new(answer.into_bytes().into())).is_err());
    }
}
