//! Mount options of a volume: merged by what they set, not by how they are spelled. Pure.
//!
//! The kubelet sorts the options and joins them, so their order says nothing to the node: of two options that set the
//! same thing the alphabet would choose. Here there is one value for each thing.

use std::net::SocketAddr;
use std::ops::Deref;

use crate::api::backend::{NfsSettings, NfsVersion};

/// The port of NFS (RFC 8881 section 2.9.3), which needs no option.
const DEFAULT_PORT: i32 = 2049;

/// The major version of NFS that a backend was reached with, or is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Major {
    /// NFSv3.
    V3,
    /// NFSv4, any minor version.
    V4,
}

/// How the backend was reached, as far as it matters to a node that mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The major version that was agreed on.
    pub major: Major,
    /// Where the server answered.
    pub peer: SocketAddr,
}

/// The options of a volume: the backend's, over them the class's, over them the claim's (which must have passed
/// [`claim_options`]), and what the backend's settings ask for unless an option says it, in any spelling.
///
/// What was `reached` counts while the version is `Auto`: the node negotiates the minor version itself. The order is that
/// of the lists, what was added last.
pub fn volume_options<B, C>(
    backend: &[B],
    class: &[C],
    claim: &[String],
    settings: &NfsSettings,
    reached: Reached,
) -> Vec<String>
where
    B: Deref<Target = str>,
    C: Deref<Target = str>,
{
    let lists = [items(backend), items(class), items(claim)];
    let fine = lists
        .iter()
        .flatten()
        .any(|option| FINE_CACHE_KEYS.contains(&name(option)));
    let mut merged: Vec<String> = Vec::new();
    for list in lists {
        for option in list.into_iter().flat_map(|option| rewritten(option, fine)) {
            let sets = keys(&option);
            merged.retain(|other| !keys(other).iter().any(|key| sets.contains(key)));
            merged.push(option);
        }
    }
    let added = additions(&merged, settings, reached);
    merged.extend(added);
    merged
}

/// May a claim set this option? An allow-list (data-safety rule 12): what changes only how this mount behaves towards its own
/// pod. Values are numbers, so none can smuggle in a second option.
pub fn allowed_for_claims(option: &str) -> bool {
    match option.split_once('=') {
        None => CLAIM_FLAGS.contains(&option),
        Some((name, value)) => {
            CLAIM_NUMBERS.contains(&name)
                && (1..=LONGEST_NUMBER).contains(&value.len())
                && value.bytes().all(|digit| digit.is_ascii_digit())
        }
    }
}

/// Reads a claim's options, separated by commas.
///
/// # Errors
/// The first option that claims may not set.
pub fn claim_options(text: &str) -> Result<Vec<String>, ClaimOptionError> {
    text.split(',')
        .map(str::trim)
        .map(|option| match allowed_for_claims(option) {
            true => Ok(option.to_owned()),
            false => Err(ClaimOptionError {
                option: option.escape_debug().take(80).collect(),
            }),
        })
        .collect()
}

/// A claim asks for an option that claims may not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "mount option {option:?} cannot be set by a claim: possible are {}, and with a number {}; others belong into the \
     StorageClass or the backend",
    CLAIM_FLAGS.join(", "),
    CLAIM_NUMBERS.join(", ")
)]
pub struct ClaimOptionError {
    /// The option, shortened for reading.
    pub option: String,
}

/// Digits of the largest 32-bit number, more than any of these options takes.
const LONGEST_NUMBER: usize = 10;

const CLAIM_FLAGS: &[&str] = &[
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
];

const CLAIM_NUMBERS: &[&str] = &[
    "timeo", "retrans", "rsize", "wsize", "nconnect", "actimeo", "acregmin", "acregmax", "acdirmin", "acdirmax",
];

/// The four times that `actimeo` sets at once (nfs(5)).
const FINE_CACHE_KEYS: &[&str] = &["acregmin", "acregmax", "acdirmin", "acdirmax"];

/// Spellings of one setting (nfs(5), mount(8)); the first is its key. What isn't here is its own key.
const FAMILIES: &[&[&str]] = &[
    &["hard", "soft", "softerr"],
    &[
        "atime",
        "noatime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
    ],
    &["vers", "nfsvers", "v2", "v3", "v4", "v4.0", "v4.1", "v4.2"],
    &["proto", "tcp", "tcp6", "udp", "udp6", "rdma", "rdma6"],
    &["ro", "rw"],
    &["sync", "async"],
    &["fg", "bg"],
];

/// Settings that are switched off by a leading `no`.
const SWITCHES: &[&str] = &[
    "ac",
    "acl",
    "alignwrite",
    "auto",
    "cto",
    "dev",
    "diratime",
    "exec",
    "fsc",
    "intr",
    "lazytime",
    "lock",
    "mand",
    "migration",
    "posix",
    "rdirplus",
    "resvport",
    "sharecache",
    "softreval",
    "suid",
    "trunkdiscovery",
    "user",
];

