#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use k8s_openapi::api::core::v1::{NFSVolumeSource, PersistentVolumeSpec, PersistentVolumeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

const OURS: &[&str] = &["nfs-operator.io/nfs", "old/alias"];
const ADDRESSES: &[(&str, &str)] = &[("files.example.org", "/export/k8s"), ("10.0.0.1", "/")];

/// Returns a released volume as the operator creates it.
fn volume() -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    volume.metadata.finalizers = Some(vec![RECLAIM_FINALIZER.into()]);
    volume.spec = Some(PersistentVolumeSpec {
        persistent_volume_reclaim_policy: Some("Delete".into()),
        nfs: Some(NFSVolumeSource {
            server: "files.example.org".into(),
            path: "/export/k8s/shop/data".into(),
            read_only: None,
        }),
        ..PersistentVolumeSpec::default()
    });
    volume.status = Some(PersistentVolumeStatus {
        phase: Some("Released".into()),
        ..PersistentVolumeStatus::default()
    });
    for (name, value) in [
        (PROVISIONED_BY, "nfs-operator.io/nfs"),
        (VOLUME_BACKEND, "fast"),
        (VOLUME_EXPORT_ID, "id-1"),
        (VOLUME_DIRECTORY, "shop/data"),
        (VOLUME_FILE_ID, "18446744073709551615"),
    ] {
        annotate(&mut volume, name, Some(value));
    }
    volume
}

fn annotate(volume: &mut PersistentVolume, name: &str, value: Option<&str>) {
    let annotations = volume.metadata.annotations.get_or_insert_default();
    match value {
        Some(value) => annotations.insert(name.into(), value.into()),
        None => annotations.remove(name),
    };
}

fn changed(change: impl FnOnce(&mut PersistentVolume)) -> PersistentVolume {
    let mut volume = volume();
    change(&mut volume);
    volume
}

fn with_policy(policy: Option<&str>) -> PersistentVolume {
    changed(|volume| volume.spec.as_mut().unwrap().persistent_volume_reclaim_policy = policy.map(str::to_owned))
}

fn in_phase(mut volume: PersistentVolume, phase: Option<&str>) -> PersistentVolume {
    volume.status.as_mut().unwrap().phase = phase.map(str::to_owned);
    volume
}

fn without_finalizer(mut volume: PersistentVolume) -> PersistentVolume {
    volume.metadata.finalizers = None;
    volume
}

fn being_deleted(mut volume: PersistentVolume) -> PersistentVolume {
    volume.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    volume
}

fn decided(volume: &PersistentVolume) -> ReclaimDecision {
    decide(volume, OURS, OnDelete::Delete)
}

#[test]
fn only_released_volumes_of_this_operator_with_policy_delete_are_reclaimed() {
    let reclaim = ReclaimDecision::Reclaim(OnDelete::Delete);
    for (what, volume, expected) in [
        ("released", volume(), reclaim.clone()),
        ("failed", in_phase(volume(), Some("Failed")), reclaim.clone()),
        ("bound", in_phase(volume(), Some("Bound")), ReclaimDecision::Nothing),
        (
            "available",
            in_phase(volume(), Some("Available")),
            ReclaimDecision::Nothing,
        ),
        ("pending", in_phase(volume(), Some("Pending")), ReclaimDecision::Nothing),
        ("no phase", in_phase(volume(), None), ReclaimDecision::Nothing),
        (
            "no status",
            changed(|volume| volume.status = None),
            ReclaimDecision::Nothing,
        ),
        (
            "under an alias",
            changed(|volume| annotate(volume, PROVISIONED_BY, Some("old/alias"))),
            reclaim.clone(),
        ),
        (
            "of another provisioner",
            changed(|volume| annotate(volume, PROVISIONED_BY, Some("nfs-operator.io/NFS"))),
            ReclaimDecision::Nothing,
        ),
        (
            "without provisioner",
            changed(|volume| annotate(volume, PROVISIONED_BY, None)),
            ReclaimDecision::Nothing,
        ),
        (
            "no annotations",
            changed(|volume| volume.metadata.annotations = None),
            ReclaimDecision::Nothing,
        ),
        ("no finalizer yet", without_finalizer(volume()), reclaim.clone()),
        ("being deleted", being_deleted(volume()), reclaim),
        (
            "done",
            being_deleted(without_finalizer(volume())),
            ReclaimDecision::Nothing,
        ),
    ] {
        assert_eq!(decided(&volume), expected, "{what}");
    }
}

