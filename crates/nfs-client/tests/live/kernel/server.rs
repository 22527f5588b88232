//! Differences of the kernel's server: its limits, its restarts, and file systems inside an export.

use std::time::Duration;

use nfs_client::{Client, FsId, NfsError, Protocol, RemoveOutcome, Status};
use rig::{KernelVm, RunDir};

use crate::support::{kernel_directory, kernel_target, mode, name};

const SESSIONS: [Protocol; 2] = [Protocol::V4_2, Protocol::V4_1];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_operations_per_compound_suffice_for_deep_walks_and_many_removals() {
    let vm = KernelVm::shared().await.unwrap();
    for version in SESSIONS {
        let (export, root, path) = kernel_directory(vm, "/plain", version).await;
        let most = export.negotiated().max_operations;
        assert!((1..=50).contains(&most), "{most}");
        let steps: Vec<_> = (0..120).map(|number| name(&format!("d{number}"))).collect();
        let deep: Vec<_> = steps.iter().map(ToString::to_string).collect();
        let make = format!(
            "mkdir -p {path}/{} {path}/many && cd {path}/many && seq 1 700 | xargs touch",
            deep.join("/")
        );
        vm.run(&make).await.unwrap();
        assert_eq!(export.walk(&root, &steps).await.unwrap().len(), 120);
        let many = export.lookup(&root, &name("many")).await.unwrap().unwrap().handle;
        let names: Vec<_> = (1..=700).map(|number| name(&number.to_string())).collect();
        let outcomes = export.remove_batch(&many, &names).await.unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == RemoveOutcome::Removed));
        assert_eq!(vm.run(&format!("ls {path}/many")).await.unwrap(), "");
        // Every call got a reply, and none closed the connection.
        assert_eq!(export.generation(), 1);
        export.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slots_that_the_server_grants_carry_hundreds_of_calls_at_once() {
    let vm = KernelVm::shared().await.unwrap();
    for version in SESSIONS {
        let (export, root, path) = kernel_directory(vm, "/xfs", version).await;
        let calls = (0..300).map(|number| {
            let (export, root) = (export.clone(), root.clone());
            // Names of maximum length, whose replies fill the server's cache of 2,048 bytes per slot.
            let called = name(&format!("{number:0>250}"));
            async move { export.make_directory(&root, &called, mode(0o750)).await }
        });
        for created in futures::future::join_all(calls).await {
            assert_eq!(created.unwrap().node.attributes.mode, 0o750);
        }
        let count = vm.run(&format!("ls {path} | wc -l")).await.unwrap();
        assert_eq!(count.trim(), "300");
        assert_eq!(export.generation(), 1);
        export.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_continue_after_a_restart_with_and_without_the_servers_client_state() {
    let run = RunDir::new().unwrap();
    let vm = KernelVm::start(&run).await.unwrap();
    for version in SESSIONS {
        for (way, restart) in [("kept", "stop; serve"), ("lost", "stop; forget; serve")] {
            let (export, root, path) = kernel_directory(&vm, "/plain", version).await;
            let created = export
                .make_directory(&root, &name("before"), mode(0o755))
                .await
                .unwrap();
            let generation = export.generation();
            vm.run(&format!(". /sbin/functions; {restart}")).await.unwrap();
            // In its grace period, the server replies GRACE to OPEN, RENAME and REMOVE.
            export
                .create_file(&root, &name("file"), b"content", 0o600)
                .await
                .unwrap();
            export
                .rename(
                    (&root, &name("before")),
                    created.node.attributes.fileid,
                    (&root, &name("after")),
                )
                .await
                .unwrap();
            assert!(export.generation() > generation, "{way}");
            assert_eq!(vm.run(&format!("ls {path}")).await.unwrap(), "after\nfile\n", "{way}");
            export.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_become_stale_with_their_export_and_valid_again_with_it() {
    let run = RunDir::new().unwrap();
    let vm = KernelVm::start(&run).await.unwrap();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V3] {
        let offer = ". /sbin/functions; mkdir -p /passing; offer passing rw,no_root_squash,insecure,fsid=77";
        vm.run(offer).await.unwrap();
        let mut passing = kernel_target(&vm, "/passing", version);
        passing.deadline = Duration::from_secs(20);
        let export = Client::connect(passing.clone()).await.unwrap();
        let root = export.root().await.unwrap().handle;
        vm.run("exportfs -u '*:/passing' && exportfs -f").await.unwrap();
        let deleted = export.attributes(&root).await.unwrap_err();
        assert_eq!(deleted.status(), Some(Status::Stale), "{version}: {deleted}");
        let created = export.make_directory(&root, &name("d"), mode(0o755)).await.unwrap_err();
        assert_eq!(created.status(), Some(Status::Stale), "{version}: {created}");
        let away = Client::connect(passing).await.unwrap_err();
        assert!(
            matches!(away, NfsError::ExportNotFound { .. } | NfsError::AccessDenied { .. }),
            "{version}: {away}"
        );
        vm.run(offer).await.unwrap();
        export.attributes(&root).await.unwrap();
        export.close().await;
    }
}

/// Returns the file systems of the root of an export, and of `inside` as listed and as looked up.
async fn seen(vm: &KernelVm, path: &str, version: Protocol) -> (FsId, Option<FsId>, FsId) {
    let export = Client::connect(kernel_target(vm, path, version)).await.unwrap();
    let root = export.root().await.unwrap();
    let page = export.list(&root.handle, None).await.unwrap();
    let inside = page.entries.into_iter().find(|entry| entry.name == name("inside"));
    let found = export.lookup(&root.handle, &name("inside")).await.unwrap().unwrap();
    export.close().await;
    (root.attributes.fsid, inside.unwrap().fsid, found.attributes.fsid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_inside_an_export_is_detected_by_its_fsid() {
    let vm = KernelVm::shared().await.unwrap();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V3] {
        let (root, listed, found) = seen(vm, "/crossing", version).await;
        assert_ne!(found, root, "{version}");
        if version != Protocol::V3 {
            assert_eq!(listed, Some(found), "{version}");
        }
        // Without crossmnt, it is the covered directory, on the file system of its parent.
        let (root, listed, found) = seen(vm, "/covering", version).await;
        assert_eq!((listed.unwrap_or(root), found), (root, root), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_created_renamed_and_removed_on_btrfs_and_xfs() {
    let vm = KernelVm::shared().await.unwrap();
    for disk in ["/btrfs", "/xfs"] {
        let (export, root, path) = kernel_directory(vm, disk, Protocol::V4_2).await;
        let created = export.make_directory(&root, &name("a"), mode(0o3770)).await.unwrap();
        assert_eq!(created.node.attributes.mode, 0o3770);
        let fileid = created.node.attributes.fileid;
        export
            .rename((&root, &name("a")), fileid, (&root, &name("b")))
            .await
            .unwrap();
        assert_eq!(vm.run(&format!("ls {path}")).await.unwrap(), "b\n");
        export.remove_directory(&root, &name("b"), fileid).await.unwrap();
        assert!(export.statistics().await.unwrap().total > 0);
        export.close().await;
    }
}
