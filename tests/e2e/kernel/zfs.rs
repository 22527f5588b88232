//! ZFS on the kernel's server, with sizes that the quota agent enforces. The machine with ZFS takes long to build: `make
//! test` skips these tests if it was not built before.

use rig::operator::find_binary;
use rig::{KernelVm, TestEnv, wait};
use serde_json::json;

use super::enforced_sizes::wait_size;
use super::node::Mounted;
use crate::cli::kubectl_nfs::fine;
use crate::support::shared::{TIMEOUT, Test, backend_reference, reclaim, text};

const TENANT: u32 = 1001;
const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_on_zfs_get_their_size_from_the_agent_on_the_server() -> Test {
    let vm = KernelVm::shared_with_zfs().await?;
    let env = TestEnv::new("zfs-sizes").await?;
    let path = vm.new_dataset(&[]).await?;
    let quota = json!({"enforce": "Required"});
    let spec = json!({"path": path, "quota": quota, "nfs": {"version": "4.2", "port": vm.nfs_port()}});
    let created = env.objects.create(&env.backend("backend", spec)).await?;
    let missing = Some("QuotaAgentMissing");
    let ready = env.objects.wait_condition(&created, "Ready", "False", missing, TIMEOUT);
    ready.await?;
    let program = format!("/run/{}/nfs-operator", env.name);
    vm.install_program(&find_binary()?, &program).await?;
    let key = fine(&rig::shared().await?.cluster, &["secret", "quota-key"]).await;
    let agent = format!("/run/{}/agent", env.name);
    vm.run(&format!(
        "umask 077; echo '{key}' >{agent}.keys
         {program} quota-agent --export {path} --key-file {agent}.keys >>{agent}.log 2>&1 & echo $! >{agent}.pid"
    ))
    .await?;
    let ready = env.objects.wait_condition(&created, "Ready", "True", None, TIMEOUT);
    if let Err(error) = ready.await {
        let log = vm.run(&format!("cat {agent}.log")).await?;
        return Err(format!("{error}\n{log}").into());
    }

    let mut class = env.class("class", json!({ "backend": env.unique_name("backend") }));
    class["allowVolumeExpansion"] = json!(true);
    let class = env.objects.create(&class).await?;
    let mut asked = env.claim("data", &class);
    asked["spec"]["resources"]["requests"]["storage"] = json!("16Mi");
    let claim = env.objects.create(&asked).await?;
    let volume = env.wait_bound(&claim).await?;
    let enforced = "nfs-operator.io/SizeEnforced";
    env.objects
        .wait_condition(&claim, enforced, "True", None, TIMEOUT)
        .await?;
    let mounted = Mounted::volume(vm, &volume, None).await?;
    wait_size(vm, &mounted.at, 16 * MIB).await?;
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

    let larger = json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}});
    env.objects.patch(&claim, larger).await?;
    wait_size(vm, &mounted.at, 32 * MIB).await?;
    mounted
        .as_user(TENANT, "dd if=/dev/zero of=more bs=64k count=64 conv=fsync 2>&1")
        .await?;
    mounted.unmount().await?;

    // A claim is deleted with its limit.
    let delete = json!({"spec": {"archivePolicy": {"onDelete": "Delete"}}});
    env.objects.patch(&backend_reference(&env, "backend"), delete).await?;
    reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    let limits = format!("zfs projectspace -H -p -o quota {}", path.trim_start_matches('/'));
    let lifted = wait::until("the limit to be removed", TIMEOUT, async || {
        let printed = vm.run(&limits).await.map_err(|error| error.to_string())?;
        match printed.lines().all(|limit| limit == "0") {
            true => Ok(()),
            false => Err(printed),
        }
    });
    lifted.await?;
    vm.run(&format!("kill $(cat {agent}.pid)")).await?;
    Ok(())
}