#[test]
fn retain_removes_the_finalizer_and_changes_nothing_else() {
    for policy in [Some("Retain"), None] {
        for phase in ["Bound", "Released", "Failed"] {
            let volume = in_phase(with_policy(policy), Some(phase));
            assert_eq!(decided(&volume), ReclaimDecision::RemoveFinalizer, "{policy:?} {phase}");
            assert_eq!(
                decided(&without_finalizer(volume)),
                ReclaimDecision::Nothing,
                "{policy:?} {phase}"
            );
        }
    }
    assert_eq!(
        decided(&changed(|volume| volume.spec = None)),
        ReclaimDecision::RemoveFinalizer,
        "no spec: Kubernetes' default"
    );
    // Its directory may have been archived before the policy was changed.
    let retained = |phase| decided(&in_phase(being_deleted(with_policy(Some("Retain"))), Some(phase)));
    assert_eq!(retained("Released"), ReclaimDecision::Reclaim(OnDelete::Retain));
    assert_eq!(retained("Bound"), ReclaimDecision::RemoveFinalizer);
}

#[test]
fn a_volume_of_this_operator_needs_the_finalizer_while_its_policy_is_delete() {
    let annotated = |name, value| changed(|volume| annotate(volume, name, value));
    for (what, volume, expected) in [
        ("released", volume(), true),
        ("bound", in_phase(volume(), Some("Bound")), true),
        ("not processed by the binder yet", in_phase(volume(), None), true),
        ("without finalizer", without_finalizer(volume()), true),
        ("policy Retain", with_policy(Some("Retain")), false),
        ("policy Recycle", with_policy(Some("Recycle")), false),
        ("no policy: Kubernetes' default is Retain", with_policy(None), false),
        ("being deleted", being_deleted(volume()), false),
        (
            "of another provisioner",
            annotated(PROVISIONED_BY, Some("other/nfs")),
            false,
        ),
        ("created manually", annotated(PROVISIONED_BY, None), false),
        ("under an alias", annotated(PROVISIONED_BY, Some("old/alias")), true),
        (
            "of a previous provisioner, which has its own finalizers",
            annotated(VOLUME_BACKEND, None),
            false,
        ),
    ] {
        assert_eq!(needs_finalizer(&volume, OURS), expected, "{what}");
    }
}

#[test]
fn recycle_and_unknown_policies_are_refused() {
    for policy in ["Recycle", "delete", ""] {
        let ReclaimDecision::Refuse(refusal) = decided(&with_policy(Some(policy))) else {
            unreachable!("{policy} was not refused");
        };
        assert_eq!(refusal.reason, Reason::RecycleUnsupported);
        assert_eq!(
            decided(&in_phase(with_policy(Some(policy)), Some("Bound"))),
            ReclaimDecision::Nothing,
            "a volume in use"
        );
    }
}

#[test]
fn the_recorded_policy_takes_precedence_over_that_of_the_backend() {
    use OnDelete::{Archive, Delete, Retain};
    for (recorded, backend, expected) in [
        (None, Archive, Archive),
        (None, Delete, Delete),
        (None, Retain, Retain),
        (Some("archive"), Delete, Archive),
        (Some("delete"), Archive, Delete),
        (Some("Delete"), Retain, Delete),
        (Some("RETAIN"), Delete, Retain),
    ] {
        let volume = changed(|volume| annotate(volume, VOLUME_ON_DELETE, recorded));
        assert_eq!(
            decide(&volume, OURS, backend),
            ReclaimDecision::Reclaim(expected),
            "{recorded:?} {backend:?}"
        );
    }
    for unreadable in ["", "remove", "delete ", "true"] {
        let volume = changed(|volume| annotate(volume, VOLUME_ON_DELETE, Some(unreadable)));
        let ReclaimDecision::Refuse(refusal) = decided(&volume) else {
            unreachable!("{unreadable:?} was not refused");
        };
        assert_eq!(refusal.reason, Reason::ReclaimUnsafe);
    }
}

fn expected_location() -> ExpectedLocation<'static> {
    ExpectedLocation {
        backend: "fast",
        export_id: Some("id-1"),
        addresses: ADDRESSES,
    }
}

fn at(server: &str, path: &str, directory: &str) -> PersistentVolume {
    changed(|volume| {
        let nfs = volume.spec.as_mut().unwrap().nfs.as_mut().unwrap();
        (nfs.server, nfs.path) = (server.into(), path.into());
        annotate(volume, VOLUME_DIRECTORY, Some(directory));
    })
}

