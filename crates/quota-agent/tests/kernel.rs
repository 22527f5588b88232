//! The agent on real file systems: XFS and ext4 with project quotas, behind the Linux kernel's NFS server and nfs-ganesha,
//! with volumes that the kernel's NFS client mounts. This program is also the agent that runs in the emulated machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use export_store::RecordsKey;
use export_store::quota::{KeyFile, Order, QuotaDirectory, QuotaSeal};
use libtest_mimic::{Arguments, Trial};
use quota_agent::{ProjectRange, Settings};
use rig::kernel_vm::FileSystem;
use rig::{KernelVm, RunDir, wait};
use tokio_util::sync::CancellationToken;

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
/// Another cluster on the same export.
const OTHER_CLUSTER: &str = "99999999-2222-3333-4444-555555555555";
const MIB: u64 = 1 << 20;
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quota-agent.md");
const SIZES_GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quotas.md");
/// Every instruction of the tools is emulated.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The agent looks at everything in this interval.
const POLL: Duration = Duration::from_secs(30);
/// A user in a pod. On ext4, root is not limited.
const AS_USER: &str = "/sbin/setpriv --reuid 2001 --regid 2001 --clear-groups";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, serve, export, key_file] = arguments.as_slice()
        && serve == "serve"
    {
        return block_on(serve_export(export, key_file));
    }
    // The Makefile skips tests with this name if there is no emulator.
    let test = |name: &str, kind, server| {
        Trial::test(format!("kernel::sizes_are_enforced_on_{name}"), move || {
            block_on(sizes_are_enforced(kind, server));
            Ok(())
        })
    };
    let many = Trial::test("kernel::the_tools_set_hundreds_of_limits_at_once", || {
        block_on(hundreds_of_volumes());
        Ok(())
    });
    let guide = Trial::test("kernel::the_lines_of_the_guide_make_an_export_with_quotas", || {
        block_on(the_guide());
        Ok(())
    });
    let inherited = |name: &str, kind| {
        Trial::test(
            format!("kernel::a_project_of_the_root_is_removed_as_the_agent_says_on_{name}"),
            move || {
                block_on(a_project_of_the_root(kind));
                Ok(())
            },
        )
    };
    let tests = vec![
        test("xfs", FileSystem::Xfs, Server::Kernel),
        test("ext4", FileSystem::Ext4, Server::Kernel),
        test("xfs_behind_nfs_ganesha", FileSystem::Xfs, Server::Ganesha),
        inherited("xfs", FileSystem::Xfs),
        inherited("ext4", FileSystem::Ext4),
        many,
        guide,
    ];
    let mut arguments = Arguments::from_args();
    // Each emulates a machine of its own, which has one core.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads = arguments.test_threads.map(|threads| threads.min(cores)).or(Some(cores));
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn serve_export(export: &str, key_file: &str) -> ExitCode {
    let settings = Settings {
        exports: vec![export.into()],
        key_file: key_file.into(),
        projects: ProjectRange::default(),
        files_per_second: 1000,
    };
    match quota_agent::run(settings, CancellationToken::new()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The NFS server of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Kernel,
    Ganesha,
}

/// An export in the machine, as one cluster uses it. Orders are written through NFS.
#[derive(Clone)]
struct Export<'a> {
    vm: &'a KernelVm,
    cluster: &'static str,
    path: String,
    server: Server,
    /// Port of its NFS server.
    port: u16,
    /// Where the machine mounts the export itself.
    mounted: String,
    seal: QuotaSeal,
}

