//! Reads directories page by page (READDIR). Names are valid components of a path: [`nfs_client::Name`] checks them.

use std::future::Future;
use std::time::Duration;

use crate::error::{ErrorContext as _, ExportError};
use crate::store::ExportStore;
use nfs_client::{Client, Entry, FileHandle, FileRef, Name, NfsError, Page, PageCookie, Status};

/// Maximum number of repeated pages of a listing that the server cannot continue because the directory is changing.
const MAX_REPEATS: u32 = 8;
/// Pause before a page is repeated, so that the changes can end.
const PAUSE: Duration = Duration::from_millis(20);

/// A listing of one directory in progress.
#[derive(Debug)]
pub(crate) struct DirectoryReader {
    directory: FileHandle,
    position: Position,
    repeats: u32,
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
            repeats: 0,
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
                Err(error) => {
                    self.repeat(error).await?;
                    continue;
                }
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

    /// Prepares the repetition of a page that could not be read because the directory is changing. Returns any other error.
    async fn repeat(&mut self, error: NfsError) -> Result<(), NfsError> {
        match error.status() {
            // READDIR has no such error (RFC 7530 section 13.4): nfs-ganesha passes on that of an entry that was removed or
            // renamed during the call.
            Some(Status::NotFound) if self.repeats < MAX_REPEATS => {}
            Some(Status::NotSame) if self.repeats < MAX_REPEATS => {
                self.entries = 0;
                self.position = Position::Page(None);
            }
            _ => return Err(error),
        }
        self.repeats += 1;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Returns the names in a directory that `select` accepts, as it converts them. Fails if the directory has more than
/// `max_entries` entries. `path` names the directory in messages.
pub(crate) async fn select_names<T>(
    store: &ExportStore,
    directory: &FileHandle,
    path: &str,
    max_entries: usize,
    mut select: impl FnMut(Entry) -> Option<T>,
) -> Result<Vec<T>, ExportError> {
    let mut reader = DirectoryReader::new(directory.clone()).with_max_entries(max_entries);
    let mut selected = Vec::new();
    let doing = || format!("listing {path}");
    while let Some(page) = reader.next_page(&store.nfs).await.context(doing)? {
        if page.is_first {
            selected.clear();
        }
        selected.extend(page.entries.into_iter().filter_map(&mut select));
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
    select_names(store, directory, path, max_entries, |entry| Some(entry.name.detached())).await
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use nfs_client::fuzzing::file_handle;

    fn error(status: Status) -> NfsError {
        NfsError::Status {
            action: "listing a directory",
            status,
        }
    }

    /// Reads a listing to its end. `fail` gets the number of the call and returns the error of that call.
    async fn read(fail: impl Fn(u32) -> Option<Status>) -> (Result<u32, NfsError>, u32) {
        let calls = RefCell::new(0);
        let list = |_| {
            *calls.borrow_mut() += 1;
            let failure = fail(*calls.borrow());
            async move {
                failure.map_or_else(
                    || {
                        Ok(Page {
                            entries: Vec::new(),
                            next: None,
                        })
                    },
                    |status| Err(error(status)),
                )
            }
        };
        let mut reader = DirectoryReader::new(file_handle(b"directory"));
        let mut pages = 0;
        let result = loop {
            match reader.next_page_with(list).await {
                Ok(Some(_)) => pages += 1,
                Ok(None) => break Ok(pages),
                Err(error) => break Err(error),
            }
        };
        (result, calls.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_of_a_changing_directory_is_repeated_a_few_times_and_any_other_error_returned() {
        for status in [Status::NotFound, Status::NotSame] {
            let (result, calls) = read(|call| (call <= 3).then_some(status)).await;
            assert_eq!((result.unwrap(), calls), (1, 4), "{status:?}");
            let (result, calls) = read(|_| Some(status)).await;
            assert_eq!(result.unwrap_err().status(), Some(status));
            assert_eq!(calls, MAX_REPEATS + 1);
        }
        let (result, calls) = read(|_| Some(Status::Stale)).await;
        assert_eq!((result.unwrap_err().status(), calls), (Some(Status::Stale), 1));
    }
}
