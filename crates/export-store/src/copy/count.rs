//! Counts the content to copy, for progress reports, and to find early that it is too large. A failure to count does
//! not fail the copy.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::copy::context::CopyContext;
use crate::copy::{CopyProgress, Outcome};
use crate::count::{Count, RateLimiter, TreeUsage};
use nfs_client::FileRef;

/// Counts the source. Fails only if it is too large.
pub(super) async fn count_source(context: Arc<CopyContext>, root: FileRef) -> Outcome {
    let progress = &context.progress;
    let mut rate = RateLimiter::unlimited();
    let mut fits = Ok(());
    let go_on = |content: &TreeUsage| {
        progress.expect(content);
        // Neither holes nor partly used blocks count.
        fits = context.check_size(content.size.min(content.used));
        fits.is_ok()
    };
    let counted = Count::new(context.source(), &mut rate, go_on).run(&root).await;
    let complete = counted.is_ok_and(|counted| counted.is_some_and(|content| content.unread == 0));
    progress.counted.store(complete, Ordering::Relaxed);
    fits
}

impl CopyProgress {
    fn expect(&self, content: &TreeUsage) {
        // Names that a copy leaves out are not expected.
        let names = content.names.saturating_sub(content.special);
        self.of_files.store(names, Ordering::Relaxed);
        self.of_bytes.store(content.size, Ordering::Relaxed);
    }
}
