//! What the record of a volume says beside the volume (design 6.8).

use super::decide::At;
use crate::ExportStore;
use crate::error::ExportError;
use crate::ground::VerifiedRoot;
use crate::record::Record;
use crate::records::Found;
use crate::request::ReclaimRequest;
use crate::signature::Trust;

/// What was found about a volume.
pub(super) enum Recorded {
    /// The record and the volume agree; with the directory's fileid.
    Agreed(Box<Record>, u64),
    /// There is no record; and this at the volume's path.
    Nothing(At),
}

impl ExportStore {
    /// Compares what the volume says with the record (design 6.8). One that this cluster did not sign is signed if they agree:
    /// the volume vouches for it.
    pub(super) async fn recorded(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<Recorded, ExportError> {
        let (recorded, trust) = self.compared(ground, request).await?;
        if let Recorded::Agreed(record, _) = &recorded {
            self.sign(ground, record, trust).await?;
        }
        Ok(recorded)
    }

    /// Signs a record that agrees with its volume, if this cluster did not.
    pub(super) async fn sign(&self, ground: &VerifiedRoot, record: &Record, trust: Trust) -> Result<(), ExportError> {
        match trust {
            Trust::Signed => Ok(()),
            Trust::Unsigned | Trust::Forged => self.replace_record(ground, record).await,
        }
    }

    /// The same, and nothing is signed.
    pub(super) async fn compared(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<(Recorded, Trust), ExportError> {
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
                return Ok((Recorded::Nothing(there), Trust::Signed));
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
                let record = match trust {
                    Trust::Signed => record,
                    // Whose it was is the volume's word too; what the record says that the volume is, nobody vouches for.
                    Trust::Unsigned | Trust::Forged => Box::new(Record {
                        claim: request.claim.clone(),
                        note: None,
                        ..*record
                    }),
                };
                Ok((Recorded::Agreed(record, known), trust))
            }
            (None, _) => Err(disagrees("its record knows no fileid: it was never finished".into())),
        }
    }
}
