//! The record of a volume that is in use, for what is done with it meanwhile.

use super::decide::At;
use super::recorded::Recorded;
use crate::ExportStore;
use crate::error::ExportError;
use crate::ground::VerifiedRoot;
use crate::record::{Record, State};
use crate::request::ReclaimRequest;

impl ExportStore {
    /// The fileid on which a volume in use and its record agree.
    pub(crate) async fn agreed(&self, ground: &VerifiedRoot, request: &ReclaimRequest) -> Result<u64, ExportError> {
        let (_, file_id) = self.in_use(ground, request, "copying").await?;
        Ok(file_id)
    }

    /// The record of a volume in use, if it agrees with what the volume says.
    pub(crate) async fn agreed_record(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<Record, ExportError> {
        let (record, _) = self.in_use(ground, request, "writing down what it is").await?;
        Ok(record)
    }

    async fn in_use(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
        asked: &'static str,
    ) -> Result<(Record, u64), ExportError> {
        match self.compared(ground, request).await? {
            (Recorded::Agreed(record, file_id), trust) if record.state == State::Live => {
                self.sign(ground, &record, trust).await?;
                Ok((*record, file_id))
            }
            (Recorded::Agreed(record, _), _) => Err(ExportError::RecordBusy {
                volume: request.volume.clone(),
                state: record.state.name(),
                asked,
            }),
            (Recorded::Nothing(At::Nothing), _) => Err(super::missing(request)),
            (Recorded::Nothing(_), _) => Err(super::unrecorded(request)),
        }
    }
}
