//! Archives: a name that nobody has, and a directory that only the operator enters (design 6.7).

use super::{At, Reclaim, ReclaimAction};
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::ledger::{Holder, Reservation, ReservedPath};
use crate::naming::archive_name;
use crate::record::{ArchiveState, Record, State, handle_of};
use crate::{ExportStore, PoisonError, layout};
use nfs_client::{FileRef, SetAttributes};

/// Names tried: the plain one, one with the volume's own part, and numbers after it.
const NAMES: u32 = 100;
/// The shortest limits on names that servers are known to have, below the usual 255 (encrypted shares: 143).
const SHORTER: [usize; 2] = [143, 64];

impl ExportStore {
    pub(crate) fn archive_places(&self, ground: &VerifiedRoot, target: &str) -> Vec<ReservedPath> {
        self.places_of(&ground.identity.id, target)
    }

    /// A name for the archive that nothing has, and holds it.
    pub(super) async fn choose_target(&self, reclaim: &mut Reclaim<'_>) -> Result<ArchiveState, ExportError> {
        // The one that was tried before is somebody else's.
        reclaim.target = None;
        let chosen = self.free_target(reclaim.ground, &reclaim.record, reclaim.longest_name);
        let (target, reserved) = chosen.await?;
        let leaf = self.leaf_of(&reclaim.nodes, &reclaim.record.directory);
        let was = leaf.map(|leaf| &leaf.attributes);
        reclaim.target = Some(reserved);
        Ok(reclaim.keeping.note(target, was))
    }

    /// A name for the archive of a record that nothing has, held.
    pub(crate) async fn free_target(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        longest_name: usize,
    ) -> Result<(String, Reservation), ExportError> {
        let mut last = String::new();
        for attempt in 0..NAMES {
            let target = archive_name(record.archive_stem(), &record.volume, attempt, longest_name);
            last.clone_from(&target);
            let reserved = self.ledger.reserve(
                Holder::Archive(record.volume.clone()),
                self.archive_places(ground, &target),
                &self.keeper.backend,
            );
            let Ok(reserved) = reserved else { continue };
            let taken = self.nfs.lookup(&ground.root.handle, &layout::name(&target)?).await;
            let doing = || format!("choosing a name for the archive of {}", record.directory);
            if taken.while_(doing)?.is_none() {
                return Ok((target, reserved));
            }
        }
        Err(ExportError::NoArchiveName {
            directory: record.directory.to_string(),
            last,
        })
    }

    /// An nfs-subdir that still runs archives the same volumes under the same names. If the directory, told by fileid and
    /// handle, is where that one puts it, this is recorded as if it had been done here.
    pub(super) async fn look_for_archive(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        let record = &reclaim.record;
        let archives = reclaim.wish == ReclaimAction::Archive || record.adopted;
        if record.state != State::Live || !archives || reclaim.seen.source != At::Nothing {
            return Ok(());
        }
        let target = archive_name(record.directory.last_segment(), &record.volume, 0, reclaim.longest_name);
        let (ground, name) = (reclaim.ground, layout::name(&target)?);
        let found = self.nfs.lookup(&ground.root.handle, &name).await;
        let found = found.while_(|| format!("looking up {name}"))?;
        let same = |node: &FileRef| {
            ground.is_plain_directory(node) && record.is_about(node) && record.handle == Some(handle_of(node))
        };
        let Some(archive) = found.filter(same) else {
            return Ok(());
        };
        let was = &archive.attributes;
        let note = reclaim.keeping.note(target, Some(was));
        let record = record.in_state(State::Archiving(note));
        self.replace_record(ground, &record).await?;
        reclaim.record = record;
        reclaim.seen.moved = At::Ours;
        Ok(())
    }

    /// Holds the name that a former life chose. Somebody else may have it by now: then another one is chosen.
    pub(super) fn hold_target(&self, reclaim: &mut Reclaim<'_>) {
        let State::Archiving(note) = &reclaim.record.state else {
            return;
        };
        let reserved = self.ledger.reserve(
            Holder::Archive(reclaim.record.volume.clone()),
            self.archive_places(reclaim.ground, &note.target),
            &self.keeper.backend,
        );
        match reserved {
            Ok(reserved) => reclaim.target = Some(reserved),
            Err(_) if reclaim.seen.moved == At::Nothing => reclaim.seen.moved = At::Stranger,
            Err(_) => {}
        }
    }

    /// After the server refused a name as too long: whether there is a shorter one to try.
    pub(super) fn shorten(&self, reclaim: &mut Reclaim<'_>) -> bool {
        match SHORTER.iter().find(|shorter| **shorter < reclaim.longest_name) {
            Some(shorter) if matches!(reclaim.record.state, State::Archiving(_)) => {
                reclaim.longest_name = *shorter;
                true
            }
            _ => false,
        }
    }

    /// Closes the archive to everybody but the operator, so that pods that still have it mounted lose it, and records
    /// that it is one.
    pub(super) async fn seal(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        let State::Archiving(note) = reclaim.record.state.clone() else {
            return Ok(());
        };
        let ground = reclaim.ground;
        let name = layout::name(&note.target)?;
        let found = self.nfs.lookup(&ground.root.handle, &name).await;
        let archive = found.while_(|| format!("looking up {name}"))?;
        let Some(archive) = archive.filter(|archive| reclaim.record.is_about(archive)) else {
            return self.look(reclaim).await;
        };
        let warnings = self.close_archive(ground, &archive, &note.target).await?;
        reclaim.warnings.extend(warnings);
        let record = reclaim.record.in_state(State::Archived(note));
        self.replace_record(ground, &record).await?;
        reclaim.record = record;
        Ok(())
    }

    /// Mode 0700 of the operator's own. Answers what could not be done.
    pub(crate) async fn close_archive(
        &self,
        ground: &VerifiedRoot,
        archive: &FileRef,
        name: &str,
    ) -> Result<Vec<String>, ExportError> {
        let ours = &ground.reserved.attributes;
        let mut warnings = Vec::new();
        let owner = SetAttributes {
            mode: None,
            uid: ours.uid,
            gid: ours.gid,
            ..SetAttributes::default()
        };
        let mode = SetAttributes {
            mode: Some(0o700),
            ..SetAttributes::default()
        };
        let is_ours = archive.attributes.uid == ours.uid && archive.attributes.gid == ours.gid;
        let mut parts = vec![("mode", mode)];
        if !is_ours {
            // The owner first: to change it may clear bits of the mode.
            parts.insert(0, ("owner", owner));
        }
        for (what, part) in parts {
            match self.changing(ground)?.set_attributes(&archive.handle, part).await {
                Ok(_) => {}
                // It is archived all the same, and who could read it before still can: worth a warning.
                Err(error) if error.status().is_some_and(|status| status != nfs_client::Status::Stale) => {
                    warnings.push(format!("the {what} of {name} stays as it was: {error}"));
                }
                Err(error) => return Err(error).while_(|| format!("closing {name}")),
            }
        }
        Ok(warnings)
    }

    /// Enters an archive into the ledger and the count.
    pub(crate) fn enter_archive(&self, ground: &VerifiedRoot, record: &Record) {
        let Some(note) = record.state.archive() else { return };
        self.ledger.insert(
            Holder::Archive(record.volume.clone()),
            self.archive_places(ground, &note.target),
            record.file_id.map(|id| ground.file_key(id)),
        );
        if record.backend == self.keeper.backend {
            let mut archives = self.archives.lock().unwrap_or_else(PoisonError::into_inner);
            archives.insert(record.volume.clone());
        }
    }
}
