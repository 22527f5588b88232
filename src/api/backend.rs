//! `NfsBackend`: an export and the rules for its use.
//!
//! Every default of the spec is set in this file: by `#[serde(default)]` and the `Default` implementation of the field's
//! type, or by `default_probe_interval`. The CRDs, and the default in each field's description, are generated from these.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use export_store::GroupRange;
use k8s_openapi::api::core::v1::VolumeNodeAffinity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::orphans::OrphansStatus;
pub use super::quota::{ArchiveQuota, QuotaEnforcement, QuotaSettings};
use super::requests::HandledRequest;
pub use super::schema::{DirectoryPattern, Duration, ExportPath, MountOption, OctalMode, ServerAddress, StorageAmount};
use super::schema::{bandwidth, exact_quantity, owner_number, pod_group, port, probe_interval, retention};
pub use super::usage::UsageSettings;
use super::usage::UsageStatus;

/// Specification of a backend.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsBackend",
    plural = "nfsbackends",
    shortname = "nfsb",
    category = "storage",
    selectable = ".spec.server",
    selectable = ".status.export.id",
    status = "NfsBackendStatus",
    derive = "PartialEq",
    doc = "NfsBackend is an NFS export on which claims are provisioned, and the rules for its use. Short name: nfsb.",
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
#[x_kube(
    validation = ("!has(self.quota) || self.quota.enforce != 'Required' || !has(self.directory) || !has(self.directory.existing) || self.directory.existing != 'Share'",
                  "quota.enforce: Required excludes directory.existing: Share, because the size of a shared directory is not limited: set quota.enforce to Preferred, or directory.existing to Refuse or Adopt"),
)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackendSpec {
    /// Address of the NFS server: a DNS name, an IPv4 address or an IPv6 address. Nodes must be able to resolve it: a name
    /// that only the cluster's DNS resolves may fail to mount.
    pub server: ServerAddress,
    /// Absolute path of the export on the server; may be `/`.
    pub path: ExportPath,
    /// Previous addresses of this export, which existing volumes still use. Set them after the server was renamed or the
    /// export moved, so that those volumes can still be reclaimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["server", "path"]))]
    pub former_addresses: Vec<ExportAddress>,
    /// Expected identity of the export (`.nfs-operator/identity`). If unset, the identity that is found or created first.
    #[serde(default, rename = "exportID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Za-z0-9-]{8,64}$"), extend("example" = "5f0c9d2e-6b1a-4c7e-9f43-0d8a2b7c1e55"))]
    pub export_id: Option<String>,
    /// Settings of the operator's connection to the server.
    #[serde(default)]
    pub nfs: NfsSettings,
    /// Mount options of the volumes, merged by key with those of the StorageClass, which take precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub mount_options: Vec<MountOption>,
    /// How directories for volumes are created.
    #[serde(default)]
    #[x_kube(
        validation = ("!has(self.gid) || !has(self.gidRange)",
                      "directory.gid and directory.gidRange exclude each other: set gid for one group for all volumes, or gidRange for one group for each"),
        validation = ("self.existing != 'Share' || !(has(self.mode) || has(self.uid) || has(self.gid) || has(self.gidRange))",
                      "directory.existing: Share excludes directory.mode, directory.uid, directory.gid and directory.gidRange, because a shared directory keeps its mode, owner and group: remove them, or set directory.existing to Refuse or Adopt"),
    )]
    pub directory: DirectorySettings,
    /// What happens to the data of a volume after its claim is deleted.
    #[serde(default)]
    pub archive_policy: ArchivePolicy,
    /// Backups of the volumes on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<BackupSettings>,
    /// Limits of the copies from and to this backend: clones, restores that copy, and backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopySettings>,
    /// Snapshots of the server. If unset, none are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotSettings>,
    /// Limits on provisioning on this backend. If unset, there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityLimits>,
    /// Namespaces whose claims may be provisioned on this backend. If unset, all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Settings that a claim may override by an annotation with the prefix `nfs-operator.io/`: `Mode` (`mode`), `UID`
    /// (`uid`), `GID` (`gid`), `OnDelete` (`on-delete`), `MountOptions` (`mount-options`) and `Backend` (`backend`). If unset,
    /// none are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6), extend("x-kubernetes-list-type" = "set"))]
    pub claim_overrides: Vec<ClaimOverride>,
    /// Measures in the background how much storage the volumes and archives on this backend use. If unset, usage is not
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageSettings>,
    /// Lets an agent on the server limit the size of each volume. If unset, sizes are not enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSettings>,
    /// Nodes that can mount this export. Copied to the volumes, and considered for claims of StorageClasses with
    /// volumeBindingMode WaitForFirstConsumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// Stops provisioning on this backend while true. Volumes are still reclaimed.
    #[serde(default)]
    pub suspend: bool,
    /// Interval between probes of the export, from 1s to 24h.
    #[serde(default = "default_probe_interval")]
    #[schemars(schema_with = "probe_interval")]
    pub probe_interval: Duration,
}

