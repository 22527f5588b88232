//! Volumes that the operator made, mounted by the kernel's NFS client as a node mounts them.

use rig::{KernelVm, TestEnv, kernel_vm::HOST, wait};
use serde_json::{Value, json};

use super::node::Mounted;
use crate::support::shared::{TIMEOUT, Test, backend, bound, class, text};

/// The user that a pod runs as, and no other.
const TENANT: u32 = 1001;

/// A backend's settings for a directory that only its owner may use.
fn settings(nfs: Value) -> Value {
    json!({ "nfs": nfs, "directory": { "mode": "2750", "uid": TENANT, "gid": TENANT } })
}

/// A volume on the machine's server, in a directory of the test's own.
async fn on_the_machine(env: &TestEnv, vm: &KernelVm, version: &str) -> Result<String, Box<dyn std::error::Error>> {
    let path = format!("/plain/{}", env.name);
    vm.run(&format!("mkdir {path} && mkdir {path}/precious")).await?;
    let nfs = match version {
        "3" => json!({ "version": version, "port": vm.nfs_port(), "mountPort": vm.mount_port() }),
        _ => json!({ "version": version, "port": vm.nfs_port() }),
    };
    let mut spec = settings(nfs);
    spec["path"] = json!(path);
    backend(env, "backend", spec).await?;
    Ok(path)
}

/// What a pod does with its volume, and what it can't.
async fn used(vm: &KernelVm, mounted: &Mounted<'_>) -> Test {
    let root = mounted.as_user(TENANT, "stat -c \"%a %u:%g\" .").await?;
    assert_eq!(root, "2750 1001:1001\n");
    mounted.as_user(TENANT, "echo content >file && mkdir -p a/b").await?;
    assert_eq!(
        mounted.as_user(TENANT, "cat file; stat -c \"%u:%g\" file").await?,
        "content\n1001:1001\n"
    );
    let stranger = mounted.refused(1002, "cat file").await?;
    assert!(stranger.contains("Permission denied"), "{stranger}");
    // A pod whose whole file system is the volume sees the volume above it, whichever way it climbs.
    let at = &mounted.at;
    let climbed = vm
        .run(&format!(
            "cp /bin/busybox {at}/busybox && cd {at}/a/b && chroot {at} /busybox ls /.. /../.. /a/../.."
        ))
        .await?;
    assert!(climbed.contains("file") && !climbed.contains("precious"), "{climbed}");
    Ok(())
}

/// Waits until the tenant's write is refused, for the node remembers for a while what it may.
async fn refused_with(mounted: &Mounted<'_>, complaint: &str) -> rig::Result<()> {
    wait::until("the mount to be refused", TIMEOUT, async || {
        let said = mounted.refused(TENANT, "touch again && rm again").await;
        match said.map_err(|error| error.to_string())? {
            said if said.contains(complaint) => Ok(()),
            said => Err(said),
        }
    })
    .await
}

async fn lived_with(name: &str, version: &str) -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new(name).await?;
    let path = on_the_machine(&env, &vm, version).await?;
    let delete = class(&env, "delete", "backend", json!({ "onDelete": "delete" })).await?;
    let archive = class(&env, "archive", "backend", json!({ "onDelete": "archive" })).await?;

    let (claim, volume) = bound(&env, "deleted", &delete).await?;
    let mounted = Mounted::volume(&vm, &volume, None).await?;
    used(&vm, &mounted).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    wait::until("the trash to be empty", TIMEOUT, async || {
        let left = vm.run(&format!("ls {path}/.nfs-operator/*/trash")).await;
        match left.map_err(|error| error.to_string())? {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    })
    .await?;
    refused_with(&mounted, "Stale file handle").await?;
    mounted.unmount().await?;

    let (claim, volume) = bound(&env, "archived", &archive).await?;
    let mounted = Mounted::volume(&vm, &volume, None).await?;
    used(&vm, &mounted).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    refused_with(&mounted, "Permission denied").await?;
    mounted.unmount().await?;
    let directory = text(&volume, "/spec/nfs/path").rsplit('/').next().unwrap_or_default();
    let kept = vm.run(&format!("cat {path}/archived-{directory}/file")).await?;
    assert_eq!(kept, "content\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_4_1_and_inaccessible_after_its_claim_is_deleted() -> Test {
    lived_with("kernel-four-one", "4.1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_4_2_and_inaccessible_after_its_claim_is_deleted() -> Test {
    lived_with("kernel-four-two", "4.2").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_3_and_inaccessible_after_its_claim_is_deleted() -> Test {
    lived_with("kernel-three", "3").await
}

/// The same with nfs-ganesha, which is not in the machine.
async fn lived_with_another_server(name: &str, version: &str) -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new(name).await?;
    let mut spec = match version {
        "3" => settings(json!({ "version": version, "port": env.nfs_port(), "mountPort": env.mount_port() })),
        _ => settings(json!({ "version": version, "port": env.nfs_port() })),
    };
    if version == "3" {
        // The rig's server has no lock manager, without which the client of version 3 mounts only so.
        spec["mountOptions"] = json!(["nolock"]);
    }
    backend(&env, "backend", spec).await?;
    std::fs::create_dir(env.data().join("precious"))?;
    let delete = class(&env, "delete", "backend", json!({ "onDelete": "delete" })).await?;
    let archive = class(&env, "archive", "backend", json!({ "onDelete": "archive" })).await?;

    let (claim, volume) = bound(&env, "deleted", &delete).await?;
    let mounted = Mounted::volume(&vm, &volume, Some(HOST)).await?;
    used(&vm, &mounted).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    crate::support::shared::trash_empty(env.data()).await?;
    refused_with(&mounted, "Stale file handle").await?;
    mounted.unmount().await?;

    let (claim, volume) = bound(&env, "archived", &archive).await?;
    let mounted = Mounted::volume(&vm, &volume, Some(HOST)).await?;
    used(&vm, &mounted).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    refused_with(&mounted, "Permission denied").await?;
    mounted.unmount().await?;
    let directory = text(&volume, "/spec/nfs/path").rsplit('/').next().unwrap_or_default();
    let kept = env.data().join(format!("archived-{directory}")).join("file");
    assert_eq!(std::fs::read_to_string(kept)?, "content\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_another_server_is_mounted_over_4_1_and_inaccessible_after_its_claim_is_deleted() -> Test {
    lived_with_another_server("kernel-ganesha", "4.1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_another_server_is_mounted_over_3_and_inaccessible_after_its_claim_is_deleted() -> Test {
    lived_with_another_server("kernel-ganesha-three", "3").await
}
