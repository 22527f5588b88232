//! ZFS on the kernel's server, which exposes its snapshots in `.zfs/snapshot`. The machine with ZFS takes long to build:
//! `make test` skips these tests if it was not built before.

use std::sync::Arc;
use std::time::Duration;

use export_store::naming::DirectoryPath;
use export_store::{
    ArchiveRequest, Beacon, CopyError, CopyLimits, CopyProgressSnapshot, CopySource, CountTarget, Decided, ErrorKind,
    ExportStore, RateLimiter, Reclaimed, SnapshotSelector, SnapshotUse, copy_volume,
};
use nfs_client::{Protocol, VersionChoice};
use rig::KernelVm;

use crate::copy::{copied, volume};
use crate::fixture::{StoreClient, reclaim, request};
use crate::incremental::{back_up, backup_request};

/// A file system of ZFS, and a store on it.
struct Dataset {
    vm: &'static KernelVm,
    path: String,
    export: Arc<ExportStore>,
}

impl Dataset {
    async fn new(version: VersionChoice) -> Self {
        let vm = KernelVm::shared_with_zfs().await.unwrap();
        let path = vm.new_dataset(&[]).await.unwrap();
        let client = StoreClient {
            version,
            ..super::client(vm, Box::leak(path.clone().into_boxed_str()))
        };
        let export = Arc::new(client.open().await);
        Self { vm, path, export }
    }

    /// Runs a script at the root of the file system.
    async fn run(&self, script: &str) -> String {
        self.vm.run(&format!("cd {} && {script}", self.path)).await.unwrap()
    }

    async fn take(&self, snapshot: &str) {
        let name = self.path.trim_start_matches('/');
        self.vm.run(&format!("zfs snapshot {name}@{snapshot}")).await.unwrap();
    }

    /// Renews the beacon as a probe does.
    async fn probe(&self) {
        let next = Beacon::after(self.export.beacon().await.as_ref());
        let renewed = self.export.renew_beacon(Some(&next), Duration::from_millis(1));
        renewed.await.unwrap();
    }

    /// Makes a backup of the newest snapshot.
    async fn back_up(&self, name: &str, file_id: u64) -> Result<CopyProgressSnapshot, CopyError> {
        self.back_up_from(name, file_id, false).await
    }

    /// Makes a backup of a snapshot that may be created.
    async fn back_up_from(&self, name: &str, file_id: u64, create: bool) -> Result<CopyProgressSnapshot, CopyError> {
        let snapshot = SnapshotUse {
            selector: SnapshotSelector::Newest { max_age: None },
            required: true,
            create,
        };
        let request = ArchiveRequest {
            snapshot: Some(snapshot),
            ..backup_request(name, file_id, &[])
        };
        back_up(&self.export, (&self.export, &request)).await
    }

    /// Returns the names of the snapshots.
    async fn snapshots(&self) -> Vec<String> {
        let name = self.path.trim_start_matches('/');
        let list = format!("zfs list -H -o name -t snapshot {name}");
        let listed = self.vm.run(&list).await.unwrap();
        let names = listed.lines().filter_map(|line| line.split_once('@'));
        names.map(|(_, name)| name.to_owned()).collect()
    }

    /// Unmounts a snapshot, as ZFS itself does five minutes after it was mounted if nobody uses it.
    async fn expire(&self, snapshot: &str) {
        // The server uses it for up to a minute after the last request.
        let script = format!(
            "for _ in $(seq 60); do
                 exportfs -f; umount {}/.zfs/snapshot/{snapshot} 2>/dev/null && exit; sleep 1
             done; exit 1",
            self.path
        );
        self.vm.run(&script).await.unwrap();
    }
}