/// Address of an export.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct ExportAddress {
    /// Address of the NFS server.
    pub server: ServerAddress,
    /// Absolute path of the export.
    pub path: ExportPath,
}

/// Settings of the operator's connection to an NFS server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NfsSettings {
    /// NFS version. `Auto` selects the newest that works; once volumes exist, the major version no longer changes.
    pub version: NfsVersion,
    /// TCP port of the server.
    #[schemars(schema_with = "port")]
    pub port: i32,
    /// TCP port of the MOUNT service of NFSv3. If unset, rpcbind is queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "port")]
    pub mount_port: Option<i32>,
    /// Source port of the operator. `Reserved` selects a port below 1024, which servers with the export option `secure`
    /// require; if none can be bound, the operator uses any port and reports a warning.
    pub source_port: SourcePort,
    /// How the operator authenticates to the server. If unset, AUTH_SYS as user 0 and group 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<NfsAuth>,
}

impl NfsSettings {
    /// Returns the user and group as which the operator accesses the export.
    pub fn sys(&self) -> SysAuth {
        self.auth.as_ref().and_then(|auth| auth.sys).unwrap_or_default()
    }
}

impl Default for NfsSettings {
    fn default() -> Self {
        Self {
            version: NfsVersion::Auto,
            port: 2049,
            mount_port: None,
            source_port: SourcePort::Reserved,
            auth: None,
        }
    }
}

/// Version of the NFS protocol.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum NfsVersion {
    /// Newest version that works.
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

/// Selection of the source port.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum SourcePort {
    /// Port below 1024, if possible.
    #[default]
    Reserved,
    /// Any port.
    Any,
}

/// Authentication to the server. Exactly one member is set.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, KubeSchema)]
#[x_kube(validation = ("has(self.sys)", "auth must have exactly one member: set sys, with uid and gid"))]
pub struct NfsAuth {
    /// AUTH_SYS: the server trusts the user and group that the operator names. Set them for exports with root_squash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sys: Option<SysAuth>,
}

/// User and group of the operator's requests.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub struct SysAuth {
    /// Numeric user ID.
    #[schemars(schema_with = "owner_number")]
    pub uid: i64,
    /// Numeric group ID.
    #[schemars(schema_with = "owner_number")]
    pub gid: i64,
}

