use super::*;
use export_store::ClaimRef;

fn observed(export: ExportState) -> Observed {
    Observed {
        deleting: false,
        crd_deleting: false,
        delete_data: false,
        held: false,
        copied: false,
        expired: false,
        retained: PlannedCondition::holds(Reason::KeptIndefinitely, "kept"),
        export,
    }
}

fn unreachable() -> ExportState {
    ExportState::Unreachable(PlannedCondition::fails(Reason::ConnectionRefused, "refused"))
}

fn detached() -> ExportState {
    ExportState::Detached(PlannedCondition::fails(
        Reason::ReclaimBackendMissing,
        "no such backend",
    ))
}

fn unusable() -> ExportState {
    ExportState::RecordUnusable(PlannedCondition::fails(Reason::RecordUnusable, "damaged"))
}

fn restoring(done: bool) -> ExportState {
    let target = RestoreTarget {
        volume: "pvc-2".into(),
        claim: ClaimRef::default(),
        directory: "team/data".into(),
    };
    ExportState::Restoring { target, done }
}

fn at(present: bool) -> ExportState {
    ExportState::Archived { present, copy: None }
}

/// Returns every state of an archive on the export.
fn states() -> Vec<ExportState> {
    vec![
        unreachable(),
        detached(),
        unusable(),
        ExportState::NoRecord,
        at(true),
        at(false),
        ExportState::Purging { present: true },
        ExportState::Purging { present: false },
        restoring(false),
        restoring(true),
    ]
}

#[test]
fn an_archive_is_kept_until_it_expires_or_is_deleted_with_its_data() {
    let kept = || at(true);
    let expired = || true;
    let deleting = |delete, export| Observed {
        deleting: true,
        delete_data: delete,
        ..observed(export)
    };
    for (what, observed, step) in [
        ("kept", observed(kept()), ArchiveStep::NoOp),
        (
            "expired",
            Observed {
                expired: expired(),
                ..observed(kept())
            },
            ArchiveStep::Purge,
        ),
        (
            "expired and missing",
            Observed {
                expired: expired(),
                ..observed(at(false))
            },
            ArchiveStep::NoOp,
        ),
        (
            "expired, unreachable",
            Observed {
                expired: expired(),
                ..observed(unreachable())
            },
            ArchiveStep::Wait,
        ),
        ("released", deleting(false, kept()), ArchiveStep::Release),
        ("released, missing", deleting(false, at(false)), ArchiveStep::Release),
        (
            "released, server unreachable",
            deleting(false, unreachable()),
            ArchiveStep::Wait,
        ),
        (
            "released, without a backend",
            deleting(false, detached()),
            ArchiveStep::RemoveFinalizer,
        ),
        (
            "released, record damaged",
            deleting(false, unusable()),
            ArchiveStep::RemoveFinalizer,
        ),
        (
            "released, while it is restored",
            deleting(false, restoring(false)),
            ArchiveStep::Wait,
        ),
        (
            "released, held",
            Observed {
                held: true,
                ..deleting(false, kept())
            },
            ArchiveStep::Release,
        ),
        (
            "deleted, without a backend",
            deleting(true, detached()),
            ArchiveStep::Wait,
        ),
        ("deleted", deleting(true, kept()), ArchiveStep::Purge),
        ("deleted, missing", deleting(true, at(false)), ArchiveStep::Purge),
        (
            "deleted, server unreachable",
            deleting(true, unreachable()),
            ArchiveStep::Wait,
        ),
        ("deleted, record damaged", deleting(true, unusable()), ArchiveStep::Wait),
        (
            "deleted, without a record",
            deleting(true, ExportState::NoRecord),
            ArchiveStep::RemoveFinalizer,
        ),
        (
            "expired, while it is copied",
            Observed {
                expired: expired(),
                copied: true,
                ..observed(kept())
            },
            ArchiveStep::Wait,
        ),
        (
            "deleted, while it is copied",
            Observed {
                copied: true,
                ..deleting(true, kept())
            },
            ArchiveStep::Wait,
        ),
        (
            "released, while it is copied",
            Observed {
                copied: true,
                ..deleting(false, kept())
            },
            ArchiveStep::Wait,
        ),
        (
            "purged by the operator",
            deleting(false, ExportState::Purging { present: true }),
            ArchiveStep::Purge,
        ),
        (
            "partly purged",
            deleting(false, ExportState::Purging { present: false }),
            ArchiveStep::Purge,
        ),
        (
            "purge announced, then extended",
            observed(ExportState::Purging { present: true }),
            ArchiveStep::CancelPurge,
        ),
        (
            "in the trash, then extended",
            observed(ExportState::Purging { present: false }),
            ArchiveStep::Purge,
        ),
        ("restoring", observed(restoring(false)), ArchiveStep::Wait),
        ("restored", observed(restoring(true)), ArchiveStep::CompleteRestore),
        (
            "restored, then deleted",
            deleting(true, restoring(true)),
            ArchiveStep::CompleteRestore,
        ),
    ] {
        assert_eq!(plan(&observed).0, step, "{what}");
    }
}

