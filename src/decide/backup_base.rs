//! The earlier backups that can be the base of a backup: files that have not changed since are linked. Pure.

use std::cmp::Reverse;
use std::ops::Deref;

use kube::ResourceExt;

use crate::api::NfsArchive;

/// Maximum number of candidates. The first whose data and manifest can be used is the base; a further one replaces it only
/// after a loss or a damage.
const MAX_CANDIDATES: usize = 3;

/// Returns the names of complete backups of the same volume at the same destination, the newest first. The records on the
/// export decide whether they are used.
pub fn base_candidates(
    archives: impl IntoIterator<Item = impl Deref<Target = NfsArchive>>,
    requested: &NfsArchive,
) -> Vec<String> {
    let source = |archive: &NfsArchive| {
        let observed = archive.observed();
        let at = (observed.backend_name.clone(), observed.export_id.clone());
        (at, observed.claim_uid.clone(), observed.volume_name.clone())
    };
    let wanted = source(requested);
    let is_candidate = |archive: &NfsArchive| {
        archive.is_on_demand()
            && archive.is_good()
            && archive.uid() != requested.uid()
            && !archive.observed().claim_uid.is_empty()
            && source(archive) == wanted
    };
    let found = archives.into_iter().filter(|archive| is_candidate(archive));
    let mut found: Vec<_> = found
        .map(|archive| {
            (
                archive.observed().archive_time.as_ref().map(|at| at.0),
                archive.name_any(),
            )
        })
        .collect();
    found.sort_by_key(|(at, name)| Reverse((*at, name.clone())));
    found.into_iter().take(MAX_CANDIDATES).map(|(_, name)| name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(name: &str, hour: u32, change: (&str, Value)) -> Box<NfsArchive> {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("uid-of-{name}")},
            "spec": {"claimRef": {"namespace": "team", "name": "data"}},
            "status": {
                "state": "Available", "backendName": "safe", "exportID": "e", "volumeName": "pvc-1", "claimUID": "1",
                "fileID": "7", "archiveTime": format!("2026-01-01T{hour:02}:00:00Z"),
            },
        });
        let (pointer, value) = change;
        if let Some(field) = object.pointer_mut(pointer) {
            *field = value;
        }
        Box::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_newest_complete_backups_of_the_same_volume_at_the_same_place_come_first() {
        let unchanged = || ("/none", json!(0));
        let requested = backup("now", 23, ("/status/fileID", json!(null)));
        let mut archives = vec![
            backup("second", 2, unchanged()),
            backup("fourth", 4, unchanged()),
            backup("first", 1, unchanged()),
            backup("third", 3, ("/status/state", json!("Held"))),
            requested.clone(),
            backup("pvc-1", 5, unchanged()),
        ];
        for (number, change) in [
            ("/status/claimUID", json!("2")),
            ("/status/volumeName", json!("pvc-2")),
            ("/status/backendName", json!("main")),
            ("/status/exportID", json!("other")),
            ("/status/fileID", json!(null)),
            ("/status/state", json!("Missing")),
            ("/status/state", json!("Expired")),
        ]
        .into_iter()
        .enumerate()
        {
            archives.push(backup(&format!("unsuitable-{number}"), 9, change));
        }
        assert_eq!(base_candidates(archives, &requested), ["fourth", "third", "second"]);
    }
}
