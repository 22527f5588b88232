//! What the record of a volume says beside the volume (design 6.8).

use super::decide::At;
use crate::export::ManagedExport;
use crate::export::error::ExportError;
use crate::export::ground::Ground;
use crate::export::record::Record;
use crate::export::records::Found;
use crate::export::request::ReclaimRequest;
use crate::export::signature::Trust;

/// What was found about a volume.
pub(super) enum Recorded {
    /// The record and the volume agree; with the directory's fileid.
    Agreed(Box<Record>, u64),
    /// There is no record; and this at the volume's path.
    Nothing(At),
}

impl ManagedExport {
    /// Compares what the volume says with the record (design 6.8).
    pub(super) async fn recorded(&self, ground: &Ground, request: &ReclaimRequest) -> Result<Recorded, ExportError> {
        let (record, trust) = match self.read_record(ground, &request.volume).await? {
            Found::Record(record, trust) => (record, trust),
            Found::Unreadable(why) => {
                return Err(ExportError::RecordDamaged {
                    volume: request.volume.clone(),
                    why,
                });
            }
            Found::Nothing => {
                let there = match self.walk(ground, &request.directory).await {
                    Ok(nodes) if self.leaf_of(&nodes, &request.directory).is_none() => At::Nothing,
                    Ok(_) | Err(ExportError::PathUnusable { .. }) => At::Stranger,
                    Err(error) => return Err(error),
                };
                return Ok(Recorded::Nothing(there));
            }
        };
        if record.claim.uid != request.claim.uid {
            return Err(ExportError::RecordForeign {
                volume: request.volume.clone(),
                holder: Box::new(record.claim),
            });
        }
        let disagrees = |what: String| ExportError::Disagrees {
            volume: request.volume.clone(),
            directory: request.directory.to_string(),
            what,
        };
        if record.directory != request.directory {
            return Err(disagrees(format!("its record is about {}", record.directory)));
        }
        match (record.file_id, request.file_id) {
            (Some(known), Some(said)) if known != said => {
                Err(disagrees(format!("it says fileid {said}, and its record {known}")))
            }
            (Some(known), _) => {
                if trust == Trust::Signed {
                    return Ok(Recorded::Agreed(record, known));
                }
                // The volume vouches for it, also for whose it was; not for what it says the volume is.
                let record = Record {
                    claim: request.claim.clone(),
                    note: None,
                    ..*record
                };
                self.replace_record(ground, &record).await?;
                Ok(Recorded::Agreed(Box::new(record), known))
            }
            (None, _) => Err(disagrees("its record knows no fileid: it was never finished".into())),
        }
    }
}