impl Export<'_> {
    fn quota(&self) -> String {
        format!(".nfs-operator/{}/quota", self.cluster)
    }

    /// Returns the same export, as the other cluster uses it.
    fn of_other_cluster(&self) -> Self {
        Self {
            cluster: OTHER_CLUSTER,
            seal: seal(OTHER_CLUSTER),
            ..self.clone()
        }
    }

    async fn start_agent(&self) {
        let path = &self.path;
        let script = format!(
            "{} /run/quota-agent serve {path} /run/quota-keys >>/run/agent{path}.log 2>&1 & echo $! >/run/agent{path}.pid",
            restricted()
        );
        self.vm.run(&format!("mkdir -p /run/agent; {script}")).await.unwrap();
    }

    async fn kill_agent(&self) {
        let path = &self.path;
        let script = format!(
            "agent=$(cat /run/agent{path}.pid); kill -9 $agent; while kill -0 $agent 2>/dev/null; do sleep 0.1; done"
        );
        self.vm.run(&script).await.unwrap();
    }

    /// Starts the agent again, and waits until it has looked at everything. It does so again [`POLL`] later.
    async fn restart_agent(&self) {
        self.kill_agent().await;
        let usage = format!("{}/{}/usage", self.path, self.quota());
        self.vm.run(&format!("rm -f {usage}")).await.unwrap();
        self.start_agent().await;
        self.wait_for("usage", "\"volumes\"").await;
    }

    /// Returns the time from an order until its report, by the clock of the machine.
    async fn took(&self, volume: &str) -> Duration {
        let (path, quota) = (&self.path, self.quota());
        let script = format!("cd {path}/{quota}; stat -c %Z orders/{volume} reports/{volume}");
        let output = self.vm.run(&script).await.unwrap();
        let mut times = output.lines().map(|line| line.parse::<u64>().unwrap());
        let (ordered, reported) = (times.next().unwrap(), times.next().unwrap());
        Duration::from_secs(reported - ordered)
    }

    /// Orders a size through NFS.
    async fn order(&self, volume: &str, generation: u64, bytes: u64) {
        let file_id = self
            .vm
            .run(&format!("stat -c %i {}/{volume}", self.path))
            .await
            .unwrap();
        let order = Order {
            volume: volume.to_owned(),
            directory: QuotaDirectory::parse(volume).unwrap(),
            file_id: file_id.trim().parse().unwrap(),
            generation,
            bytes: Some(bytes),
            inodes: Some(1000),
        };
        let text = String::from_utf8(self.seal.seal(&order).unwrap()).unwrap();
        self.place(volume, &text).await;
    }

    async fn place(&self, volume: &str, text: &str) {
        let orders = format!("{}/{}/orders", self.mounted, self.quota());
        let script =
            format!("printf '%s' '{text}' >{orders}/.draft-{volume} && mv {orders}/.draft-{volume} {orders}/{volume}");
        self.vm.run(&script).await.unwrap();
    }

    /// Waits until a file that the agent writes contains a text.
    async fn wait_for(&self, file: &str, text: &str) {
        let script = format!("cat {}/{}/{file}", self.path, self.quota());
        let waited = wait::until(file, TIMEOUT, async || {
            let output = self.vm.output(&script).await.map_err(|error| error.to_string())?;
            match output.output.contains(text) {
                true => Ok(()),
                false => Err(output.output),
            }
        });
        if let Err(error) = waited.await {
            let log = self.vm.run(&format!("cat /run/agent{}.log", self.path)).await.unwrap();
            panic!("{error}\n{log}");
        }
    }

    async fn in_force(&self, volume: &str, generation: u64) {
        let text = format!("\"generation\":{generation},\"project\":");
        self.wait_for(&format!("reports/{volume}"), &text).await;
        self.wait_for(&format!("reports/{volume}"), "\"state\":\"InForce\"")
            .await;
    }

    async fn mount(&self, directory: &str) -> String {
        let at = format!("/mnt/{}", rig::random_suffix());
        let (port, path) = (self.port, &self.path);
        let options = format!("port={port},nfsvers=4.2,actimeo=0");
        let script = format!("mkdir -p {at} && mount.nfs 127.0.0.1:{path}{directory} {at} -o {options}");
        self.vm.run(&script).await.unwrap();
        at
    }

    /// Returns the size of a mounted volume in bytes, as `df` asks for it. The `df` of the machine takes the first mount of
    /// the same server instead.
    async fn size(&self, at: &str) -> u64 {
        let output = self.vm.run(&format!("stat -f -c '%b %S' {at}")).await.unwrap();
        let (blocks, size) = output.trim().split_once(' ').unwrap();
        blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap()
    }

    async fn assert_size(&self, at: &str, expected: u64) {
        let size = self.size(at).await;
        // nfs-ganesha 4.3 asks for the size of the file system, whatever the directory.
        let expected = match self.server {
            Server::Kernel => expected,
            Server::Ganesha => self.size(&self.mounted).await,
        };
        assert!(
            size.abs_diff(expected) * 100 <= expected,
            "{size} instead of {expected}"
        );
    }
}

