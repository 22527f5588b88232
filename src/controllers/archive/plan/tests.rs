use super::*;
use export_store::ClaimRef;

fn situation(sight: Sight) -> Situation {
    Situation {
        deleting: false,
        kind_going: false,
        delete: false,
        held: false,
        copied: false,
        due: None,
        sight,
    }
}

fn unseen() -> Sight {
    Sight::Unseen(Verdict::no(Reason::ConnectionRefused, "refused"))
}

fn unusable() -> Sight {
    Sight::Unusable(Verdict::no(Reason::RecordUnusable, "damaged"))
}

fn restoring(done: bool) -> Sight {
    let to = Destination {
        volume: "pvc-2".into(),
        claim: ClaimRef::default(),
        directory: "team/data".into(),
    };
    Sight::Restoring { to, done }
}

fn at(there: bool) -> Sight {
    Sight::Kept { there, copy: None }
}

/// All that can be seen of an archive.
fn sights() -> Vec<Sight> {
    vec![
        unseen(),
        unusable(),
        Sight::Unrecorded,
        at(true),
        at(false),
        Sight::Purging { there: true },
        Sight::Purging { there: false },
        restoring(false),
        restoring(true),
    ]
}

#[test]
fn an_archive_stays_until_its_time_is_over_or_somebody_deletes_it_and_its_data() {
    let kept = || at(true);
    let due = || Some("expired".to_owned());
    let deleting = |delete, sight| Situation {
        deleting: true,
        delete,
        ..situation(sight)
    };
    for (what, situation, step) in [
        ("kept", situation(kept()), Step::Rest),
        (
            "expired",
            Situation {
                due: due(),
                ..situation(kept())
            },
            Step::Purge,
        ),
        (
            "expired and missing",
            Situation {
                due: due(),
                ..situation(at(false))
            },
            Step::Rest,
        ),
        (
            "expired, unseen",
            Situation {
                due: due(),
                ..situation(unseen())
            },
            Step::Wait,
        ),
        ("let go", deleting(false, kept()), Step::LetGo),
        ("let go, its server dead", deleting(false, unseen()), Step::LetGo),
        ("deleted", deleting(true, kept()), Step::Purge),
        ("deleted, missing", deleting(true, at(false)), Step::Purge),
        ("deleted, its server dead", deleting(true, unseen()), Step::Wait),
        ("deleted, its record damaged", deleting(true, unusable()), Step::Wait),
        ("deleted, unrecorded", deleting(true, Sight::Unrecorded), Step::LetGo),
        (
            "expired, while it is copied",
            Situation {
                due: due(),
                copied: true,
                ..situation(kept())
            },
            Step::Wait,
        ),
        (
            "deleted, while it is copied",
            Situation {
                copied: true,
                ..deleting(true, kept())
            },
            Step::Wait,
        ),
        (
            "let go, while it is copied",
            Situation {
                copied: true,
                ..deleting(false, kept())
            },
            Step::Wait,
        ),
        (
            "purged by us",
            deleting(false, Sight::Purging { there: true }),
            Step::Purge,
        ),
        (
            "purged half",
            deleting(false, Sight::Purging { there: false }),
            Step::Purge,
        ),
        (
            "announced, and prolonged",
            situation(Sight::Purging { there: true }),
            Step::Spare,
        ),
        (
            "in the trash, and prolonged",
            situation(Sight::Purging { there: false }),
            Step::Purge,
        ),
        ("on its way to a volume", situation(restoring(false)), Step::Wait),
        ("a volume's", situation(restoring(true)), Step::Finish),
        ("a volume's, and deleted", deleting(true, restoring(true)), Step::Finish),
    ] {
        assert_eq!(plan(&situation).0, step, "{what}");
    }
}

#[test]
fn what_is_held_is_never_purged_whatever_else_is_so() {
    for sight in sights() {
        // What is in the trash already can't be held back.
        let gone = matches!(sight, Sight::Purging { there: false });
        for bits in 0..32 {
            let situation = Situation {
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
            let situation = Situation {
                deleting: true,
                kind_going: true,
                delete,
                held,
                copied: true,
                due: None,
                sight: sight.clone(),
            };
            let expected = match sight {
                Sight::Purging { there: true } => Step::Spare,
                Sight::Purging { there: false } => Step::Purge,
                Sight::Restoring { done: true, .. } => Step::Finish,
                _ => Step::LetGo,
            };
            assert_eq!(plan(&situation).0, expected, "{situation:?}");
        }
    }
}

#[test]
fn the_object_says_in_one_word_and_in_conditions_how_the_archive_is() {
    let held = |sight| Situation {
        held: true,
        ..situation(sight)
    };
    for (situation, state, available, other) in [
        (situation(at(true)), "Available", Some(true), None),
        (held(at(true)), "Held", Some(true), None),
        (
            Situation {
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
            held(Sight::Unrecorded),
            "Missing",
            Some(false),
            Some(ArchiveCondition::Missing),
        ),
        (
            situation(Sight::Purging { there: true }),
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
    let copy = CopyNote {
        volume: "pvc-1".into(),
        asked_by: "o".into(),
        outcome: Some("7 files, 2Mi; 1 changed while they were copied".into()),
    };
    let there = situation(Sight::Kept {
        there: true,
        copy: Some(copy),
    });
    for situation in [there.clone(), Situation { held: true, ..there }] {
        let said = plan(&situation).1.available.message;
        assert!(
            said.ends_with("; a copy of volume pvc-1 (7 files, 2Mi; 1 changed while they were copied)"),
            "{said}"
        );
    }
}
