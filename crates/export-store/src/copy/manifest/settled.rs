//! The time before which a file must have changed last for a later change to show in its attributes.
//!
//! Time stamps are coarse: on many servers, two changes within some milliseconds leave the same ctime, and with it the same
//! change attribute. A file that is written locally through a memory map gets no new ctime until the kernel has written its
//! pages back. A change right before the copy therefore cannot be told from one right after it.

use std::time::Duration;

use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{identity, layout, own_files};

/// Returns the time, in seconds by the source server's clock, before which the last change of a file must be. `None` if the
/// clock cannot be read: then the next backup transfers all files.
///
/// The server's clock is the only one that is compared with its time stamps. It is read from a new file.
pub(in crate::copy) async fn settled_before(
    store: &ExportStore,
    verified: &VerifiedRoot,
    margin: Duration,
) -> Option<i64> {
    let now = match server_time(store, verified).await {
        Ok(now) => now?,
        Err(error) => {
            tracing::debug!("the clock of the source's server cannot be read: {error}");
            return None;
        }
    };
    now.checked_sub(i64::try_from(margin.as_secs()).ok()?)
}

async fn server_time(store: &ExportStore, verified: &VerifiedRoot) -> Result<Option<i64>, crate::ExportError> {
    let name = layout::clock(&store.config.backend_uid)?;
    let nfs = store.for_write(verified)?;
    let file = identity::create_fresh_file(nfs, &verified.cluster, &name, b"clock\n").await?;
    let details = nfs.full_attributes(&file.handle).await;
    // Another copy from this backend may have removed it first.
    let doing = || "removing the file that shows the server's clock".to_owned();
    own_files::remove(nfs, &verified.cluster.handle, &name, file.attributes.fileid, doing).await?;
    Ok(details
        .ok()
        .and_then(|details| details.ctime)
        .map(|ctime| ctime.seconds))
}
