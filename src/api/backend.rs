//! `NfsBackend`: an export plus the rules for using it.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use k8s_openapi::api::core::v1::VolumeNodeAffinity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::schema::{
    DirectoryPattern, ExportPath, GoDuration, MountOption, OctalMode, Retention, ServerAddress, StorageAmount,
};
use super::schema::{optional_owner_number, optional_port, owner_number, port};
pub use super::usage::UsageSettings;
pub use status::{CapacityStatus, NfsBackendStatus, TrashStatus};

mod status;

/// An NFS export that claims are provisioned on, and the rules for using it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsBackend",
    plural = "nfsbackends",
    shortname = "nfsb",
    status = "NfsBackendStatus",
    derive = "PartialEq",
    doc = "An NFS export that claims are provisioned on, and the rules for using it. Short name: nfsb.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.server"),
    printcolumn(name = "Path", type_ = "string", json_path = ".spec.path"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.nfsVersion"),
    printcolumn(name = "Available", type_ = "string", json_path = ".status.capacity.available"),
    printcolumn(name = "Volumes", type_ = "integer", json_path = ".status.volumes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Total", type_ = "string", json_path = ".status.capacity.total", priority = 1),
    printcolumn(
        name = "Provisioned",
        type_ = "string",
        json_path = ".status.capacity.provisioned",
        priority = 1
    ),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.usage.size", priority = 1),
    printcolumn(name = "Archives", type_ = "integer", json_path = ".status.archives", priority = 1),
    printcolumn(
        name = "Orphans",
        type_ = "integer",
        json_path = ".status.orphans.total",
        priority = 1
    ),
    printcolumn(
        name = "On-Delete",
        type_ = "string",
        json_path = ".spec.archivePolicy.onDelete",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackendSpec {
    /// The NFS server: a DNS name, an IPv4 or an IPv6 address. Nodes resolve it too, so a name that only the
    /// cluster's DNS knows may not mount.
    pub server: ServerAddress,
    /// The absolute path of the export on the server; `/` is allowed.
    pub path: ExportPath,
    /// Addresses under which volumes made earlier still point to this export. Reclaim goes on for them after the
    /// server was renamed or the export moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub former_addresses: Vec<ExportAddress>,
    /// The identity expected on the export (`.nfs-operator/identity`). Absent: the one found or made first.
    #[serde(default, rename = "exportID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Za-z0-9-]{8,64}$"), extend("example" = "5f0c9d2e-6b1a-4c7e-9f43-0d8a2b7c1e55"))]
    pub export_id: Option<String>,
    /// How to speak to the server.
    #[serde(default)]
    pub nfs: NfsSettings,
    /// Mount options of the volumes. A StorageClass's options are merged in by key and win.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub mount_options: Vec<MountOption>,
    /// How a volume's directory is made.
    #[serde(default)]
    pub directory: DirectorySettings,
    /// What becomes of a volume's data when its claim is deleted.
    #[serde(default)]
    pub archive_policy: ArchivePolicy,
    /// Limits on what is provisioned here. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityLimits>,
    /// Which namespaces may have volumes here. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Which annotations claims may set to override this backend: `mode`, `uid`, `gid`, `on-delete`, `mount-options`,
    /// `backend`, each with the prefix `nfs-operator.io/`. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub claim_overrides: Vec<ClaimOverride>,
    /// Count what the volumes and archives here really hold, slowly and in the background. Absent: they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageSettings>,
    /// Nodes that can mount this export. Put on the volumes, and respected when a claim binds late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// No new volumes here. Reclaim goes on.
    #[serde(default)]
    pub suspend: bool,
    /// How often the export is probed: from 1s to 24h.
    #[serde(default = "default_probe_interval")]
    pub probe_interval: GoDuration,
}

/// An address of an export.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct ExportAddress {
    /// The NFS server.
    pub server: ServerAddress,
    /// The absolute path of the export.
    pub path: ExportPath,
}

/// How to speak to the server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NfsSettings {
    /// NFS version. `Auto` takes the newest that works; once volumes exist, the major version stays.
    pub version: NfsVersion,
    /// TCP port of the server.
    #[schemars(schema_with = "port")]
    pub port: i32,
    /// TCP port of version 3's MOUNT service. Absent: rpcbind is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_port")]
    pub mount_port: Option<i32>,
    /// Local port. `Reserved` is below 1024, as servers with the `secure` option want; when the operator can't have
    /// one it falls back to any, with a warning.
    pub source_port: SourcePort,
    /// The user and group that the operator acts as (AUTH_SYS). Change it for exports with root_squash.
    pub credential: Credential,
}

