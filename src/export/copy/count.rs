//! Counting what there is to copy, for progress alone: what can't be counted costs no more than that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Copier, Tally};
use crate::nfs::{FileHandle, FileKind};

/// Directories whose turn is to come, at most: above that it is not counted any further. 50,000 handles are a few MiB.
const MOST_WAITING: usize = 50_000;

impl Copier {
    pub(super) async fn count(self: Arc<Self>, root: FileHandle) {
        let mut waiting = vec![root];
        while let Some(directory) = waiting.pop() {
            if !self.count_one(&directory, &mut waiting).await || waiting.len() > MOST_WAITING {
                return;
            }
        }
        self.tally.counted.store(true, Ordering::Relaxed);
    }

    /// Counts the entries of one directory; false when it could not be read to its end.
    async fn count_one(&self, directory: &FileHandle, waiting: &mut Vec<FileHandle>) -> bool {
        let nfs = self.from.managed.nfs();
        let mut from = None;
        loop {
            let Ok(page) = nfs.list(directory, from).await else {
                return false;
            };
            for entry in page.entries {
                if entry.fsid.is_some_and(|fsid| fsid != self.from.fsid) {
                    continue;
                }
                match entry.kind {
                    Some(FileKind::Other) => continue,
                    Some(FileKind::Directory) => match nfs.lookup(directory, &entry.name).await {
                        Ok(Some(node)) => waiting.push(node.handle),
                        Ok(None) => {}
                        Err(_) => return false,
                    },
                    Some(FileKind::Regular) => Tally::add(&self.tally.of_bytes, entry.size.unwrap_or(0)),
                    _ => {}
                }
                Tally::one(&self.tally.of_files);
            }
            match page.next {
                Some(next) => from = Some(next),
                None => return true,
            }
        }
    }
}
