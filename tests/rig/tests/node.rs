//! The node that the rig starts, and what is left of it: nothing.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// `make test` leaves these out, by this name, where a node can't be had.
mod node {
    use std::{
        collections::BTreeSet,
        fs,
        io::{BufRead, BufReader},
        path::{Path, PathBuf},
        process::{Child, Command, Stdio},
        thread::sleep,
        time::{Duration, Instant},
    };

    /// Everything is ended by the kernel at once; the machine may be busy.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// What can be seen of a node from the machine that it must not change.
    #[derive(Debug, PartialEq, Eq)]
    struct Machine {
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

    fn machine() -> Machine {
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
        Machine {
            addresses: printed("ip", &["-brief", "address"]),
            routes: printed("ip", &["route", "show", "table", "all"]),
            rules: printed("nft", &["list", "ruleset"]),
            sysctls: sysctls
                .map(|name| fs::read_to_string(Path::new("/proc/sys").join(name)).ok())
                .to_vec(),
            folders: folders.map(|folder| Path::new(folder).exists()).to_vec(),
            mounts: mounts.lines().map(String::from).collect(),
        }
    }

    /// Control groups of that run, in all hierarchies.
    fn control_groups(name: &str) -> Vec<PathBuf> {
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

    /// Processes in that network, and those of pods, which have networks of their own, in those control groups.
    fn inhabitants(network: &Path, name: &str) -> Vec<String> {
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

    fn eventually<T: std::fmt::Debug>(what: &str, look: impl Fn() -> Vec<T>) {
        let start = Instant::now();
        loop {
            let left = look();
            if left.is_empty() {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{what} are left: {left:?}");
            sleep(Duration::from_millis(50));
        }
    }

    /// A cluster with a node and a running pod, in a process of its own.
    struct Started {
        rig: Child,
        name: String,
        network: PathBuf,
    }

    fn start() -> Started {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rig"));
        let mut rig = command
            .arg("node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(rig.stdout.take().unwrap()).lines();
        // It prints how its control groups are called and which network it is in, then that the pod runs.
        let mut word = |key: &str| {
            let found = lines.find_map(|line| line.unwrap().strip_prefix(key).map(|rest| rest.trim().to_owned()));
            found.unwrap_or_else(|| format!("{key} was not printed"))
        };
        let name = word("control groups:");
        let network = PathBuf::from(word("network:"));
        assert_eq!(word("pod:"), "running");
        let inside = inhabitants(&network, &name).join(" ");
        for expected in ["kube-apiserver", "kubelet", "kube-proxy", "containerd-shim", "pause"] {
            assert!(inside.contains(expected), "{expected} is not among {inside}");
        }
        assert!(!control_groups(&name).is_empty());
        Started { rig, name, network }
    }

    fn leaves_nothing(started: &Started, before: &Machine) {
        eventually("processes", || inhabitants(&started.network, &started.name));
        eventually("control groups", || control_groups(&started.name));
        assert_eq!(&machine(), before);
    }

    #[test]
    fn a_node_that_ends_or_is_killed_leaves_nothing_on_the_machine() {
        let before = machine();
        let mut started = start();
        assert_eq!(machine(), before, "while it runs");
        // The end of its standard input is its word to end.
        drop(started.rig.stdin.take());
        assert!(started.rig.wait().unwrap().success());
        leaves_nothing(&started, &before);

        let mut started = start();
        started.rig.kill().unwrap();
        started.rig.wait().unwrap();
        leaves_nothing(&started, &before);
    }
}
