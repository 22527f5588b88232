//! Names used on Kubernetes objects. Changing one breaks existing objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

/// API group, and prefix of the operator's annotations.
pub const GROUP: &str = "nfs-operator.io";

/// Name by which NFS servers know the operator: AUTH_SYS machine name and implementation ID.
pub const NFS_CLIENT_NAME: &str = "nfs-operator";

/// Default of `--provisioner-name`: the provisioner of StorageClasses.
pub const DEFAULT_PROVISIONER: &str = "nfs-operator.io/nfs";

/// Default of `--records-secret`: the Secret with the key that signs records on exports.
pub const RECORDS_SECRET: &str = "nfs-operator-records";

/// Kind of a name on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// `metadata.annotations`.
    Annotation,
    /// `metadata.labels`.
    Label,
    /// `metadata.finalizers`.
    Finalizer,
    /// `status.conditions`.
    Condition,
}

/// Kind of the object that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedObject {
    /// Namespace.
    Namespace,
    /// PersistentVolumeClaim.
    Claim,
    /// PersistentVolume.
    Volume,
    /// NfsBackend.
    Backend,
    /// NfsArchive.
    Archive,
    /// NfsBackup.
    Backup,
    /// CSIStorageCapacity.
    StorageCapacity,
}

/// A name that the operator writes or reads on an object. docs/annotations.md is generated from them.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    /// The name.
    pub key: &'static str,
    /// What it is.
    pub kind: NameKind,
    /// The object that has it.
    pub object: NamedObject,
    /// Who sets it.
    pub written_by: &'static str,
    /// Who acts on it.
    pub read_by: &'static str,
    /// Its meaning, in lines that begin with a space.
    pub meaning: &'static str,
}

/// Value of [`VOLUME_EXISTING`] on the volume of a shared directory.
pub const SHARED: &str = "Share";

/// Returns true if other volumes may have the directory of a volume, according to the volume.
pub fn is_shared(volume: &PersistentVolume) -> bool {
    let existing = volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(VOLUME_EXISTING));
    existing.is_some_and(|existing| existing == SHARED)
}

