//! What the last scan means for the backend's condition. Pure.

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::SCAN_NOW;
use crate::api::orphans::OrphansOfKind;
use crate::api::{Orphan, OrphansStatus};

/// Whether the last scan found anything alone, and what an administrator does about it.
pub(crate) fn verdict(orphans: Option<&OrphansStatus>) -> PlannedCondition {
    let Some(orphans) = orphans else {
        return PlannedCondition::unknown(Reason::NotScanned, "its export was not scanned for orphans yet");
    };
    let unseen = match orphans.skipped {
        0 => String::new(),
        skipped => format!("; {skipped} could not be looked at, see the operator's log"),
    };
    if orphans.total == 0 {
        let well = "every directory has its volume, and every volume its directory";
        return PlannedCondition::holds(Reason::NoOrphansFound, format!("{well}{unseen}"));
    }
    let kinds: Vec<String> = orphans.kinds.iter().map(in_words).collect();
    PlannedCondition::fails(
        Reason::OrphansFound,
        format!(
            "{}{unseen}. Nothing is removed by itself; annotate the backend with {SCAN_NOW}=true to have it scanned again",
            kinds.join(". ")
        ),
    )
}

fn in_words(of: &OrphansOfKind) -> String {
    let first = match of.examples.first() {
        Some(Orphan {
            volume,
            directory: Some(directory),
        }) => format!(" (first {directory} of {volume})"),
        Some(Orphan { volume, .. }) => format!(" (first {volume})"),
        None => String::new(),
    };
    format!("{} {}{first}: {}", of.count, of.kind, of.kind.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OrphanKind;

    #[test]
    fn the_condition_names_count_kind_first_name_and_remedy() {
        assert_eq!(verdict(None).reason, Reason::NotScanned);
        assert_eq!(verdict(None).status, None);
        let none = OrphansStatus::default();
        assert_eq!(verdict(Some(&none)).reason, Reason::NoOrphansFound);
        let mut some = OrphansStatus {
            skipped: 3,
            ..OrphansStatus::default()
        };
        for number in 0..2 {
            let orphan = Orphan {
                volume: format!("pvc-{number}"),
                directory: Some(format!("d{number}")),
            };
            some.add(OrphanKind::DirectoryWithoutVolume, orphan);
        }
        let found = verdict(Some(&some));
        assert_eq!((found.status, found.reason), (Some(false), Reason::OrphansFound));
        for part in [
            "2 DirectoryWithoutVolume (first d0 of pvc-0): inspect its contents",
            "3 could not be looked at",
            SCAN_NOW,
        ] {
            assert!(found.message.contains(part), "{}", found.message);
        }
    }
}