/// Returns the beginning of a command that starts a program as the unit file says: with its capabilities, and without a file
/// system to write to except for exports.
fn restricted() -> String {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../config/quota-agent/nfs-operator-quota-agent.service"
    );
    let unit = std::fs::read_to_string(unit).unwrap();
    let setting = |name: &str| {
        let mut values = unit
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        values.next().unwrap_or_else(|| panic!("the unit file has no {name}"))
    };
    assert_eq!(
        (setting("NoNewPrivileges"), setting("ProtectSystem")),
        ("yes", "strict")
    );
    let capabilities = setting("CapabilityBoundingSet").split_whitespace();
    let capabilities = capabilities.map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    format!(
        "unshare -m sh -c 'mount --make-rprivate / && mount -o remount,bind,ro / && exec \"$@\"' restricted \
         /sbin/setpriv --no-new-privs --bounding-set=-all{} --",
        capabilities.collect::<String>()
    )
}

fn key(cluster: &str) -> RecordsKey {
    RecordsKey::new(&[cluster.as_bytes().first().copied().unwrap_or_default(); 32])
}

fn seal(cluster: &str) -> QuotaSeal {
    QuotaSeal::new(Some(key(cluster).quota_key()), cluster, "export")
}

/// Creates a file system that the operators of two clusters use, and installs the agent.
async fn new_export(vm: &KernelVm, kind: FileSystem, server: Server) -> Export<'_> {
    let path = vm.new_file_system(kind).await.unwrap();
    let port = match server {
        Server::Kernel => vm.nfs_port(),
        Server::Ganesha => vm.start_ganesha(&path).await.unwrap(),
    };
    use_export(vm, path, (server, port)).await
}

/// Does what the operators of two clusters do with an export first, and installs the agent.
async fn use_export(vm: &KernelVm, path: String, (server, port): (Server, u16)) -> Export<'_> {
    let program = std::env::current_exe().unwrap();
    vm.install_program(&program, "/run/quota-agent").await.unwrap();
    let keys = [CLUSTER, OTHER_CLUSTER].map(|cluster| KeyFile::lines(cluster, &key(cluster)));
    let keys = keys.concat();
    let setup = format!(
        "set -e; (umask 077; echo '{keys}' >/run/quota-keys)
         cd {path}; mkdir -p .nfs-operator/{CLUSTER}/records .nfs-operator/{OTHER_CLUSTER}/records
         chmod -R 0700 .nfs-operator
         echo '{{\"version\":1,\"id\":\"export\",\"rootFileID\":2}}' >.nfs-operator/identity"
    );
    vm.run(&setup).await.unwrap();
    Export {
        vm,
        cluster: CLUSTER,
        path,
        server,
        port,
        mounted: String::new(),
        seal: seal(CLUSTER),
    }
}