impl Default for NfsSettings {
    fn default() -> Self {
        Self {
            version: NfsVersion::Auto,
            port: 2049,
            mount_port: None,
            source_port: SourcePort::Reserved,
            credential: Credential::default(),
        }
    }
}

/// A version of NFS.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum NfsVersion {
    /// The newest that works.
    #[default]
    Auto,
    /// NFSv4.2.
    #[serde(rename = "4.2")]
    V4_2,
    /// NFSv4.1.
    #[serde(rename = "4.1")]
    V4_1,
    /// NFSv4.0.
    #[serde(rename = "4.0")]
    V4_0,
    /// NFSv3.
    #[serde(rename = "3")]
    V3,
}

/// Which local port to use.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum SourcePort {
    /// Below 1024 when possible.
    #[default]
    Reserved,
    /// Any.
    Any,
}

/// A user and a group.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(default)]
pub struct Credential {
    /// User.
    #[schemars(schema_with = "owner_number")]
    pub uid: i64,
    /// Group.
    #[schemars(schema_with = "owner_number")]
    pub gid: i64,
}

/// How a volume's directory is made.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectorySettings {
    /// Permission bits in octal; setuid, setgid and sticky allowed.
    pub mode: OctalMode,
    /// Owner to set. Absent: the credential's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_owner_number")]
    pub uid: Option<i64>,
    /// Group to set. Absent: the credential's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_owner_number")]
    pub gid: Option<i64>,
    /// Name of the directory, relative to `path`. Variables: `${pvc.name}`, `${pvc.namespace}`, `${pvc.uid}`,
    /// `${pv.name}`, `${pvc.labels.KEY}`, `${pvc.annotations.KEY}`. May hold `/`.
    pub pattern: DirectoryPattern,
    /// What to do when the directory is there and isn't ours: `Refuse` lets the claim wait, `Adopt` gives it the
    /// directory as it is, which is then archived, never deleted.
    pub existing: Existing,
}

impl Default for DirectorySettings {
    fn default() -> Self {
        Self {
            mode: "0777".into(),
            uid: None,
            gid: None,
            pattern: export_store::naming::DEFAULT_PATTERN.into(),
            existing: Existing::Refuse,
        }
    }
}

/// What to do when the directory is there and isn't ours.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Existing {
    /// The claim fails.
    #[default]
    Refuse,
    /// The claim gets it as it is. It is archived, never deleted, when the claim goes.
    Adopt,
}

impl From<Existing> for export_store::Existing {
    fn from(existing: Existing) -> Self {
        match existing {
            Existing::Refuse => Self::Refuse,
            Existing::Adopt => Self::Adopt,
        }
    }
}

/// What becomes of a volume's data.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArchivePolicy {
    /// `Archive` keeps the data as `archived-…` at the export's root, `Delete` deletes it, `Retain` leaves it where it
    /// is. A class's `onDelete` wins. The policy at the time of deletion counts.
    pub on_delete: OnDelete,
    /// How long an archive is kept at least, such as `30d` or `1d12h`: becomes the `expiresAt` of those that are made from
    /// now on. Absent: for ever, or as `keepLast` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// How many archives of each claim (by namespace and name) are kept at least, the newest. With `retention`, an archive
    /// goes only when neither keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub keep_last: Option<i32>,
    /// Whether a namespace may have a copy of an archive that came from one of its name, although it is another one by its
    /// uid: for a cluster that was built anew. In a living cluster, whoever can make a namespace of a name that was
    /// deleted gets what is kept of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restore_by_name: bool,
}

/// What to do with the data of a deleted claim.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnDelete {
    /// Keep it, renamed to `archived-…`.
    #[default]
    Archive,
    /// Delete it.
    Delete,
    /// Leave it as and where it is.
    Retain,
}

/// Limits on what is provisioned on a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityLimits {
    /// Sum of the requests allowed on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<StorageAmount>,
    /// Sum of the requests over all backends on the same export, as a share of the export's size, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub overcommit_percent: Option<i32>,
    /// Refuse new volumes when the export's free space is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<StorageAmount>,
}

/// Which namespaces may have volumes on a backend: either field admits.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Namespaces by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63)))]
    pub match_names: Vec<String>,
    /// Namespaces by their labels; `{}` admits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// An annotation by which a claim may override its backend.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimOverride {
    /// Permission bits.
    Mode,
    /// Owner.
    Uid,
    /// Group.
    Gid,
    /// Policy.
    OnDelete,
    /// Mount options, of an allow-list.
    MountOptions,
    /// Backend.
    Backend,
}

fn default_probe_interval() -> GoDuration {
    "30s".into()
}
