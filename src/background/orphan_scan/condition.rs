//! The condition Consistent of a backend. Pure.

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::SCAN_REQUESTED_AT;
use crate::api::orphans::OrphansOfKind;
use crate::api::{Orphan, OrphansStatus};

/// Returns the condition for the result of the last scan.
pub fn condition(orphans: Option<&OrphansStatus>) -> PlannedCondition {
    let Some(orphans) = orphans else {
        return PlannedCondition::unknown(Reason::NotScanned, "the export has not been scanned for orphans yet");
    };
    let skipped = match orphans.skipped {
        0 => String::new(),
        skipped => format!("; {skipped} could not be checked, see the operator's log"),
    };
    if orphans.total == 0 {
        let summary = "every directory has its volume, and every volume its directory";
        return PlannedCondition::holds(Reason::NoOrphansFound, format!("{summary}{skipped}"));
    }
    let kinds: Vec<String> = orphans.kinds.iter().map(describe).collect();
    PlannedCondition::fails(
        Reason::OrphansFound,
        format!(
            "{}{skipped}. Nothing is removed automatically; annotate the backend with {SCAN_REQUESTED_AT}=<any new value> to scan it again",
            kinds.join(". ")
        ),
    )
}

fn describe(orphans: &OrphansOfKind) -> String {
    let first = match orphans.examples.first() {
        Some(Orphan {
            volume,
            directory: Some(directory),
        }) => format!(" (first {directory} of {volume})"),
        Some(Orphan { volume, .. }) => format!(" (first {volume})"),
        None => String::new(),
    };
    format!("{} {}{first}: {}", orphans.count, orphans.kind, orphans.kind.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OrphanKind;

    #[test]
    fn the_condition_names_count_kind_first_name_and_remedy() {
        assert_eq!(condition(None).reason, Reason::NotScanned);
        assert_eq!(condition(None).status, None);
        let none = OrphansStatus::default();
        assert_eq!(condition(Some(&none)).reason, Reason::NoOrphansFound);
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
        let found = condition(Some(&some));
        assert_eq!((found.status, found.reason), (Some(false), Reason::OrphansFound));
        for part in [
            "2 DirectoryWithoutVolume (first d0 of pvc-0): inspect its contents",
            "3 could not be checked",
            SCAN_REQUESTED_AT,
        ] {
            assert!(found.message.contains(part), "{}", found.message);
        }
    }
}
