//! The quota agent on the server's machine, as it is shipped: sizes of volumes that the kernel's NFS client mounts.

use rig::kernel_vm::FileSystem;
use rig::operator::find_binary;
use rig::{KernelVm, RunDir, TestEnv, wait};
use serde_json::{Value, json};

use super::node::Mounted;
use crate::cli::kubectl_nfs::fine;
use crate::support::shared::{Failure, TIMEOUT, Test, backend_reference, reclaim, wait_refused};

pub(super) const TENANT: u32 = 1001;
const MIB: u64 = 1 << 20;
/// Condition of a claim whose size is enforced.
const SIZE_ENFORCED: &str = "nfs-operator.io/SizeEnforced";

/// Returns the size of a mounted volume, as `df` shows it.
async fn size(vm: &KernelVm, at: &str) -> rig::Result<u64> {
    let found = vm.run(&format!("stat -f -c '%b %S' {at}")).await?;
    let numbers = found.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
    Ok(numbers.product())
}

/// Waits until a mounted volume has a size, within 1 %.
async fn wait_size(vm: &KernelVm, at: &str, expected: u64) -> Test {
    let waited = wait::until("the size", TIMEOUT, async || {
        let size = size(vm, at).await.map_err(|error| error.to_string())?;
        match size.abs_diff(expected) * 100 <= expected {
            true => Ok(()),
            false => Err(format!("{size} instead of {expected}")),
        }
    });
    Ok(waited.await?)
}

/// The quota agent on the machine of a server, for one export.
pub(super) struct Agent<'a> {
    vm: &'a KernelVm,
    program: String,
    path: String,
    /// Beginning of the paths of its files.
    files: String,
}

impl<'a> Agent<'a> {
    /// Installs the program and the keys of the cluster.
    async fn install(vm: &'a KernelVm, env: &TestEnv, path: &str) -> rig::Result<Self> {
        let (program, files) = (
            format!("/run/{}/nfs-operator", env.name),
            format!("/run/{}/agent", env.name),
        );
        vm.install_program(&find_binary()?, &program).await?;
        let key = fine(&rig::shared().await?.cluster, &["secret", "quota-key"]).await;
        vm.run(&format!("umask 077; echo '{key}' >{files}.keys")).await?;
        Ok(Self {
            vm,
            program,
            path: path.to_owned(),
            files,
        })
    }

    /// Starts the agent in the background.
    pub async fn start(&self) -> rig::Result<()> {
        let Self {
            program, path, files, ..
        } = self;
        let start = format!(
            "umask 077; {program} quota-agent --export {path} --key-file {files}.keys >>{files}.log 2>&1 &
             echo $! >{files}.pid"
        );
        self.vm.run(&start).await.map(drop)
    }

    /// Ends the agent with SIGTERM.
    pub async fn stop(&self) -> rig::Result<()> {
        let process = format!("$(cat {}.pid)", self.files);
        let stop = format!("kill {process}; while kill -0 {process} 2>/dev/null; do sleep 0.1; done");
        self.vm.run(&stop).await.map(drop)
    }

    async fn log(&self) -> rig::Result<String> {
        self.vm.run(&format!("cat {}.log", self.files)).await
    }
}

/// A backend that requires sizes, with an agent that enforces them, and a mounted volume of 16 MiB.
pub(super) struct Enforced<'a> {
    pub agent: Agent<'a>,
    /// A class on the backend whose claims can grow.
    pub class: Value,
    pub claim: Value,
    pub volume: Value,
    pub mounted: Mounted<'a>,
}

impl<'a> Enforced<'a> {
    /// `path` is that of an export of the machine.
    pub async fn set_up(vm: &'a KernelVm, env: &TestEnv, path: &str) -> Result<Self, Failure> {
        let quota = json!({"enforce": "Required"});
        let spec = json!({"path": path, "quota": quota, "nfs": {"version": "4.2", "port": vm.nfs_port()}});
        let created = env.objects.create(&env.backend("backend", spec)).await?;
        let missing = Some("QuotaAgentMissing");
        env.objects
            .wait_condition(&created, "Ready", "False", missing, TIMEOUT)
            .await?;
        let agent = Agent::install(vm, env, path).await?;
        agent.start().await?;
        let ready = env.objects.wait_condition(&created, "Ready", "True", None, TIMEOUT);
        if let Err(error) = ready.await {
            return Err(format!("{error}\n{}", agent.log().await?).into());
        }
        let mut class = env.class("class", json!({ "backend": env.unique_name("backend") }));
        class["allowVolumeExpansion"] = json!(true);
        let class = env.objects.create(&class).await?;
        let mut asked = env.claim("data", &class);
        asked["spec"]["resources"]["requests"]["storage"] = json!("16Mi");
        let claim = env.objects.create(&asked).await?;
        let volume = env.wait_bound(&claim).await?;
        env.objects
            .wait_condition(&claim, SIZE_ENFORCED, "True", None, TIMEOUT)
            .await?;
        let mounted = Mounted::volume(vm, &volume, None).await?;
        wait_size(vm, &mounted.at, 16 * MIB).await?;
        Ok(Self {
            agent,
            class,
            claim,
            volume,
            mounted,
        })
    }
}

