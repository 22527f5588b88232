//! Listing a directory that is being emptied, some pages at a time.

use crate::nfs::{Entry, Export, FileHandle, NfsError, PageCookie};

/// Names that are listed before they are removed.
const BATCH: usize = 1024;

/// A part of a listing.
pub(super) struct Batch {
    pub entries: Vec<Entry>,
    /// Where it goes on.
    pub next: Option<PageCookie>,
    /// Why it could not be read any further than this.
    pub failure: Option<NfsError>,
}

/// The next entries of a listing.
pub(super) async fn batch(nfs: &Export, directory: &FileHandle, mut from: Option<PageCookie>) -> Batch {
    let mut entries = Vec::new();
    let (next, failure) = loop {
        match nfs.list(directory, from).await {
            Ok(page) => {
                entries.extend(page.entries);
                match page.next {
                    Some(next) if entries.len() < BATCH => from = Some(next),
                    next => break (next, None),
                }
            }
            Err(error) => break (None, Some(error)),
        }
    };
    Batch { entries, next, failure }
}
