//! Lookups: the export's root, names in a directory, attributes, statistics.

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply};
use super::constants::attribute;
use super::constants::op;
use super::readdir::{list_begin, listed};
use crate::address::path_components;
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::{Attributes, FileHandle, FileKind, FileRef, FsStat, ListedWalk, Name, NfsError, Status};

/// Operations per name of a walk: LOOKUP, GETFH, GETATTR.
const OPERATIONS_PER_NAME: usize = 3;

const TO_ROOT: &str = "looking up the export's path";
const WALK: &str = "looking up a path";
const STATISTICS: &str = "reading file system statistics";

/// Start of a walk.
#[derive(Clone, Copy)]
enum Start<'a> {
    ServerRoot,
    At(&'a FileHandle),
}

/// Result of a walk.
struct WalkResult {
    nodes: Vec<FileRef>,
    /// Status that stopped the walk before its end.
    stopped: Option<Status>,
}

impl Client {
    /// Walks from the server's root to the export's root directory.
    pub async fn root(&self, options: CallOptions) -> Result<FileRef, NfsError> {
        let path = &self.manager.target.path;
        let names = path_components(path).map_err(|error| self.export_not_found(&error.to_string()))?;
        if names.is_empty() {
            return self.server_root(options).await;
        }
        let mut nodes: Vec<FileRef> = Vec::with_capacity(names.len());
        let walked = self.walk_names(TO_ROOT, Start::ServerRoot, &names, options).await?;
        nodes.extend(walked.nodes);
        let component = |index: usize| names.get(index).map(ToString::to_string).unwrap_or_default();
        let path = || path.clone();
        for (index, node) in nodes.iter().enumerate() {
            match node.attributes.kind {
                FileKind::Directory => {}
                FileKind::Symlink => {
                    return Err(NfsError::SymlinkInPath {
                        path: path(),
                        component: component(index),
                    });
                }
                _ => {
                    return Err(NfsError::NotADirectory {
                        path: path(),
                        component: component(index),
                    });
                }
            }
        }
        match (walked.stopped, nodes.pop()) {
            (None, Some(root)) => Ok(root),
            (Some(Status::NotDirectory), last) => {
                let index = nodes.len() + usize::from(last.is_some());
                Err(NfsError::NotADirectory {
                    path: path(),
                    component: component(index),
                })
            }
            (stopped, last) => {
                let index = nodes.len() + usize::from(last.is_some());
                Err(self.walk_error(stopped.unwrap_or(Status::NotFound), &component(index)))
            }
        }
    }

    async fn server_root(&self, options: CallOptions) -> Result<FileRef, NfsError> {
        let mut compound = Compound::new(TO_ROOT);
        compound.op(op::PUTROOTFH);
        compound.file_ref();
        let mut reply = self.call(options, &compound).await?;
        let node = reply.op(op::PUTROOTFH).and_then(|()| reply.file_ref());
        match split_status(node)? {
            Ok(node) => Ok(node),
            Err(status) => Err(self.walk_error(status, "/")),
        }
    }

    /// Returns the error for a walk to the export's root that was stopped at a component.
    fn walk_error(&self, status: Status, component: &str) -> NfsError {
        let path = self.manager.target.path.clone();
        match status {
            Status::NotFound => self.export_not_found(component),
            Status::Symlink => NfsError::SymlinkInPath {
                path,
                component: component.to_owned(),
            },
            Status::Moved => NfsError::ExportMoved { path },
            Status::WrongSecurity => NfsError::SecurityFlavor {
                action: TO_ROOT,
                cause: format!("NFS4ERR_WRONGSEC at {component:?}"),
            },
            Status::Access | Status::NotPermitted => {
                let (local, reserved_port) = self.local_address();
                NfsError::AccessDenied {
                    action: TO_ROOT,
                    local,
                    reserved_port,
                }
            }
            status => NfsError::Status {
                action: TO_ROOT,
                status,
            },
        }
    }

    fn export_not_found(&self, component: &str) -> NfsError {
        let (local, reserved_port) = self.local_address();
        let path = self.manager.target.path.clone();
        NfsError::ExportNotFound {
            path,
            missing: component.to_owned(),
            local,
            reserved_port,
        }
    }

    /// Returns the local address of the newest connection, and whether its port is below 1024.
    fn local_address(&self) -> (std::net::SocketAddr, bool) {
        let negotiated = self.negotiated();
        (negotiated.local, negotiated.reserved_port)
    }

    /// Reads the attributes of an object.
    pub async fn attributes(&self, object: &FileHandle, options: CallOptions) -> Result<Attributes, NfsError> {
        let mut compound = Compound::new("reading attributes");
        compound.at(object).attributes(attributes::FILE_ATTRIBUTES);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.file_attributes()
    }

