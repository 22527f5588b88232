//! A volume for one group of users, which docs/permissions.md recommends instead of `fsGroup`.

use rig::{KernelVm, TestEnv};
use serde_json::json;

use super::node::Mounted;
use crate::support::shared::{Test, backend, bound, class};

/// The group of the class, and the supplementary group of the pods.
const GROUP: u32 = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_one_group_share_a_volume_and_others_have_no_access() -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new("kernel-groups").await?;
    let path = format!("/plain/{}", env.name);
    vm.run(&format!("mkdir {path}")).await?;
    let spec = json!({ "path": path, "nfs": { "version": "4.2", "port": vm.nfs_port() } });
    backend(&env, "backend", spec).await?;
    let group = json!({ "mode": "2770", "gid": GROUP.to_string() });
    let class = class(&env, "team", "backend", group).await?;
    let (_, volume) = bound(&env, "shared", &class).await?;
    let mounted = Mounted::volume(&vm, &volume, None).await?;

    let mine = "umask 002 && mkdir notes && echo one >notes/file && stat -c \"%g\" notes notes/file";
    let groups = mounted.as_member(1001, GROUP, mine).await?;
    assert_eq!(groups, "2000\n2000\n", "new files belong to the group");
    let theirs = mounted
        .as_member(1002, GROUP, "echo two >>notes/file && cat notes/file")
        .await?;
    assert_eq!(theirs, "one\ntwo\n");
    let stranger = mounted.refused(1003, "cat notes/file").await?;
    assert!(stranger.contains("Permission denied"), "{stranger}");
    Ok(mounted.unmount().await?)
}
