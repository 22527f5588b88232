//! Reads directories page by page (READDIR). Names are valid components of a path: [`nfs_client::Name`] checks them.

use std::future::Future;

use crate::error::{ErrorContext as _, ExportError};
use crate::store::ExportStore;
use nfs_client::{Client, Entry, FileHandle, FileRef, Name, NfsError, Page, PageCookie, Status};

/// Maximum number of restarts of a listing that the server cannot continue because the directory is changing.
const MAX_RESTARTS: u32 = 3;

/// A listing of one directory in progress.
#[derive(Debug)]
pub(crate) struct DirectoryReader {
    directory: FileHandle,
    position: Position,
    restarts: u32,
    entries: usize,
    max_entries: usize,
}

#[derive(Debug, Clone, Copy)]
enum Position {
    Page(Option<PageCookie>),
    End,
}

/// A page of a listing.
#[derive(Debug)]
pub(crate) struct DirectoryPage {
    /// The listing begins here. If there were pages before, the server could not continue the listing, and all entries
    /// are listed again.
    pub is_first: bool,
    /// The entries, in the server's order.
    pub entries: Vec<Entry>,
}

impl DirectoryReader {
    pub(crate) fn new(directory: FileHandle) -> Self {
        Self {
            directory,
            position: Position::Page(None),
            restarts: 0,
            entries: 0,
            max_entries: usize::MAX,
        }
    }

    /// Lets the listing fail with [`NfsError::Limit`] if it has more entries, so that an endless listing ends.
    pub(crate) fn with_max_entries(self, max_entries: usize) -> Self {
        Self { max_entries, ..self }
    }

    /// Reports whether the end was reached, or the listing was stopped.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.position, Position::End)
    }

    /// Skips the rest of the listing.
    pub(crate) fn stop(&mut self) {
        self.position = Position::End;
    }

    /// Reads the next page. Returns `None` at the end.
    pub(crate) async fn next_page(&mut self, nfs: &Client) -> Result<Option<DirectoryPage>, NfsError> {
        let directory = self.directory.clone();
        self.next_page_with(|from| nfs.list(&directory, from)).await
    }

    /// Reads the next page with the given call, which gets the position of the page. Returns `None` at the end.
    pub(crate) async fn next_page_with<F>(
        &mut self,
        list: impl Fn(Option<PageCookie>) -> F,
    ) -> Result<Option<DirectoryPage>, NfsError>
    where
        F: Future<Output = Result<Page, NfsError>>,
    {
        while let Position::Page(from) = self.position {
            let page = match list(from).await {
                Ok(page) => page,
                Err(error) if error.status() == Some(Status::NotSame) && self.restarts < MAX_RESTARTS => {
                    self.restarts += 1;
                    self.entries = 0;
                    self.position = Position::Page(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.position = page.next.map_or(Position::End, |next| Position::Page(Some(next)));
            self.entries = self.entries.saturating_add(page.entries.len());
            if self.entries > self.max_entries {
                return Err(NfsError::Limit {
                    action: "listing",
                    limit: format!("more than {} entries", self.max_entries),
                });
            }
            return Ok(Some(DirectoryPage {
                is_first: from.is_none(),
                entries: page.entries,
            }));
        }
        Ok(None)
    }
}

/// Returns the names in a directory that `select` accepts, as it converts them. Fails if the directory has more than
/// `max_entries` entries. `path` names the directory in messages.
pub(crate) async fn select_names<T>(
    store: &ExportStore,
    directory: &FileHandle,
    path: &str,
    max_entries: usize,
    select: impl Fn(Entry) -> Option<T>,
) -> Result<Vec<T>, ExportError> {
    let mut reader = DirectoryReader::new(directory.clone()).with_max_entries(max_entries);
    let mut selected = Vec::new();
    let doing = || format!("listing {path}");
    while let Some(page) = reader.next_page(&store.nfs).await.context(doing)? {
        if page.is_first {
            selected.clear();
        }
        selected.extend(page.entries.into_iter().filter_map(&select));
    }
    Ok(selected)
}

/// Returns the names in a directory. Fails if it has more than `max_entries` entries.
pub(crate) async fn list_names(
    store: &ExportStore,
    directory: &FileHandle,
    path: &str,
    max_entries: usize,
) -> Result<Vec<Name>, ExportError> {
    select_names(store, directory, path, max_entries, |entry| Some(entry.name)).await
}

/// Reports whether a directory is empty.
pub(crate) async fn is_empty(
    store: &ExportStore,
    node: &FileRef,
    path: &impl std::fmt::Display,
) -> Result<bool, ExportError> {
    let mut reader = DirectoryReader::new(node.handle.clone());
    let doing = || format!("listing {path}");
    while let Some(page) = reader.next_page(&store.nfs).await.context(doing)? {
        if !page.entries.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}
