//! Lists a directory that is being emptied, several pages at a time.

use std::time::Instant;

use nfs_client::{Client, Entry, FileHandle, NfsError, PageCookie};

/// Number of names to list before they are removed.
const BATCH: usize = 1024;

/// Part of a listing.
pub(super) struct Batch {
    pub entries: Vec<Entry>,
    /// Where the listing continues.
    pub next: Option<PageCookie>,
    /// Error that ended the listing early.
    pub failure: Option<NfsError>,
}

/// Returns the next entries of a listing. Returns fewer when the time of the purge is up, because pages may be small
/// and slow.
pub(super) async fn batch(
    nfs: &Client,
    directory: &FileHandle,
    mut from: Option<PageCookie>,
    end: Option<Instant>,
) -> Batch {
    let mut entries = Vec::new();
    let (next, failure) = loop {
        match nfs.list(directory, from).await {
            Ok(page) => {
                entries.extend(page.entries);
                match page.next {
                    Some(next) if entries.len() < BATCH && !is_over(end) => from = Some(next),
                    next => break (next, None),
                }
            }
            Err(error) => break (None, Some(error)),
        }
    };
    Batch { entries, next, failure }
}

/// Reports whether the purge's time is up.
pub(super) fn is_over(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}
