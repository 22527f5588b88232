//! A volume for one group of users, which docs/permissions.md recommends instead of `fsGroup`.

use rig::{KernelVm, TestEnv};
use serde_json::{Value, json};

use super::node::{Mounted, PodProcess};
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
    let mounted = Mounted::volume(vm, &volume, None).await?;

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
    each_volume_is_for_its_own_pods(vm, &env, spec).await
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
    each_volume_is_for_its_own_pods(vm, &env, json!({ "path": path, "nfs": nfs })).await
}

/// The first of the users and groups that OpenShift assigned to a namespace.
const NAMESPACE: u32 = 1_000_650_000;
/// The same of another namespace.
const OTHER_NAMESPACE: u32 = 1_000_660_000;

/// Returns a process as the SCC `restricted-v2` admits it in a namespace: primary group 0, and the namespace's group. `groups`
/// are in addition.
fn on_openshift<'a>(namespace: u32, groups: &'a [u32]) -> PodProcess<'a> {
    PodProcess {
        uid: namespace,
        gid: 0,
        groups,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_openshift_assigns_share_a_volume_by_its_group_or_that_of_their_namespace() -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new("kernel-openshift").await?;
    let (plain, squashed) = (format!("/plain/{}", env.name), format!("/squashed/{}", env.name));
    vm.run(&format!(
        "mkdir {plain} {squashed} && chown {OPERATOR}:{OPERATOR} {squashed}"
    ))
    .await?;
    let nfs = json!({"version": "4.2", "port": vm.nfs_port()});
    backend(&env, "open", json!({"path": plain, "nfs": nfs})).await?;
    let credential = json!({"auth": {"sys": {"uid": OPERATOR, "gid": OPERATOR}}});
    let spec = json!({
        "path": squashed,
        "nfs": rig::objects::with_fields(nfs, credential),
        "directory": {"gidRange": {"min": 20000, "max": 20009}},
    });
    backend(&env, "own", spec).await?;
    let usual = class(&env, "usual", "open", json!({})).await?;
    let group = json!({"mode": "2770", "gid": NAMESPACE.to_string()});
    let namespaced = class(&env, "namespaced", "open", group).await?;
    let own = class(&env, "own", "own", json!({})).await?;
    let script = "umask 002 && echo text >file && stat -c \"%u %g\" file";

    // The default mode: every user, whatever the namespace.
    let (_, volume) = bound(&env, "usual", &usual).await?;
    let mounted = Mounted::volume(vm, &volume, None).await?;
    let mine = mounted.run_as(&on_openshift(NAMESPACE, &[NAMESPACE]), script).await?;
    assert_eq!(mine, format!("{NAMESPACE} 0\n"));
    let other = on_openshift(OTHER_NAMESPACE, &[OTHER_NAMESPACE]);
    mounted.run_as(&other, "cat file && touch other").await?;
    mounted.unmount().await?;

    // A class with the group of a namespace: fsGroup is a supplementary group of its pods.
    let (_, volume) = bound(&env, "namespaced", &namespaced).await?;
    let mounted = Mounted::volume(vm, &volume, None).await?;
    let mine = mounted.run_as(&on_openshift(NAMESPACE, &[NAMESPACE]), script).await?;
    assert_eq!(mine, format!("{NAMESPACE} {NAMESPACE}\n"));
    for script in ["ls", "cat file", "touch other"] {
        let refused = mounted.refused_as(&other, script).await?;
        assert!(refused.contains("Permission denied"), "{script}: {refused}");
    }
    mounted.unmount().await?;

    // A group for the volume, which the kubelet adds to the pods that mount it. Group 0 is squashed.
    let (_, volume) = bound(&env, "own", &own).await?;
    let group = text(&volume, "/metadata/annotations/pv.beta.kubernetes.io~1gid").parse::<u32>()?;
    let mounted = Mounted::volume(vm, &volume, None).await?;
    let mine = mounted
        .run_as(&on_openshift(NAMESPACE, &[NAMESPACE, group]), script)
        .await?;
    assert_eq!(mine, format!("{NAMESPACE} {group}\n"));
    let groups = [OTHER_NAMESPACE, group];
    let recreated = on_openshift(OTHER_NAMESPACE, &groups);
    let theirs = mounted.run_as(&recreated, "echo more >>file && cat file").await?;
    assert_eq!(theirs, "text\nmore\n", "the namespace was recreated with another range");
    for process in [&other, &on_openshift(NAMESPACE, &[NAMESPACE])] {
        for script in ["ls", "cat file", "touch other"] {
            let refused = mounted.refused_as(process, script).await?;
            assert!(refused.contains("Permission denied"), "{script}: {refused}");
        }
    }
    Ok(mounted.unmount().await?)
}
