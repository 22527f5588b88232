//! Lookups: the export's root, names in a directory, attributes, limits, statistics.

use super::attributes;
use super::call::{Call, Effect, Reply};
use super::client::{Client, Limits};
use super::constants::nfs;
use super::mount::MOUNT;
use super::results;
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::{Attributes, FileHandle, FileKind, FileRef, FsStat, Name, NfsError, Status};

const WALK: &str = "looking up a path";

/// Maximum size of a READ or WRITE, in bytes: with its headers it is below the maximum size of a record.
const MAX_TRANSFER: u32 = 512 << 10;
/// Minimum size of a READ or WRITE, in bytes (RFC 1813 section 3.3.19 leaves it open; all known servers accept 4,096).
const MIN_TRANSFER: u32 = 4096;

impl Client {
    /// Returns the export's root directory.
    pub async fn root(&self, options: CallOptions) -> Result<FileRef, NfsError> {
        let mut handle = self.root_handle(options).await?;
        let attributes = match split_status(self.attributes(&handle, options).await)? {
            Ok(attributes) => attributes,
            // The exported directory was removed or replaced: look up its path again.
            Err(Status::Stale) => {
                self.clear_root_handle().await;
                handle = self.root_handle(options).await?;
                self.attributes(&handle, options).await?
            }
            Err(status) => return Err(self.root_error(status)),
        };
        if attributes.kind != FileKind::Directory {
            let path = self.manager.target.path.clone();
            let component = path.rsplit('/').next().unwrap_or_default().to_owned();
            return Err(NfsError::NotADirectory { path, component });
        }
        if self.limits() == Limits::UNKNOWN {
            self.fetch_limits(&handle, options).await?;
        }
        Ok(FileRef { handle, attributes })
    }

    /// Returns the error if NFS refuses the handle that MOUNT returned.
    fn root_error(&self, status: Status) -> NfsError {
        let negotiated = self.negotiated();
        match status {
            Status::Access | Status::NotPermitted => NfsError::AccessDenied {
                action: MOUNT,
                local: negotiated.local,
                reserved_port: negotiated.reserved_port,
            },
            status => NfsError::Status { action: MOUNT, status },
        }
    }

    /// Reads FSINFO and PATHCONF, concurrently.
    async fn fetch_limits(&self, root: &FileHandle, options: CallOptions) -> Result<(), NfsError> {
        const ACTION: &str = "reading the server's limits";
        let info = Call::new(ACTION, nfs::FSINFO, Effect::ReadOnly).on(root);
        let conf = Call::new(ACTION, nfs::PATHCONF, Effect::ReadOnly).on(root);
        let (info, conf) = tokio::try_join!(self.call(options, &info), self.call(options, &conf))?;
        let mut limits = Limits::UNKNOWN;
        if let Ok((read, write)) = split_status(sizes(info))? {
            limits.read = read.clamp(MIN_TRANSFER, MAX_TRANSFER);
            limits.write = write.clamp(MIN_TRANSFER, MAX_TRANSFER);
        }
        if let Ok(name) = split_status(name_max(conf))? {
            // Some servers report 0 for an unknown limit.
            limits.name = if name == 0 {
                limits.name
            } else {
                (name as usize).min(limits.name)
            };
        }
        *self.manager.version.limits.lock() = limits;
        Ok(())
    }

    /// Refuses a name that the server might truncate (`no_trunc` of PATHCONF is not reliable).
    pub(super) fn check_name_length(&self, action: &'static str, name: &Name) -> Result<(), NfsError> {
        if name.as_bytes().len() <= self.limits().name {
            return Ok(());
        }
        Err(NfsError::Status {
            action,
            status: Status::NameTooLong,
        })
    }

    /// Reads the attributes of an object.
    pub async fn attributes(&self, object: &FileHandle, options: CallOptions) -> Result<Attributes, NfsError> {
        let call = Call::new("reading attributes", nfs::GETATTR, Effect::ReadOnly).on(object);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        reply.take(attributes::read)
    }

    /// Looks up a name.
    pub async fn lookup(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<Option<FileRef>, NfsError> {
        let call = Call::new(action, nfs::LOOKUP, Effect::ReadOnly).at(directory, name);
        let mut reply = self.call(options, &call).await?;
        match split_status(reply.ok())? {
            Ok(()) => {}
            Err(Status::NotFound) => return Ok(None),
            Err(status) => return Err(NfsError::Status { action, status }),
        }
        let (handle, reported) = reply.take(results::lookup)?;
        let attributes = match reported {
            Some(attributes) => attributes,
            None => self.attributes(&handle, options).await?,
        };
        Ok(Some(FileRef { handle, attributes }))
    }

    /// Walks down `names`; returns the objects that exist.
    pub async fn walk(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Vec<FileRef>, NfsError> {
        let mut nodes: Vec<FileRef> = Vec::with_capacity(names.len());
        for name in names {
            let below = match nodes.last() {
                None => directory,
                Some(node) => match node.attributes.kind {
                    FileKind::Directory => &node.handle,
                    kind => {
                        let status = if kind == FileKind::Symlink {
                            Status::Symlink
                        } else {
                            Status::NotDirectory
                        };
                        return Err(NfsError::Status { action: WALK, status });
                    }
                },
            };
            match self.lookup(WALK, below, name, options).await? {
                Some(node) => nodes.push(node),
                None => break,
            }
        }
        Ok(nodes)
    }

    /// Reads space and inodes at the export's root.
    pub async fn statistics(&self, options: CallOptions) -> Result<FsStat, NfsError> {
        let root = self.root(options).await?;
        let call = Call::new("reading file system statistics", nfs::FSSTAT, Effect::ReadOnly).on(&root.handle);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        reply.take(results::statistics)
    }
}

/// Decodes the maximum READ and WRITE sizes.
fn sizes(mut reply: Reply) -> Result<(u32, u32), NfsError> {
    reply.ok()?;
    reply.take(results::sizes)
}

/// Decodes the maximum length of a name.
fn name_max(mut reply: Reply) -> Result<u32, NfsError> {
    reply.ok()?;
    reply.take(results::name_max)
}
