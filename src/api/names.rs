//! Names used on Kubernetes objects. Changing one breaks existing objects.

/// API group, and prefix of the operator's annotations.
pub const GROUP: &str = "nfs-operator.io";

/// Name by which NFS servers know the operator: AUTH_SYS machine name and implementation ID.
pub const NFS_CLIENT_NAME: &str = "nfs-operator";

/// Default of `--provisioner-name`: the provisioner of StorageClasses.
pub const DEFAULT_PROVISIONER: &str = "nfs-operator.io/nfs";

/// Default of `--records-secret`: the Secret with the key that signs records on exports.
pub const RECORDS_SECRET: &str = "nfs-operator-records";

/// On a claim: the requested provisioner, set by the volume binder if no existing volume matches.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Deprecated form of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim: deprecated form of `spec.storageClassName`, over which it takes precedence.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a claim with delayed binding: the node that the scheduler selected.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: the provisioner that created it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On a claim: the backend that the operator selected.
pub const PLACED_ON: &str = "nfs-operator.io/placed-on";
/// On a claim: the backend that its author requests; used only if `claimOverrides` allows it.
pub const REQUESTED_BACKEND: &str = "nfs-operator.io/backend";

/// On a claim that restores an archive: `move` (the archive becomes the volume) or `copy` (the archive is kept).
pub const RESTORE: &str = "nfs-operator.io/restore";

/// On a volume: its backend.
pub const VOLUME_BACKEND: &str = "nfs-operator.io/backend";
/// On a volume: the identity of the export.
pub const VOLUME_EXPORT_ID: &str = "nfs-operator.io/export-id";
/// On a volume: its directory, relative to the path of the backend.
pub const VOLUME_DIRECTORY: &str = "nfs-operator.io/directory";
/// On a volume: the fileid of its directory.
pub const VOLUME_FILE_ID: &str = "nfs-operator.io/file-id";
/// On a volume: the UID of the namespace of the claim.
pub const VOLUME_NAMESPACE_UID: &str = "nfs-operator.io/namespace-uid";
/// On a volume: the `onDelete` policy that the class or the claim requested. If unset, that of the backend applies.
pub const VOLUME_ON_DELETE: &str = "nfs-operator.io/on-delete";

/// On a volume: the bytes on disk that its data used in the last usage scan.
pub const VOLUME_USED_BYTES: &str = "nfs-operator.io/used-bytes";
/// On a volume: the sum of its file sizes in bytes, including holes.
pub const VOLUME_APPARENT_BYTES: &str = "nfs-operator.io/apparent-bytes";
/// On a volume: the number of files, directories and links.
pub const VOLUME_USED_FILES: &str = "nfs-operator.io/used-files";
/// On a volume: the number of directories that could not be read, so that it contains more than was counted. Unset if none.
pub const VOLUME_UNREAD: &str = "nfs-operator.io/unread-directories";
/// On a volume: the time when the usage was written.
pub const VOLUME_COUNTED_AT: &str = "nfs-operator.io/counted-at";

/// Finalizer that keeps a volume until its directory is reclaimed. Set only while the reclaim policy is Delete.
pub const RECLAIM_FINALIZER: &str = "nfs-operator.io/reclaim";
/// Finalizer that keeps a backend until it has no volumes and archives.
pub const BACKEND_FINALIZER: &str = "nfs-operator.io/volumes";

/// Finalizer that keeps the object of an archive until its deletion policy was applied.
pub const ARCHIVE_FINALIZER: &str = "nfs-operator.io/archive";

/// On a backend: the identity that an administrator accepts instead of the expected one.
pub const ACCEPT_IDENTITY: &str = "nfs-operator.io/accept-identity";
/// On a backend: `"true"` requests a scan for orphans. Removed when the scan starts.
pub const SCAN_NOW: &str = "nfs-operator.io/scan-now";
/// On a backend: requests that lost volumes are recreated from records: `"true"` for all live records, or the names of
/// volumes, separated by commas. Removed when all of them exist. `"false"` gives lost volumes up: claims get new ones.
pub const READOPT: &str = "nfs-operator.io/readopt";
/// On a recreated volume that is not bound yet: the UID of the claim that it was originally provisioned for.
pub const VOLUME_READOPTED: &str = "nfs-operator.io/readopted";
/// On a volume that was recreated from its record: the age of its data is not that of its object.
pub const VOLUME_RECREATED: &str = "nfs-operator.io/recreated";
/// On a volume that was bound to another claim: the UID of the claim in its record. If unset, it is the one in the name of
/// the volume.
pub const VOLUME_CLAIM_UID: &str = "nfs-operator.io/claim-uid";
/// On a backend: `"true"` requests a usage scan. Removed when the operator has seen it.
pub const COUNT_NOW: &str = "nfs-operator.io/count-now";
/// On a backend: records that an administrator adopts although this cluster did not sign them, each as `<volume>` or
/// `<cluster id>/<volume>`, separated by commas. Removed when they were processed.
pub const ADOPT_RECORD: &str = "nfs-operator.io/adopt-record";
/// On a backend that is being deleted: `"true"` allows the deletion although volumes or archives exist.
pub const ABANDON: &str = "nfs-operator.io/abandon-volumes";
/// On a volume whose directory is missing: `"true"` acknowledges this and allows the deletion of the volume.
pub const ACKNOWLEDGE_MISSING: &str = "nfs-operator.io/acknowledge-missing";

/// Condition type of claims: provisioned.
pub const CLAIM_CONDITION: &str = "nfs-operator.io/Provisioned";

/// Condition type of claims whose volume contains more data than requested.
pub const OVER_REQUEST_CONDITION: &str = "nfs-operator.io/OverRequest";

/// Condition type of claims whose directory the last scan did not find.
pub const DIRECTORY_MISSING_CONDITION: &str = "nfs-operator.io/DirectoryMissing";

/// Field managers, one per concern: a server-side apply removes the fields of its manager that it omits.
pub mod managers {
    /// `placed-on` on claims.
    pub const PLACEMENT: &str = "nfs-operator/placement";
    /// Conditions of claims.
    pub const CONDITION: &str = "nfs-operator/condition";
    /// Status of backends and archives.
    pub const STATUS: &str = "nfs-operator/status";
    /// Measured usage: annotations on volumes, the condition `OverRequest` on claims, and the status of archives.
    pub const USAGE: &str = "nfs-operator/usage";
    /// Findings of orphan scans: the condition `DirectoryMissing` on claims.
    pub const SCAN: &str = "nfs-operator/scan";
    /// CRDs installed by `nfs-operator crd --apply`. The name is that of Helm, which created them: with another name, Helm 4
    /// detects a conflict when a chart of another version is installed after an uninstall.
    pub const CRD: &str = "helm";
}

/// Returns the name of the volume for the claim with this UID.
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}