    /// Looks up a name.
    pub async fn lookup(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<Option<FileRef>, NfsError> {
        let names = std::slice::from_ref(name);
        let walked = self.walk_names(action, Start::At(directory), names, options).await?;
        match walked.stopped {
            None | Some(Status::NotFound) => Ok(walked.nodes.into_iter().next()),
            Some(status) => Err(NfsError::Status { action, status }),
        }
    }

    /// Walks down `names`; returns the objects that exist.
    pub async fn walk(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Vec<FileRef>, NfsError> {
        let walked = self.walk_names(WALK, Start::At(directory), names, options).await?;
        match walked.stopped {
            None | Some(Status::NotFound) => Ok(walked.nodes),
            Some(status) => Err(NfsError::Status { action: WALK, status }),
        }
    }

    /// Walks down `names`, and lists the first entries of the directory in which the last one is looked up, in one
    /// compound. Returns `None` if the server did not do all of that: then the caller does it step by step.
    pub async fn walk_and_list(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Option<ListedWalk>, NfsError> {
        let Some((last, above)) = names.split_last() else {
            return Ok(None);
        };
        let mut compound = Compound::new(WALK);
        compound.at(directory);
        for name in above {
            compound.lookup(name).file_ref();
        }
        list_begin(&mut compound);
        compound.lookup(last).file_ref();
        if compound.count() > self.max_operations() {
            return Ok(None);
        }
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        let mut nodes = Vec::with_capacity(names.len());
        for _ in above {
            match split_status(found(&mut reply))? {
                Ok(node) => nodes.push(node),
                Err(Status::NotFound) => return Ok(Some(ListedWalk { nodes, entries: None })),
                Err(_) => return Ok(None),
            }
        }
        let Ok(page) = split_status(listed(&mut reply))? else {
            return Ok(None);
        };
        match split_status(found(&mut reply))? {
            Ok(node) => nodes.push(node),
            Err(Status::NotFound) => {}
            Err(_) => return Ok(None),
        }
        Ok(Some(ListedWalk {
            nodes,
            entries: Some(page),
        }))
    }

    async fn walk_names(
        &self,
        action: &'static str,
        start: Start<'_>,
        names: &[Name],
        options: CallOptions,
    ) -> Result<WalkResult, NfsError> {
        let mut nodes: Vec<FileRef> = Vec::with_capacity(names.len());
        'walk: while let Some(rest) = names.get(nodes.len()..).filter(|rest| !rest.is_empty()) {
            let room = (self.max_operations().saturating_sub(1) / OPERATIONS_PER_NAME).max(1);
            let mut compound = Compound::new(action);
            let from = match (nodes.last(), start) {
                (Some(node), _) => Start::At(&node.handle),
                (None, start) => start,
            };
            let first = match from {
                Start::ServerRoot => {
                    compound.op(op::PUTROOTFH);
                    op::PUTROOTFH
                }
                Start::At(handle) => {
                    compound.at(handle);
                    op::PUTFH
                }
            };
            let requested = rest.len().min(room);
            for name in rest.iter().take(room) {
                compound.lookup(name).file_ref();
            }
            let mut reply = self.call(options, &compound).await?;
            if reply.is_rejected_as_too_large() {
                self.reduce_max_operations(&compound)?;
                continue;
            }
            match split_status(reply.op(first))? {
                Ok(()) => {}
                // The start directory no longer exists: that is not a missing name.
                Err(status) if matches!(start, Start::At(_)) => return Err(NfsError::Status { action, status }),
                Err(status) => {
                    return Ok(WalkResult {
                        nodes,
                        stopped: Some(status),
                    });
                }
            }
            for _ in 0..requested {
                match split_status(found(&mut reply))? {
                    Ok(node) => nodes.push(node),
                    Err(_) if reply.is_too_large() => {
                        self.reduce_max_operations(&compound)?;
                        continue 'walk;
                    }
                    Err(status) => {
                        return Ok(WalkResult {
                            nodes,
                            stopped: Some(status),
                        });
                    }
                }
            }
        }
        Ok(WalkResult { nodes, stopped: None })
    }

    /// Reads space and inodes at the export's root.
    pub async fn statistics(&self, options: CallOptions) -> Result<FsStat, NfsError> {
        if let Some(statistics) = self.statistics_of_path(options).await? {
            return Ok(statistics);
        }
        // Step by step, which reports what is in the way.
        let root = self.root(options).await?;
        let mut compound = Compound::new(STATISTICS);
        compound.at(&root.handle).attributes(attributes::STATISTICS);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        Ok(reply.attributes()?.statistics())
    }

    /// Looks up the export's path and reads the statistics there, in one compound. Returns `None` if the server did not do
    /// all of that, or if the path does not lead to a directory.
    async fn statistics_of_path(&self, options: CallOptions) -> Result<Option<FsStat>, NfsError> {
        let Ok(names) = path_components(&self.manager.target.path) else {
            return Ok(None);
        };
        let mut compound = Compound::new(STATISTICS);
        compound.op(op::PUTROOTFH);
        for name in &names {
            compound.lookup(name);
        }
        compound.attributes(&[&[attribute::TYPE], attributes::STATISTICS].concat());
        if compound.count() > self.max_operations() {
            return Ok(None);
        }
        let mut reply = self.call(options, &compound).await?;
        let mut read = || {
            reply.op(op::PUTROOTFH)?;
            names.iter().try_for_each(|_| reply.op(op::LOOKUP))?;
            reply.attributes()
        };
        let found = split_status(read())?.ok();
        let directory = found.filter(|found| found.kind == Some(FileKind::Directory));
        Ok(directory.map(|found| found.statistics()))
    }

    /// Reads whether different handles are always those of different objects.
    pub async fn has_unique_handles(&self, options: CallOptions) -> Result<bool, NfsError> {
        let root = self.root(options).await?;
        let mut compound = Compound::new("reading whether handles are unique");
        compound.at(&root.handle).attributes(&[attribute::UNIQUE_HANDLES]);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        Ok(reply.attributes()?.unique_handles.unwrap_or(false))
    }
}

fn found(reply: &mut Reply) -> Result<FileRef, NfsError> {
    reply.op(op::LOOKUP)?;
    reply.file_ref()
}
