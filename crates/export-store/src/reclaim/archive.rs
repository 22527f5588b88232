//! Archives: an unused name, and a directory that is restricted to the operator (data-safety rule 7).

use crate::archives::RecordedArchive;
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::archive_name;
use crate::path_reservations::{Holder, Sharing};
use crate::recent_archives::RecentArchive;
use crate::reclaim::{Moved, NameOccupant, Reclaim, ReclaimAction};
use crate::record::{ArchiveState, State};
use crate::store::ExportStore;
use crate::{archives, layout, paths, reclaim, records};
use nfs_client::FileRef;

/// Lower limits on name lengths of known servers, below the usual 255 (encrypted shares: 143).
const SHORTER: [usize; 2] = [143, 64];

/// Reserves a name for the archive. The first one is not looked up before the rename does.
pub(crate) async fn choose_name(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<ArchiveState, ExportError> {
    // The previous name is taken.
    reclaim.target = None;
    let (verified, record, longest_name) = (reclaim.verified, &reclaim.record, reclaim.longest_name);
    let first = match record.state {
        State::Live => archives::reserve_first_name(store, verified, record, longest_name),
        // The name in the record may be taken.
        _ => None,
    };
    let (target, reserved) = match first {
        Some(first) => first,
        None => archives::reserve_name(store, verified, record, longest_name).await?,
    };
    let leaf = paths::leaf(&reclaim.nodes, &reclaim.record.directory);
    let was = leaf.map(|leaf| &leaf.attributes);
    reclaim.target = Some(reserved);
    Ok(reclaim.archive_metadata.archive_state(target, was))
}

/// A running nfs-subdir archives the same volumes under the same names. If the directory, identified by fileid and
/// handle, is at that name, it is recorded as an archive of this operator.
pub(crate) async fn find_existing(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
    let record = &reclaim.record;
    let is_archiving = reclaim.action == ReclaimAction::Archive || record.adopted;
    if record.state != State::Live || !is_archiving || reclaim.observed.source != NameOccupant::Nothing {
        return Ok(());
    }
    let target = archive_name(record.directory.last_segment(), &record.volume, 0, reclaim.longest_name);
    let (verified, name) = (reclaim.verified, layout::name(&target)?);
    let found = store.nfs.lookup(&verified.root.handle, &name).await;
    let found = found.context(|| format!("looking up {name}"))?;
    let has_handle = |node: &FileRef| record.handle.as_ref().is_some_and(|handle| handle.is_of(node));
    let same = |node: &FileRef| verified.is_plain_directory(node) && record.matches_node(node) && has_handle(node);
    let Some(archive) = found.filter(same) else {
        return Ok(());
    };
    let was = &archive.attributes;
    let archived = reclaim.archive_metadata.archive_state(target, Some(was));
    let record = record.in_state(State::Archiving(archived));
    records::replace_to_free_space(store, verified, &record).await?;
    reclaim.record = record;
    reclaim.observed.moved = NameOccupant::Own;
    Ok(())
}

/// Reserves the archive name that an earlier process chose. If it has another holder, a new one is chosen.
pub(crate) fn reserve_recorded_name(store: &ExportStore, reclaim: &mut Reclaim<'_>) {
    let State::Archiving(archived) = &reclaim.record.state else {
        return;
    };
    let reserved = store.reservations.reserve(
        Holder::Archive(reclaim.record.volume.clone()),
        archives::reserved_paths(store, reclaim.verified, &archived.target),
        Sharing::Exclusive,
        &store.config.backend,
    );
    match reserved {
        Ok(reserved) => reclaim.target = Some(reserved),
        Err(_) if reclaim.observed.moved == NameOccupant::Nothing => reclaim.observed.moved = NameOccupant::Other,
        Err(_) => {}
    }
}

/// Lowers the name limit after the server refused a name as too long. Returns false if there is no lower one.
pub(crate) fn shorten_name(reclaim: &mut Reclaim<'_>) -> bool {
    match SHORTER.iter().find(|shorter| **shorter < reclaim.longest_name) {
        Some(shorter) if matches!(reclaim.record.state, State::Archiving(_)) => {
            reclaim.longest_name = *shorter;
            true
        }
        _ => false,
    }
}

/// Restricts the archive to the operator, so that pods that still mount it lose access, and records it as archived.
pub(crate) async fn complete(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
    let State::Archiving(archived) = reclaim.record.state.clone() else {
        return Ok(());
    };
    let verified = reclaim.verified;
    let archive = match paths::leaf(&reclaim.nodes, &reclaim.record.directory) {
        // If the rename changed the handle, it is stale, and the next attempt looks the archive up.
        Some(moved) if reclaim.moved.is_some() => Some(moved.clone()),
        _ => {
            let name = layout::name(&archived.target)?;
            let found = store.nfs.lookup(&verified.root.handle, &name).await;
            found.context(|| format!("looking up {name}"))?
        }
    };
    let Some(archive) = archive.filter(|archive| reclaim.record.matches_node(archive)) else {
        return reclaim::observe(store, reclaim).await;
    };
    if reclaim.moved != Some(Moved::Restricted) {
        let warnings = archives::restrict(store, verified, &archive, &archived.target).await?;
        reclaim.warnings.extend(warnings);
    }
    let record = reclaim.record.in_state(State::Archived(archived));
    records::replace_to_free_space(store, verified, &record).await?;
    // An archive of another backend on the export is that backend's.
    reclaim.archived = RecordedArchive::of_written(store, verified, &record).map(Box::new);
    let recent = RecentArchive::new(verified, record.clone());
    store.reservations.recent_archives.insert(&verified.identity.id, recent);
    reclaim.record = record;
    Ok(())
}
