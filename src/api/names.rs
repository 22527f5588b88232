//! Names that stand on Kubernetes objects: a change here breaks objects that exist.

/// The API group, and the prefix of every annotation of ours.
pub const GROUP: &str = "nfs-operator.io";

/// The name by which NFS servers know the operator: AUTH_SYS machine name and implementation ID.
pub const NFS_CLIENT_NAME: &str = "nfs-operator";

/// The provisioner name of StorageClasses unless `--provisioner-name` says otherwise.
pub const DEFAULT_PROVISIONER: &str = "nfs-operator.io/nfs";

/// The Secret with the key that records on exports are signed with, unless `--records-secret` says otherwise.
pub const RECORDS_SECRET: &str = "nfs-operator-records";

/// Set by the binder on a claim once it has looked for an existing volume and wants one provisioned.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older spelling of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The older way to name a claim's class; wins over `spec.storageClassName`.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The node that the scheduler chose for a late-binding claim.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: the provisioner that made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On a claim: the backend that we placed it on.
pub const PLACED_ON: &str = "nfs-operator.io/placed-on";
/// On a claim: the backend that its author wishes for; counts only where `claimOverrides` allows it.
pub const WISHED_BACKEND: &str = "nfs-operator.io/backend";

/// On a claim that asks for an archive: `move` (the archive becomes the volume) or `copy` (it stays).
pub const RESTORE: &str = "nfs-operator.io/restore";

/// On a volume: the backend it lies on.
pub const VOLUME_BACKEND: &str = "nfs-operator.io/backend";
/// On a volume: the identity of the export.
pub const VOLUME_EXPORT_ID: &str = "nfs-operator.io/export-id";
/// On a volume: its directory, relative to the backend's path.
pub const VOLUME_DIRECTORY: &str = "nfs-operator.io/directory";
/// On a volume: the fileid of its directory.
pub const VOLUME_FILE_ID: &str = "nfs-operator.io/file-id";
/// On a volume: the uid of the claim's namespace.
pub const VOLUME_NAMESPACE_UID: &str = "nfs-operator.io/namespace-uid";
/// On a volume: the policy that a class or a claim asked for; absent = the backend's at the time of deletion.
pub const VOLUME_ON_DELETE: &str = "nfs-operator.io/on-delete";

/// On a volume: the bytes that its data take on the server's disk, as they were counted last.
pub const VOLUME_USED_BYTES: &str = "nfs-operator.io/used-bytes";
/// On a volume: the bytes that its files say they have, holes included.
pub const VOLUME_APPARENT_BYTES: &str = "nfs-operator.io/apparent-bytes";
/// On a volume: how many names its data have.
pub const VOLUME_USED_FILES: &str = "nfs-operator.io/used-files";
/// On a volume: how many of its directories could not be read, so that it holds more than was counted; absent = none.
pub const VOLUME_UNREAD: &str = "nfs-operator.io/unread-directories";
/// On a volume: when these figures were written.
pub const VOLUME_COUNTED_AT: &str = "nfs-operator.io/counted-at";

/// Keeps a volume until its directory is reclaimed; only while the reclaim policy is Delete.
pub const RECLAIM_FINALIZER: &str = "nfs-operator.io/reclaim";
/// Keeps a backend until its volumes and archives are gone.
pub const BACKEND_FINALIZER: &str = "nfs-operator.io/volumes";

/// Keeps an archive's object until its data are dealt with.
pub const ARCHIVE_FINALIZER: &str = "nfs-operator.io/archive";

/// On a backend: the identity that an administrator accepts in place of the expected one.
pub const ACCEPT_IDENTITY: &str = "nfs-operator.io/accept-identity";
/// On a backend: `"true"` asks for a scan for orphans now; taken off when it begins.
pub const SCAN_NOW: &str = "nfs-operator.io/scan-now";
/// On a backend: `"true"` asks for the volumes of its live records to be made again after their objects were lost, or the
/// names of the volumes that are, with commas between; taken off when all are there.
pub const READOPT: &str = "nfs-operator.io/readopt";
/// On a volume that was made again and is not bound yet: the uid of the claim that it was made for first.
pub const VOLUME_READOPTED: &str = "nfs-operator.io/readopted";
/// On a backend: `"true"` asks for what its volumes hold to be counted now; taken off when it is heard.
pub const COUNT_NOW: &str = "nfs-operator.io/count-now";
/// On a backend: records that an administrator wants adopted although this cluster did not sign them, each as `<volume>` or
/// `<cluster id>/<volume>`, with commas between; taken off when that is done.
pub const ADOPT_RECORD: &str = "nfs-operator.io/adopt-record";
/// On a backend that is being deleted: `"true"` lets it go although volumes or archives are left.
pub const ABANDON: &str = "nfs-operator.io/abandon-volumes";
/// On a volume whose directory is missing: `"true"` acknowledges it and lets the volume go.
pub const ACKNOWLEDGE_MISSING: &str = "nfs-operator.io/acknowledge-missing";

/// The condition type that we set on claims.
pub const CLAIM_CONDITION: &str = "nfs-operator.io/Provisioned";

/// The condition type that we set on claims whose volume holds more than they asked for.
pub const OVER_REQUEST_CONDITION: &str = "nfs-operator.io/OverRequest";

/// Field managers, one for each concern (an apply removes the manager's fields that it leaves out).
pub mod managers {
    /// `placed-on` on claims.
    pub const PLACEMENT: &str = "nfs-operator/placement";
    /// The condition on claims.
    pub const CONDITION: &str = "nfs-operator/condition";
    /// The status of backends and archives.
    pub const STATUS: &str = "nfs-operator/status";
    /// What volumes and archives hold: annotations on volumes, the condition on claims above their request, the status of
    /// archives.
    pub const USAGE: &str = "nfs-operator/usage";
    /// CRDs that `nfs-operator crd --apply` installs. It is Helm's, which made them in the first place: under another one,
    /// Helm 4 finds a conflict when a chart of another version is installed after an uninstall.
    pub const CRD: &str = "helm";
}

/// The name of the volume for the claim with this uid.
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}
