//! Whether we may write, whom the server takes us for, and whether our own directories are safe (design 6.1).

use super::ExportStore;
use super::error::{ErrorContext as _, ExportError};
use super::folders::judge_owner;
use super::ground::VerifiedRoot;
use super::layout;
use super::request::WriteProbe;
use nfs_client::Status;

impl ExportStore {
    pub(super) async fn probe_write_on(&self, ground: &VerifiedRoot) -> Result<WriteProbe, ExportError> {
        let name = layout::probe(&self.keeper.backend_uid)?;
        self.changing(ground)?;
        let file = self.fresh_file(&ground.cluster, &name, b"probe\n").await?;
        let removed = self
            .changing(ground)?
            .remove_file(&ground.cluster.handle, &name, file.attributes.fileid)
            .await;
        match removed {
            // Another probe of this backend, or the sweep at a start, was faster.
            Err(error) if !matches!(error.status(), Some(Status::NotFound | Status::NotSame)) => {
                return Err(error).while_(|| "removing the probe's file".into());
            }
            _ => {}
        }
        for (node, path) in [
            (&ground.reserved, layout::RESERVED),
            (&ground.cluster, "the cluster's folder in .nfs-operator"),
            (&ground.records, "the records' folder in .nfs-operator"),
            (&ground.trash, "the trash in .nfs-operator"),
        ] {
            judge_owner(node, &file, path)?;
        }
        Ok(WriteProbe {
            effective_uid: file.attributes.uid,
            effective_gid: file.attributes.gid,
            squashed: file.attributes.uid != Some(self.keeper.credential.uid),
        })
    }
}
