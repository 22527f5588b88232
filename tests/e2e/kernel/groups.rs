//! A volume for one group of users, which docs/permissions.md recommends instead of `fsGroup`.

use rig::{KernelVm, TestEnv};
use serde_json::{Value, json};

use super::node::Mounted;
use crate::support::shared::{Test, backend, bound, class, text};

/// The group of the class, and the supplementary group of the pods.
const GROUP: u32 = 2000;

/// The user of an operator that is not root.
const OPERATOR: u32 = 2001;

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

/// Provisions two volumes with a group each, and checks who can use them. The pods have no group but the one that the
/// kubelet adds because of the annotation.
async fn each_volume_is_for_its_own_pods(vm: &KernelVm, env: &TestEnv, mut spec: Value) -> Test {
    let range = json!({"directory": {"gidRange": {"min": 20000, "max": 20009}}});
    rig::objects::merge(&mut spec, &range);
    backend(env, "backend", spec).await?;
    let class = class(env, "class", "backend", json!({})).await?;
    let (_, one) = bound(env, "one", &class).await?;
    let (_, two) = bound(env, "two", &class).await?;
    let group = |volume: &Value| text(volume, "/metadata/annotations/pv.beta.kubernetes.io~1gid").parse::<u32>();
    let (mine, other) = (group(&one)?, group(&two)?);
    assert_ne!(mine, other);

    let mounted = Mounted::volume(vm, &one, None).await?;
    let written = mounted
        .as_member(
            1000,
            mine,
            "umask 002 && mkdir notes && echo one >notes/file && stat -c %g notes/file",
        )
        .await?;
    assert_eq!(written, format!("{mine}\n"), "new files belong to the group");
    let colleague = mounted
        .as_member(1001, mine, "echo two >>notes/file && cat notes/file")
        .await?;
    assert_eq!(colleague, "one\ntwo\n", "another user of the same volume");
    for script in ["ls", "cat notes/file", "echo more >>notes/file", "touch new"] {
        let tenant = mounted.refused_to_member(1002, other, script).await?;
        assert!(tenant.contains("Permission denied"), "{script}: {tenant}");
        let same_user = mounted.refused(1000, script).await?;
        assert!(same_user.contains("Permission denied"), "{script}: {same_user}");
    }
    Ok(mounted.unmount().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_groups_of_its_own_writes_to_its_volume_and_another_tenants_pod_cannot() -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new("kernel-own-groups").await?;
    let path = format!("/plain/{}", env.name);
    vm.run(&format!("mkdir {path}")).await?;
    let spec = json!({ "path": path, "nfs": { "version": "4.2", "port": vm.nfs_port() } });
    each_volume_is_for_its_own_pods(&vm, &env, spec).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_is_not_root_gives_each_volume_its_group() -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new("kernel-squashed-groups").await?;
    let path = format!("/squashed/{}", env.name);
    vm.run(&format!("mkdir {path} && chown {OPERATOR}:{OPERATOR} {path}"))
        .await?;
    let credential = json!({ "uid": OPERATOR, "gid": OPERATOR });
    let nfs = json!({ "version": "4.2", "port": vm.nfs_port(), "auth": {"sys": credential} });
    each_volume_is_for_its_own_pods(&vm, &env, json!({ "path": path, "nfs": nfs })).await
}
