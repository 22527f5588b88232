use proptest::prelude::*;

use super::*;
use crate::api::backend::MountOption;

fn settings(version: NfsVersion, port: i32, mount_port: Option<i32>) -> NfsSettings {
    NfsSettings {
        version,
        port,
        mount_port,
        ..NfsSettings::default()
    }
}

fn connection(major: NfsMajorVersion) -> NegotiatedConnection {
    let peer = "192.0.2.1:2049".parse().unwrap();
    NegotiatedConnection { major, peer }
}

fn owned(options: &str) -> Vec<String> {
    options.split_whitespace().map(str::to_owned).collect()
}

fn merged(backend: &str, class: &str, claim: &str) -> String {
    let backend: Vec<MountOption> = backend.split_whitespace().map(MountOption::from).collect();
    let settings = settings(NfsVersion::Auto, 2049, None);
    volume_options(
        &backend,
        &owned(class),
        &owned(claim),
        &settings,
        connection(NfsMajorVersion::V4),
    )
    .join(" ")
}

#[test]
fn options_are_merged_by_what_they_set_and_the_class_wins() {
    for (backend, class, expected) in [
        ("", "", "nfsvers=4"),
        ("hard", "", "hard nfsvers=4"),
        ("hard timeo=600", "soft", "timeo=600 soft nfsvers=4"),
        ("soft", "softerr", "softerr nfsvers=4"),
        ("noatime", "relatime", "relatime nfsvers=4"),
        ("noatime", "nodiratime", "noatime nodiratime nfsvers=4"),
        ("vers=3", "nfsvers=4.1", "nfsvers=4.1"),
        ("nfsvers=4.1", "v3", "v3"),
        ("v4.1", "vers=4.2", "vers=4.2"),
        ("vers=4 minorversion=1", "", "nfsvers=4.1"),
        ("minorversion=1 vers=4", "", "nfsvers=4.1"),
        ("minorversion=1", "vers=3", "vers=3"),
        ("proto=tcp", "udp", "udp nfsvers=4"),
        ("tcp", "rdma", "rdma nfsvers=4"),
        ("noac", "ac", "ac nfsvers=4"),
        ("ac", "noac", "noac nfsvers=4"),
        ("noac", "actimeo=30", "actimeo=30 nfsvers=4"),
        ("actimeo=30 acregmin=1", "noac", "noac nfsvers=4"),
        (
            "actimeo=30",
            "acregmin=1",
            "acregmax=30 acdirmin=30 acdirmax=30 acregmin=1 nfsvers=4",
        ),
        (
            "acregmin=1",
            "actimeo=30",
            "acregmin=30 acregmax=30 acdirmin=30 acdirmax=30 nfsvers=4",
        ),
        ("lock", "nolock", "nolock nfsvers=4"),
        ("nolock", "local_lock=posix", "nolock local_lock=posix nfsvers=4"),
        ("ro", "rw", "rw nfsvers=4"),
        ("bg", "fg", "fg nfsvers=4"),
        ("sync", "async", "async nfsvers=4"),
        ("nosharecache", "sharecache", "sharecache nfsvers=4"),
        ("fsc=tag", "nofsc", "nofsc nfsvers=4"),
        ("rsize=1024 rsize=2048", "", "rsize=2048 nfsvers=4"),
        ("rsize=1024", "wsize=1024,rsize=4096", "wsize=1024 rsize=4096 nfsvers=4"),
        (
            "",
            "context=\"u:r:t:s0:c1,c2\",hard",
            "context=\"u:r:t:s0:c1,c2\" hard nfsvers=4",
        ),
        ("unknown=1", "unknown=2", "unknown=2 nfsvers=4"),
        ("", ",,", "nfsvers=4"),
    ] {
        assert_eq!(merged(backend, class, ""), expected, "{backend} + {class}");
    }
    assert_eq!(
        merged("soft", "hard timeo=1", "timeo=2 noatime"),
        "hard timeo=2 noatime nfsvers=4"
    );
}

#[test]
fn the_settings_are_added_unless_an_option_says_it() {
    use NfsVersion::{Auto, V3, V4_0, V4_1, V4_2};
    for (class, version, port, mount_port, negotiated, expected) in [
        ("", Auto, 2049, None, NfsMajorVersion::V3, "nfsvers=3"),
        ("", Auto, 2050, None, NfsMajorVersion::V4, "nfsvers=4 port=2050"),
        ("", V4_0, 2049, None, NfsMajorVersion::V4, "nfsvers=4.0"),
        ("", V4_1, 2049, None, NfsMajorVersion::V4, "nfsvers=4.1"),
        ("", V4_2, 2049, None, NfsMajorVersion::V4, "nfsvers=4.2"),
        ("", V3, 2049, None, NfsMajorVersion::V3, "nfsvers=3"),
        ("v4.2", V4_1, 2049, None, NfsMajorVersion::V4, "v4.2"),
        ("port=111", Auto, 2050, None, NfsMajorVersion::V4, "port=111 nfsvers=4"),
        (
            "port=2049",
            Auto,
            2050,
            None,
            NfsMajorVersion::V4,
            "port=2049 nfsvers=4",
        ),
        (
            "",
            Auto,
            2049,
            Some(20048),
            NfsMajorVersion::V3,
            "nfsvers=3 port=2049 mountport=20048 proto=tcp",
        ),
        ("", Auto, 2049, Some(20048), NfsMajorVersion::V4, "nfsvers=4"),
        (
            "vers=3",
            V4_1,
            2049,
            Some(20048),
            NfsMajorVersion::V4,
            "vers=3 port=2049 mountport=20048 proto=tcp",
        ),
        ("v4", V3, 2049, Some(20048), NfsMajorVersion::V3, "v4"),
        (
            "mountport=1",
            V3,
            2050,
            Some(20048),
            NfsMajorVersion::V3,
            "mountport=1 nfsvers=3 port=2050 proto=tcp",
        ),
    ] {
        let options = volume_options::<MountOption, _>(
            &[],
            &owned(class),
            &[],
            &settings(version, port, mount_port),
            connection(negotiated),
        );
        assert_eq!(options.join(" "), expected, "{class} {version:?} {port} {mount_port:?}");
    }
}

