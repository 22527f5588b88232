//! In which order to try the backends that may serve a claim.
//!
//! By room, the most first. A backend's room is the smaller of its free space (at the last probe, less what was requested
//! since, whose data is still to come) and of the size that no request has a claim on: the first is what is true now, the
//! second keeps a storm of claims, whose volumes are all empty still, from running to one backend. Backends whose
//! requests exceed their size come after those with room, by free space alone.
//!
//! Room within [`EQUAL_PERCENT`] of the best counts as equal to it: there the fewer volumes decide, so equal backends
//! fill evenly though their probes differ a little. Then a hash of claim and backend, so that claims that are placed at
//! the same instant, from the same figures, spread too.

use std::cmp::Reverse;

use sha2::{Digest, Sha256};

use super::Candidate;

/// Room that differs by no more than this from the best is equal to it: more than what a few volumes change between two
/// probes, less than what an administrator would call fuller.
const EQUAL_PERCENT: u128 = 10;

/// The names, in the order in which to try them.
pub(crate) fn ordered(claim_uid: &str, backends: Vec<&Candidate<'_>>) -> Vec<String> {
    let mut rest: Vec<(Room, &Candidate<'_>)> = backends.into_iter().map(|backend| (room(backend), backend)).collect();
    rest.sort_by_key(|&(room, _)| Reverse(room));
    let mut names = Vec::with_capacity(rest.len());
    while let Some(&(best, _)) = rest.first() {
        let equal = rest.partition_point(|(room, _)| room.equals(best));
        let later = rest.split_off(equal);
        rest.sort_by_cached_key(|(_, backend)| (backend.volumes, tie(claim_uid, backend.name), backend.name));
        names.extend(rest.iter().map(|(_, backend)| backend.name.to_owned()));
        rest = later;
    }
    names
}

/// How much can still come here. Ordered: any that is left over before none, then by bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    uncommitted: bool,
    bytes: u128,
}

impl Room {
    fn equals(self, best: Self) -> bool {
        // Divided first, so that sizes near 2^128 do not overflow.
        let least = best.bytes - best.bytes / 100 * EQUAL_PERCENT;
        self.uncommitted == best.uncommitted && self.bytes >= least
    }
}

/// A server that does not say its free space has none to be counted on.
fn room(backend: &Candidate<'_>) -> Room {
    let free = backend
        .available
        .map_or(0, |available| available.saturating_sub(backend.provisioned_since_probe));
    let uncommitted = backend
        .total
        .map_or(free, |total| total.saturating_sub(backend.provisioned_on_export));
    if uncommitted > 0 {
        Room {
            uncommitted: true,
            bytes: free.min(uncommitted),
        }
    } else {
        Room {
            uncommitted: false,
            bytes: free,
        }
    }
}

fn tie(claim_uid: &str, backend: &str) -> [u8; 32] {
    // A uid holds no `/`, so two pairs never hash the same text.
    Sha256::digest(format!("{claim_uid}/{backend}")).into()
}
