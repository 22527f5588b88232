//! Test of write access, of the effective user, and of the operator's folders (data-safety rule 1).

use crate::error::{ErrorContext as _, ExportError};
use crate::folders::check_folder_owner;
use crate::request::WriteProbe;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{identity, layout};
use nfs_client::Status;

pub(crate) async fn probe(store: &ExportStore, verified: &VerifiedRoot) -> Result<WriteProbe, ExportError> {
    let name = layout::probe(&store.config.backend_uid)?;
    store.for_write(verified)?;
    let file = identity::create_fresh_file(store, &verified.cluster, &name, b"probe\n").await?;
    let removed = store
        .for_write(verified)?
        .remove_file(&verified.cluster.handle, &name, file.attributes.fileid)
        .await;
    match removed {
        // Another probe of this backend, or the recovery after a start, removed the file first.
        Err(error) if !matches!(error.status(), Some(Status::NotFound | Status::NotSame)) => {
            return Err(error).context(|| "removing the probe's file".into());
        }
        _ => {}
    }
    for (node, path) in [
        (&verified.reserved, layout::RESERVED),
        (&verified.cluster, "the cluster's folder in .nfs-operator"),
        (&verified.records, "the records' folder in .nfs-operator"),
        (&verified.trash, "the trash in .nfs-operator"),
    ] {
        check_folder_owner(node, &file, path)?;
    }
    Ok(WriteProbe {
        effective_uid: file.attributes.uid,
        effective_gid: file.attributes.gid,
        squashed: file.attributes.uid != Some(store.config.credential.uid),
    })
}
