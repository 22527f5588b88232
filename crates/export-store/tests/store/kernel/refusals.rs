//! Refusals of the kernel's server, and the reasons that are reported for them.

use export_store::ErrorKind;
use export_store::{ErrorHints, classify};
use nfs_client::{Client, Credential, NfsError, Protocol, Status};
use rig::KernelVm;

use crate::fixture::{refused as refused_request, request};
use crate::nfs::{TIMEOUT, kernel_directory, kernel_target, mode, name};

/// Returns the error of a connect, and the reason that a backend would report.
async fn refused(vm: &KernelVm, path: &str, version: Protocol) -> (NfsError, ErrorKind) {
    let error = Client::connect(kernel_target(vm, path, version)).await.unwrap_err();
    println!("{path} over {version}: {error}");
    let reason = classify(&error, &ErrorHints::default());
    (error, reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_requires_kerberos_is_reported() {
    let vm = KernelVm::shared().await.unwrap();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V3] {
        let (error, reason) = refused(vm, "/kerberos", version).await;
        assert_eq!(reason, ErrorKind::SecurityFlavorUnsupported, "{version}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_referral_is_reported_and_not_followed() {
    let vm = KernelVm::shared().await.unwrap();
    for path in ["/referral", "/referral/below"] {
        for version in [Protocol::V4_2, Protocol::V4_1] {
            let (error, reason) = refused(vm, path, version).await;
            assert_eq!(reason, ErrorKind::ExportMoved, "{path} {version}: {error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_above_1023_is_reported_as_the_reason_and_a_reserved_port_works() {
    let vm = KernelVm::shared().await.unwrap();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V3] {
        let (error, reason) = refused(vm, "/secure", version).await;
        assert_eq!(reason, ErrorKind::ReservedPortRequired, "{version}: {error:?}");
    }
    // The port is the only cause: a client inside the machine uses a reserved one.
    let mount = format!(
        "mount.nfs 127.0.0.1:/secure /mnt/secure -o nfsvers=4.2,port={}",
        vm.nfs_port()
    );
    vm.run(&format!(
        "mkdir -p /mnt/secure && {mount} && touch /mnt/secure/made && umount /mnt/secure"
    ))
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exceeded_quota_is_not_reported_as_a_full_disk() {
    let vm = KernelVm::shared().await.unwrap();
    for (uid, version) in [(2001, Protocol::V4_2), (2002, Protocol::V4_1), (2003, Protocol::V3)] {
        let (export, root, _) = kernel_directory(vm, "/quota", version).await;
        vm.run(&format!("setquota -u {uid} 0 512 0 4 /quota")).await.unwrap();
        let tenant = export.with_credential(Credential {
            uid,
            gid: uid,
            supplementary: None,
        });
        let error = tenant
            .create_file(&root, &name("big"), &[1; 800_000], 0o600)
            .await
            .unwrap_err();
        assert_eq!(error.status(), Some(Status::QuotaExceeded), "{version}: {error}");
        // A file without its content would look complete.
        assert_eq!(export.lookup(&root, &name("big")).await.unwrap(), None, "{version}");
        for number in 0..4 {
            let called = name(&format!("small-{number}"));
            // The server may release the removed file a moment later.
            rig::wait::until("room in the quota", TIMEOUT, async || {
                let created = tenant.create_file(&root, &called, b"x", 0o600).await;
                created.map_err(|error| error.to_string())
            })
            .await
            .unwrap();
        }
        let error = tenant
            .make_directory(&root, &name("fifth"), mode(0o755))
            .await
            .unwrap_err();
        assert_eq!(error.status(), Some(Status::QuotaExceeded), "{version}: {error}");
        export.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_squashed_root_creates_directories_but_cannot_change_their_owner() {
    let vm = KernelVm::shared().await.unwrap();
    let client = super::client(vm, "/squashed");
    let export = client.open().await;
    let uid = rig::random_suffix();
    let created = export.provision(&request(&uid, &format!("kept-{uid}"))).await.unwrap();
    assert!(!created.adopted);
    let mut requested = request(&format!("{uid}-owned"), &format!("owned-{uid}"));
    requested.uid = Some(1234);
    let (reason, for_good) = refused_request(&export, &requested).await;
    assert!(
        matches!(reason, ErrorKind::OwnerRefused | ErrorKind::RootSquashed),
        "{reason:?}"
    );
    assert!(for_good);
    // A definite refusal leaves nothing.
    let left = vm
        .run(&format!("ls /squashed | grep owned-{uid} || echo none"))
        .await
        .unwrap();
    assert_eq!(left, "none\n");
}
