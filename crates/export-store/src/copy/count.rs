//! Counting what there is to copy, for progress alone: what can't be counted costs no more than that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::copy::{Copier, Tally};
use crate::count::{Content, Count, RateLimiter};
use nfs_client::FileRef;

impl Copier {
    pub(super) async fn count(self: Arc<Self>, root: FileRef) {
        let nfs = self.from.store.nfs();
        let mut pace = RateLimiter::unlimited();
        let go_on = |content: &Content| {
            self.tally.expect(content);
            true
        };
        let counted = Count::new(nfs, &root, &mut pace, go_on).run().await;
        let complete = counted.is_ok_and(|counted| counted.is_some_and(|content| content.unread == 0));
        self.tally.counted.store(complete, Ordering::Relaxed);
    }
}

impl Tally {
    fn expect(&self, content: &Content) {
        // What is left out of a copy is not expected.
        let names = content.names.saturating_sub(content.special);
        self.of_files.store(names, Ordering::Relaxed);
        self.of_bytes.store(content.size, Ordering::Relaxed);
    }
}
