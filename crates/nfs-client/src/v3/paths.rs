//! Finding things: the export's root, names in a directory, attributes, limits.

use std::sync::PoisonError;

use super::attributes;
use super::call::{Call, Effect, Reply};
use super::client::{Client, Limits};
use super::mount::MOUNT;
use super::numbers::nfs;
use super::results;
use crate::error::refusal;
use crate::terms::CallOptions;
use crate::{Attributes, FileHandle, FileKind, FileRef, Name, NfsError, Statistics, Status};

const LOOK_UP: &str = "looking up a name";
const WALK: &str = "walking a path";

/// What a READ or WRITE carries at most: with its headers it stays below the longest record that we take.
const MOST_BYTES: u32 = 512 << 10;
/// NFSv3 servers take at least this many (RFC 1813 section 3.3.19 leaves it open; all known ones take 4,096).
const FEWEST_BYTES: u32 = 4096;

impl Client {
    /// The export's root directory.
    pub async fn root(&self, terms: CallOptions) -> Result<FileRef, NfsError> {
        let mut handle = self.mount(terms).await?;
        let attributes = match refusal(self.attributes(&handle, terms).await)? {
            Ok(attributes) => attributes,
            // What was exported under this path is gone; perhaps something else is there now.
            Err(Status::Stale) => {
                self.unmount().await;
                handle = self.mount(terms).await?;
                self.attributes(&handle, terms).await?
            }
            Err(status) => return Err(self.refused_root(status)),
        };
        if attributes.kind != FileKind::Directory {
            let path = self.shared.target.path.clone();
            let component = path.rsplit('/').next().unwrap_or_default().to_owned();
            return Err(NfsError::NotADirectory { path, component });
        }
        if self.limits() == Limits::UNKNOWN {
            self.ask_limits(&handle, terms).await?;
        }
        Ok(FileRef { handle, attributes })
    }

    /// What it means that the root that MOUNT gave us is refused.
    fn refused_root(&self, status: Status) -> NfsError {
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

    /// FSINFO and PATHCONF, at once.
    async fn ask_limits(&self, root: &FileHandle, terms: CallOptions) -> Result<(), NfsError> {
        const ACTION: &str = "asking for limits";
        let info = Call::new(ACTION, nfs::FSINFO, Effect::Looks).on(root);
        let conf = Call::new(ACTION, nfs::PATHCONF, Effect::Looks).on(root);
        let (info, conf) = tokio::try_join!(self.call(terms, &info), self.call(terms, &conf))?;
        let mut limits = Limits::UNKNOWN;
        if let Ok((read, write)) = refusal(sizes(info))? {
            limits.read = read.clamp(FEWEST_BYTES, MOST_BYTES);
            limits.write = write.clamp(FEWEST_BYTES, MOST_BYTES);
        }
        if let Ok(name) = refusal(longest_name(conf))? {
            // Some say 0 for "no idea".
            limits.name = if name == 0 {
                limits.name
            } else {
                (name as usize).min(limits.name)
            };
        }
        *self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        Ok(())
    }

    /// Refuses a name that the server might cut short (PATHCONF's `no_trunc` is not to be relied on).
    pub(super) fn fits(&self, action: &'static str, name: &Name) -> Result<(), NfsError> {
        if name.as_bytes().len() <= self.limits().name {
            return Ok(());
        }
        Err(NfsError::Status {
            action,
            status: Status::NameTooLong,
        })
    }

    /// Attributes of the object.
    pub async fn attributes(&self, object: &FileHandle, terms: CallOptions) -> Result<Attributes, NfsError> {
        let call = Call::new("reading attributes", nfs::GETATTR, Effect::Looks).on(object);
        let mut reply = self.call(terms, &call).await?;
        reply.ok()?;
        reply.take(attributes::read)
    }

    /// The entry of that name.
    pub async fn lookup(
        &self,
        directory: &FileHandle,
        name: &Name,
        terms: CallOptions,
    ) -> Result<Option<FileRef>, NfsError> {
        self.look_up(LOOK_UP, directory, name, terms).await
    }

    pub(super) async fn look_up(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        terms: CallOptions,
    ) -> Result<Option<FileRef>, NfsError> {
        let call = Call::new(action, nfs::LOOKUP, Effect::Looks).at(directory, name);
        let mut reply = self.call(terms, &call).await?;
        match refusal(reply.ok())? {
            Ok(()) => {}
            Err(Status::NotFound) => return Ok(None),
            Err(status) => return Err(NfsError::Status { action, status }),
        }
        let (handle, told) = reply.take(results::found)?;
        let attributes = match told {
            Some(attributes) => attributes,
            None => self.attributes(&handle, terms).await?,
        };
        Ok(Some(FileRef { handle, attributes }))
    }

    /// The nodes that `names` lead to, one after the other.
    pub async fn walk(
        &self,
        directory: &FileHandle,
        names: &[Name],
        terms: CallOptions,
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
            match self.look_up(WALK, below, name, terms).await? {
                Some(node) => nodes.push(node),
                None => break,
            }
        }
        Ok(nodes)
    }

    /// Space and inodes at the export's root.
    pub async fn statistics(&self, terms: CallOptions) -> Result<Statistics, NfsError> {
        let root = self.root(terms).await?;
        let call = Call::new("reading space and inodes", nfs::FSSTAT, Effect::Looks).on(&root.handle);
        let mut reply = self.call(terms, &call).await?;
        reply.ok()?;
        reply.take(results::statistics)
    }
}

/// The largest READ and WRITE.
fn sizes(mut reply: Reply) -> Result<(u32, u32), NfsError> {
    reply.ok()?;
    reply.take(results::sizes)
}

/// The longest name.
fn longest_name(mut reply: Reply) -> Result<u32, NfsError> {
    reply.ok()?;
    reply.take(results::longest_name)
}
