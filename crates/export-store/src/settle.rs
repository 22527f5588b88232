//! At the start: what former lives left open.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::ledger::Holder;
use super::record::{Record, State};
use super::records::Found;
use super::request::RecoveryReport;
use super::signature::Trust;
use super::{ExportStore, layout};
use nfs_client::{FileKind, Name};

/// Records looked at side by side.
const READS: usize = 16;
/// More records than any export of ours holds; a listing that goes on and on is not kept in memory.
const MOST_RECORDS: usize = 1_000_000;

/// What a file among the records is.
enum Kind {
    Open(Record),
    Stuck(Record),
    Damaged(String, String),
    /// Nothing that anybody has to look at.
    Settled,
}

impl ExportStore {
    pub(super) async fn settle_on(
        &self,
        ground: &VerifiedRoot,
        has_volume: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<RecoveryReport, ExportError> {
        self.sweep(ground).await?;
        let names = self
            .names_in(&ground.records.handle, "the records", MOST_RECORDS)
            .await?;
        let (drafts, names): (Vec<Name>, Vec<Name>) = names.into_iter().partition(layout::is_draft);
        self.remove_leftovers(ground, &ground.records, &drafts).await?;
        let without = names.into_iter().filter(|name| {
            let volume = std::str::from_utf8(name.as_bytes());
            !volume.is_ok_and(has_volume)
        });
        let kinds = stream::iter(without.map(|name| self.settle_one(ground, name)));
        let mut kinds = kinds.buffer_unordered(READS);
        let mut settled = RecoveryReport::default();
        while let Some(kind) = kinds.try_next().await? {
            match kind {
                Kind::Open(record) => settled.open.push(record),
                Kind::Stuck(record) => settled.stuck.push(record),
                Kind::Damaged(name, why) => settled.damaged.push((name, why)),
                Kind::Settled => {}
            }
        }
        self.count_others(ground).await;
        Ok(settled)
    }

    async fn settle_one(&self, ground: &VerifiedRoot, name: Name) -> Result<Kind, ExportError> {
        let Ok(volume) = std::str::from_utf8(name.as_bytes()) else {
            return Ok(Kind::Damaged(name.to_string(), "no volume has this name".into()));
        };
        // A record that a claim is just being provisioned under is looked at when that is over.
        let _turn = self.turns.of(volume).await;
        let (record, trust) = match self.read_record(ground, volume).await {
            Ok(Found::Record(record, trust)) => (*record, trust),
            Ok(Found::Nothing) => return Ok(Kind::Settled),
            Ok(Found::Unreadable(why)) => return Ok(Kind::Damaged(volume.to_owned(), why.to_string())),
            Err(ExportError::NameUnusable { .. }) => {
                return Ok(Kind::Damaged(name.to_string(), "no volume has this name".into()));
            }
            Err(error) => return Err(error),
        };
        let signed = trust == Trust::Signed;
        if !signed {
            self.doubt(&record, trust);
        }
        match &record.state {
            State::Creating | State::Live => {
                self.hold(ground, &record);
                Ok(Kind::Open(record))
            }
            State::Archived(_) | State::Purging { .. } | State::Restoring { .. } => {
                self.enter_archive(ground, &record);
                Ok(Kind::Settled)
            }
            State::Copying(_) => {
                if !signed || !self.complete_copy(ground, &record).await? {
                    self.hold_copy(ground, &record, signed);
                }
                Ok(Kind::Settled)
            }
            State::Tombstone { .. } if signed => {
                self.remember_tombstone(&record);
                Ok(Kind::Settled)
            }
            State::Archiving(_) if signed && self.complete_archive(ground, &record).await? => Ok(Kind::Settled),
            State::RemovingEmpty | State::Deleting { .. } if self.forget_record(ground, &record).await? => {
                Ok(Kind::Settled)
            }
            State::Archiving(_) | State::RemovingEmpty | State::Deleting { .. } | State::Tombstone { .. } => {
                self.hold(ground, &record);
                Ok(Kind::Stuck(record))
            }
        }
    }

    /// Keeps a directory's place taken although it has no volume (yet).
    pub(super) fn hold(&self, ground: &VerifiedRoot, record: &Record) {
        let places = self.places_of(&ground.identity.id, &record.directory.to_string());
        let holder = Holder::Volume(record.volume.clone());
        // In somebody's way already: then that one has it, and provisioning or undoing says so.
        if let Ok(reservation) = self.ledger.reserve(holder, places, &self.keeper.backend) {
            reservation.keep(record.file_id.map(|id| ground.file_key(id)));
        }
    }

    /// Removes what a probe or the making of an identity left when it was cut off.
    async fn sweep(&self, ground: &VerifiedRoot) -> Result<(), ExportError> {
        let path = "the cluster's folder";
        let names = self.names_in(&ground.cluster.handle, path, MOST_RECORDS).await?;
        let leftovers: Vec<Name> = names.into_iter().filter(layout::is_leftover).collect();
        self.remove_leftovers(ground, &ground.cluster, &leftovers).await
    }

    async fn remove_leftovers(
        &self,
        ground: &VerifiedRoot,
        folder: &nfs_client::FileRef,
        names: &[Name],
    ) -> Result<(), ExportError> {
        for name in names {
            let doing = || format!("removing {name}, left from an interrupted life");
            let Some(node) = self.nfs.lookup(&folder.handle, name).await.while_(doing)? else {
                continue;
            };
            if node.attributes.kind != FileKind::Regular {
                continue;
            }
            // Whoever removes or replaces it at the same time is welcome.
            let removed = self
                .changing(ground)?
                .remove_file(&folder.handle, name, node.attributes.fileid)
                .await;
            if let Err(error) = removed
                && error.status().is_none()
            {
                return Err(error).while_(doing);
            }
        }
        Ok(())
    }
}
