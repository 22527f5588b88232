//! The place of a directory: the names that lead to it from the root of a purge.

use nfs_client::{Client, Credential, FileHandle, Name, NfsError, Status};

/// The names from the directory above the root of a purge to a directory, in order.
#[derive(Debug)]
pub(super) struct TrashPath(Vec<Component>);

/// One name of a place.
#[derive(Debug)]
pub(super) struct Component {
    /// Directory that contains the name.
    pub parent: FileHandle,
    /// Credential to look the name up with, if not the operator's own.
    pub actor: Option<Credential>,
    pub name: Name,
    pub fileid: u64,
}

impl TrashPath {
    pub(super) fn new(components: Vec<Component>) -> Self {
        Self(components)
    }

    /// Reports whether the names still lead to the directory. Every ancestor is checked, because each of them can be
    /// moved out of the trash together with what it contains.
    pub(super) async fn is_current(&self, own: &Client) -> Result<bool, NfsError> {
        for components in self.0.chunk_by(|one, next| one.actor == next.actor) {
            let Some(first) = components.first() else { continue };
            let nfs = first
                .actor
                .map_or_else(|| own.clone(), |actor| own.with_credential(actor));
            let names: Vec<Name> = components.iter().map(|component| component.name.clone()).collect();
            let found = match nfs.walk(&first.parent, &names).await {
                Ok(found) => found,
                Err(error) if is_replaced(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let expected = components.iter().map(|component| component.fileid);
            if !found.iter().map(|node| node.attributes.fileid).eq(expected) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reports whether a walk failed because something else has one of the names, or because a directory was removed.
fn is_replaced(error: &NfsError) -> bool {
    matches!(
        error.status(),
        Some(Status::NotDirectory | Status::Symlink | Status::Stale)
    )
}
