//! Counts the content to copy, only for progress reports: a failure to count does not fail the copy.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::copy::{Copier, CopyProgress};
use crate::count::{Count, RateLimiter, TreeUsage};
use nfs_client::FileRef;

impl Copier {
    pub(super) async fn count(self: Arc<Self>, root: FileRef) {
        let nfs = self.from.store.nfs();
        let mut pace = RateLimiter::unlimited();
        let go_on = |content: &TreeUsage| {
            self.tally.expect(content);
            true
        };
        let counted = Count::new(nfs, &mut pace, go_on).run(&root).await;
        let complete = counted.is_ok_and(|counted| counted.is_some_and(|content| content.unread == 0));
        self.tally.counted.store(complete, Ordering::Relaxed);
    }
}

impl CopyProgress {
    fn expect(&self, content: &TreeUsage) {
        // Names that a copy leaves out are not expected.
        let names = content.names.saturating_sub(content.special);
        self.of_files.store(names, Ordering::Relaxed);
        self.of_bytes.store(content.size, Ordering::Relaxed);
    }
}