/// The single options of a list whose items may hold several, as Kubernetes lets a class write them. A comma inside
/// double quotes belongs to its option (SELinux contexts have such).
fn items<T: Deref<Target = str>>(list: &[T]) -> Vec<&str> {
    let mut options: Vec<&str> = Vec::new();
    for item in list {
        let mut quoted = false;
        options.extend(item.split(|character| {
            quoted ^= character == '"';
            character == ',' && !quoted
        }));
    }
    options.retain(|option| !option.trim().is_empty());
    // `vers=4,minorversion=1` is one version in two options: the minor one, which says more, comes after.
    let (minor, mut options): (Vec<&str>, Vec<&str>) = options
        .into_iter()
        .map(str::trim)
        .partition(|option| name(option) == "minorversion");
    options.extend(minor);
    options
}

/// The same wish in options that can be merged: `minorversion=1` is `nfsvers=4.1`, and where single cache times are set
/// too, `actimeo` is its four.
fn rewritten(option: &str, fine: bool) -> Vec<String> {
    match option.split_once('=') {
        Some(("minorversion", minor)) => vec![format!("nfsvers=4.{minor}")],
        Some(("actimeo", time)) if fine => FINE_CACHE_KEYS.iter().map(|key| format!("{key}={time}")).collect(),
        _ => vec![option.to_owned()],
    }
}

/// What an option sets: two that share a key contradict each other.
fn keys(option: &str) -> Vec<&str> {
    let name = name(option);
    match name {
        // Without cache its times mean nothing, and whoever sets a time wants the cache.
        "noac" => [&["ac", "actimeo"], FINE_CACHE_KEYS].concat(),
        "actimeo" => [&["actimeo"], FINE_CACHE_KEYS].concat(),
        _ => vec![key(name)],
    }
}

fn key(name: &str) -> &str {
    if let Some([key, ..]) = FAMILIES.iter().find(|family| family.contains(&name)) {
        return key;
    }
    name.strip_prefix("no")
        .filter(|switch| SWITCHES.contains(switch))
        .unwrap_or(name)
}

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn additions(merged: &[String], settings: &NfsSettings, reached: Reached) -> Vec<String> {
    let negotiated = reached.major;
    let given = |wanted: &str| merged.iter().find(|option| key(name(option)) == wanted);
    let version = given("vers");
    let major = version.map_or(configured_major(settings.version, negotiated), |option| {
        major_of(option)
    });
    let mut added = Vec::new();
    if version.is_none() {
        added.push(format!("nfsvers={}", version_value(settings.version, negotiated)));
    }
    // Version 3 has a MOUNT service of its own, version 4 none (RFC 8881 section 1.4).
    let mount_port = settings.mount_port.filter(|_| major == Major::V3);
    // A node asks rpcbind for version 3 unless both ports and the transport are given; a fixed MOUNT port is there because
    // rpcbind is not.
    if (settings.port != DEFAULT_PORT || mount_port.is_some()) && given("port").is_none() {
        added.push(format!("port={}", settings.port));
    }
    if let Some(port) = mount_port.filter(|_| given("mountport").is_none()) {
        added.push(format!("mountport={port}"));
    }
    if mount_port.is_some() && given("proto").is_none() {
        // `tcp` is IPv4 alone (nfs(5)).
        let family = if reached.peer.ip().to_canonical().is_ipv4() {
            "tcp"
        } else {
            "tcp6"
        };
        added.push(format!("proto={family}"));
    }
    added
}

/// What a version option means: `vers=3`, `nfsvers=3` and `v3` are 3; what is not is 4.
fn major_of(option: &str) -> Major {
    let value = option.split_once('=').map_or(option, |(_, value)| value);
    match value.trim_start_matches('v') {
        "2" | "3" => Major::V3,
        _ => Major::V4,
    }
}

fn configured_major(version: NfsVersion, negotiated: Major) -> Major {
    match version {
        NfsVersion::Auto => negotiated,
        NfsVersion::V3 => Major::V3,
        NfsVersion::V4_0 | NfsVersion::V4_1 | NfsVersion::V4_2 => Major::V4,
    }
}

fn version_value(version: NfsVersion, negotiated: Major) -> &'static str {
    match (version, negotiated) {
        (NfsVersion::V3, _) | (NfsVersion::Auto, Major::V3) => "3",
        (NfsVersion::Auto, Major::V4) => "4",
        (NfsVersion::V4_0, _) => "4.0",
        (NfsVersion::V4_1, _) => "4.1",
        (NfsVersion::V4_2, _) => "4.2",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests;
