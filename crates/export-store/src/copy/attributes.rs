//! Copies attributes: mode, owner, times and user attributes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::copy::context::CopyContext;
use crate::copy::path::CopyPath;
use crate::copy::{CopyError, CopyProgress, Outcome};
use nfs_client::{Attributes, FileHandle, FullAttributes, SetAttributes, Status};

/// Copies attributes of files and directories.
pub(super) struct AttributeCopier {
    context: Arc<CopyContext>,
    /// Features that the servers lack, detected once for all files.
    no_source_xattrs: AtomicBool,
    no_target_xattrs: AtomicBool,
}

impl AttributeCopier {
    pub(super) fn new(context: &Arc<CopyContext>) -> Self {
        Self {
            context: Arc::clone(context),
            no_source_xattrs: AtomicBool::default(),
            no_target_xattrs: AtomicBool::default(),
        }
    }

    /// Copies the attributes of a file or directory, and sets the size if the written content ends before it.
    pub(super) async fn copy(
        &self,
        (from, to): (&FileHandle, &FileHandle),
        attributes: &FullAttributes,
        size: Option<u64>,
        path: CopyPath<'_>,
    ) -> Outcome {
        self.copy_xattrs(from, to, path).await?;
        let (uid, gid) = self.owner(attributes, path)?;
        let mode = attributes.attributes.mode;
        let set = SetAttributes {
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
            size,
            times: Some(attributes.times),
        };
        let now = self.context.target().set_attributes(to, set).await;
        let now = now.map_err(|error| CopyError::of_call(path, error))?;
        check_owner((uid, gid), &now, path)?;
        if now.mode != mode {
            CopyProgress::one(&self.context.progress.other_modes);
        }
        Ok(())
    }

    /// Copies the owner and the times of a symbolic link.
    pub(super) async fn copy_to_symlink(
        &self,
        to: &FileHandle,
        attributes: &FullAttributes,
        path: CopyPath<'_>,
    ) -> Outcome {
        let (uid, gid) = self.owner(attributes, path)?;
        let set = SetAttributes {
            uid: Some(uid),
            gid: Some(gid),
            times: Some(attributes.times),
            ..SetAttributes::default()
        };
        let nfs = self.context.target();
        let now = match nfs.set_attributes(to, set).await {
            // Some servers do not store times of symbolic links. The owner is required.
            Err(error) if error.status().is_some() => {
                let owner = SetAttributes { times: None, ..set };
                nfs.set_attributes(to, owner).await
            }
            now => now,
        };
        let now = now.map_err(|error| CopyError::of_call(path, error))?;
        check_owner((uid, gid), &now, path)
    }

    /// Returns the owner and the group of a copy: the numeric ones of the source, except that what has the group of the
    /// source's pods gets that of the copy's pods.
    fn owner(&self, attributes: &FullAttributes, path: CopyPath<'_>) -> Result<(u32, u32), CopyError> {
        let (uid, gid) = numeric_owner(attributes, path)?;
        let replaced = self.context.groups.filter(|(from, _)| *from == gid);
        Ok((uid, replaced.map_or(gid, |(_, to)| to)))
    }

    /// Copies user attributes, if both servers support them.
    async fn copy_xattrs(&self, from: &FileHandle, to: &FileHandle, path: CopyPath<'_>) -> Outcome {
        if self.no_source_xattrs.load(Ordering::Relaxed) {
            return Ok(());
        }
        let failed = |error| CopyError::of_call(path, error);
        let (source, target) = (self.context.source(), self.context.target());
        let names = match source.list_xattrs(from).await {
            Ok(names) => names,
            Err(error) => match error.status() {
                Some(Status::NotSupported) => {
                    self.no_source_xattrs.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                // Removed meanwhile. The later check of its attributes detects that.
                Some(Status::Stale) => return Ok(()),
                _ => return Err(failed(error)),
            },
        };
        for name in names {
            let Some(value) = source.get_xattr(from, &name).await.map_err(failed)? else {
                continue;
            };
            if self.no_target_xattrs.load(Ordering::Relaxed) {
                CopyProgress::one(&self.context.progress.without_xattrs);
                return Ok(());
            }
            match target.set_xattr(to, &name, &value).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(Status::NotSupported) => {
                    self.no_target_xattrs.store(true, Ordering::Relaxed);
                    CopyProgress::one(&self.context.progress.without_xattrs);
                    return Ok(());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// Returns the numeric owner and group.
fn numeric_owner(attributes: &FullAttributes, path: CopyPath<'_>) -> Result<(u32, u32), CopyError> {
    let Attributes {
        uid, gid, owner, group, ..
    } = &attributes.attributes;
    uid.zip(*gid).ok_or_else(|| CopyError::OwnerUnknown {
        path: path.to_string(),
        owner: format!("{owner}:{group}"),
    })
}

/// Checks that the target stored the owner.
fn check_owner((uid, gid): (u32, u32), now: &Attributes, path: CopyPath<'_>) -> Outcome {
    if now.uid == Some(uid) && now.gid == Some(gid) {
        return Ok(());
    }
    Err(CopyError::OwnerNotKept {
        path: path.to_string(),
        requested: format!("{uid}:{gid}"),
        stored: format!("{}:{}", now.owner, now.group),
    })
}
