//! The time before which a file must have changed last for a later change to show in its attributes.
//!
//! Time stamps are coarse: on many servers, two changes within some milliseconds leave the same ctime, and with it the same
//! change attribute. A file that is written locally through a memory map gets no new ctime until the kernel has written its
//! pages back. A change right before the copy therefore cannot be told from one right after it.

use std::time::Duration;

use crate::copy::SourceTree;
use crate::snapshots::server_time;

/// Returns the time, in seconds by the source server's clock, before which the last change of a file must be. `None` if the
/// clock cannot be read: then the next backup transfers all files.
///
/// The data of a snapshot are those of a time that has passed: a change after it may have happened long before the copy.
pub(in crate::copy) async fn settled_before(source: &SourceTree, margin: Duration) -> Option<i64> {
    let as_of = match source.snapshot() {
        Some(snapshot) => snapshot.taken_after?,
        None => match server_time(&source.export, &source.verified).await {
            Ok(now) => now?,
            Err(error) => {
                tracing::debug!("the clock of the source's server cannot be read: {error}");
                return None;
            }
        },
    };
    as_of.checked_sub(i64::try_from(margin.as_secs()).ok()?)
}
