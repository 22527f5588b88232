//! The records of this cluster on the export: created exclusively, replaced atomically, removed by fileid.

use super::ManagedExport;
use super::error::{ExportError, While as _};
use super::ground::Ground;
use super::layout;
use super::record::{LONGEST_RECORD, Record, RecordError};
use crate::nfs::{FileHandle, NfsError, Status};

/// What stands where a volume's record should be.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The record.
    Record(Box<Record>),
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

impl ManagedExport {
    pub(super) async fn read_record(&self, ground: &Ground, volume: &str) -> Result<Found, ExportError> {
        self.read_record_in(&ground.records.handle, volume).await
    }

    /// Reads a record of any cluster.
    pub(super) async fn read_record_in(&self, records: &FileHandle, volume: &str) -> Result<Found, ExportError> {
        let name = layout::record(volume)?;
        let damaged = |why: String| Ok(Found::Unreadable(RecordError::Damaged(why)));
        match self.nfs.read_file(records, &name, LONGEST_RECORD).await {
            Ok(None) => Ok(Found::Nothing),
            Ok(Some(file)) => Ok(match Record::parse(volume, &file.content) {
                Ok(record) => Found::Record(Box::new(record)),
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

    pub(super) async fn create_record(&self, ground: &Ground, record: &Record) -> Result<Created, ExportError> {
        let (name, content) = (layout::record(&record.volume)?, self.content(record)?);
        let nfs = self.changing(ground)?;
        match nfs.create_file(&ground.records.handle, &name, &content, 0o600).await {
            Ok(_) => Ok(Created::Yes),
            Err(error) if error.status() == Some(Status::Exists) => Ok(Created::Exists),
            Err(error) => Err(error).while_(|| format!("writing the record of volume {}", record.volume)),
        }
    }

    pub(super) async fn replace_record(&self, ground: &Ground, record: &Record) -> Result<(), ExportError> {
        let (name, draft) = (layout::record(&record.volume)?, layout::draft(&record.volume)?);
        let content = self.content(record)?;
        self.changing(ground)?
            .replace_file(&ground.records.handle, &name, &draft, &content, 0o600)
            .await
            .while_(|| format!("writing the record of volume {}", record.volume))
    }

    /// Removes a volume's record; that it is not there is fine.
    pub(super) async fn remove_record(&self, ground: &Ground, volume: &str) -> Result<(), ExportError> {
        let doing = || format!("removing the record of volume {volume}");
        let name = layout::record(volume)?;
        let records = &ground.records.handle;
        let Some(node) = self.nfs.lookup(records, &name).await.while_(doing)? else {
            return Ok(());
        };
        let removed = self
            .changing(ground)?
            .remove_file(records, &name, node.attributes.fileid)
            .await;
        match removed {
            Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
            // Replaced since we looked: by a call of ours that was still on its way.
            Err(error) if error.status() == Some(Status::NotSame) => Err(ExportError::Unsettled { doing: doing() }),
            other => other.while_(doing),
        }
    }

    fn content(&self, record: &Record) -> Result<Vec<u8>, ExportError> {
        record.to_bytes().map_err(|why| ExportError::RecordDamaged {
            volume: record.volume.clone(),
            why,
        })
    }
}
