//! Mount options of a volume, merged by the setting that they change, not by their spelling. Pure.
//!
//! The kubelet sorts and joins the options, so their order has no meaning on the node: of two options for the same
//! setting, the alphabetical order would decide. Therefore, the merged options contain one value per setting.

use std::net::SocketAddr;
use std::ops::Deref;

use crate::api::backend::{NfsSettings, NfsVersion};

/// Default port of NFS (RFC 8881 section 2.9.3), which requires no option.
const DEFAULT_PORT: i32 = 2049;

/// Major version of NFS that was negotiated with a backend, or that the backend is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NfsMajorVersion {
    /// NFSv3.
    V3,
    /// NFSv4, any minor version.
    V4,
}

/// Properties of the connection to the backend that matter to a node that mounts a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiatedConnection {
    /// Negotiated major version.
    pub major: NfsMajorVersion,
    /// Address of the server.
    pub peer: SocketAddr,
}

/// Returns the mount options of a volume. Options of the class override those of the backend, and options of the claim,
/// which must have passed [`claim_options`], override both. Version, ports and transport that the settings of the
/// backend require are added, unless an option in any spelling sets them.
///
/// If the version is `Auto`, the major version is that of `connection`, and the node negotiates the minor version of
/// NFSv4. The options are in the order of the lists, followed by the added ones.
pub fn volume_options<B, C>(
    backend: &[B],
    class: &[C],
    claim: &[String],
    settings: &NfsSettings,
    connection: NegotiatedConnection,
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
    let added = additions(&merged, settings, connection);
    merged.extend(added);
    merged
}

/// Returns true if a claim may set this option. The allowlist (data-safety rule 12) contains only options that change
/// how this mount behaves toward its own pod. Values are numbers, so that a value cannot inject a second option.
pub fn allowed_for_claims(option: &str) -> bool {
    match option.split_once('=') {
        None => CLAIM_FLAGS.contains(&option),
        Some((name, value)) => {
            CLAIM_NUMBERS.contains(&name)
                && (1..=MAX_NUMBER_LEN).contains(&value.len())
                && value.bytes().all(|digit| digit.is_ascii_digit())
        }
    }
}

/// Parses the options of a claim, separated by commas.
///
/// # Errors
/// The first option that a claim may not set.
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

/// Error for an option that a claim may not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "mount option {option:?} cannot be set by a claim: allowed are {}, and with a number {}; set other options in the \
     StorageClass or the backend",
    CLAIM_FLAGS.join(", "),
    CLAIM_NUMBERS.join(", ")
)]
pub struct ClaimOptionError {
    /// The option, shortened for messages.
    pub option: String,
}

/// Number of digits of the largest 32-bit number. No value of these options needs more.
const MAX_NUMBER_LEN: usize = 10;

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

/// The four cache times that `actimeo` sets together (nfs(5)).
const FINE_CACHE_KEYS: &[&str] = &["acregmin", "acregmax", "acdirmin", "acdirmax"];

/// Groups of options for the same setting (nfs(5), mount(8)). The first option of a group is the key. An option in no
/// group is its own key, without the leading `no` if it negates one of [`SWITCHES`].
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

/// Settings that a leading `no` disables.
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

/// Splits a list into single options. Kubernetes allows an item to contain several options, separated by commas. A
/// comma inside double quotes is part of its option, as in SELinux contexts.
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
    // `vers=4,minorversion=1` sets one version with two options. The more specific `minorversion` is moved to the end,
    // so that it takes precedence.
    let (minor, mut options): (Vec<&str>, Vec<&str>) = options
        .into_iter()
        .map(str::trim)
        .partition(|option| name(option) == "minorversion");
    options.extend(minor);
    options
}

/// Returns equivalent options that can be merged: `nfsvers=4.1` for `minorversion=1`, and if single cache times are set
/// as well (`fine`), the four cache times for `actimeo`.
fn rewritten(option: &str, fine: bool) -> Vec<String> {
    match option.split_once('=') {
        Some(("minorversion", minor)) => vec![format!("nfsvers=4.{minor}")],
        Some(("actimeo", time)) if fine => FINE_CACHE_KEYS.iter().map(|key| format!("{key}={time}")).collect(),
        _ => vec![option.to_owned()],
    }
}

/// Returns the keys of the settings that an option changes. Two options that share a key conflict with each other.
fn keys(option: &str) -> Vec<&str> {
    let name = name(option);
    match name {
        // Without the cache, its times have no effect, and an option that sets a cache time requires the cache.
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

fn additions(merged: &[String], settings: &NfsSettings, connection: NegotiatedConnection) -> Vec<String> {
    let negotiated = connection.major;
    let given = |wanted: &str| merged.iter().find(|option| key(name(option)) == wanted);
    let version = given("vers");
    let major = version.map_or(configured_major(settings.version, negotiated), |option| {
        major_of(option)
    });
    let mut added = Vec::new();
    if version.is_none() {
        added.push(format!("nfsvers={}", version_value(settings.version, negotiated)));
    }
    // NFSv3 has a separate MOUNT service, NFSv4 has none (RFC 8881 section 1.4).
    let mount_port = settings.mount_port.filter(|_| major == NfsMajorVersion::V3);
    // For NFSv3, a node queries rpcbind unless both ports and the transport are given. A fixed MOUNT port implies that
    // rpcbind is not available.
    if (settings.port != DEFAULT_PORT || mount_port.is_some()) && given("port").is_none() {
        added.push(format!("port={}", settings.port));
    }
    if let Some(port) = mount_port.filter(|_| given("mountport").is_none()) {
        added.push(format!("mountport={port}"));
    }
    if mount_port.is_some() && given("proto").is_none() {
        // `tcp` selects IPv4 only (nfs(5)).
        let family = if connection.peer.ip().to_canonical().is_ipv4() {
            "tcp"
        } else {
            "tcp6"
        };
        added.push(format!("proto={family}"));
    }
    added
}

/// Returns the major version that a version option selects: NFSv3 for 2 and 3 in any spelling, such as `vers=3`,
/// `nfsvers=3` or `v3`, and NFSv4 for every other value.
fn major_of(option: &str) -> NfsMajorVersion {
    let value = option.split_once('=').map_or(option, |(_, value)| value);
    match value.trim_start_matches('v') {
        "2" | "3" => NfsMajorVersion::V3,
        _ => NfsMajorVersion::V4,
    }
}

fn configured_major(version: NfsVersion, negotiated: NfsMajorVersion) -> NfsMajorVersion {
    match version {
        NfsVersion::Auto => negotiated,
        NfsVersion::V3 => NfsMajorVersion::V3,
        NfsVersion::V4_0 | NfsVersion::V4_1 | NfsVersion::V4_2 => NfsMajorVersion::V4,
    }
}

fn version_value(version: NfsVersion, negotiated: NfsMajorVersion) -> &'static str {
    match (version, negotiated) {
        (NfsVersion::V3, _) | (NfsVersion::Auto, NfsMajorVersion::V3) => "3",
        (NfsVersion::Auto, NfsMajorVersion::V4) => "4",
        (NfsVersion::V4_0, _) => "4.0",
        (NfsVersion::V4_1, _) => "4.1",
        (NfsVersion::V4_2, _) => "4.2",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests;
