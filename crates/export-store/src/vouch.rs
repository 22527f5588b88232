//! Objects of archives vouch for records that this cluster did not sign: of an earlier release, or from before the key was
//! lost. What an object agrees with is signed, and from then on believed. What volumes do is in `reclaim/recorded.rs`.

use super::ExportStore;
use super::archives::ArchiveRef;
use super::error::ExportError;
use super::ground::VerifiedRoot;
use super::record::{RetentionTerms, State};
use super::signature::Trust;

impl ExportStore {
    /// Signs an archive's record, with which its object agrees. A purge that it speaks of is taken back if there is anything
    /// left to keep: whether its time has come is found out anew.
    pub(super) async fn vouch_for_archive_on(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
        terms: &RetentionTerms,
    ) -> Result<(), ExportError> {
        let (record, trust) = self.record_and_trust(ground, which).await?;
        if trust == Trust::Signed {
            return Ok(());
        }
        let kept = match &record.state {
            State::Archived(note) => Some(note),
            State::Purging { archive, .. } if self.at_archive(ground, &record, archive).await?.is_some() => {
                Some(archive)
            }
            _ => None,
        };
        let record = match kept {
            Some(note) => &record.in_state(State::Archived(note.on(terms))),
            None => &*record,
        };
        self.replace_record(ground, record).await
    }
}
