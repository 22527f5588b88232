//! The journal of changes, for those who watch a file system.

use super::inode::{Ino, Inode};
use super::{FileSystem, Object};

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MutationKind {
    /// Created an object with its first name.
    Create,
    /// Added a name.
    Link,
    /// Removed a name.
    Remove,
    /// Moved a name.
    Rename,
    /// Wrote, or changed the size.
    Write,
    /// Changed attributes.
    SetAttributes,
}

/// A change of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// What it did.
    pub kind: MutationKind,
    /// The object.
    pub object: Object,
    /// Its path before the change, from the root of the file system; empty for the root and for an object without a name.
    pub path: Vec<u8>,
    /// Its path after a rename.
    pub new_path: Option<Vec<u8>>,
    /// The object, if the change freed it with all its data.
    pub freed: Option<Box<Inode>>,
}

impl FileSystem {
    pub(super) fn record(&mut self, kind: MutationKind, ino: Ino) {
        let path = self.path(ino).unwrap_or_default();
        self.record_at(kind, ino, path, None);
    }

    pub(super) fn record_at(&mut self, kind: MutationKind, ino: Ino, path: Vec<u8>, new_path: Option<Vec<u8>>) {
        let object = self.object(ino).unwrap_or(Object { ino, generation: 0 });
        self.mutations.push(Mutation {
            kind,
            object,
            path,
            new_path,
            freed: None,
        });
    }
}
