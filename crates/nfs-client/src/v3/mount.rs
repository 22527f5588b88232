//! MOUNT: from the export's path to the handle of its root (RFC 1813 appendix I).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::attributes::MAX_HANDLE;
use super::call::call_once;
use super::client::Client;
use super::constants::{EXPORT, MNT};
use super::rpcbind;
use super::status::status;
use crate::address::{AddressError, path_components};
use crate::auth::AUTH_SYS;
use crate::call_options::CallOptions;
use crate::connection_manager::RetryPolicy;
use crate::rpc::call::protocol_error;
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{FileHandle, FileKind, Name, NfsError, Status};

pub(super) const MOUNT: &str = "mounting the export (MNT)";

/// How long a root handle is cached. A burst of calls sends one MNT, and calls further apart send one each, so that a disk
/// that was unmounted below the export is detected.
const ROOT_CACHE_TIME: Duration = Duration::from_secs(5);

/// MNTPATHLEN: maximum length of a path in MOUNT, in bytes.
const MAX_PATH: usize = 1024;
/// MNTNAMLEN: maximum length of a group's name, in bytes.
const MAX_GROUP: usize = 255;
/// Maximum number of exports, and of groups of all exports, that are read of a list.
const MAX_EXPORTS: usize = 65_536;

/// The root handle that MNT returned.
#[derive(Debug, Clone)]
pub struct CachedRoot {
    root: FileHandle,
    received: Instant,
    /// Generation of the connection: MNT is sent again on the next one.
    generation: u64,
}

impl Client {
    /// Returns the handle of the export's root, from MNT or from the cache.
    pub(super) async fn root_handle(&self, options: CallOptions) -> Result<FileHandle, NfsError> {
        let _demand = self.manager.demand();
        let not_responding = NfsError::NotResponding {
            action: MOUNT,
            after: options.deadline.saturating_duration_since(Instant::now()),
            outcome_unknown: false,
        };
        let mut cached = timeout_at(options.deadline, self.manager.version.root.lock())
            .await
            .map_err(|_| not_responding)?;
        // MOUNT must reach the same server as NFS: use the address of the NFS connection.
        let (_, connection) = self
            .manager
            .ready(MOUNT, options.deadline, RetryPolicy::UntilDeadline)
            .await?;
        let generation = self.manager.generation();
        if let Some(cached) = &*cached
            && cached.generation == generation
            && cached.received.elapsed() < ROOT_CACHE_TIME
        {
            return Ok(cached.root.clone());
        }
        let root = self.request_root_handle(connection.peer(), options).await?;
        *cached = Some(CachedRoot {
            root: root.clone(),
            received: Instant::now(),
            generation,
        });
        Ok(root)
    }

    /// Drops a cached root handle that the server refused.
    pub(super) async fn clear_root_handle(&self) {
        *self.manager.version.root.lock().await = None;
    }

    async fn request_root_handle(&self, server: SocketAddr, options: CallOptions) -> Result<FileHandle, NfsError> {
        let target = &self.manager.target;
        let port = match target.mount_port {
            Some(port) => port,
            None => rpcbind::mount_port(&self.manager, server.ip(), options.deadline).await?,
        };
        let connection = self
            .manager
            .open(&server.ip().to_string(), port, target.source_port, options.deadline)
            .await?;
        let argument = mount_argument(&target.path).map_err(|error| NfsError::ExportNotFound {
            path: target.path.clone(),
            missing: error.to_string(),
            local: connection.local(),
            reserved_port: connection.has_reserved_port(),
        })?;
        match mnt(&connection, &argument, options).await? {
            Ok(root) => Ok(root),
            Err(refusal) => Err(self.mount_error(&connection, refusal, options).await),
        }
    }

