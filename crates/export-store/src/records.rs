//! The records of this cluster on the export: created exclusively, replaced atomically, removed by fileid.

use super::ExportStore;
use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::layout;
use super::record::{LONGEST_RECORD, Record, RecordError};
use super::signature::{Signer, Trust};
use nfs_client::{FileHandle, NfsError, Status};

/// What stands where a volume's record should be.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The record, and how far it can be believed. Where the volume's or archive's own object, or a claim, says the same,
    /// that does not matter; nothing is made on the word of a record alone unless it is signed.
    Record(Box<Record>, Trust),
    /// Something that can't be read as one.
    Unreadable(RecordError),
}

/// Whether a record could be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    Yes,
    /// There is one already.
    Exists,
}

impl ExportStore {
    pub(super) async fn read_record(&self, ground: &VerifiedRoot, volume: &str) -> Result<Found, ExportError> {
        self.read_record_in(ground, &ground.records.handle, volume).await
    }

    /// Reads a record of any cluster. Another one's has no signature that is good here.
    pub(super) async fn read_record_in(
        &self,
        ground: &VerifiedRoot,
        records: &FileHandle,
        volume: &str,
    ) -> Result<Found, ExportError> {
        let name = layout::record(volume)?;
        let damaged = |why: String| Ok(Found::Unreadable(RecordError::Damaged(why)));
        match self.nfs.read_file(records, &name, LONGEST_RECORD).await {
            Ok(None) => Ok(Found::Nothing),
            Ok(Some(file)) => Ok(match Record::parse(volume, &file.content) {
                Ok(record) => {
                    let trust = self.signer(ground).judge(volume, &file.content);
                    Found::Record(Box::new(record), trust)
                }
                Err(error) => Found::Unreadable(error),
            }),
            Err(NfsError::Limit { .. }) => damaged(format!("it has more than {LONGEST_RECORD} bytes")),
            Err(error) => match error.status() {
                Some(Status::Symlink | Status::IsDirectory | Status::Invalid) => {
                    damaged("it is no regular file".into())
                }
                _ => Err(error).while_(|| format!("reading the record of volume {volume}")),
            },
        }
    }

    pub(super) async fn create_record(&self, ground: &VerifiedRoot, record: &Record) -> Result<Created, ExportError> {
        let (name, content) = (layout::record(&record.volume)?, self.content(ground, record)?);
        let nfs = self.changing(ground)?;
        match nfs.create_file(&ground.records.handle, &name, &content, 0o600).await {
            Ok(_) => {
                self.no_doubt(&record.volume);
                Ok(Created::Yes)
            }
            Err(error) if error.status() == Some(Status::Exists) => Ok(Created::Exists),
            Err(error) => Err(error).while_(|| format!("writing the record of volume {}", record.volume)),
        }
    }

    pub(super) async fn replace_record(&self, ground: &VerifiedRoot, record: &Record) -> Result<(), ExportError> {
        let (name, draft) = (layout::record(&record.volume)?, layout::draft(&record.volume)?);
        let content = self.content(ground, record)?;
        self.changing(ground)?
            .replace_file(&ground.records.handle, &name, &draft, &content, 0o600)
            .await
            .while_(|| format!("writing the record of volume {}", record.volume))?;
        self.no_doubt(&record.volume);
        Ok(())
    }

    /// Removes a volume's record; that it is not there is fine.
    pub(super) async fn remove_record(&self, ground: &VerifiedRoot, volume: &str) -> Result<(), ExportError> {
        let doing = || format!("removing the record of volume {volume}");
        let name = layout::record(volume)?;
        let records = &ground.records.handle;
        let Some(node) = self.nfs.lookup(records, &name).await.while_(doing)? else {
            self.no_doubt(volume);
            return Ok(());
        };
        let removed = self
            .changing(ground)?
            .remove_file(records, &name, node.attributes.fileid)
            .await;
        if removed.is_ok() {
            self.no_doubt(volume);
        }
        match removed {
            Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
            // Replaced since we looked: by a call of ours that was still on its way.
            Err(error) if error.status() == Some(Status::NotSame) => Err(ExportError::Unsettled { doing: doing() }),
            other => other.while_(doing),
        }
    }

    fn content(&self, ground: &VerifiedRoot, record: &Record) -> Result<Vec<u8>, ExportError> {
        let bytes = record.to_bytes().map_err(|why| ExportError::RecordDamaged {
            volume: record.volume.clone(),
            why,
        })?;
        Ok(self.signer(ground).seal(&record.volume, &bytes))
    }

    fn signer<'a>(&'a self, ground: &'a VerifiedRoot) -> Signer<'a> {
        Signer {
            key: &self.keeper.records_key,
            cluster_id: &self.keeper.cluster_id,
            export_id: &ground.identity.id,
        }
    }
}
