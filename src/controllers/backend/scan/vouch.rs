//! Records of volumes in use that this cluster did not sign: of an earlier release, or from before the key was lost. The
//! volume vouches for its record, which is signed when the two agree, so that it can be believed when the volume is lost.

use kube::ResourceExt;

use super::walk::{ScanError, Walk, speaks_of_the_export};
use crate::controllers::volume::request;
use crate::export::{Found, Look, Trust};

/// Whether the record is there and needs somebody who vouches for it.
pub(super) fn is_unsigned(look: &Look) -> bool {
    matches!(look.record, Found::Record(_, Trust::Unsigned | Trust::Forged))
}

impl Walk<'_> {
    /// Signs the record of a volume, by what the volume says now.
    pub(super) async fn vouch(&mut self, volume: &str) -> Result<(), ScanError> {
        let Some(object) = self.volume(volume).await? else {
            return Ok(());
        };
        let backend = &self.backend.name;
        let said = match request(&object, self.backend, &self.backend.known()) {
            Ok(said) => said,
            Err(verdict) => {
                tracing::warn!(backend, volume, reason = %verdict.reason, "its record is not signed: {}", verdict.message);
                return Ok(());
            }
        };
        match self.export.vouch_for(&said).await {
            Ok(()) => tracing::info!(
                backend,
                volume = object.name_any(),
                "signed its record, with which the volume agrees"
            ),
            Err(error) if speaks_of_the_export(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(backend, volume, reason = %error.reason(), "its record is not signed: {error}");
            }
        }
        Ok(())
    }
}