    /// Returns the error for a refusal of MNT, derived from the server's list of exports.
    async fn mount_error(&self, connection: &Connection, code: u32, options: CallOptions) -> NfsError {
        let path = &self.manager.target.path;
        let (local, reserved_port) = (connection.local(), connection.has_reserved_port());
        let status = status(code);
        // A server may hide its list: then the status decides.
        let exports = exports(connection, options).await.unwrap_or_default();
        let closest = exports
            .iter()
            .filter_map(|export| components_below(path, export).map(|rest| (export, rest)))
            .min_by_key(|(_, rest)| rest.len());
        let is_exported = exports.iter().any(|export| is_same_path(export, path));
        if let (Some((export, rest)), false) = (closest, is_exported)
            && let Some(error) = self.mount_error_below(connection, export, &rest, options).await
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
            // According to the list, no client may mount it. Without a list, only the refusal is known.
            Status::Access if !is_exported && !exports.is_empty() && reserved_port => not_found(),
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

    /// Returns the error for a path below an export; `None` if the export cannot be mounted either.
    async fn mount_error_below(
        &self,
        connection: &Connection,
        export: &str,
        rest: &[&str],
        options: CallOptions,
    ) -> Option<NfsError> {
        // The export's path exactly as the server lists it.
        let root = mnt(connection, &dirpath(export), options).await.ok()?.ok()?;
        Some(match self.walk_below(&root, rest, options).await {
            Ok(()) => NfsError::SubdirectoryMountRefused {
                path: self.manager.target.path.clone(),
                export: export.to_owned(),
            },
            Err(error) => error,
        })
    }

    /// Walks down from an export's root; fails at a component that is missing or no directory.
    async fn walk_below(&self, root: &FileHandle, rest: &[&str], options: CallOptions) -> Result<(), NfsError> {
        let negotiated = self.negotiated();
        let mut directory = root.clone();
        for segment in rest {
            let path = self.manager.target.path.clone();
            let component = (*segment).to_owned();
            let missing = || NfsError::ExportNotFound {
                path: path.clone(),
                missing: component.clone(),
                local: negotiated.local,
                reserved_port: negotiated.reserved_port,
            };
            // `..` is never looked up.
            let name = Name::new(segment.as_bytes().to_vec()).map_err(|_| missing())?;
            let found = self.lookup(MOUNT, &directory, &name, options).await?;
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

/// Returns the argument of MNT for the path of an export, unless it is invalid: the server would resolve a `..` in it.
fn mount_argument(path: &str) -> Result<Encoder, AddressError> {
    path_components(path)?;
    Ok(dirpath(path))
}

/// Encodes `dirpath`.
fn dirpath(path: &str) -> Encoder {
    let mut argument = Encoder::new();
    argument.opaque(path.as_bytes());
    argument
}

/// Sends MNT; returns the handle, or the status of the refusal.
async fn mnt(
    connection: &Connection,
    path: &Encoder,
    options: CallOptions,
) -> Result<Result<FileHandle, u32>, NfsError> {
    let mut results = call_once(connection, MOUNT, MNT, options.credential, path, options.deadline).await?;
    let result = decode_mnt(&mut results).map_err(|error| protocol_error(MOUNT, &error))?;
    match result {
        // An empty list has no meaning (RFC 2623 section 2.7 leaves it to the server).
        Ok((_, flavors)) if !flavors.is_empty() && !flavors.contains(&AUTH_SYS) => Err(NfsError::SecurityFlavor {
            action: MOUNT,
            cause: format!("offered flavors: {flavors:?}"),
        }),
        Ok((root, _)) => Ok(Ok(root)),
        Err(code) => Ok(Err(code)),
    }
}

pub(super) fn decode_mnt(results: &mut Decoder) -> Result<Result<(FileHandle, Vec<u32>), u32>, XdrError> {
    match results.u32("status")? {
        0 => {}
        code => return Ok(Err(code)),
    }
    let root = results.opaque("file handle", MAX_HANDLE)?;
    let count = results.count("flavors", 4)?;
    let flavors = (0..count).map(|_| results.u32("flavor")).collect::<Result<_, _>>()?;
    Ok(Ok((FileHandle(bytes::Bytes::copy_from_slice(&root)), flavors)))
}

/// Returns the paths that the server exports, to any client.
async fn exports(connection: &Connection, options: CallOptions) -> Result<Vec<String>, NfsError> {
    const ACTION: &str = "listing the exports (EXPORT)";
    let nothing = Encoder::new();
    let mut results = call_once(
        connection,
        ACTION,
        EXPORT,
        options.credential,
        &nothing,
        options.deadline,
    )
    .await?;
    decode_exports(&mut results).map_err(|error| protocol_error(ACTION, &error))
}

pub(super) fn decode_exports(results: &mut Decoder) -> Result<Vec<String>, XdrError> {
    let mut paths = Vec::new();
    let mut items = 0;
    let mut follows = |results: &mut Decoder| {
        items += 1;
        let length = items;
        let follows = results.boolean("value follows")?;
        if follows && length > MAX_EXPORTS {
            return Err(XdrError::TooLong {
                what: "list of exports",
                length,
                limit: MAX_EXPORTS,
            });
        }
        Ok(follows)
    };
    while follows(results)? {
        let path = results.opaque("export's path", MAX_PATH)?;
        paths.push(String::from_utf8_lossy(&path).into_owned());
        while follows(results)? {
            results.opaque("group", MAX_GROUP)?;
        }
    }
    Ok(paths)
}

/// Returns the components that lead from an export to `path`; `None` unless the path lies strictly below the export.
pub(super) fn components_below<'a>(path: &'a str, export: &str) -> Option<Vec<&'a str>> {
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

/// Whether two paths have the same segments.
fn is_same_path(one: &str, other: &str) -> bool {
    let segments = |path: &str| {
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        segments.map(str::to_owned).collect::<Vec<_>>()
    };
    segments(one) == segments(other)
}

/// Whether MNT is sent for this path.
#[cfg(any(test, feature = "fuzzing"))]
pub fn mounts(path: &str) -> bool {
    mount_argument(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_below_an_export_by_whole_segments() {
        assert_eq!(components_below("/a/b/c", "/a"), Some(vec!["b", "c"]));
        assert_eq!(components_below("/a//b/", "/a/"), Some(vec!["b"]));
        assert_eq!(components_below("/a", "/"), Some(vec!["a"]));
        assert_eq!(components_below("/a", "/a"), None);
        assert_eq!(components_below("/ab", "/a"), None);
        assert_eq!(components_below("/a", "/a/b"), None);
        assert!(is_same_path("/a/b/", "/a/b") && !is_same_path("/a/b", "/a"));
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
        assert_eq!(decode_exports(&mut results), Ok(vec!["/a".to_owned(), "/b".to_owned()]));
        let mut list = Encoder::new();
        for _ in 0..70_000 {
            list.boolean(true).opaque(b"").boolean(false);
        }
        let mut results = Decoder::new(list.into_bytes().into());
        assert!(matches!(decode_exports(&mut results), Err(XdrError::TooLong { .. })));
    }

    #[test]
    fn a_handle_and_its_flavors_are_read_within_limits() {
        let mut answer = Encoder::new();
        answer.u32(0).opaque(b"handle").u32(2).u32(390_003).u32(1);
        let read = decode_mnt(&mut Decoder::new(answer.into_bytes().into()));
        assert_eq!(
            read,
            Ok(Ok((FileHandle(bytes::Bytes::from_static(b"handle")), vec![390_003, 1])))
        );
        let mut answer = Encoder::new();
        answer.u32(0).opaque(&[7; 65]).u32(0);
        assert!(decode_mnt(&mut Decoder::new(answer.into_bytes().into())).is_err());
        let mut answer = Encoder::new();
        answer.u32(0).opaque(b"handle").u32(u32::MAX);
        assert!(decode_mnt(&mut Decoder::new(answer.into_bytes().into())).is_err());
    }
}
