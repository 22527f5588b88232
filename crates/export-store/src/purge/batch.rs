//! Lists a directory that is being emptied, several pages at a time.

use tokio::time::Instant;

use crate::readdir::DirectoryReader;
use nfs_client::{Client, Entry, NfsError};

/// Number of names to list before they are removed.
const BATCH: usize = 1024;

/// Part of a listing.
#[derive(Default)]
pub(super) struct Batch {
    /// The listing begins here, for the first time or again.
    pub is_first: bool,
    pub entries: Vec<Entry>,
    /// Error that ended the listing early.
    pub failure: Option<NfsError>,
}

/// Returns the next entries of a listing. Returns fewer when the time of the purge is up, because pages may be small
/// and slow.
pub(super) async fn batch(nfs: &Client, reader: &mut DirectoryReader, end: Option<Instant>) -> Batch {
    let mut batch = Batch::default();
    loop {
        match reader.next_page(nfs).await {
            Ok(Some(page)) => {
                if page.is_first {
                    batch.is_first = true;
                    batch.entries.clear();
                }
                batch.entries.extend(page.entries);
            }
            Ok(None) => return batch,
            Err(error) => {
                reader.stop();
                batch.failure = Some(error);
                return batch;
            }
        }
        if batch.entries.len() >= BATCH || is_over(end) {
            return batch;
        }
    }
}

/// Reports whether the purge's time is up.
pub(super) fn is_over(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}
