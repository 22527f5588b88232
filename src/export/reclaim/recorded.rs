//! What the record of a volume says beside the volume (design 6.8).

use super::decide::At;
use super::{missing, unrecorded};
use crate::export::ManagedExport;
use crate::export::error::ExportError;
use crate::export::ground::Ground;
use crate::export::record::{Record, State};
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
    /// The fileid on which a volume in use and its record agree.
    pub(in crate::export) async fn agreed(
        &self,
        ground: &Ground,
        request: &ReclaimRequest,
    ) -> Result<u64, ExportError> {
        match self.compared(ground, request).await? {
            (Recorded::Agreed(record, file_id), trust) if record.state == State::Live => {
                self.sign(ground, &record, trust).await.map(|()| file_id)
            }
            (Recorded::Agreed(record, _), _) => Err(ExportError::RecordBusy {
                volume: request.volume.clone(),
                state: record.state.name(),
                asked: "copying",
            }),
            (Recorded::Nothing(At::Nothing), _) => Err(missing(request)),
            (Recorded::Nothing(_), _) => Err(unrecorded(request)),
        }
    }

    /// Compares what the volume says with the record (design 6.8). One that this cluster did not sign is signed if they agree:
    /// the volume vouches for it.
    pub(super) async fn recorded(&self, ground: &Ground, request: &ReclaimRequest) -> Result<Recorded, ExportError> {
        let (recorded, trust) = self.compared(ground, request).await?;
        if let Recorded::Agreed(record, _) = &recorded {
            self.sign(ground, record, trust).await?;
        }
        Ok(recorded)
    }

    async fn sign(&self, ground: &Ground, record: &Record, trust: Trust) -> Result<(), ExportError> {
        match trust {
            Trust::Signed => Ok(()),
            Trust::Unsigned | Trust::Forged => self.replace_record(ground, record).await,
        }
    }

    async fn compared(&self, ground: &Ground, request: &ReclaimRequest) -> Result<(Recorded, Trust), ExportError> {
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
                    // Also whose it was is the volume's word.
                    Trust::Unsigned | Trust::Forged => Box::new(Record {
                        claim: request.claim.clone(),
                        ..*record
                    }),
                };
                Ok((Recorded::Agreed(record, known), trust))
            }
            (None, _) => Err(disagrees("its record knows no fileid: it was never finished".into())),
        }
    }
}
