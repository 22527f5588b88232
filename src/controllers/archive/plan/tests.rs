use super::*;
use export_store::ClaimRef;

fn situation(sight: ExportState) -> Observed {
    Observed {
        deleting: false,
        kind_going: false,
        delete: false,
        held: false,
        copied: false,
        due: None,
        sight,
    }
}

fn unseen() -> ExportState {
    ExportState::Unseen(PlannedCondition::fails(Reason::ConnectionRefused, "refused"))
}

fn unusable() -> ExportState {
    ExportState::Unusable(PlannedCondition::fails(Reason::RecordUnusable, "damaged"))
}

fn restoring(done: bool) -> ExportState {
    let to = RestoreTarget {
        volume: "pvc-2".into(),
        claim: ClaimRef::default(),
        directory: "team/data".into(),
    };
    ExportState::Restoring { to, done }
}

fn at(there: bool) -> ExportState {
    ExportState::Kept { there, copy: None }
}

/// All that can be seen of an archive.
fn sights() -> Vec<ExportState> {
    vec![
        unseen(),
        unusable(),
        ExportState::Unrecorded,
        at(true),
        at(false),
        ExportState::Purging { there: true },
        ExportState::Purging { there: false },
        restoring(false),
        restoring(true),
    ]
}

#[test]
fn an_archive_stays_until_its_time_is_over_or_somebody_deletes_it_and_its_data() {
    let kept = || at(true);
    let due = || Some("expired".to_owned());
    let deleting = |delete, sight| Observed {
        deleting: true,
        delete,
        ..situation(sight)
    };
    for (what, situation, step) in [
        ("kept", situation(kept()), Step::NoOp),
        (
            "expired",
            Observed {
                due: due(),
                ..situation(kept())
            },
            Step::Purge,
        ),
        (
            "expired and missing",
            Observed {
                due: due(),
                ..situation(at(false))
            },
            Step::NoOp,
        ),
        (
            "expired, unseen",
            Observed {
                due: due(),
                ..situation(unseen())
            },
            Step::Wait,
        ),
        ("let go", deleting(false, kept()), Step::RemoveFinalizer),
        (
            "let go, its server dead",
            deleting(false, unseen()),
            Step::RemoveFinalizer,
        ),
        ("deleted", deleting(true, kept()), Step::Purge),
        ("deleted, missing", deleting(true, at(false)), Step::Purge),
        ("deleted, its server dead", deleting(true, unseen()), Step::Wait),
        ("deleted, its record damaged", deleting(true, unusable()), Step::Wait),
        (
            "deleted, unrecorded",
            deleting(true, ExportState::Unrecorded),
            Step::RemoveFinalizer,
        ),
        (
            "expired, while it is copied",
            Observed {
                due: due(),
                copied: true,
                ..situation(kept())
            },
            Step::Wait,
        ),
        (
            "deleted, while it is copied",
            Observed {
                copied: true,
                ..deleting(true, kept())
            },
            Step::Wait,
        ),
        (
            "let go, while it is copied",
            Observed {
                copied: true,
                ..deleting(false, kept())
            },
            Step::Wait,
        ),
        (
            "purged by us",
            deleting(false, ExportState::Purging { there: true }),
            Step::Purge,
        ),
        (
            "purged half",
            deleting(false, ExportState::Purging { there: false }),
            Step::Purge,
        ),
        (
            "announced, and prolonged",
            situation(ExportState::Purging { there: true }),
            Step::CancelPurge,
        ),
        (
            "in the trash, and prolonged",
            situation(ExportState::Purging { there: false }),
            Step::Purge,
        ),
        ("on its way to a volume", situation(restoring(false)), Step::Wait),
        ("a volume's", situation(restoring(true)), Step::CompleteRestore),
        (
            "a volume's, and deleted",
            deleting(true, restoring(true)),
            Step::CompleteRestore,
        ),
    ] {
        assert_eq!(plan(&situation).0, step, "{what}");
    }
}

#[test]
fn what_is_held_is_never_purged_whatever_else_is_so() {
    for sight in sights() {
        // What is in the trash already can't be held back.
        let gone = matches!(sight, ExportState::Purging { there: false });
        for bits in 0..32 {
            let situation = Observed {
                deleting: bits & 1 > 0,
                kind_going: bits & 2 > 0,
                delete: bits & 4 > 0,
                due: (bits & 8 > 0).then(|| "expired".to_owned()),
                held: true,
                copied: bits & 16 > 0,
                sight: sight.clone(),
            };
            let (step, _) = plan(&situation);
            assert!(step != Step::Purge || gone, "{situation:?}");
        }
    }
}

#[test]
fn nothing_is_purged_because_the_kind_is_deleted_and_no_object_holds_that_up() {
    for sight in sights() {
        for (delete, held) in [(false, false), (true, false), (false, true), (true, true)] {
            let situation = Observed {
                deleting: true,
                kind_going: true,
                delete,
                held,
                copied: true,
                due: None,
                sight: sight.clone(),
            };
            let expected = match sight {
                ExportState::Purging { there: true } => Step::CancelPurge,
                ExportState::Purging { there: false } => Step::Purge,
                ExportState::Restoring { done: true, .. } => Step::CompleteRestore,
                _ => Step::RemoveFinalizer,
            };
            assert_eq!(plan(&situation).0, expected, "{situation:?}");
        }
    }
}

#[test]
fn the_object_says_in_one_word_and_in_conditions_how_the_archive_is() {
    let held = |sight| Observed {
        held: true,
        ..situation(sight)
    };
    for (situation, state, available, other) in [
        (situation(at(true)), "Available", Some(true), None),
        (held(at(true)), "Held", Some(true), None),
        (
            Observed {
                due: Some("over".into()),
                ..situation(at(true))
            },
            "Expired",
            Some(true),
            Some(ArchiveCondition::Expired),
        ),
        (
            situation(at(false)),
            "Missing",
            Some(false),
            Some(ArchiveCondition::Missing),
        ),
        (
            held(ExportState::Unrecorded),
            "Missing",
            Some(false),
            Some(ArchiveCondition::Missing),
        ),
        (
            situation(ExportState::Purging { there: true }),
            "Purging",
            Some(false),
            Some(ArchiveCondition::Purging),
        ),
        (
            situation(restoring(false)),
            "Restoring",
            Some(false),
            Some(ArchiveCondition::Restoring),
        ),
        (situation(unseen()), "Unknown", None, None),
        (situation(unusable()), "Unknown", Some(false), None),
    ] {
        let (_, report) = plan(&situation);
        assert_eq!(
            (report.state, report.available.status),
            (state, available),
            "{situation:?}"
        );
        assert_eq!(report.others.first().map(|(kind, _)| *kind), other, "{situation:?}");
        assert!(report.others.iter().all(|(_, verdict)| verdict.status == Some(true)));
    }
}

#[test]
fn a_copy_says_what_was_copied_and_what_was_not() {
    let copy = CopyState {
        volume: "pvc-1".into(),
        asked_by: "o".into(),
        outcome: Some("7 files, 2Mi; 1 changed while they were copied".into()),
    };
    let there = situation(ExportState::Kept {
        there: true,
        copy: Some(copy),
    });
    for situation in [there.clone(), Observed { held: true, ..there }] {
        let said = plan(&situation).1.available.message;
        assert!(
            said.ends_with("; a copy of volume pvc-1 (7 files, 2Mi; 1 changed while they were copied)"),
            "{said}"
        );
    }
}