/// How directories for volumes are created.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectorySettings {
    /// Permissions in octal. setuid, setgid and sticky bits are allowed. If unset, `2770` if `gidRange` is set, and `0777`
    /// otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<OctalMode>,
    /// Numeric user ID of the owner. If unset, that in `nfs.auth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "owner_number")]
    pub uid: Option<i64>,
    /// Numeric group ID of the owner. If unset, that in `nfs.auth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "owner_number")]
    pub gid: Option<i64>,
    /// Groups from which each volume gets one of its own. Pods that mount the volume get the group, whatever user they run
    /// as, and no other pods do. A group is in use as long as a volume or an archive on the export has it; while all are in
    /// use, claims wait. If set, neither StorageClasses nor claims may set a `gid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_range: Option<GidRange>,
    /// Name of the directory, relative to `path`. Variables: `${pvc.name}`, `${pvc.namespace}`, `${pvc.uid}`,
    /// `${pv.name}`, `${pvc.labels.KEY}`, `${pvc.annotations.KEY}`. May contain `/`.
    pub pattern: DirectoryPattern,
    /// What to do if the directory exists and was not created by the operator. `Refuse` keeps the claim pending; `Adopt`
    /// provisions the existing directory, which is later archived instead of deleted. `Adopt` requires that no claim of
    /// another namespace can have the same directory: a pattern in which the namespace is a segment of its own, or that
    /// contains `${pvc.uid}` or `${pv.name}`; or a single name in `allowedNamespaces` and no selector. `Share` gives all
    /// claims with the same directory that directory, which must exist, and is never changed, archived or deleted. It
    /// requires a pattern that `Adopt` allows, or one without variables other than `${pvc.namespace}`. With `Share`, do not
    /// set `mode`, `uid`, `gid` or `gidRange`.
    pub existing: Existing,
}

/// Range of numeric group IDs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, KubeSchema)]
#[x_kube(
    validation = ("self.min <= self.max", "gidRange.min must not be greater than gidRange.max"),
)]
pub struct GidRange {
    /// The lowest group.
    #[schemars(schema_with = "pod_group")]
    pub min: i64,
    /// The highest group.
    #[schemars(schema_with = "pod_group")]
    pub max: i64,
}

impl DirectorySettings {
    /// Returns the groups from which each volume gets one of its own.
    pub fn group_range(&self) -> Option<GroupRange> {
        let GidRange { min, max } = self.gid_range?;
        let (min, max) = (u32::try_from(min).ok()?, u32::try_from(max).ok()?);
        Some(GroupRange { min, max })
    }
}

/// Directory pattern of a backend that sets none.
pub const DEFAULT_PATTERN: &str = "${pvc.namespace}-${pvc.name}-${pv.name}";

impl Default for DirectorySettings {
    fn default() -> Self {
        Self {
            mode: None,
            uid: None,
            gid: None,
            gid_range: None,
            pattern: DEFAULT_PATTERN.into(),
            existing: Existing::Refuse,
        }
    }
}

/// What to do if a directory exists and was not created by the operator.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Existing {
    /// Keep the claim pending.
    #[default]
    Refuse,
    /// Provision the existing directory. After the claim is deleted, it is archived instead of deleted.
    Adopt,
    /// Provision the existing directory for any number of claims. It stays as it is, whatever happens to them. Claims wait
    /// until it exists.
    Share,
}

impl From<Existing> for export_store::Existing {
    fn from(existing: Existing) -> Self {
        match existing {
            Existing::Refuse => Self::Refuse,
            Existing::Adopt => Self::Adopt,
            Existing::Share => Self::Share,
        }
    }
}

/// What happens to the data of a volume after its claim is deleted.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArchivePolicy {
    /// `Archive` renames the directory to `archived-…` at the root of the export, `Delete` deletes the data, and `Retain`
    /// leaves it in place. The policy at the time of deletion applies. `onDelete` of a StorageClass takes precedence.
    pub on_delete: OnDelete,
    /// Minimum retention of archives, such as `30d` or `1d12h`. Determines `expirationTime` of archives that are created from
    /// now on. If unset, archives are kept forever, or as defined by `keepLast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "retention")]
    pub retention: Option<Duration>,
    /// Minimum number of archives to keep per claim (by namespace and name), newest first. If `retention` is also set, an
    /// archive is purged only if neither field requires it to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub keep_last: Option<i32>,
    /// Maximum number of archives that the claims of one namespace (by name) have on this backend. While a namespace has as
    /// many, its released volumes stay as they are, and count toward `capacity`. If unset, the number is not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_per_namespace: Option<i32>,
    /// Maximum number of archives on this backend. While it has as many, its released volumes stay as they are, and count
    /// toward `capacity`. Set `maxPerNamespace` as well, so that no namespace takes them all. If unset, the number is not
    /// limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_per_backend: Option<i32>,
    /// Allow restores into a namespace with the same name but another UID, for a cluster that was rebuilt. In a running
    /// cluster, this gives the archives of a deleted namespace to anyone who can create a namespace with its name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restore_by_name: bool,
}