#[test]
fn a_volume_is_located_by_its_backend_and_its_annotations() {
    let located = locate(&volume(), &expected_location()).unwrap();
    assert_eq!(located.directory.to_string(), "shop/data");
    assert_eq!(located.file_id, u64::MAX);
    for (server, path, directory) in [("FILES.example.ORG", "/export/k8s/a", "a"), ("10.0.0.1", "/a/b", "a/b")] {
        assert!(
            locate(&at(server, path, directory), &expected_location()).is_ok(),
            "{server}:{path}"
        );
    }
    let ipv6 = ExpectedLocation {
        addresses: &[("2001:db8::1", "/x")],
        ..expected_location()
    };
    for server in ["2001:db8::1", "2001:DB8:0::1", "[2001:db8::1]"] {
        assert!(locate(&at(server, "/x/a", "a"), &ipv6).is_ok(), "{server}");
    }
}

#[test]
fn a_volume_at_another_location_is_refused() {
    for (server, path, directory) in [
        ("files.example.org", "/export/k8s", ""),
        ("files.example.org", "/export/k8s/", ""),
        ("files.example.org", "/export/k8s", "k8s"),
        ("files.example.org", "/export/k8s/b", "a"),
        ("files.example.org", "/export/k8s/a/b", "b"),
        ("files.example.org", "/export/k8s/a/b", "a"),
        ("files.example.org", "/export/k8s/A", "a"),
        ("files.example.org", "/export/k8sa", "a"),
        ("files.example.org", "/export/k8s//a", "a"),
        ("files.example.org", "/export/k8s/a/", "a"),
        ("files.example.org", "/export/K8S/a", "a"),
        ("files.example.org", "/a", "a"),
        ("files.example.org", "/export/k8s/../a", "../a"),
        ("files.example.org", "/export/k8s/..", ".."),
        ("files.example.org", "/export/k8s/.nfs-operator", ".nfs-operator"),
        ("files.example.org", "/export/k8s/archived-a", "archived-a"),
        ("files.example.org", "/export/k8s//etc", "/etc"),
        ("10.0.0.1", "/export/k8s/a", "a"),
        ("10.0.0.1", "//a", "a"),
        ("10.0.0.1", "/", ""),
        ("10.0.0.2", "/a", "a"),
        ("", "/a", "a"),
    ] {
        let refusal = locate(&at(server, path, directory), &expected_location()).unwrap_err();
        assert_eq!(refusal.reason, Reason::ReclaimUnsafe, "{server}:{path} {directory}");
    }
    let no_source = changed(|volume| volume.spec.as_mut().unwrap().nfs = None);
    assert_eq!(
        locate(&no_source, &expected_location()).unwrap_err().reason,
        Reason::ReclaimUnsafe
    );
}

#[test]
fn every_annotation_must_exist_and_agree() {
    for name in [VOLUME_BACKEND, VOLUME_EXPORT_ID, VOLUME_DIRECTORY, VOLUME_FILE_ID] {
        let refusal = locate(&changed(|volume| annotate(volume, name, None)), &expected_location()).unwrap_err();
        assert_eq!(refusal.reason, Reason::ReclaimUnsafe);
        assert!(refusal.message.contains(name), "{}", refusal.message);
    }
    for (name, value, reason) in [
        (VOLUME_BACKEND, "slow", Reason::ReclaimUnsafe),
        (VOLUME_BACKEND, "FAST", Reason::ReclaimUnsafe),
        (VOLUME_EXPORT_ID, "id-2", Reason::IdentityMismatch),
        (VOLUME_EXPORT_ID, "", Reason::IdentityMismatch),
        (VOLUME_FILE_ID, "", Reason::ReclaimUnsafe),
        (VOLUME_FILE_ID, "-1", Reason::ReclaimUnsafe),
        (VOLUME_FILE_ID, "+1", Reason::ReclaimUnsafe),
        (VOLUME_FILE_ID, "0x1", Reason::ReclaimUnsafe),
        (VOLUME_FILE_ID, "18446744073709551616", Reason::ReclaimUnsafe),
    ] {
        let volume = changed(|volume| annotate(volume, name, Some(value)));
        assert_eq!(
            locate(&volume, &expected_location()).unwrap_err().reason,
            reason,
            "{name}={value:?}"
        );
    }
    let unconfirmed = ExpectedLocation {
        export_id: None,
        ..expected_location()
    };
    assert_eq!(locate(&volume(), &unconfirmed).unwrap_err().reason, Reason::NotProbed);
}
