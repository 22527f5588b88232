//! The group of a volume's directory: the requested one, or one of its own from a range.
//!
//! A group is reserved in memory before the record is written with it, and the records of other clusters are read after
//! that, as for the directory's path (data-safety rule 20).

use std::borrow::Cow;

use crate::error::ExportError;
use crate::group_reservations::GroupRange;
use crate::naming::{self, DirectoryPath};
use crate::other_clusters::{self, ForeignGroups};
use crate::record::{Record, State};
use crate::request::{DirectoryRequest, Existing};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{paths, records};

/// Maximum number of groups to try while other clusters take the same ones.
const ATTEMPTS: u64 = 8;

/// Returns the request with the group of the directory. With a range, reserves one: the recorded one if the volume can
/// keep it, or that of an existing directory.
pub(crate) async fn assign<'a>(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &'a DirectoryRequest,
    directory: &DirectoryPath,
    record: Option<&Record>,
) -> Result<Cow<'a, DirectoryRequest>, ExportError> {
    if let Some(record) = record.filter(|record| record.state == State::Live || record.restores.is_some()) {
        return Ok(Cow::Owned(with_group(request, record.group)));
    }
    // The group of a restored volume is that of the archive, whose record is read later.
    let Some(range) = request.gid_range.filter(|_| request.restore.is_none()) else {
        return Ok(Cow::Borrowed(request));
    };
    let recorded = record.and_then(|record| record.group);
    let preferred = match recorded {
        None if request.existing == Existing::Adopt => group_of_existing(store, verified, directory).await?,
        recorded => recorded,
    };
    let preferred = preferred.filter(|group| range.contains(*group));
    let group = allocate(store, verified, &request.volume, range, preferred).await?;
    Ok(Cow::Owned(with_group(request, Some(group))))
}

/// Reserves a group for a volume.
pub(super) async fn allocate(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    range: GroupRange,
    preferred: Option<u32>,
) -> Result<u32, ExportError> {
    let (groups, export) = (&store.reservations.groups, &verified.identity.id);
    let mut elsewhere = ForeignGroups::default();
    // What other clusters had a minute ago is enough to choose one, and not to refuse the claim.
    for refresh in [false, true] {
        elsewhere = other_clusters::groups(store, verified, refresh).await?;
        if let Some(group) = groups.allocate(export, volume, range, preferred, &elsewhere.all) {
            return Ok(group);
        }
    }
    Err(ExportError::GroupsExhausted {
        range,
        elsewhere: elsewhere.all.iter().filter(|group| range.contains(**group)).count(),
    })
}

async fn group_of_existing(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
) -> Result<Option<u32>, ExportError> {
    let nodes = paths::walk(store, verified, directory).await?;
    Ok(paths::leaf(&nodes, directory).and_then(|leaf| leaf.attributes.gid))
}

/// Records another group if a cluster on the same export has chosen the same one at the same time.
///
/// Call this after the records of the other clusters were read again ([`other_clusters::recheck`]).
pub(crate) async fn recheck(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    record: &mut Record,
) -> Result<(), ExportError> {
    let Some(range) = request.gid_range else { return Ok(()) };
    let mut elsewhere = other_clusters::groups(store, verified, false).await?;
    for attempt in 0..ATTEMPTS {
        if record.group.is_some_and(|group| elsewhere.all.contains(&group)) {
            elsewhere = other_clusters::groups_without(store, verified, record.group).await?;
        }
        if record.group.is_none_or(|group| !elsewhere.all.contains(&group)) {
            return Ok(());
        }
        // Other clusters that come second may be doing the same: each chooses from another part of the range.
        let part = scattered(range, &store.config.cluster_id, attempt);
        let (groups, export) = (&store.reservations.groups, &verified.identity.id);
        let chosen = groups.allocate(export, &record.volume, part, None, &elsewhere.all);
        let group = match chosen {
            Some(group) => group,
            None => allocate(store, verified, &record.volume, range, None).await?,
        };
        let request = with_group(request, Some(group));
        *record = Record {
            group: Some(group),
            metadata: request.metadata,
            ..record.clone()
        };
        records::replace(store, verified, record).await?;
        elsewhere = other_clusters::groups(store, verified, true).await?;
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("choosing a group for {}", record.directory),
    })
}

/// Returns the upper part of a range, from a group that differs between clusters and attempts.
fn scattered(range: GroupRange, cluster: &str, attempt: u64) -> GroupRange {
    let digits = naming::hash(&format!("{cluster}/{attempt}"), 16);
    let hash = u64::from_str_radix(&digits, 16).unwrap_or_default();
    let offset = u32::try_from(hash % range.size()).unwrap_or_default();
    GroupRange {
        min: range.min.saturating_add(offset),
        ..range
    }
}

/// Returns a request with this group, also in the metadata of the volume. The kubelet ignores group 0.
pub(super) fn with_group(request: &DirectoryRequest, group: Option<u32>) -> DirectoryRequest {
    let mut request = DirectoryRequest {
        gid: group,
        ..request.clone()
    };
    if let Some(metadata) = &mut request.metadata {
        metadata.gid = group.filter(|group| *group != 0);
    }
    request
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn clusters_that_choose_again_choose_from_different_parts_of_the_range() {
        let range = GroupRange { min: 5000, max: 5999 };
        let starts: HashSet<u32> = ["one", "two", "three"]
            .iter()
            .flat_map(|cluster| (0..4).map(|attempt| scattered(range, cluster, attempt)))
            .inspect(|part| assert!(range.contains(part.min) && part.max == range.max))
            .map(|part| part.min)
            .collect();
        assert!(starts.len() > 8, "{starts:?}");
        let whole = GroupRange { min: 1, max: u32::MAX };
        assert!(whole.contains(scattered(whole, "one", 0).min));
    }
}
