//! Mount options that the operator accepts or adds, tested with the kernel's client.

use std::fmt::Write as _;

use nfs_operator::api::backend::{NfsSettings, NfsVersion};
use nfs_operator::decide::mount_options::{NegotiatedConnection, NfsMajorVersion, claim_options, volume_options};
use rig::KernelVm;

/// Every option that a claim may set, with a value if it needs one.
const OF_CLAIMS: &[&str] = &[
    "ro",
    "hard",
    "soft",
    "ac",
    "noac",
    "nolock",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "timeo=600",
    "retrans=3",
    "rsize=65536",
    "wsize=65536",
    "nconnect=2",
    "actimeo=5",
    "acregmin=3",
    "acregmax=60",
    "acdirmin=30",
    "acdirmax=60",
];

/// Options to merge: those of the backend, the class and the claim.
const MERGED: &[(&[&str], &[&str], &str)] = &[
    (&[], &[], ""),
    (&["hard", "timeo=600"], &["soft"], "timeo=50"),
    (&["noatime,nodiratime"], &["relatime"], "nostrictatime"),
    (&["actimeo=10"], &["acregmax=30"], "acdirmin=5"),
    (&["noac"], &["actimeo=3"], "noac"),
    (&["rw", "sync"], &["async"], "ro"),
    (&["proto=tcp"], &["tcp"], "nconnect=4"),
    (
        &["nosuid", "nodev", "noexec"],
        &["noresvport"],
        "rsize=32768,wsize=32768",
    ),
    (&["nosharecache"], &["lookupcache=none"], "nolock"),
    (&["vers=4.1"], &["nfsvers=4.2"], "hard"),
    (&["vers=4,minorversion=1"], &[], "soft"),
    (&["sec=sys"], &["nocto"], "retrans=5"),
];

/// Returns the option lists of both tables, as the operator writes them to a volume.
fn lists(vm: &KernelVm, major: NfsMajorVersion) -> Vec<Vec<String>> {
    let settings = NfsSettings {
        version: NfsVersion::Auto,
        port: i32::from(vm.nfs_port()),
        mount_port: (major == NfsMajorVersion::V3).then(|| i32::from(vm.mount_port())),
        ..NfsSettings::default()
    };
    let alone = OF_CLAIMS.iter().map(|option| (&[] as &[&str], &[] as &[&str], *option));
    let merged = MERGED.iter().copied();
    // Version 3 has no minor versions.
    let fitting = alone.chain(merged).filter(|(backend, ..)| {
        major == NfsMajorVersion::V4 || !backend.iter().any(|option| option.starts_with("vers="))
    });
    fitting
        .map(|(backend, class, claim)| {
            let claim = match claim {
                "" => Vec::new(),
                claim => claim_options(claim).unwrap(),
            };
            let peer = ([127, 0, 0, 1], vm.nfs_port()).into();
            volume_options(backend, class, &claim, &settings, NegotiatedConnection { major, peer })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_accepts_every_option_that_a_claim_may_set_and_every_merged_list() {
    let vm = KernelVm::shared().await.unwrap();
    for major in [NfsMajorVersion::V4, NfsMajorVersion::V3] {
        let mut script = String::from("mkdir -p /mnt/options && cd /\n");
        for mut list in lists(vm, major) {
            // As the kubelet does.
            list.sort();
            let list = list.join(",");
            let mount = format!("/sbin/mount -t nfs -o {list} 127.0.0.1:/plain /mnt/options");
            let _written = writeln!(
                script,
                "if said=$({mount} 2>&1); then stat /mnt/options >/dev/null && umount /mnt/options || exit 9; \
                 else echo \"{list}: $said\"; fi"
            );
        }
        assert_eq!(vm.run(&script).await.unwrap(), "", "{major:?}");
    }
}
