//! ZFS on the kernel's server, with sizes that the quota agent enforces. The machine with ZFS takes long to build: `make
//! test` skips these tests if it was not built before.

use rig::{KernelVm, TestEnv};
use serde_json::json;

use super::enforced_sizes::{Enforced, TENANT, expand, wait_lifted};
use crate::support::shared::{Test, backend_reference, reclaim, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_on_zfs_get_their_size_from_the_agent_on_the_server() -> Test {
    let vm = KernelVm::shared_with_zfs().await?;
    let env = TestEnv::new("zfs-sizes").await?;
    let path = vm.new_dataset(&[]).await?;
    let Enforced {
        agent,
        claim,
        volume,
        mounted,
        ..
    } = Enforced::set_up(vm, &env, &path).await?;
    // ZFS counts what it has written to the disk, which it does at least once in a second here.
    let fill = "for part in 1 2 3 4 5 6 7 8 9; do
                    dd if=/dev/zero of=part-$part bs=64k count=64 conv=fsync 2>&1 || exit 1; sleep 1.5
                done";
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("Disk quota exceeded"), "{refused}");
    // A file counts in one volume only.
    let other = format!(
        "cd {path} && mkdir other && touch other/file && ln other/file {}/link",
        text(&volume, "/spec/nfs/path")
    );
    let linked = vm.output(&other).await?;
    assert!(
        linked.code != 0 && linked.output.contains("Invalid cross-device link"),
        "{linked:?}"
    );

    expand(vm, &env, (&claim, &mounted)).await?;
    mounted
        .as_user(TENANT, "dd if=/dev/zero of=more bs=64k count=64 conv=fsync 2>&1")
        .await?;
    mounted.unmount().await?;

    // A claim is deleted with its limit.
    let delete = json!({"spec": {"archivePolicy": {"onDelete": "Delete"}}});
    env.objects.patch(&backend_reference(&env, "backend"), delete).await?;
    reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    let limits = format!("zfs projectspace -H -p -o quota {}", path.trim_start_matches('/'));
    wait_lifted(vm, &limits, |printed| printed.lines().all(|limit| limit == "0")).await?;
    agent.stop().await?;
    Ok(())
}
