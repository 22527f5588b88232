//! Volumes of the operator, mounted by the kernel's NFS client as on a node.

use rig::{KernelVm, RunDir, TestEnv, kernel_vm::HOST, wait};
use serde_json::{Value, json};

use super::node::Mounted;
use crate::support::shared::{Failure, TIMEOUT, Test, backend, bound, class, text};

/// The user as which a pod runs.
const TENANT: u32 = 1001;

/// Directory settings for access by the owner only.
fn settings(nfs: Value) -> Value {
    json!({ "nfs": nfs, "directory": { "mode": "2750", "uid": TENANT, "gid": TENANT } })
}

/// Creates a backend on the machine's server, in a directory for this test. Returns its path.
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

/// Uses a volume like a pod, and checks what a pod cannot do.
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
    // A pod whose root is the volume sees only the volume above it.
    let at = &mounted.at;
    let climbed = vm
        .run(&format!(
            "cp /bin/busybox {at}/busybox && cd {at}/a/b && chroot {at} /busybox ls /.. /../.. /a/../.."
        ))
        .await?;
    assert!(climbed.contains("file") && !climbed.contains("precious"), "{climbed}");
    Ok(())
}

/// Waits until the write of the tenant is refused. The node caches permissions for a while.
async fn refused_with(mounted: &Mounted<'_>, complaint: &str) -> rig::Result<()> {
    wait::until("the mount to be refused", TIMEOUT, async || {
        let reported = mounted.refused(TENANT, "touch again && rm again").await;
        match reported.map_err(|error| error.to_string())? {
            reported if reported.contains(complaint) => Ok(()),
            reported => Err(reported),
        }
    })
    .await
}

/// Mounts and uses the volume of a new claim, and deletes the claim. Returns the volume, and its mount.
async fn use_and_delete<'a>(
    vm: &'a KernelVm,
    env: &TestEnv,
    class: &Value,
    name: &str,
    server: Option<&str>,
) -> Result<(Value, Mounted<'a>), Failure> {
    let (claim, volume) = bound(env, name, class).await?;
    let mounted = Mounted::volume(vm, &volume, server).await?;
    used(vm, &mounted).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    Ok((volume, mounted))
}