#[test]
fn fixed_ports_of_version_3_come_with_the_transport_of_the_servers_address() {
    for (peer, given, expected) in [
        ("192.0.2.1:2049", "", "proto=tcp"),
        ("[::ffff:192.0.2.1]:2049", "", "proto=tcp"),
        ("[2001:db8::1]:2049", "", "proto=tcp6"),
        ("192.0.2.1:2049", "udp", "udp"),
        ("[2001:db8::1]:2049", "proto=rdma6", "proto=rdma6"),
    ] {
        let (major, peer) = (NfsMajorVersion::V3, peer.parse().unwrap());
        let settings = settings(NfsVersion::Auto, 2049, Some(20048));
        let options = volume_options(
            &owned(given),
            &owned(""),
            &[],
            &settings,
            NegotiatedConnection { major, peer },
        );
        let transports: Vec<_> = options.iter().filter(|option| key(name(option)) == "proto").collect();
        assert_eq!(transports, [expected], "{peer} {given}");
    }
}

#[test]
fn claims_set_only_what_the_allow_list_holds() {
    for option in [
        "ro",
        "hard",
        "soft",
        "nolock",
        "noatime",
        "nodiratime",
        "noac",
        "timeo=600",
        "retrans=2",
        "rsize=1048576",
        "wsize=1048576",
        "actimeo=0",
        "acdirmax=60",
        "nconnect=8",
    ] {
        assert!(allowed_for_claims(option), "{option}");
    }
    for option in [
        "",
        " ",
        "rw",
        "suid",
        "dev",
        "exec",
        "lock",
        "vers=3",
        "nfsvers=3",
        "port=1",
        "mountport=1",
        "addr=10.0.0.1",
        "mountaddr=10.0.0.1",
        "clientaddr=10.0.0.1",
        "proto=udp",
        "sec=none",
        "fsc",
        "hard=1",
        "ro=",
        "timeo",
        "timeo=",
        "timeo=-1",
        "timeo=1,port=1",
        "timeo=1 port=1",
        "timeo=1=1",
        "timeo=99999999999",
        "Ro",
        "ro\n",
        "context=x",
        "rsize=\u{661}",
    ] {
        assert!(!allowed_for_claims(option), "{option:?}");
    }
}

#[test]
fn a_claims_list_is_refused_by_its_first_bad_option() {
    assert_eq!(claim_options("ro, timeo=10"), Ok(owned("ro timeo=10")));
    for (list, bad) in [("ro,sec=none,x", "sec=none"), ("", ""), ("ro,", "")] {
        assert_eq!(
            claim_options(list),
            Err(ClaimOptionError { option: bad.into() }),
            "{list}"
        );
    }
}

proptest! {
    #[test]
    fn whatever_is_merged_has_one_value_for_each_thing_and_keeps_the_classes_last_word(
        backend in proptest::collection::vec(option(), 0..8), class in proptest::collection::vec(option(), 0..8),
    ) {
        let settings = settings(NfsVersion::Auto, 2050, Some(1));
        let options = volume_options(&backend, &class, &[], &settings, connection(NfsMajorVersion::V3));
        let mut seen = Vec::new();
        for option in &options {
            for key in keys(option) {
                prop_assert!(!seen.contains(&key), "{key} twice in {options:?}");
                seen.push(key);
            }
        }
        // Merging the result again does not change it: no two options conflict with each other.
        prop_assert_eq!(volume_options::<_, String>(&options, &[], &[], &settings, connection(NfsMajorVersion::V3)), options);
    }
}

fn option() -> impl Strategy<Value = String> {
    let names = FAMILIES.iter().copied().flatten().copied();
    let known: Vec<String> = names
        .map(str::to_owned)
        .chain(
            SWITCHES
                .iter()
                .flat_map(|switch| [(*switch).to_owned(), format!("no{switch}")]),
        )
        .chain(FINE_CACHE_KEYS.iter().map(|key| format!("{key}=1")))
        .chain(["actimeo=2", "minorversion=1", "vers=4.1", "port=1", "rsize=1"].map(str::to_owned))
        .collect();
    proptest::sample::select(known)
}
