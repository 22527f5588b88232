//! What a record says of its volume, kept in step with the object: the size after an expansion, whose it is by now.

use super::ExportStore;
use super::error::ExportError;
use super::ground::VerifiedRoot;
use super::record::{Record, State, VolumeMetadata};
use super::records::Found;
use super::request::{ClaimRef, DirectoryRequest, ReclaimRequest};
use super::signature::Trust;

impl ExportStore {
    pub(super) async fn keep_note_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
        note: &VolumeMetadata,
    ) -> Result<(), ExportError> {
        let signed = matches!(
            self.read_record(ground, &request.volume).await?,
            Found::Record(_, Trust::Signed)
        );
        let record = self.agreed_record(ground, request).await?;
        if signed && record.note.as_ref() == Some(note) {
            return Ok(());
        }
        // What is signed now is believed later: whose it is, the volume knows better than a record that anybody wrote.
        let mut claim = request.claim.clone();
        if claim.namespace_uid.is_empty() {
            claim.namespace_uid.clone_from(&record.claim.namespace_uid);
        }
        let record = Record {
            note: Some(note.clone()),
            claim: if signed { record.claim } else { claim },
            backend: self.keeper.backend.clone(),
            ..record
        };
        self.replace_record(ground, &record).await
    }

    pub(super) async fn hand_over_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
        to: &ClaimRef,
        note: &VolumeMetadata,
    ) -> Result<(), ExportError> {
        // Done by a former life, which died before it could say so.
        let request = match self.read_record(ground, &request.volume).await? {
            Found::Record(record, _) if record.claim.uid == to.uid => ReclaimRequest {
                claim: to.clone(),
                ..request.clone()
            },
            _ => request.clone(),
        };
        let record = self.agreed_record(ground, &request).await?;
        let handed = Record {
            claim: to.clone(),
            note: Some(note.clone()),
            ..record.clone()
        };
        if handed == record {
            return Ok(());
        }
        self.replace_record(ground, &handed).await
    }

    /// A directory that was finished by a former life, for a volume that is going to be another one than it was then.
    pub(super) async fn renote(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        request: &DirectoryRequest,
    ) -> Result<(), ExportError> {
        if record.note == request.note || record.state != State::Live {
            return Ok(());
        }
        let record = Record {
            note: request.note.clone(),
            ..record.clone()
        };
        self.replace_record(ground, &record).await
    }
}