#[test]
fn a_held_archive_is_never_purged() {
    for state in states() {
        // A hold does not apply to data that is already in the trash.
        let in_trash = matches!(state, ExportState::Purging { present: false });
        for bits in 0..32 {
            let situation = Observed {
                deleting: bits & 1 > 0,
                crd_deleting: bits & 2 > 0,
                delete_data: bits & 4 > 0,
                expired: bits & 8 > 0,
                held: true,
                copied: bits & 16 > 0,
                ..observed(state.clone())
            };
            let (step, _) = plan(&situation);
            assert!(step != ArchiveStep::Purge || in_trash, "{situation:?}");
        }
    }
}

#[test]
fn deleting_the_crd_purges_nothing_and_is_not_blocked() {
    for state in states() {
        for (delete, held) in [(false, false), (true, false), (false, true), (true, true)] {
            let situation = Observed {
                deleting: true,
                crd_deleting: true,
                delete_data: delete,
                held,
                copied: true,
                ..observed(state.clone())
            };
            let expected = match state {
                ExportState::Purging { present: true } => ArchiveStep::CancelPurge,
                ExportState::Purging { present: false } => ArchiveStep::Purge,
                ExportState::Restoring { done: true, .. } => ArchiveStep::CompleteRestore,
                _ => ArchiveStep::RemoveFinalizer,
            };
            assert_eq!(plan(&situation).0, expected, "{situation:?}");
        }
    }
}

#[test]
fn state_and_conditions_report_the_archive() {
    let held = |export| Observed {
        held: true,
        ..observed(export)
    };
    for (observed, state, available) in [
        (observed(at(true)), ArchiveSummary::Available, Some(true)),
        (held(at(true)), ArchiveSummary::Held, Some(true)),
        (
            Observed {
                expired: true,
                ..observed(at(true))
            },
            ArchiveSummary::Expired,
            Some(true),
        ),
        (observed(at(false)), ArchiveSummary::Missing, Some(false)),
        (held(ExportState::NoRecord), ArchiveSummary::Missing, Some(false)),
        (
            observed(ExportState::Purging { present: true }),
            ArchiveSummary::Purging,
            Some(false),
        ),
        (observed(restoring(false)), ArchiveSummary::Restoring, Some(false)),
        (observed(unreachable()), ArchiveSummary::Unknown, None),
        (observed(detached()), ArchiveSummary::Unknown, None),
        (observed(unusable()), ArchiveSummary::Unknown, Some(false)),
    ] {
        let (_, report) = plan(&observed);
        assert_eq!(
            (report.state, report.available.status),
            (state, available),
            "{observed:?}"
        );
        assert_eq!(report.retained, observed.retained, "{observed:?}");
    }
}

#[test]
fn the_condition_of_a_backup_reports_what_was_copied() {
    let copy = CopyState {
        volume: "pvc-1".into(),
        requested_by: "o".into(),
        outcome: Some("7 files, 2Mi; 1 changed while they were copied".into()),
        amount: None,
        manifest: None,
        checkpoint: None,
        snapshot: None,
        shares_files: false,
    };
    let there = observed(ExportState::Archived {
        present: true,
        copy: Some(copy),
    });
    for observed in [there.clone(), Observed { held: true, ..there }] {
        let message = plan(&observed).1.available.message;
        assert!(
            message.ends_with("; a copy of volume pvc-1 (7 files, 2Mi; 1 changed while they were copied)"),
            "{message}"
        );
    }
}