/// Checks that an agent that sees only an export, as in a container, notices the agent of the whole file system.
async fn an_export_has_one_agent(vm: &KernelVm, path: &str) {
    let script = format!(
        "/run/quota-agent serve {path}/two /run/quota-keys >/run/first.log 2>&1 & first=$!
         # Until it has locked both directories: otherwise, the second one may be the first.
         until [ $(grep -c \"FLOCK.* $first \" /proc/locks) -ge 2 ]; do
             kill -0 $first || {{ cat /run/first.log; exit 91; }}
             sleep 0.1
         done
         mkdir -p /run/bound
         unshare -m sh -c '
             mount --make-rprivate / 2>/dev/null; mount --bind {path}/two /run/bound && umount -l {path} || exit 90
             for attempt in 1 2 3 4 5 6 7 8 9 10; do
                 timeout 2 /run/quota-agent serve /run/bound /run/quota-keys 2>&1 && continue
                 [ $? = 1 ] && exit 1
             done'
         code=$?; kill $first; exit $code"
    );
    let second = vm.output(&script).await.unwrap();
    assert!(
        second.code == 1 && second.output.contains("another quota agent serves /run/bound"),
        "{second:?}"
    );
}

/// Checks that the agent has what the unit file leaves it, and not more.
async fn is_restricted(export: &Export<'_>) {
    let script = format!(
        "cd /proc/$(cat /run/agent{}.pid); grep -E '^(CapEff|NoNewPrivs):' status; awk '$5 == \"/\" {{ print $6 }}' mountinfo",
        export.path
    );
    let output = export.vm.run(&script).await.unwrap();
    let fields: Vec<&str> = output.split_whitespace().collect();
    let ["CapEff:", capabilities, "NoNewPrivs:", "1", options] = *fields.as_slice() else {
        panic!("{output}");
    };
    let capabilities = u64::from_str_radix(capabilities, 16).unwrap().count_ones() as usize;
    assert_eq!(capabilities, restricted().matches(",+").count(), "{output}");
    assert!(options.split(',').any(|option| option == "ro"), "{output}");
}

/// Checks that the tools of the agent stay running: these versions work with a pseudoterminal.
async fn tools_stay(export: &Export<'_>) {
    let for_each = |action: &str| {
        format!(
            "agent=$(cat /run/agent{}.pid); for tool in $(pidof xfs_quota xfs_io); do \
             if grep -q \"^PPid:.$agent$\" /proc/$tool/status; then {action}; fi; done",
            export.path
        )
    };
    let script = for_each("echo $tool");
    // They are started again at each poll.
    let waited = wait::until("both tools to run", TIMEOUT, async || {
        let output = export.vm.output(&script).await.map_err(|error| error.to_string())?;
        match output.output.lines().count() == 2 {
            true => Ok(()),
            false => Err(output.output),
        }
    });
    waited.await.unwrap();
    // What follows runs in others.
    export.vm.run(&for_each("kill -9 $tool")).await.unwrap();
}

async fn sizes_are_enforced(kind: FileSystem, server: Server) {
    let run = RunDir::new().unwrap();
    let vm = &KernelVm::start(&run).await.unwrap();
    let mut export = new_export(vm, kind, server).await;
    let path = export.path.clone();
    let setup = format!(
        "set -e; cd {path}; mkdir -p one/folder two three
         echo old >one/folder/old; ln -s /etc one/link; chown -R 2001:2001 one two three"
    );
    vm.run(&setup).await.unwrap();
    export.mounted = export.mount("").await;
    an_export_has_one_agent(vm, &path).await;
    export.start_agent().await;
    export.wait_for("agent", "\"enforced\":true").await;
    let second = vm
        .output(&format!("/run/quota-agent serve {path} /run/quota-keys"))
        .await
        .unwrap();
    assert!(
        second.code == 1 && second.output.contains("another quota agent"),
        "{second:?}"
    );

    is_restricted(&export).await;

    // A directory with data, and an empty one. Somebody else takes an ID between them, after the agent looked.
    export.order("one", 1, 4 * MIB).await;
    export.in_force("one", 1).await;
    let foreign = "1900000001";
    let take = format!(
        "mkdir {path}/foreign && xfs_io -c 'chproj {foreign}' {path}/foreign && setquota -P {foreign} 0 2048 0 7 {path}"
    );
    vm.run(&take).await.unwrap();
    export.order("two", 1, 4 * MIB).await;
    export.in_force("two", 1).await;
    let limits = vm.run(&format!("repquota -P -n -O csv {path}")).await.unwrap();
    let limited: Vec<&str> = limits.lines().filter(|line| line.contains(foreign)).collect();
    assert!(
        matches!(limited.as_slice(), [line] if line.contains(",2048,") && line.contains(",7,")),
        "{limits}"
    );
    tools_stay(&export).await;
    let one = export.mount("/one").await;
    let two = export.mount("/two").await;
    export.assert_size(&one, 4 * MIB).await;

    // Writing past the size fails, and no other volume notices.
    let full = match kind {
        FileSystem::Xfs => "No space left on device",
        FileSystem::Ext4 => "Disk quota exceeded",
    };
    let write = |at: &str, file: &str, count: u32| {
        format!("{AS_USER} dd if=/dev/zero of={at}/{file} bs=64k count={count} conv=fsync 2>&1")
    };
    let failed = vm.output(&write(&one, "big", 200)).await.unwrap();
    assert!(failed.code != 0 && failed.output.contains(full), "{failed:?}");
    let used = vm
        .run(&format!("du -k {path}/one | awk 'END {{ print $1 }}'"))
        .await
        .unwrap();
    let used = used.trim().parse::<u64>().unwrap() * 1024;
    assert!(used > 3 * MIB && used <= 4 * MIB, "{used}");
    vm.run(&write(&two, "file", 16)).await.unwrap();

    // A larger size takes effect without a remount. The bound is no measurement: it shows that inotify reported the order.
    // The agent has just looked at everything, and does so again after a whole interval.
    export.restart_agent().await;
    export.order("one", 2, 8 * MIB).await;
    export.in_force("one", 2).await;
    let took = export.took("one").await;
    assert!(took < POLL / 2, "{took:?}");
    export.assert_size(&one, 8 * MIB).await;
    vm.run(&write(&one, "more", 32)).await.unwrap();

    // Renames and links between volumes are refused: mv copies instead.
    let script = format!(
        "cd {}; stat -c %i two/file; mv two/file one/folder/moved; stat -c %i one/folder/moved; ! ln one/folder/moved two/link",
        export.mounted
    );
    let inodes = vm.run(&script).await.unwrap();
    let mut inodes = inodes.lines();
    assert_ne!(inodes.next(), inodes.next());

    // Killed and started again, the agent continues; forged orders change nothing.
    export.kill_agent().await;
    export.order("one", 3, 6 * MIB).await;
    export.start_agent().await;
    export.in_force("one", 3).await;
    export.assert_size(&one, 6 * MIB).await;
    export.place("one", "{\"version\":1,\"volume\":\"one\"}\n").await;
    export.wait_for("agent", "\"ignoredOrders\":1").await;
    export.assert_size(&one, 6 * MIB).await;
    let somebody = format!("setquota -P 1900000000 0 0 0 0 {path}; kill -9 $(cat /run/agent{path}.pid)");
    vm.run(&somebody).await.unwrap();
    export.start_agent().await;
    export.order("one", 4, 6 * MIB).await;
    export.in_force("one", 4).await;
    export.assert_size(&one, 6 * MIB).await;

    // Another cluster gets limits of its own, and cannot change those of the first one.
    let other = export.of_other_cluster();
    other.order("three", 1, 5 * MIB).await;
    other.in_force("three", 1).await;
    let three = other.mount("/three").await;
    other.assert_size(&three, 5 * MIB).await;
    let failed = vm.output(&write(&three, "big", 200)).await.unwrap();
    assert!(failed.code != 0 && failed.output.contains(full), "{failed:?}");
    other.order("one", 9, 64 * MIB).await;
    other.wait_for("reports/one", "DirectoryTaken").await;
    export.assert_size(&one, 6 * MIB).await;
    vm.run(&format!("umount.nfs {three}; rm {path}/{}/orders/one", other.quota()))
        .await
        .unwrap();

    // Somebody switches limits off: the heartbeat says so, with the remedy.
    for (tool, expected) in [("quotaoff", "quotaon -P"), ("quotaon", "\"enforced\":true")] {
        export.kill_agent().await;
        vm.run(&format!("{tool} -P {path}")).await.unwrap();
        export.start_agent().await;
        export.wait_for("agent", expected).await;
    }

    // A full volume can be emptied.
    let failed = vm.output(&write(&one, "again", 200)).await.unwrap();
    assert!(failed.output.contains(full), "{failed:?}");
    vm.run(&format!(
        "{AS_USER} rm -rf {one}/big {one}/more {one}/again {one}/folder"
    ))
    .await
    .unwrap();
    vm.run(&write(&one, "after", 16)).await.unwrap();
    // A full one can be archived with its limit, restored, and removed.
    let failed = vm.output(&write(&one, "again", 200)).await.unwrap();
    assert!(failed.output.contains(full), "{failed:?}");
    let script = format!(
        "cd {0}; umount.nfs {one}; umount.nfs {two}; mv one archived-one; ls archived-one",
        export.mounted
    );
    assert!(vm.run(&script).await.unwrap().contains("after"));
    let archived = export.mount("/archived-one").await;
    export.assert_size(&archived, 6 * MIB).await;
    vm.run(&format!(
        "umount.nfs {archived}; cd {}; mv archived-one one",
        export.mounted
    ))
    .await
    .unwrap();
    let restored = export.mount("/one").await;
    export.assert_size(&restored, 6 * MIB).await;
    let failed = vm.output(&write(&restored, "once-more", 200)).await.unwrap();
    assert!(failed.output.contains(full), "{failed:?}");
    // No limit is reported for a directory that was removed.
    vm.run(&format!("umount.nfs {restored}; rm -r {}/one", export.mounted))
        .await
        .unwrap();
    export.wait_for("reports/one", "DirectoryMissing").await;
    vm.run(&format!("rm {}/{}/orders/one", export.mounted, export.quota()))
        .await
        .unwrap();
    let gone = format!(
        "! test -e {path}/{}/reports/one && repquota -P -n -O csv {path}",
        export.quota()
    );
    wait::until("the report to be removed", TIMEOUT, async || {
        let output = vm.output(&gone).await.map_err(|error| error.to_string())?;
        match output.code == 0 && !output.output.contains("#1900000000,") {
            true => Ok(()),
            false => Err(output.output),
        }
    })
    .await
    .unwrap();
}

/// Gives a project to the root of an export before an operator uses it, and then does what the messages of the agent say.
async fn a_project_of_the_root(kind: FileSystem) {
    let run = RunDir::new().unwrap();
    let vm = &KernelVm::start(&run).await.unwrap();
    let path = vm.new_file_system(kind).await.unwrap();
    vm.run(&format!("xfs_io -c 'chproj 77' -c 'chattr +P' {path}"))
        .await
        .unwrap();
    let mut export = use_export(vm, path.clone(), (Server::Kernel, vm.nfs_port())).await;
    // Each directory and file has the project by now.
    vm.run(&format!(
        "set -e; cd {path}; mkdir -p one/folder .nfs-operator/{CLUSTER}/trash; echo old >one/folder/old"
    ))
    .await
    .unwrap();
    export.mounted = export.mount("").await;
    let left = async || {
        let script = format!(
            "cd {path}; find . -type d | while read -r name; do
                 xfs_io -r -c lsproj $name | grep -q 'projid = 77$' && echo $name; done; true"
        );
        vm.run(&script).await.unwrap()
    };
    assert_eq!(left().await.lines().filter(|name| name.ends_with("/trash")).count(), 1);

    export.start_agent().await;
    export.wait_for("agent", "RootInheritsProject").await;
    let heartbeat = vm.run(&format!("cat {path}/{}/agent", export.quota())).await.unwrap();
    let (_, remedy) = heartbeat.split_once("to the trash; run ").unwrap();
    let (remedy, _) = remedy.split_once('"').unwrap();
    // The guide has the same lines.
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    for line in remedy.split("; ") {
        let line = line.replace(&path, "/srv/nfs");
        assert!(guide.lines().any(|found| found == line), "{line}");
    }
    vm.run(remedy).await.unwrap();
    export.wait_for("agent", "\"enforced\":true").await;
    let left = left().await;
    let mut found: Vec<&str> = left.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["./one", "./one/folder"]);

    // A volume from before gets its limit once the project is removed from its directory.
    export.order("one", 1, 4 * MIB).await;
    export.wait_for("reports/one", "ForeignProject").await;
    let report = vm
        .run(&format!("cat {path}/{}/reports/one", export.quota()))
        .await
        .unwrap();
    let (_, remedy) = report.split_once("from it with ").unwrap();
    let (remedy, _) = remedy.split_once('"').unwrap();
    vm.run(&remedy.replace("DIRECTORY", &format!("{path}/one")))
        .await
        .unwrap();
    export.restart_agent().await;
    export.in_force("one", 1).await;
    let one = export.mount("/one").await;
    export.assert_size(&one, 4 * MIB).await;
    vm.run(&format!("umount.nfs {one}")).await.unwrap();

    // It can be moved to the trash: busybox copies what it cannot move.
    let script = format!(
        "cd {}; stat -c %i one; mv one .nfs-operator/{CLUSTER}/trash/one; stat -c %i .nfs-operator/{CLUSTER}/trash/one",
        export.mounted
    );
    let inodes = vm.run(&script).await.unwrap();
    let mut inodes = inodes.lines();
    assert_eq!(inodes.next().unwrap(), inodes.next().unwrap());
}

/// Runs the lines of the guide about enforced sizes, on a device of the machine, except those that install programs, which
/// it has no tools for.
async fn the_guide() {
    const ELSEWHERE: [&str; 3] = ["apt-get ", "install ", "systemctl "];
    let guide = std::fs::read_to_string(SIZES_GUIDE).unwrap();
    let (_, server) = guide.split_once("## Server\n").unwrap();
    let (_, block) = server.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let lines = block
        .lines()
        .filter(|line| !ELSEWHERE.iter().any(|start| line.starts_with(start)));
    let lines: Vec<&str> = lines.collect();
    assert_eq!((lines.len(), block.lines().count()), (5, 10), "{block}");
    let run = RunDir::new().unwrap();
    let vm = &KernelVm::start(&run).await.unwrap();
    let script = format!(
        "set -e; truncate -s 300M /run/guide.disk; device=$(losetup -f); losetup $device /run/guide.disk
         {}",
        lines.join("\n").replace("/dev/sdb", "$device")
    );
    vm.run(&script).await.unwrap();
    let export = use_export(vm, "/srv/nfs".to_owned(), (Server::Kernel, vm.nfs_port())).await;
    vm.run("mkdir -p /run/agent/srv /srv/nfs/data").await.unwrap();
    let root = export.mount("").await;
    let export = Export {
        mounted: root,
        ..export
    };
    export.start_agent().await;
    export.wait_for("agent", "\"enforced\":true").await;
    export.order("data", 1, 4 * MIB).await;
    export.in_force("data", 1).await;
    let data = export.mount("/data").await;
    export.assert_size(&data, 4 * MIB).await;
}

/// Starts agents for many volumes, first with orders that are not in force: each tool gets as much as it can at once. How long
/// it takes says nothing, because every instruction is emulated; `tests/scale.rs` and `make bench-quotas` do.
async fn hundreds_of_volumes() {
    const VOLUMES: usize = 500;
    let run = RunDir::new().unwrap();
    let vm = &KernelVm::start(&run).await.unwrap();
    let export = new_export(vm, FileSystem::Xfs, Server::Kernel).await;
    let (path, quota) = (&export.path, export.quota());
    let made = format!(
        "set -e; cd {path}; mkdir -p -m 0700 {quota} {quota}/orders
         seq -w 1 {VOLUMES} | sed s,^,v, | xargs mkdir; seq -w 1 {VOLUMES} | sed s,^,v, | xargs stat -c '%n %i'"
    );
    let made = vm.run(&made).await.unwrap();
    let mut orders = String::new();
    for line in made.lines() {
        let (volume, file_id) = line.split_once(' ').unwrap();
        let order = Order {
            volume: volume.to_owned(),
            directory: QuotaDirectory::parse(volume).unwrap(),
            file_id: file_id.parse().unwrap(),
            generation: 1,
            bytes: Some(MIB),
            inodes: None,
        };
        let text = String::from_utf8(export.seal.seal(&order).unwrap()).unwrap();
        orders.push_str(&format!("{volume} {}\n", text.trim_end()));
    }
    let file = run.new_dir("orders").unwrap().join("orders");
    std::fs::write(&file, orders).unwrap();
    vm.copy_file(&file, "/run/orders").await.unwrap();
    let place = format!(
        "cd {path}/{quota}/orders && while read -r name text; do printf '%s\\n' \"$text\" >$name; done </run/orders"
    );
    vm.run(&place).await.unwrap();

    let usage = format!("{path}/{quota}/usage");
    for start in ["first start, which sets all limits", "restart"] {
        vm.run(&format!("rm -f {usage}")).await.unwrap();
        let before = Instant::now();
        export.start_agent().await;
        wait::until("the usage of all volumes", TIMEOUT, async || {
            let script = format!("grep -o '\"inodes\"' {usage} | wc -l");
            let output = vm.output(&script).await.map_err(|error| error.to_string())?;
            match output.output.trim() == VOLUMES.to_string() {
                true => Ok(()),
                false => Err(output.output),
            }
        })
        .await
        .unwrap();
        println!(
            "{VOLUMES} volumes, {start}, in the emulated machine: {:?}",
            before.elapsed()
        );
        export.kill_agent().await;
    }
    let set = vm
        .run(&format!("repquota -P -n -O csv {path} | grep -c ',1024,'"))
        .await
        .unwrap();
    assert_eq!(set.trim(), VOLUMES.to_string());
}
