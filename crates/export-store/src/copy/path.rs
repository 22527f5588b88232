//! Paths of what is copied.

use std::fmt;

use crate::copy::tree::Directory;
use nfs_client::Name;

/// Length of the end of a path to write, in bytes and without escape sequences.
const MAX_LEN: usize = 300;

/// Path of a directory, or of a name in it, below the tree's root. It is formatted only for messages: a copy of it for
/// each directory would take memory that grows with the square of the depth.
#[derive(Clone, Copy)]
pub(super) struct CopyPath<'a> {
    directory: &'a Directory,
    name: Option<&'a Name>,
}

impl<'a> CopyPath<'a> {
    pub(super) fn new(directory: &'a Directory, name: Option<&'a Name>) -> Self {
        Self { directory, name }
    }
}

impl fmt::Display for CopyPath<'_> {
    /// Writes the end of the path. Nonprintable bytes are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = MAX_LEN;
        let (mut names, mut all) = (Vec::new(), self.name.into_iter().chain(self.directory.names()));
        for name in all.by_ref() {
            names.push(name);
            room = room.saturating_sub(name.as_bytes().len() + 1);
            if room == 0 {
                break;
            }
        }
        if all.next().is_some() {
            f.write_str("…")?;
        }
        if names.is_empty() {
            return f.write_str("/");
        }
        names.iter().rev().try_for_each(|name| write!(f, "/{name}"))
    }
}