async fn mount_use_and_delete(name: &str, version: &str) -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new(name).await?;
    let path = on_the_machine(&env, vm, version).await?;
    let delete = class(&env, "delete", "backend", json!({ "onDelete": "delete" })).await?;
    let archive = class(&env, "archive", "backend", json!({ "onDelete": "archive" })).await?;

    let (_, mounted) = use_and_delete(vm, &env, &delete, "deleted", None).await?;
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

    let (volume, mounted) = use_and_delete(vm, &env, &archive, "archived", None).await?;
    refused_with(&mounted, "Permission denied").await?;
    mounted.unmount().await?;
    let directory = text(&volume, "/spec/nfs/path").rsplit('/').next().unwrap_or_default();
    let kept = vm.run(&format!("cat {path}/archived-{directory}/file")).await?;
    assert_eq!(kept, "content\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_4_1_and_inaccessible_after_its_claim_is_deleted() -> Test {
    mount_use_and_delete("kernel-four-one", "4.1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_4_2_and_inaccessible_after_its_claim_is_deleted() -> Test {
    mount_use_and_delete("kernel-four-two", "4.2").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_kernels_server_is_mounted_over_3_and_inaccessible_after_its_claim_is_deleted() -> Test {
    mount_use_and_delete("kernel-three", "3").await
}

/// The same with nfs-ganesha, which runs outside the machine.
async fn mount_from_another_server(name: &str, version: &str) -> Test {
    let vm = KernelVm::shared().await?;
    let env = TestEnv::new(name).await?;
    let mut spec = match version {
        "3" => settings(json!({ "version": version, "port": env.nfs_port(), "mountPort": env.mount_port() })),
        _ => settings(json!({ "version": version, "port": env.nfs_port() })),
    };
    if version == "3" {
        // The server of the rig has no lock manager, which NFSv3 clients need without this option.
        spec["mountOptions"] = json!(["nolock"]);
    }
    backend(&env, "backend", spec).await?;
    std::fs::create_dir(env.data().join("precious"))?;
    let delete = class(&env, "delete", "backend", json!({ "onDelete": "delete" })).await?;
    let archive = class(&env, "archive", "backend", json!({ "onDelete": "archive" })).await?;

    let (_, mounted) = use_and_delete(vm, &env, &delete, "deleted", Some(HOST)).await?;
    crate::support::shared::wait_trash_empty(env.data()).await?;
    refused_with(&mounted, "Stale file handle").await?;
    mounted.unmount().await?;

    let (volume, mounted) = use_and_delete(vm, &env, &archive, "archived", Some(HOST)).await?;
    refused_with(&mounted, "Permission denied").await?;
    mounted.unmount().await?;
    let directory = text(&volume, "/spec/nfs/path").rsplit('/').next().unwrap_or_default();
    let kept = env.data().join(format!("archived-{directory}")).join("file");
    assert_eq!(std::fs::read_to_string(kept)?, "content\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_another_server_is_mounted_over_4_1_and_inaccessible_after_its_claim_is_deleted() -> Test {
    mount_from_another_server("kernel-ganesha", "4.1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_another_server_is_mounted_over_3_and_inaccessible_after_its_claim_is_deleted() -> Test {
    mount_from_another_server("kernel-ganesha-three", "3").await
}

/// Waits until this many processes of the tenant are in the state D, in which they wait for the server.
async fn wait_hung(vm: &KernelVm, count: usize) -> rig::Result<()> {
    let hung = format!(
        "for status in /proc/[0-9]*/status; do
             grep -q '^Uid:.{TENANT}' $status 2>/dev/null && grep -q '^State:.D' $status && echo $status
         done; true"
    );
    wait::until("the processes to wait for the server", TIMEOUT, async || {
        let found = vm.run(&hung).await.map_err(|error| error.to_string())?;
        match found.lines().count() == count {
            true => Ok(()),
            false => Err(found),
        }
    })
    .await
}

/// Waits until the script that was started in a mount has ended, and returns its output.
async fn wait_ended(mounted: &Mounted<'_>) -> rig::Result<String> {
    wait::until("the script to end", TIMEOUT, async || {
        let ended = mounted.ended().await.map_err(|error| error.to_string())?;
        ended.ok_or_else(|| "it has not ended".to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_that_wait_for_their_server_continue_with_it_and_umount_f_ends_those_of_the_whole_export() -> Test {
    let run = RunDir::new()?;
    let vm = KernelVm::start(&run).await?;
    let env = TestEnv::new("kernel-hung").await?;
    on_the_machine(&env, &vm, "4.2").await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    let ((_, one), (_, two)) = (bound(&env, "one", &class).await?, bound(&env, "two", &class).await?);
    let (first, second) = (
        Mounted::volume(&vm, &one, None).await?,
        Mounted::volume(&vm, &two, None).await?,
    );
    for mounted in [&first, &second] {
        mounted.as_user(TENANT, "echo before >file").await?;
    }

    // Programs wait for the server, and continue with it.
    vm.run(". /sbin/functions; stop").await?;
    first.start(TENANT, "echo during >>file && cat file").await?;
    wait_hung(&vm, 1).await?;
    assert_eq!(first.ended().await?, None);
    vm.run(". /sbin/functions; serve").await?;
    assert_eq!(wait_ended(&first).await?, "before\nduring\n");

    // Forced to end. Both volumes are on one export, so the kernel has one connection for them, and fails all of its calls.
    vm.run(". /sbin/functions; stop").await?;
    for mounted in [&first, &second] {
        mounted.start(TENANT, "echo lost >>file && echo written").await?;
    }
    wait_hung(&vm, 2).await?;
    // Without -l, a program that has not ended yet keeps the mount.
    let at = &first.at;
    vm.run(&format!("umount -f {at} || umount -l {at}")).await?;
    for mounted in [&first, &second] {
        let ended = wait_ended(mounted).await?;
        assert!(!ended.contains("written") && !ended.is_empty(), "{ended}");
    }
    let mounts = vm.run("cat /proc/mounts").await?;
    assert!(!mounts.contains(at) && mounts.contains(&second.at), "{mounts}");

    // A new pod mounts the volume again, and the other mount works as before.
    vm.run(". /sbin/functions; serve").await?;
    let again = Mounted::volume(&vm, &one, None).await?;
    assert_eq!(again.as_user(TENANT, "cat file").await?, "before\nduring\n");
    for mounted in [&again, &second] {
        mounted.as_user(TENANT, "echo after >>file").await?;
    }
    assert_eq!(second.as_user(TENANT, "cat file").await?, "before\nafter\n");
    again.unmount().await?;
    Ok(second.unmount().await?)
}
