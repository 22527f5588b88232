//! A node of the rig leaves nothing on the machine.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// `make test` skips tests with this name if a node cannot run.
mod node {
    use std::{
        collections::BTreeSet,
        fs,
        io::{BufRead, BufReader, Lines},
        path::{Path, PathBuf},
        process::{Child, ChildStdout, Command, Stdio},
        thread::sleep,
        time::{Duration, Instant},
    };

    /// The kernel kills everything immediately, but the machine may be busy.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The state of the machine that a node must not change.
    #[derive(Debug, PartialEq, Eq)]
    struct MachineState {
        addresses: String,
        routes: String,
        rules: String,
        sysctls: Vec<Option<String>>,
        folders: Vec<bool>,
        mounts: BTreeSet<String>,
    }

    fn printed(program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn machine_state() -> MachineState {
        let sysctls = [
            "net/ipv4/ip_forward",
            "vm/overcommit_memory",
            "kernel/panic",
            "kernel/panic_on_oops",
            "kernel/keys/root_maxkeys",
        ];
        let folders = [
            "/var/lib/cni",
            "/var/lib/kubelet",
            "/run/containerd",
            "/var/log/pods",
            "/run/netns",
        ];
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        MachineState {
            addresses: printed("ip", &["-brief", "address"]),
            routes: routes(),
            rules: printed("nft", &["list", "ruleset"]),
            sysctls: sysctls
                .map(|name| fs::read_to_string(Path::new("/proc/sys").join(name)).ok())
                .to_vec(),
            folders: folders.map(|folder| Path::new(folder).exists()).to_vec(),
            mounts: mounts.lines().map(String::from).collect(),
        }
    }

    /// Returns the routes without the remaining time of those that a router advertised, which passes.
    fn routes() -> String {
        let printed = printed("ip", &["route", "show", "table", "all"]);
        let lines = printed.lines().map(|line| {
            let (mut words, mut kept) = (line.split_whitespace(), Vec::new());
            while let Some(word) = words.next() {
                if word == "expires" {
                    words.next();
                } else {
                    kept.push(word);
                }
            }
            kept.join(" ")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the cgroups with a name, in all hierarchies.
    fn cgroups(name: &str) -> Vec<PathBuf> {
        let mut roots: Vec<_> = fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        roots.push("/sys/fs/cgroup".into());
        roots
            .into_iter()
            .map(|root| root.join(name))
            .filter(|group| group.exists())
            .collect()
    }

    /// Returns the processes in a network namespace, and those of pods, which have their own, in the cgroups.
    fn processes(network: &Path, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let in_network = fs::read_link(entry.path().join("ns/net")).is_ok_and(|link| link == network);
            let in_group = fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|groups| groups.contains(name));
            if in_network || in_group {
                found.push(fs::read_to_string(entry.path().join("comm")).unwrap_or_default());
            }
        }
        found
    }

    fn wait_until_empty<T: std::fmt::Debug>(what: &str, list: impl Fn() -> Vec<T>) {
        let start = Instant::now();
        loop {
            let remaining = list();
            if remaining.is_empty() {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{what} remain: {remaining:?}");
            sleep(Duration::from_millis(50));
        }
    }

    /// A cluster with a node and a running pod, in a separate process.
    struct RunningNode {
        rig: Child,
        /// Kept open, because the rig fails if nobody can read what it prints.
        _output: Lines<BufReader<ChildStdout>>,
        name: String,
        network: PathBuf,
    }

    fn start() -> RunningNode {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rig"));
        let mut rig = command
            .arg("node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(rig.stdout.take().unwrap()).lines();
        // It prints the name of its cgroups and its network namespace, and when the pod runs.
        let mut value = |key: &str| {
            let found = lines.find_map(|line| line.unwrap().strip_prefix(key).map(|rest| rest.trim().to_owned()));
            found.unwrap_or_else(|| format!("{key} was not printed"))
        };
        let name = value("cgroups:");
        let network = PathBuf::from(value("network:"));
        assert_eq!(value("pod:"), "running");
        let running = processes(&network, &name).join(" ");
        for expected in ["kube-apiserver", "kubelet", "kube-proxy", "containerd-shim", "pause"] {
            assert!(running.contains(expected), "{expected} is not in {running}");
        }
        assert!(!cgroups(&name).is_empty());
        RunningNode {
            rig,
            _output: lines,
            name,
            network,
        }
    }

    fn assert_nothing_remains(node: &RunningNode, before: &MachineState) {
        wait_until_empty("processes", || processes(&node.network, &node.name));
        wait_until_empty("cgroups", || cgroups(&node.name));
        assert_eq!(&machine_state(), before);
    }

    #[test]
    fn a_node_that_stops_or_is_killed_leaves_nothing_on_the_machine() {
        let before = machine_state();
        let mut node = start();
        assert_eq!(machine_state(), before, "while it runs");
        // It stops when its standard input is closed.
        drop(node.rig.stdin.take());
        assert!(node.rig.wait().unwrap().success());
        assert_nothing_remains(&node, &before);

        let mut node = start();
        node.rig.kill().unwrap();
        node.rig.wait().unwrap();
        assert_nothing_remains(&node, &before);
    }
}
