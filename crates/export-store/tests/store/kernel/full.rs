//! Full file systems and exceeded quotas (data-safety rule 18): volumes can be archived and deleted, archives can be
//! purged, and the purge makes room for new volumes.

use export_store::{Decided, ErrorKind, ExportStore, PurgeLimits, Reclaimed, VolumeDirectory};
use nfs_client::{Credential, Protocol, VersionChoice};
use rig::KernelVm;
use rig::kernel_vm::{FileSystem, QuotaOf};

use crate::archive_crash::{begin_purge, which};
use crate::fixture::{StoreClient, reclaim, refused, request};
use crate::nfs::TIMEOUT;
use crate::trust::settled;

/// What limits the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Size,
    Quota(QuotaOf),
}

/// Quota in KiB, and number of files.
const QUOTA: (u32, u32) = (8192, 1000);
/// User of the operator, and of the tenants' files, where quotas do not apply to root.
const USER: u32 = 2001;

struct LimitedExport<'a> {
    vm: &'a KernelVm,
    client: StoreClient,
}

impl LimitedExport<'_> {
    async fn open(&self) -> ExportStore {
        self.client.open().await
    }

    async fn volume(&self, export: &ExportStore, uid: &str) -> VolumeDirectory {
        let directory = format!("dir-{uid}");
        let created = export.provision(&request(uid, &directory)).await.unwrap();
        let (path, user) = (self.client.path, self.client.credential.uid);
        let write = format!("dd if=/dev/zero of={path}/{directory}/data bs=100k count=1 2>/dev/null");
        self.vm
            .run(&format!(
                "/sbin/setpriv --reuid {user} --regid {user} --clear-groups sh -c '{write}'"
            ))
            .await
            .unwrap();
        reclaim(uid, &directory, created.file_id)
    }

    /// Fills the export as a tenant does, in the last volume.
    async fn fill(&self) {
        let directory = format!("{}/dir-4", self.client.path);
        self.vm.fill(&directory, self.client.credential.uid).await.unwrap();
    }
}

/// Archives and deletes volumes while nothing can be written.
async fn reclaims_need_no_space(kind: FileSystem, limit: Limit, user: u32, full: ErrorKind) {
    println!("{kind:?}, {limit:?}, uid {user}");
    let vm = KernelVm::shared().await.unwrap();
    let path = vm.new_file_system(kind).await.unwrap();
    // The directory of an export is its own file system, or a project.
    vm.run(&format!("chown {user}:{user} {path}")).await.unwrap();
    if let Limit::Quota(of) = limit {
        if let QuotaOf::Project(project) = of {
            vm.assign_project(&path, project).await.unwrap();
        }
        vm.set_quota(&path, of, QUOTA.0, QUOTA.1).await.unwrap();
    }
    let limited = LimitedExport {
        vm,
        client: StoreClient {
            credential: Credential {
                uid: user,
                gid: user,
                supplementary: None,
            },
            version: VersionChoice::Exactly(Protocol::V4_2),
            ..super::client(vm, Box::leak(path.clone().into_boxed_str()))
        },
    };
    let export = limited.open().await;
    assert_eq!(export.probe_write().await.unwrap().full, None);
    if let Limit::Quota(QuotaOf::Project(_)) = limit {
        let statistics = export.nfs().statistics().await.unwrap();
        assert_eq!(statistics.total, u64::from(QUOTA.0) << 10);
    }
    let mut volumes = Vec::new();
    for uid in ["1", "2", "3", "4"] {
        volumes.push(limited.volume(&export, uid).await);
    }
    limited.fill().await;

    // After a restart, too.
    export.nfs().clone().close().await;
    let export = limited.open().await;
    assert_eq!(export.probe_write().await.unwrap().full, Some(full));
    settled(&export).await;
    assert_eq!(refused(&export, &request("9", "new")).await, (full, true));
    for (number, volume) in volumes.iter().take(2).enumerate() {
        let archived = export.archive(volume, &Decided).await.unwrap();
        assert!(matches!(archived, Reclaimed::Archived { .. }), "{archived:?}");
        let kept = format!("test -s {path}/archived-dir-{}/data", number + 1);
        vm.run(&kept).await.unwrap();
        limited.fill().await;
    }
    // An expired archive.
    let archive = which("1", volumes[0].file_id.unwrap());
    begin_purge(&export, &archive).await.unwrap();
    export.end_purge(&archive).await.unwrap();
    limited.fill().await;
    assert_eq!(export.delete(&volumes[2], &Decided).await.unwrap(), Reclaimed::Deleted);
    limited.fill().await;
    assert_eq!(export.delete(&volumes[3], &Decided).await.unwrap(), Reclaimed::Deleted);

    rig::wait::until("an empty trash", TIMEOUT, async || {
        let report = export.purge_trash(PurgeLimits::default()).await;
        let report = report.map_err(|error| error.to_string())?;
        match (report.left.entries, report.failed) {
            (0, 0) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await
    .unwrap();
    // The server may release the removed files a moment later.
    rig::wait::until("room for new volumes", TIMEOUT, async || {
        match export.probe_write().await {
            Ok(written) if written.full.is_none() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    export.provision(&request("9", "new")).await.unwrap();
    let left = vm.run(&format!("ls {path} | grep -v lost+found")).await.unwrap();
    assert_eq!(left, "archived-dir-2\nnew\n");
    export.nfs().clone().close().await;
    vm.remove_file_system(&path).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_xfs_volumes_can_be_archived_deleted_and_purged() {
    reclaims_need_no_space(FileSystem::Xfs, Limit::Size, 0, ErrorKind::NoSpace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_ext4_volumes_can_be_archived_deleted_and_purged() {
    reclaims_need_no_space(FileSystem::Ext4, Limit::Size, 0, ErrorKind::NoSpace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_quota_of_a_project_volumes_can_be_archived_deleted_and_purged() {
    let project = Limit::Quota(QuotaOf::Project(7));
    reclaims_need_no_space(FileSystem::Xfs, project, 0, ErrorKind::NoSpace).await;
    reclaims_need_no_space(FileSystem::Ext4, project, USER, ErrorKind::QuotaExceeded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_quota_of_a_user_volumes_can_be_archived_deleted_and_purged() {
    let user = Limit::Quota(QuotaOf::User(USER));
    reclaims_need_no_space(FileSystem::Xfs, user, USER, ErrorKind::QuotaExceeded).await;
    reclaims_need_no_space(FileSystem::Ext4, user, USER, ErrorKind::QuotaExceeded).await;
}
