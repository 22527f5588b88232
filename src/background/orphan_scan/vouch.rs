//! Records of volumes in use that this cluster did not sign: of an earlier release, or from before the key was lost. The
//! volume vouches for its record, which is signed when the two agree, so that it can be believed when the volume is lost.

use kube::ResourceExt;

use super::walk::{OrphanScan, ScanError, speaks_of_the_export};
use crate::decide::quantity::bytes;
use crate::state::volume_metadata;
use export_store::{Found, Inspection, State, Trust};

/// Whether the record is there and needs somebody who vouches for it.
fn is_unsigned(look: &Inspection) -> bool {
    matches!(look.record, Found::Record(_, Trust::Unsigned | Trust::Forged))
}

/// Whether the record of a volume in use, with this size, could not be made a volume of again: its writer died too
/// early, or it was signed on the volume's word, which leaves out what nobody vouched for.
fn says_too_little(look: &Inspection, size: Option<u128>) -> bool {
    let Found::Record(record, _) = &look.record else {
        return false;
    };
    let noted = record.note.as_ref().and_then(|note| bytes(&note.size));
    record.state == State::Live && noted != size
}

impl OrphanScan<'_> {
    /// Sees to it that the record of a volume in use will do on the day when the volume is lost.
    pub(crate) async fn keep_believable(&mut self, volume: &str, look: &Inspection) -> Result<(), ScanError> {
        let unsigned = is_unsigned(look);
        if unsigned {
            self.vouch(volume).await?;
        }
        if (unsigned || says_too_little(look, self.ctx.capacity.size_of(volume)))
            && let Some(object) = self.volume(volume).await?
        {
            volume_metadata::save(self.ctx, &object).await;
        }
        Ok(())
    }

    /// Signs the record of a volume, by what the volume says now.
    async fn vouch(&mut self, volume: &str) -> Result<(), ScanError> {
        let Some(object) = self.volume(volume).await? else {
            return Ok(());
        };
        let backend = &self.backend.name;
        let said = match self.backend.known().reclaim_request(&object) {
            Ok(said) => said,
            Err(verdict) => {
                tracing::warn!(backend, volume, reason = %verdict.reason, "its record is not signed: {}", verdict.message);
                return Ok(());
            }
        };
        match self.export.sign_confirmed(&said).await {
            Ok(()) => tracing::info!(
                backend,
                volume = object.name_any(),
                "signed its record, with which the volume agrees"
            ),
            Err(error) if speaks_of_the_export(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(backend, volume, reason = ?error.kind(), "its record is not signed: {error}");
            }
        }
        Ok(())
    }
}
