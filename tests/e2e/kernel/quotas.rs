//! An export with a quota: claims wait while it is exceeded, deletions continue and make room.

use std::time::Duration;

use rig::kernel_vm::{FileSystem, QuotaOf};
use rig::{KernelVm, TestEnv, wait};
use serde_json::json;

use crate::support::shared::{TIMEOUT, Test, backend, bound, class, text, wait_refused};

/// User of the operator. On ext4, no quota applies to root.
const OPERATOR: u32 = 2001;
const PROJECT: u32 = 7;
/// Time in which some probes report that the quota is exceeded.
const REPORTED: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_wait_for_the_quota_of_their_export_until_another_claim_is_deleted() -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new("kernel-quotas").await?;
    let path = vm.new_file_system(FileSystem::Ext4).await?;
    vm.run(&format!("chown {OPERATOR}:{OPERATOR} {path}")).await?;
    vm.assign_project(&path, PROJECT).await?;
    vm.set_quota(&path, QuotaOf::Project(PROJECT), 8192, 1000).await?;
    let spec = json!({
        "path": path, "probeInterval": "1s", "archivePolicy": { "onDelete": "Delete" },
        "nfs": {
            "version": "4.2", "port": vm.nfs_port(),
            "auth": { "sys": { "uid": OPERATOR, "gid": OPERATOR } },
        },
    });
    let backend = backend(&env, "backend", spec).await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = bound(&env, "large", &class).await?;
    let directory = text(&volume, "/spec/nfs/path");
    // A probe that removes its file after the directory was filled leaves room for the next probes, so it is filled again.
    let full = wait::until("the exceeded quota", TIMEOUT, async || {
        let filled = vm.fill(directory, OPERATOR).await;
        filled.map_err(|error| error.to_string())?;
        let exceeded = Some("QuotaExceeded");
        let reported = env
            .objects
            .wait_condition(&backend, "CapacityAvailable", "False", exceeded, REPORTED);
        reported.await.map_err(|error| error.to_string())
    });
    full.await?;
    let waiting = env.objects.create(&env.claim("waiting", &class)).await?;
    wait_refused(&env, &waiting, "QuotaExceeded").await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    env.wait_bound(&waiting).await?;
    let room = env
        .objects
        .wait_condition(&backend, "CapacityAvailable", "True", None, TIMEOUT);
    room.await?;
    Ok(())
}
