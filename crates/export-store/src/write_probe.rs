//! Test of write access, of the effective user, and of the operator's folders (data-safety rule 1).

use crate::error::ExportError;
use crate::folders::check_folder_owner;
use crate::request::WriteProbe;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{identity, layout, own_files, reserve};
use nfs_client::FileRef;

pub(crate) async fn probe(store: &ExportStore, verified: &VerifiedRoot) -> Result<WriteProbe, ExportError> {
    let name = layout::probe(&store.config.backend_uid)?;
    let nfs = store.for_write(verified)?;
    let file = match identity::create_fresh_file(nfs, &verified.cluster, &name, b"probe\n").await {
        Err(error) if error.is_full() => return full(store, verified, error).await,
        created => created?,
    };
    // Another probe of this backend, or the recovery after a start, may have removed the file first.
    let (nfs, doing) = (store.for_write(verified)?, || "removing the probe's file".to_owned());
    own_files::remove(nfs, &verified.cluster.handle, &name, file.attributes.fileid, doing).await?;
    check_owners(verified, &file)?;
    match reserve::refill(store, verified).await {
        // The figures of an export do not show quotas.
        Err(error) if error.is_full() => reserve::give_up(store, verified).await.map(drop)?,
        refilled => refilled?,
    }
    Ok(WriteProbe {
        full: None,
        effective_uid: file.attributes.uid,
        effective_gid: file.attributes.gid,
        squashed: file.attributes.uid != Some(store.config.credential.uid),
    })
}

/// Returns the result on a full export: what is there can be renamed and removed, as deletions do, and the owner of the
/// operator's folder shows the effective user.
async fn full(store: &ExportStore, verified: &VerifiedRoot, error: ExportError) -> Result<WriteProbe, ExportError> {
    let owner = &verified.cluster;
    check_owners(verified, owner)?;
    let hinted = store.with_hints::<()>(Err(error)).await;
    Ok(WriteProbe {
        full: hinted.err().map(|error| error.kind()),
        effective_uid: owner.attributes.uid,
        effective_gid: owner.attributes.gid,
        squashed: owner.attributes.uid != Some(store.config.credential.uid),
    })
}

/// Checks that the operator's folders belong to the owner of a file that the operator created.
fn check_owners(verified: &VerifiedRoot, file: &FileRef) -> Result<(), ExportError> {
    for (node, path) in [
        (&verified.reserved, layout::RESERVED),
        (&verified.cluster, "the cluster's folder in .nfs-operator"),
        (&verified.records, "the records' folder in .nfs-operator"),
        (&verified.trash, "the trash in .nfs-operator"),
    ] {
        check_folder_owner(node, file, path)?;
    }
    Ok(())
}