/// Backups of the volumes on a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSettings {
    /// Allows tenants to back up the claims of their own namespace on this backend with NfsBackups, which require no rights on
    /// NfsArchives. Each namespace also gets an NfsBackup for each of its archives of deleted claims. If unset, tenants cannot
    /// create backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_service: Option<SelfServiceBackups>,
    /// Where backups of the claims on this backend are stored, unless the NfsArchive of an administrator names another
    /// backend. If unset, on this backend. Existing backups stay where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<BackupDestination>,
}

/// Limits of copies from and to a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopySettings {
    /// Maximum number of copies at a time. Further ones wait. If unset, three of tenants and three of administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub max_concurrent: Option<i32>,
    /// Maximum content that all these copies together copy in a second, such as `50Mi`. Files that the server clones, and
    /// unchanged files of backups, do not count. If unset, the bandwidth is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bandwidth")]
    pub max_bytes_per_second: Option<StorageAmount>,
}

/// Snapshots of the server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSettings {
    /// Creates a snapshot of the whole export for each backup with `consistency`, and removes it when the data are copied. The
    /// server must let clients do that, as CephFS and ZFS (with `zfs_admin_snapshot`) can. The condition SnapshotsCreatable
    /// reports whether it does.
    #[serde(default)]
    pub create: bool,
}

/// Where backups are stored.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupDestination {
    /// Name of the NfsBackend that gets the data. With another server than that of the claim, the backup survives the loss of
    /// the claim's server.
    #[schemars(length(min = 1, max = 253), extend("example" = "backup-server"))]
    pub backend_name: String,
}

/// Backups that tenants create.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelfServiceBackups {
    /// Namespaces whose tenants may create backups. If unset, all namespaces that have volumes on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Maximum number of backups that NfsBackups of one namespace (by name) requested and that are stored where the backups of
    /// this backend are stored. Further ones wait.
    #[serde(default = "default_max_per_namespace")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_per_namespace: i32,
    /// Maximum sum of the requests of the claims that the backups of one namespace (by name) are of. Further ones wait. A
    /// backup fails if its claim contains more than it requests.
    pub max_bytes_per_namespace: StorageAmount,
    /// Maximum sum of the requests of the claims that the backups of all namespaces are of. Further ones wait. If unset, only
    /// each namespace is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<StorageAmount>,
}

/// One a day for a month.
fn default_max_per_namespace() -> i32 {
    30
}

/// What to do with the data of a volume after its claim is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnDelete {
    /// Keep the data, in a directory renamed to `archived-…`.
    #[default]
    Archive,
    /// Delete the data.
    Delete,
    /// Leave the data unchanged and in place.
    Retain,
}

impl OnDelete {
    /// Returns the value of the volume's annotation `on-delete`.
    pub fn annotation_value(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Delete => "delete",
            Self::Retain => "retain",
        }
    }
}

/// Limits on provisioning on a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityLimits {
    /// Maximum sum of the requests of the volumes and archives on this backend. An archive counts with the request of the
    /// claim that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<StorageAmount>,
    /// Maximum sum of the requests of the volumes and archives on all backends of the same export, in percent of the size of
    /// the export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub overcommit_percent: Option<i32>,
    /// Minimum free space of the export. While it has less, no volumes are provisioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<StorageAmount>,
}

/// Selection of namespaces. A namespace is allowed if either field selects it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Names of allowed namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub match_names: Vec<String>,
    /// Label selector of allowed namespaces; `{}` selects all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

impl AllowedNamespaces {
    /// Returns true if exactly one namespace is allowed, now and in the future.
    pub fn is_single(&self) -> bool {
        self.match_names.len() == 1 && self.selector.is_none()
    }
}

/// Annotation with which a claim may override its backend.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum ClaimOverride {
    /// Permissions of the directory.
    Mode,
    /// Owner of the directory.
    #[serde(rename = "UID")]
    Uid,
    /// Group of the directory.
    #[serde(rename = "GID")]
    Gid,
    /// What happens to the data after the claim is deleted.
    OnDelete,
    /// Mount options from an allow list.
    MountOptions,
    /// Choice of the backend.
    Backend,
}