macro_rules! names {
    ($($kind:ident of $object:ident, $writer:literal to $reader:literal: $(#[doc = $doc:literal])+ $name:ident = $key:literal;)*) => {
        $($(#[doc = $doc])+ pub const $name: &str = $key;)*

        /// All names, for the documentation.
        pub const ALL: &[Name] = &[$(Name {
            key: $key,
            kind: NameKind::$kind,
            object: NamedObject::$object,
            written_by: $writer,
            read_by: $reader,
            meaning: concat!($($doc),+),
        },)*];
    };
}

names! {
    Annotation of Claim, "Kubernetes" to "the operator":
    /// The requested provisioner, set by the volume binder if no existing volume matches.
    STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner";

    Annotation of Claim, "Kubernetes" to "the operator":
    /// Deprecated form of `volume.kubernetes.io/storage-provisioner`.
    BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner";

    Annotation of Claim, "Kubernetes" to "the operator":
    /// Set by the volume binder once the claim is bound to a volume.
    BIND_COMPLETED = "pv.kubernetes.io/bind-completed";

    Annotation of Claim, "users" to "the operator":
    /// Deprecated form of `spec.storageClassName`, over which it takes precedence.
    BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class";

    Annotation of Claim, "Kubernetes" to "the operator":
    /// With delayed binding: the node that the scheduler selected. The operator removes it if no backend serves the
    /// node.
    SELECTED_NODE = "volume.kubernetes.io/selected-node";

    Annotation of Claim, "the operator" to "the operator":
    /// The backend that the operator selected, if there was a choice.
    PLACED_ON = "nfs-operator.io/placed-on";

    Annotation of Claim, "users" to "the operator":
    /// The requested backend, if `claimOverrides` of the backend allows it.
    REQUESTED_BACKEND = "nfs-operator.io/backend";

    Annotation of Claim, "users" to "the operator":
    /// The mode of the directory, if `claimOverrides` of the backend allows it.
    CLAIM_MODE = "nfs-operator.io/mode";

    Annotation of Claim, "users" to "the operator":
    /// The owner of the directory, if `claimOverrides` of the backend allows it.
    CLAIM_UID = "nfs-operator.io/uid";

    Annotation of Claim, "users" to "the operator":
    /// The group of the directory, if `claimOverrides` of the backend allows it.
    CLAIM_GID = "nfs-operator.io/gid";

    Annotation of Claim, "users" to "the operator":
    /// `archive`, `delete` or `retain`, if `claimOverrides` of the backend allows it.
    CLAIM_ON_DELETE = "nfs-operator.io/on-delete";

    Annotation of Claim, "users" to "the operator":
    /// Mount options, if `claimOverrides` of the backend allows them.
    CLAIM_MOUNT_OPTIONS = "nfs-operator.io/mount-options";

    Annotation of Claim, "users" to "the operator":
    /// How an archive is restored: `move` (the archive becomes the volume) or `copy` (the archive is kept).
    RESTORE = "nfs-operator.io/restore";

    Annotation of Claim, "users" to "the operator":
    /// The snapshot of the server from which the claim that is the data source is copied. If unset, its data in use are
    /// copied.
    SOURCE_SNAPSHOT = "nfs-operator.io/source-snapshot";

    Label of Namespace, "administrators" to "the operator":
    /// `reserved` for a namespace whose claims are copied first and may use the slot for copies that is reserved.
    /// Tenants must not be able to label namespaces.
    COPY_PRIORITY = "nfs-operator.io/copy-priority";

    Annotation of Volume, "the operator" to "Kubernetes":
    /// The provisioner that created the volume.
    PROVISIONED_BY = "pv.kubernetes.io/provisioned-by";

    Annotation of Volume, "the operator" to "Kubernetes":
    /// The group that the kubelet adds to each pod that mounts the volume.
    POD_GROUP = "pv.beta.kubernetes.io/gid";

    Label of Volume, "the operator" to "users":
    /// `nfs-operator`.
    MANAGED_BY = "app.kubernetes.io/managed-by";

    Label of Volume, "the operator" to "users":
    /// The backend of the volume, unless its name has more than 63 characters.
    VOLUME_BACKEND_LABEL = "nfs-operator.io/backend";

    Annotation of Volume, "the operator" to "the operator":
    /// The backend of the volume.
    VOLUME_BACKEND = "nfs-operator.io/backend";

    Annotation of Volume, "the operator" to "the operator":
    /// The identity of the export.
    VOLUME_EXPORT_ID = "nfs-operator.io/export-id";

    Annotation of Volume, "the operator" to "the operator":
    /// The directory of the volume, relative to the path of the backend.
    VOLUME_DIRECTORY = "nfs-operator.io/directory";

    Annotation of Volume, "the operator" to "the operator":
    /// The fileid of the directory.
    VOLUME_FILE_ID = "nfs-operator.io/file-id";

    Annotation of Volume, "the operator" to "the operator":
    /// The UID of the namespace of the claim.
    VOLUME_NAMESPACE_UID = "nfs-operator.io/namespace-uid";

    Annotation of Volume, "the operator" to "the operator":
    /// The `onDelete` policy that the class or the claim requested, or `retain` once that was carried out. If unset,
    /// the policy of the backend applies.
    VOLUME_ON_DELETE = "nfs-operator.io/on-delete";

    Annotation of Volume, "the operator" to "the operator":
    /// `Share` on a volume whose directory other volumes may have, too. Nothing else may. The record on the export decides
    /// what happens to the directory.
    VOLUME_EXISTING = "nfs-operator.io/existing";

    Annotation of Volume, "the operator" to "the operator":
    /// The volume was recreated from its record: the age of its data is not that of its object.
    VOLUME_RECREATED = "nfs-operator.io/recreated";

    Annotation of Volume, "the operator" to "the operator":
    /// On a recreated volume that is not bound yet: the UID of the claim that it was originally provisioned for.
    VOLUME_READOPTED = "nfs-operator.io/readopted";

    Annotation of Volume, "the operator" to "the operator":
    /// On a volume that was bound to another claim: the UID of the claim in its record. If unset, it is the one in the
    /// name of the volume.
    VOLUME_CLAIM_UID = "nfs-operator.io/claim-uid";

    Annotation of Volume, "the operator" to "users":
    /// The bytes on disk that the data used in the last usage scan.
    VOLUME_USED_BYTES = "nfs-operator.io/used-bytes";

    Annotation of Volume, "the operator" to "users":
    /// The sum of the sizes of the files in bytes, including holes.
    VOLUME_APPARENT_BYTES = "nfs-operator.io/apparent-bytes";

    Annotation of Volume, "the operator" to "users":
    /// The number of files, directories and links.
    VOLUME_USED_FILES = "nfs-operator.io/used-files";

    Annotation of Volume, "the operator" to "users":
    /// The number of directories that could not be read, so that the volume contains more than was counted. Unset if
    /// none.
    VOLUME_UNREAD = "nfs-operator.io/unread-directories";

    Annotation of Volume, "the operator" to "users":
    /// The time when the usage was written.
    VOLUME_COUNTED_AT = "nfs-operator.io/counted-at";

    Annotation of Volume, "administrators" to "the operator":
    /// On a volume whose directory is missing: `true` acknowledges this and allows the deletion of the volume.
    ACKNOWLEDGE_MISSING = "nfs-operator.io/acknowledge-missing";

    Finalizer of Volume, "the operator" to "Kubernetes":
    /// Keeps the volume until its directory is reclaimed. Set only while the reclaim policy is Delete.
    RECLAIM_FINALIZER = "nfs-operator.io/reclaim";

    Condition of Claim, "the operator" to "users":
    /// The claim has a volume, or the reason why it has none.
    CLAIM_CONDITION = "nfs-operator.io/Provisioned";

    Condition of Claim, "the operator" to "users":
    /// The volume contains more data than requested.
    OVER_REQUEST_CONDITION = "nfs-operator.io/OverRequest";

    Condition of Claim, "the operator" to "users":
    /// The last scan did not find the directory of the volume.
    DIRECTORY_MISSING_CONDITION = "nfs-operator.io/DirectoryMissing";

    Condition of Claim, "the operator" to "users":
    /// The size of the volume is enforced, or the reason why it is not. Present if `spec.quota` of the backend is set.
    SIZE_ENFORCED_CONDITION = "nfs-operator.io/SizeEnforced";

    Annotation of Backend, "administrators" to "the operator":
    /// Any value requests a scan for orphans. [One-shot](#one-shot-requests).
    SCAN_REQUESTED_AT = "nfs-operator.io/scan-requested-at";

    Annotation of Backend, "administrators" to "the operator":
    /// Any value requests a usage scan. [One-shot](#one-shot-requests).
    COUNT_REQUESTED_AT = "nfs-operator.io/count-requested-at";

    Annotation of Backend, "administrators" to "the operator":
    /// Any value requests objects for the archives that were deleted with `Retain`. [One-shot](#one-shot-requests),
    /// handled when all of them exist.
    IMPORT_ARCHIVES_REQUESTED_AT = "nfs-operator.io/import-archives-requested-at";

    Annotation of Backend, "administrators" to "the operator":
    /// Any value requests that lost volumes are recreated from all live records. [One-shot](#one-shot-requests),
    /// handled when all of them exist.
    READOPT_REQUESTED_AT = "nfs-operator.io/readopt-requested-at";

    Annotation of Backend, "administrators" to "the operator":
    /// The names of lost volumes to recreate from their records, separated by commas.
    /// [One-shot](#one-shot-requests), handled when all of them exist.
    READOPT = "nfs-operator.io/readopt";

    Annotation of Backend, "administrators" to "the operator":
    /// The names of lost volumes to give up, separated by commas, or the UID of the backend for all of them. Claims of
    /// their names get new, empty volumes while the annotation is set.
    ABANDON_LOST_VOLUMES = "nfs-operator.io/abandon-lost-volumes";

    Annotation of Backend, "administrators" to "the operator":
    /// The identity that an administrator accepts instead of the expected one, or `new` to create one on an export that
    /// has none. If `spec.exportID` is set, only that one. [One-shot](#one-shot-requests).
    ACCEPT_IDENTITY = "nfs-operator.io/accept-identity";

    Annotation of Backend, "administrators" to "the operator":
    /// Records that are adopted although this cluster did not sign them, each as `<volume>` or `<cluster id>/<volume>`,
    /// separated by commas. [One-shot](#one-shot-requests).
    ADOPT_RECORD = "nfs-operator.io/adopt-record";

    Annotation of Backend, "administrators" to "the operator":
    /// The names of volumes and archives whose directories are accepted although they have other fileids than recorded,
    /// separated by commas, or `*` for all of the backend: the export was restored or moved file by file.
    /// [One-shot](#one-shot-requests).
    ACCEPT_DIRECTORIES = "nfs-operator.io/accept-directories";

    Annotation of Backend, "administrators" to "the operator":
    /// On a backend that is being deleted: its UID allows the deletion although volumes or archives exist.
    ABANDON_VOLUMES = "nfs-operator.io/abandon-volumes";

    Finalizer of Backend, "the operator" to "Kubernetes":
    /// Keeps the backend until it has no volumes and archives.
    BACKEND_FINALIZER = "nfs-operator.io/volumes";

    Annotation of Archive, "the operator" to "the operator":
    /// The backend of the archive, as in its status, which tools that restore objects do not restore.
    ARCHIVE_BACKEND = "nfs-operator.io/backend";

    Annotation of Archive, "the operator" to "the operator":
    /// The identity of the export, as in the status of the archive, which tools that restore objects do not restore.
    ARCHIVE_EXPORT_ID = "nfs-operator.io/export-id";

    Finalizer of Archive, "the operator" to "Kubernetes":
    /// Keeps the object until its deletion policy was applied.
    ARCHIVE_FINALIZER = "nfs-operator.io/archive";

    Finalizer of Backup, "the operator" to "Kubernetes":
    /// Keeps an NfsBackup that has an archive until the deletion of the archive was requested.
    BACKUP_FINALIZER = "nfs-operator.io/backup";

    Label of StorageCapacity, "the operator" to "the operator":
    /// `nfs-operator`. The operator changes and deletes only objects with both labels.
    CAPACITY_MANAGED_BY = "app.kubernetes.io/managed-by";

    Label of StorageCapacity, "the operator" to "the operator":
    /// The provisioner name of the class.
    CAPACITY_DRIVER = "csi.storage.k8s.io/drivername";
}

/// Value of [`COPY_PRIORITY`].
pub const RESERVED: &str = "reserved";
/// Value of [`MANAGED_BY`].
pub const OPERATOR_NAME: &str = "nfs-operator";

/// Field managers, one per concern: a server-side apply removes the fields of its manager that it omits. Conditions of claims
/// are merged by their type instead.
pub mod managers {
    /// `placed-on` on claims.
    pub const PLACEMENT: &str = "nfs-operator/placement";
    /// Conditions of claims.
    pub const CONDITION: &str = "nfs-operator/condition";
    /// Status of backends, archives and backups.
    pub const STATUS: &str = "nfs-operator/status";
    /// Measured usage: annotations on volumes, the condition `OverRequest` on claims, and the status of archives.
    pub const USAGE: &str = "nfs-operator/usage";
    /// Findings of orphan scans: the condition `DirectoryMissing` on claims.
    pub const SCAN: &str = "nfs-operator/scan";
    /// The condition `SizeEnforced` on claims.
    pub const QUOTA: &str = "nfs-operator/quota";
    /// CSIStorageCapacity objects.
    pub const STORAGE_CAPACITY: &str = "nfs-operator/storage-capacity";
    /// CRDs installed by `nfs-operator crd --apply`. The name is that of Helm, which created them: with another name, Helm 4
    /// detects a conflict when a chart of another version is installed after an uninstall.
    pub const CRD: &str = "helm";
}

/// Maximum number of bytes of a label's value.
const MAX_LABEL_LEN: usize = 63;

/// Returns the labels of the volumes of a backend.
pub fn volume_labels(backend: &str) -> BTreeMap<String, String> {
    let managed = (MANAGED_BY.to_owned(), OPERATOR_NAME.to_owned());
    let backend = (backend.len() <= MAX_LABEL_LEN).then(|| (VOLUME_BACKEND_LABEL.to_owned(), backend.to_owned()));
    backend.into_iter().chain([managed]).collect()
}

/// Returns an object's `namespace/name`, for logs.
pub fn qualified_name(object: &impl ResourceExt) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

/// Returns the name of the volume for the claim with this UID.
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}