async fn backs_up_one_moment(version: Protocol) {
    let zfs = Dataset::new(VersionChoice::Exactly(version)).await;
    // By default, the directory is not listed.
    assert_eq!(zfs.export.snapshot_directory().await.unwrap(), Some(".zfs/snapshot"));
    zfs.probe().await;
    zfs.take("empty").await;
    let file_id = volume(&zfs.export, "old").await;
    zfs.run("mkdir -p old/a/b && echo then >old/a/b/file && ln old/a/b/file old/again")
        .await;
    zfs.run("dd if=/dev/urandom of=old/big bs=64k count=64 2>/dev/null && md5sum old/big >big.md5")
        .await;
    zfs.probe().await;
    zfs.take("nightly").await;
    zfs.run("rm -r old/a old/big && echo now >old/again && echo now >old/later")
        .await;
    let copied = zfs.back_up("one", file_id).await.unwrap();
    assert!(copied.is_of_one_moment(), "{copied}");
    let content = zfs.run("cd archived-one && cat a/b/file again && ls").await;
    assert_eq!(content, "then\nthen\na\nagain\nbig\n");
    zfs.run("cp archived-one/big old/big && md5sum -c big.md5").await;
    let record = zfs.run("cat .nfs-operator/*/records/one").await;
    assert!(record.contains("\"nightly\""), "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_copied_from_the_newest_snapshot_of_zfs() {
    backs_up_one_moment(Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_copied_from_the_newest_snapshot_of_zfs_over_nfsv3() {
    backs_up_one_moment(Protocol::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_zfs_without_proof_whose_the_directory_was_is_not_read() {
    let zfs = Dataset::new(VersionChoice::Auto).await;
    zfs.probe().await;
    zfs.take("before").await;
    let file_id = volume(&zfs.export, "old").await;
    let refused = async |backup: &str, expected: &str| {
        let error = zfs.back_up(backup, file_id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused("one", "snapshot before has no").await;
    // Another directory had the name at that moment.
    zfs.run("mv old aside && mkdir old && echo foreign >old/file").await;
    zfs.probe().await;
    zfs.take("replaced").await;
    zfs.run("rm -r old && mv aside old").await;
    refused("two", "is not the directory in the record").await;
    zfs.probe().await;
    zfs.take("after").await;
    zfs.back_up("three", file_id).await.unwrap();
    assert_eq!(zfs.run("ls -d archived-*").await, "archived-three\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_on_zfs_are_copied_counted_archived_and_cloned_from_a_snapshot() {
    let zfs = Dataset::new(VersionChoice::Auto).await;
    let export = &zfs.export;
    let file_id = volume(export, "old").await;
    zfs.run(
        "mkdir old/a && echo then >old/a/file && dd if=/dev/urandom of=old/big bs=64k count=16 2>/dev/null && sync",
    )
    .await;
    let (_, tally) = copied((export, "old", file_id), (export, "new")).await.unwrap();
    assert_eq!(tally.changed, 0, "{tally}");
    zfs.run("diff -r old new").await;
    let directory = DirectoryPath::parse("old").unwrap();
    let of = (CountTarget::Directory(&directory), Some(file_id));
    let used = export.count(of, &mut RateLimiter::unlimited(), |_| true).await;
    let used = used.unwrap().unwrap();
    // ZFS reports the blocks of a file once it has written them.
    assert!(used.used >= 1 << 20, "{used:?}");
    zfs.take("then").await;
    zfs.run("echo now >old/a/file").await;
    let of = CopySource::Snapshot(
        reclaim("old", "old", file_id),
        SnapshotSelector::Named("then".to_owned()),
    );
    let (clone, limits) = (request("clone", "clone"), CopyLimits::default());
    copy_volume((export, &of), (export, &clone), &limits, &Arc::default())
        .await
        .unwrap();
    assert_eq!(zfs.run("cat clone/a/file old/a/file").await, "then\nnow\n");
    let archived = export.archive(&reclaim("old", "old", file_id), &Decided).await.unwrap();
    assert!(matches!(archived, Reclaimed::Archived { .. }), "{archived:?}");
    assert_eq!(zfs.run("cat archived-old/a/file").await, "now\n");
}

/// Whether snapshots can be created is a setting of the whole machine.
const SETTING: &str = "/sys/module/zfs/parameters/zfs_admin_snapshot";

async fn creates_snapshots(version: Protocol) {
    let zfs = Dataset::new(VersionChoice::Exactly(version)).await;
    let file_id = volume(&zfs.export, "old").await;
    zfs.run("echo then >old/file").await;
    assert_eq!(zfs.export.maintain_snapshots().await.unwrap(), 1);
    let [trial, own] = ["trial", "uid-of-one"].map(|what| format!("nfs-operator-uid-of-kernel-{what}"));
    assert_eq!(
        zfs.snapshots().await,
        std::slice::from_ref(&trial),
        "the server has mounted it"
    );
    zfs.take("nightly").await;
    let copied = zfs.back_up_from("one", file_id, true).await.unwrap();
    assert!(copied.is_of_one_moment(), "{copied}");
    assert_eq!(zfs.run("cat archived-one/file").await, "then\n");
    let record = zfs.run("cat .nfs-operator/*/records/one").await;
    assert!(record.contains(&own), "{record}");
    assert_eq!(zfs.snapshots().await, [&trial, "nightly", &own]);
    assert_eq!(zfs.export.maintain_snapshots().await.unwrap(), 2);
    // Nothing that the probes do mounts them again.
    zfs.expire(&trial).await;
    assert_eq!(zfs.export.maintain_snapshots().await.unwrap(), 1);
    assert_eq!(zfs.snapshots().await, ["nightly", &own]);
    zfs.expire(&own).await;
    assert_eq!(zfs.export.maintain_snapshots().await.unwrap(), 0);
    assert_eq!(zfs.snapshots().await, ["nightly"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_zfs_are_created_for_backups_and_removed_once_the_server_has_unmounted_them() {
    let zfs = Dataset::new(VersionChoice::Auto).await;
    zfs.run(&format!("echo 0 >{SETTING}")).await;
    let error = zfs.export.maintain_snapshots().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
    assert!(error.to_string().contains("refuses to create one"), "{error}");
    zfs.run(&format!("echo 1 >{SETTING}")).await;
    creates_snapshots(Protocol::V4_1).await;
    creates_snapshots(Protocol::V3).await;
}