/// Expands a claim to 32 MiB, and waits until its mounted volume has that size.
pub(super) async fn expand(vm: &KernelVm, env: &TestEnv, (claim, mounted): (&Value, &Mounted<'_>)) -> Test {
    let larger = json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}});
    env.objects.patch(claim, larger).await?;
    wait_size(vm, &mounted.at, 32 * MIB).await
}

/// Waits until the server has no limit for a volume that was deleted.
pub(super) async fn wait_lifted(vm: &KernelVm, limits: &str, is_lifted: impl Fn(&str) -> bool) -> Test {
    let lifted = wait::until("the limit to be removed", TIMEOUT, async || {
        let printed = vm.run(limits).await.map_err(|error| error.to_string())?;
        match is_lifted(&printed) {
            true => Ok(()),
            false => Err(printed),
        }
    });
    Ok(lifted.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_get_their_size_from_the_agent_on_the_server_and_wait_while_it_is_stopped() -> Test {
    // The program takes memory of the machine, so it is not that of other tests.
    let run = RunDir::new()?;
    let vm = KernelVm::start(&run).await?;
    let env = TestEnv::new("enforced").await?;
    let path = vm.new_file_system(FileSystem::Xfs).await?;
    let Enforced {
        agent,
        class,
        claim,
        volume,
        mounted,
    } = Enforced::set_up(&vm, &env, &path).await?;
    let fill = "dd if=/dev/zero of=big bs=64k count=1000 conv=fsync 2>&1";
    let refused = mounted.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");

    expand(&vm, &env, (&claim, &mounted)).await?;
    mounted
        .as_user(TENANT, "dd if=/dev/zero of=more bs=64k count=100 conv=fsync 2>&1")
        .await?;

    // SIGTERM ends the agent. The volume works as before, and a new claim waits.
    agent.stop().await?;
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
        .wait_condition(&at_once, SIZE_ENFORCED, "False", Some("LimitPending"), TIMEOUT)
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
    agent.start().await?;
    env.wait_bound(&late).await?;
    env.objects
        .wait_condition(&at_once, SIZE_ENFORCED, "True", None, TIMEOUT)
        .await?;
    wait_size(&vm, &other.at, MIB).await?;
    vm.run(&format!("umount {}", other.at)).await?;

    // A clone has its own limit, which holds the copy, and counts what was copied.
    let mut cloned = env.claim("cloned", &class);
    cloned["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": claim["metadata"]["name"]});
    cloned["spec"]["resources"]["requests"]["storage"] = json!("36Mi");
    let cloned = env.objects.create(&cloned).await?;
    let clone = Mounted::volume(&vm, &env.wait_bound(&cloned).await?, None).await?;
    wait_size(&vm, &clone.at, 36 * MIB).await?;
    let listed = clone.as_user(TENANT, "cat file; stat -c %s more").await?;
    assert_eq!(listed.trim(), "content\n6553600");
    // In blocks of a mebibyte.
    let free = vm.run(&format!("stat -f -c '%f %S' {}", clone.at)).await?;
    let free: u64 = free
        .split_whitespace()
        .filter_map(|number| number.parse::<u64>().ok())
        .product();
    assert!(free <= 30 * MIB, "{free}");
    let refused = clone.refused(TENANT, fill).await?;
    assert!(refused.contains("No space left on device"), "{refused}");
    // The source did not get smaller by it.
    mounted
        .as_user(
            TENANT,
            "dd if=/dev/zero of=more-still bs=64k count=100 conv=fsync 2>&1 && rm more-still",
        )
        .await?;
    vm.run(&format!("umount {}", clone.at)).await?;

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
    wait_lifted(&vm, &limits, |printed| !printed.contains(",49152,")).await
}
