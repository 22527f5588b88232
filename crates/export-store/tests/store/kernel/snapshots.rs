//! Snapshots of Btrfs, which the kernel's server shows: read-only subvolumes with the fileids of the original.

use std::sync::Arc;

use export_store::{CopyLimits, CopySource, ErrorKind, SnapshotSelector, copy_volume};
use rig::KernelVm;

use crate::copy::volume;
use crate::fixture::{reclaim, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_cloned_from_a_snapshot_of_btrfs() {
    let vm = KernelVm::shared().await.unwrap();
    let path = format!("/btrfs/snapshots-{}", rig::random_suffix());
    let run = async |script: &str| vm.run(&format!("cd {path} && {script}")).await.unwrap();
    vm.run(&format!("btrfs subvolume create {path}")).await.unwrap();
    let export = Arc::new(super::client(vm, Box::leak(path.clone().into_boxed_str())).open().await);
    assert_eq!(export.snapshot_directory().await.unwrap(), None);
    run("mkdir .snapshot && btrfs subvolume snapshot -r . .snapshot/before").await;
    assert_eq!(export.snapshot_directory().await.unwrap(), Some(".snapshot"));
    let file_id = volume(&export, "old").await;
    run("mkdir -p old/a/b && echo then >old/a/b/file && ln old/a/b/file old/again && dd if=/dev/urandom of=old/big bs=64k count=64").await;
    run("btrfs subvolume snapshot -r . .snapshot/then").await;
    run("md5sum old/big >big.md5 && rm -r old/a old/big && echo now >old/again").await;
    let clone = async |uid: &str, snapshot: &str| {
        let selector = SnapshotSelector::Named(snapshot.to_owned());
        let of = CopySource::Snapshot(reclaim("old", "old", file_id), selector);
        let (new, limits) = (request(uid, uid), CopyLimits::default());
        copy_volume((&export, &of), (&export, &new), &limits, &Arc::default()).await
    };
    clone("new", "then").await.unwrap();
    assert_eq!(run("cat new/a/b/file new/again old/again").await, "then\nthen\nnow\n");
    run("mv new/big old/big && md5sum -c big.md5").await;
    let error = clone("other", "before").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
}