impl ClaimOverride {
    /// Returns the value in `claimOverrides`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mode => "Mode",
            Self::Uid => "UID",
            Self::Gid => "GID",
            Self::OnDelete => "OnDelete",
            Self::MountOptions => "MountOptions",
            Self::Backend => "Backend",
        }
    }
}

fn default_probe_interval() -> Duration {
    "30s".into()
}

/// Observed state of a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackendStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the backend. Always present are Ready, Reachable, IdentityConfirmed, Writable, CapacityAvailable,
    /// TrashPurgeable, Consistent, RecordsTrusted and Readopted; QuotasEnforced is present if `spec.quota` is set,
    /// and SnapshotsCreatable if `spec.snapshots.create` is true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The export, once its identity is confirmed.
    #[serde(default, skip_serializing_if = "ExportStatus::is_empty")]
    pub export: ExportStatus,
    /// NFS version in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs_version: Option<String>,
    /// Directory, relative to the path of the backend, in which the server exposes snapshots, such as `.zfs/snapshot`. Unset if
    /// it exposes none there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_directory: Option<String>,
    /// Space and inodes of the export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityStatus>,
    /// Number of volumes on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<i64>,
    /// Number of archives on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archives: Option<i64>,
    /// Deleted directories that are not purged yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash: Option<TrashStatus>,
    /// Orphans found by the last scan: directories without a volume, and volumes or records without a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphans: Option<OrphansStatus>,
    /// Storage that the volumes and archives use. Set only if `spec.usage` is set. Written when a scan is complete, and at
    /// most once a minute until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// One-shot requests that were handled: the last value of each annotation. A value is not handled again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub handled_requests: Vec<HandledRequest>,
    /// Time of the last probe of the export; written at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
}

/// What identifies an export, and this cluster's folder on it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExportStatus {
    /// Identity of the export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Value of the annotation `nfs-operator.io/accept-identity` that accepts the export as it is. Set only while the
    /// identity is not confirmed and can be accepted.
    #[serde(default, rename = "acceptableID", skip_serializing_if = "Option::is_none")]
    pub acceptable_id: Option<String>,
    /// Fileid of the root directory of the export. A copy of the export has another one.
    #[serde(default, rename = "rootFileID", skip_serializing_if = "Option::is_none")]
    pub root_file_id: Option<String>,
    /// Fileid of the identity file on the export. A copy of the export has another one.
    #[serde(default, rename = "identityFileID", skip_serializing_if = "Option::is_none")]
    pub identity_file_id: Option<String>,
    /// Fileid of this cluster's folder on the export. A copy of the export has another one.
    #[serde(default, rename = "clusterFolderFileID", skip_serializing_if = "Option::is_none")]
    pub cluster_folder_file_id: Option<String>,
    /// Name of this cluster's folder on the export. It comes from the Secret with the key that signs records.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Nonce in this cluster's folder on the export. An export or etcd that was restored from a backup, and another process in
    /// this folder, have another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beacon: Option<String>,
    /// Nonce that the operator writes to the export next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_beacon: Option<String>,
}

impl ExportStatus {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Space and inodes of an export. Values that the server does not report are unset.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityStatus {
    /// Size of the file system of the export, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "exact_quantity")]
    pub total: Option<Quantity>,
    /// Free space, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "exact_quantity")]
    pub available: Option<Quantity>,
    /// Sum of the requests of the volumes and archives on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "exact_quantity")]
    pub provisioned: Option<Quantity>,
    /// Total number of inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "exact_quantity")]
    pub inodes: Option<Quantity>,
    /// Number of free inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "exact_quantity")]
    pub inodes_free: Option<Quantity>,
}

/// Deleted directories that are not purged yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrashStatus {
    /// Number of directories.
    #[serde(default)]
    pub entries: i64,
    /// Time when the oldest of them was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_time: Option<Time>,
    /// Error of the last purge that could not remove a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
