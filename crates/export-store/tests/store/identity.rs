//! The identity of the export, and the operator's folder on it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use export_store::ErrorKind;
use export_store::ExpectedIdentity;

use crate::fixture::{CLUSTER, StoreFixture, identify, names, refused, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_changed_before_the_identity_is_confirmed() {
    let fixture = StoreFixture::start().await;
    let export = fixture.client().connect().await;
    let (reason, definite) = refused(&export, &request("1", "a")).await;
    assert_eq!((reason, definite), (ErrorKind::IdentityNotConfirmed, false));
    assert_eq!(names(&fixture.disk), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_gets_one_identity_from_many_concurrent_callers() {
    let fixture = StoreFixture::start().await;
    let lives = (0..8).map(|_| {
        let client = fixture.client();
        tokio::spawn(async move { identify(&client.connect().await).await })
    });
    let mut identities = Vec::new();
    for client in lives.collect::<Vec<_>>() {
        identities.push(client.await.unwrap());
    }
    let first = identities.first().unwrap().id.clone();
    assert!(identities.iter().all(|identity| identity.id == first));
    assert_eq!(identities.iter().filter(|identity| identity.created).count(), 1);
    for own in ["", "/identity", &format!("/{CLUSTER}"), &format!("/{CLUSTER}/trash")] {
        let found = fs::metadata(fixture.on_disk(&format!(".nfs-operator{own}"))).unwrap();
        assert_eq!(found.mode() & 0o077, 0, "{own}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_replaced_by_an_empty_one_or_a_copy_is_not_touched() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let identity = identify(&export).await;
    let expected = ExpectedIdentity {
        export_id: Some(identity.id.clone()),
        root_file_id: Some(identity.root_file_id),
        ..ExpectedIdentity::default()
    };
    let mismatch = async |expected: &ExpectedIdentity| {
        let error = export.confirm_identity(expected.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IdentityMismatch, "{error}");
        println!("{error}");
        let (reason, definite) = refused(&export, &request("1", "a")).await;
        assert_eq!((reason, definite), (ErrorKind::IdentityMismatch, false));
    };
    // Empty, as if a disk is not mounted, although creation is allowed.
    let away = fixture.disk.with_extension("away");
    fs::rename(fixture.on_disk(".nfs-operator"), &away).unwrap();
    let may_create = ExpectedIdentity {
        may_create: true,
        ..expected.clone()
    };
    mismatch(&may_create).await;
    assert_eq!(names(&fixture.disk), Vec::<String>::new());
    // Another one.
    let file = away.join("identity");
    let text = fs::read_to_string(&file).unwrap();
    fs::rename(&away, fixture.on_disk(".nfs-operator")).unwrap();
    let file_now = fixture.on_disk(".nfs-operator/identity");
    fs::write(&file_now, text.replace(&identity.id, "another")).unwrap();
    mismatch(&expected).await;
    // A copy: the file belongs to another root.
    let copied = text.replace(&identity.root_file_id.to_string(), "12345");
    fs::write(&file_now, &copied).unwrap();
    let unknown_root = ExpectedIdentity {
        root_file_id: None,
        ..expected.clone()
    };
    mismatch(&unknown_root).await;
    assert_eq!(fs::read_to_string(&file_now).unwrap(), copied);
    // Once an administrator accepts it, it stays accepted.
    let accepted = ExpectedIdentity {
        accepted: true,
        ..unknown_root
    };
    export.confirm_identity(accepted).await.unwrap();
    assert_eq!(export.confirm_identity(expected).await.unwrap().id, identity.id);
    export.provision(&request("1", "a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_folder_that_others_may_enter_or_that_is_a_link_is_not_used() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let own = fixture.on_disk(".nfs-operator");
    let unsafe_now = async || {
        let expected = ExpectedIdentity {
            may_create: true,
            ..ExpectedIdentity::default()
        };
        let confirmed = export.confirm_identity(expected).await.map(drop);
        let error = match confirmed {
            Ok(()) => export.probe_write().await.map(drop).unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::ReservedDirectoryUnsafe, "{error}");
        let (reason, _) = refused(&export, &request("1", "a")).await;
        assert_eq!(reason, ErrorKind::ReservedDirectoryUnsafe);
    };
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    unsafe_now().await;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    identify(&export).await;
    std::os::unix::fs::chown(own.join(CLUSTER).join("records"), Some(1000), None).unwrap();
    unsafe_now().await;
    std::os::unix::fs::chown(own.join(CLUSTER).join("records"), Some(0), None).unwrap();
    fs::rename(&own, fixture.on_disk("elsewhere")).unwrap();
    symlink("elsewhere", &own).unwrap();
    unsafe_now().await;
    fs::remove_file(&own).unwrap();
    fs::write(&own, "a file").unwrap();
    unsafe_now().await;
    fs::remove_file(&own).unwrap();
    fs::rename(fixture.on_disk("elsewhere"), &own).unwrap();
    identify(&export).await;
    let probe = export.probe_write().await.unwrap();
    assert_eq!((probe.effective_uid, probe.squashed), (Some(0), false));
    assert_eq!(fixture.listed(), Vec::<String>::new());
    assert_eq!(names(&own.join(CLUSTER)), [".spare", "records", "reserve", "trash"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_is_read_again_after_a_reconnect_before_any_change() {
    let mut fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    export.provision(&request("1", "a")).await.unwrap();
    // While the server is down, another file system replaces the export.
    fixture.nfs.kill9().await.unwrap();
    let away = fixture.disk.with_extension("away");
    fs::rename(&fixture.disk, &away).unwrap();
    fs::create_dir(&fixture.disk).unwrap();
    fixture.nfs.restart(rig::StableStorage::Lost).await.unwrap();
    let (reason, definite) = refused(&export, &request("2", "b")).await;
    assert_eq!((reason, definite), (ErrorKind::IdentityMismatch, false));
    assert_eq!(names(&fixture.disk), Vec::<String>::new());
    // And back.
    fixture.nfs.kill9().await.unwrap();
    fs::remove_dir(&fixture.disk).unwrap();
    fs::rename(&away, &fixture.disk).unwrap();
    fixture.nfs.restart(rig::StableStorage::Lost).await.unwrap();
    export.provision(&request("2", "b")).await.unwrap();
    assert_eq!(fixture.listed(), ["a", "b"]);
}

/// Returns what the backend's status knows about an export.
fn known(identity: &export_store::Identity) -> ExpectedIdentity {
    ExpectedIdentity {
        export_id: Some(identity.id.clone()),
        root_file_id: Some(identity.root_file_id),
        own_file_ids: Some(identity.own_file_ids),
        ..ExpectedIdentity::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_root_has_the_same_fileid_is_not_touched() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let expected = known(&identify(&export).await);
    let own = fixture.on_disk(".nfs-operator");
    // Copied file by file below the same root: the identity file, and then only the cluster's folder.
    for copied in ["identity", CLUSTER] {
        let (there, aside) = (own.join(copied), fixture.disk.with_extension("aside"));
        fs::rename(&there, &aside).unwrap();
        let copy = std::process::Command::new("cp")
            .arg("-a")
            .args([&aside, &there])
            .status();
        assert!(copy.unwrap().success());
        let next = fixture.client().connect().await;
        let error = next.confirm_identity(expected.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IdentityMismatch, "{error}");
        let (reason, _) = refused(&next, &request("1", "a")).await;
        assert_eq!(reason, ErrorKind::IdentityNotConfirmed);
        // An administrator accepts it, and it stays accepted.
        let accepted = ExpectedIdentity {
            accepted: true,
            ..expected.clone()
        };
        let identity = next.confirm_identity(accepted).await.unwrap();
        next.confirm_identity(known(&identity)).await.unwrap();
        if there.is_dir() {
            fs::remove_dir_all(&there).unwrap();
        }
        fs::rename(&aside, &there).unwrap();
        export.confirm_identity(expected.clone()).await.unwrap();
    }
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_were_removed_are_not_made_again() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let expected = known(&identify(&export).await);
    export.provision(&request("1", "a")).await.unwrap();
    let cluster = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}"));
    for removed in [cluster.join("records"), cluster.clone()] {
        let aside = fixture.disk.with_extension("aside");
        fs::rename(&removed, &aside).unwrap();
        // While the operator is running, and after its restart.
        for export in [&export, &fixture.client().connect().await] {
            let error = export.confirm_identity(expected.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReservedDirectoryUnsafe, "{error}");
            assert_eq!(error.acceptable_identity(), expected.export_id.as_deref());
            // On the export of another cluster, nothing was removed.
            let other = ExpectedIdentity {
                export_id: Some("other".to_owned()),
                ..expected.clone()
            };
            let error = export.confirm_identity(other).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::IdentityMismatch, "{error}");
            assert_eq!(error.acceptable_identity(), expected.export_id.as_deref());
        }
        assert!(!removed.exists());
        fs::rename(&aside, &removed).unwrap();
        export.confirm_identity(expected.clone()).await.unwrap();
    }
    fs::remove_dir_all(cluster.join("records")).unwrap();
    let accepted = ExpectedIdentity {
        accepted: true,
        ..expected.clone()
    };
    export.confirm_identity(accepted).await.unwrap();
    assert_eq!(fixture.records(), Vec::<String>::new());
}
