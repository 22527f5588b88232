//! The quota agent on the server's machine, as it is shipped: sizes of volumes that the kernel's NFS client mounts.

use rig::kernel_vm::FileSystem;
use rig::operator::find_binary;
use rig::{KernelVm, RunDir, TestEnv, wait};
use serde_json::json;

use super::node::Mounted;
use crate::cli::kubectl_nfs::fine;
use crate::support::shared::{TIMEOUT, Test, backend_reference, reclaim, wait_refused};

const TENANT: u32 = 1001;
const MIB: u64 = 1 << 20;

/// Returns the size of a mounted volume, as `df` shows it.
async fn size(vm: &KernelVm, at: &str) -> rig::Result<u64> {
    let found = vm.run(&format!("stat -f -c '%b %S' {at}")).await?;
    let numbers = found.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
    Ok(numbers.product())
}

/// Waits until a mounted volume has a size, within 1 %.
pub(super) async fn wait_size(vm: &KernelVm, at: &str, expected: u64) -> Test {
    let waited = wait::until("the size", TIMEOUT, async || {
        let size = size(vm, at).await.map_err(|error| error.to_string())?;
        match size.abs_diff(expected) * 100 <= expected {
            true => Ok(()),
            false => Err(format!("{size} instead of {expected}")),
        }
    });
    Ok(waited.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_get_their_size_from_the_agent_on_the_server_and_wait_while_it_is_stopped() -> Test {
    // The program takes memory of the machine, so it is not that of other tests.
    let run = RunDir::new()?;
    let vm = KernelVm::start(&run).await?;
    let env = TestEnv::new("enforced").await?;
    let path = vm.new_file_system(FileSystem::Xfs).await?;
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
    let start = format!(
        "umask 077; echo '{key}' >{agent}.keys
         {program} quota-agent --export {path} --key-file {agent}.keys >>{agent}.log 2>&1 & echo $! >{agent}.pid"
    );
    vm.run(&start).await?;
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
    let mounted = Mounted::volume(&vm, &volume, None).await?;
    wait_size(&vm, &mounted.at, 16 * MIB).await?;
    let fill = "dd if=/dev/zero of=big bs=64k count=1000 conv=fsync 2>&1";
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");

    let larger = json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}});
    env.objects.patch(&claim, larger).await?;
    wait_size(&vm, &mounted.at, 32 * MIB).await?;
    mounted
        .as_user(TENANT, "dd if=/dev/zero of=more bs=64k count=100 conv=fsync 2>&1")
        .await?;

    // SIGTERM ends the agent. The volume works as before, and a new claim waits.
    let stop = format!("kill $(cat {agent}.pid); while kill -0 $(cat {agent}.pid) 2>/dev/null; do sleep 0.1; done");
    vm.run(&stop).await?;
    let main = backend_reference(&env, "backend");
    let stopped = Some("QuotaAgentNotResponding");
    env.objects
        .wait_condition(&main, "Ready", "False", stopped, TIMEOUT)
        .await?;
    let waiting = env.objects.create(&env.claim("waiting", &class)).await?;
    wait_refused(&env, &waiting, "QuotaAgentNotResponding").await?;
    // A backend with Preferred does not wait.
    let preferred = json!({"spec": {"quota": {"enforce": "Preferred"}}});
    env.objects.patch(&main, preferred).await?;
    env.wait_bound(&waiting).await?;
    let at_once = env.objects.create(&env.claim("at-once", &class)).await?;
    let unlimited = env.wait_bound(&at_once).await?;
    env.objects
        .wait_condition(&at_once, enforced, "False", Some("LimitPending"), TIMEOUT)
        .await?;
    env.objects
        .patch(&main, json!({"spec": {"quota": {"enforce": "Required"}}}))
        .await?;
    // Until the operator has seen the change, it hands out volumes as before.
    env.objects
        .wait_condition(&main, "Ready", "False", stopped, TIMEOUT)
        .await?;
    let late = env.objects.create(&env.claim("late", &class)).await?;
    wait_refused(&env, &late, "QuotaAgentNotResponding").await?;
    // The limit of a volume stays in force, and one that was made meanwhile has none.
    mounted
        .as_user(TENANT, "rm big && echo content >file && cat file")
        .await?;
    wait_size(&vm, &mounted.at, 32 * MIB).await?;
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");
    mounted.as_user(TENANT, "rm big").await?;
    let other = Mounted::volume(&vm, &unlimited, None).await?;
    assert!(size(&vm, &other.at).await? > 64 * MIB);
    vm.run(&start).await?;
    env.wait_bound(&late).await?;
    env.objects
        .wait_condition(&at_once, enforced, "True", None, TIMEOUT)
        .await?;
    wait_size(&vm, &other.at, MIB).await?;
    vm.run(&format!("umount {}", other.at)).await?;

    // A full volume is archived.
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");
    vm.run(&format!("umount {}", mounted.at)).await?;
    reclaim(&env, &claim, &volume, "VolumeArchived").await?;

    // The full archive becomes a larger volume, with its data. The limit is in force when the claim is bound.
    let mut again = env.claim("again", &class);
    let name = volume["metadata"]["name"].clone();
    again["spec"]["dataSourceRef"] = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": name});
    again["spec"]["resources"]["requests"]["storage"] = json!("48Mi");
    let again = env.objects.create(&again).await?;
    let restored = env.wait_bound(&again).await?;
    let mounted = Mounted::volume(&vm, &restored, None).await?;
    let found = size(&vm, &mounted.at).await?;
    assert!(
        found.abs_diff(48 * MIB) * 100 <= 48 * MIB,
        "{found} when the claim is bound"
    );
    let content = mounted.as_user(TENANT, "cat file").await?;
    assert_eq!(content.trim(), "content");
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");
    vm.run(&format!("umount {}", mounted.at)).await?;

    // A full volume is deleted, and its project has no limit then.
    let delete = json!({"spec": {"archivePolicy": {"onDelete": "Delete"}}});
    env.objects.patch(&main, delete).await?;
    reclaim(&env, &again, &restored, "VolumeDeleted").await?;
    let limits = format!("repquota -P -n -O csv {path}");
    let lifted = wait::until("the limit to be removed", TIMEOUT, async || {
        let printed = vm.run(&limits).await.map_err(|error| error.to_string())?;
        match printed.contains(",49152,") {
            false => Ok(()),
            true => Err(printed),
        }
    });
    lifted.await?;
    Ok(())
}
