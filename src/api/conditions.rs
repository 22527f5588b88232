//! Condition types, and the reasons of conditions and events.
//!
//! To add a reason, add a variant to [`Reason`] and a section of its name to docs/troubleshooting.md. If an operation on an
//! export fails with it, also add an [`ErrorKind`].

use std::fmt;

pub use super::planned_condition::PlannedCondition;
use export_store::{ErrorKind, ExportError};

/// Condition types of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendCondition {
    /// Claims can be provisioned on the backend.
    Ready,
    /// The server responds and the export exists.
    Reachable,
    /// Directories can be created and removed.
    Writable,
    /// Capacity for new volumes is available.
    CapacityAvailable,
    /// The export has the expected identity.
    IdentityConfirmed,
    /// Deleted directories can be purged: none of them failed to be.
    TrashPurgeable,
    /// Every directory has a volume, and every volume has its directory.
    Consistent,
    /// No requested recovery of lost volumes is open.
    Readopted,
    /// All records are signed by this cluster.
    RecordsTrusted,
    /// An agent on the server enforces the sizes of volumes.
    QuotasEnforced,
    /// The server creates snapshots for backups.
    SnapshotsCreatable,
}

impl fmt::Display for BackendCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Condition types of an archive. Each archive has all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArchiveCondition {
    /// The data exists and can be restored.
    Available,
    /// No rule purges the data.
    Retained,
}

impl fmt::Display for ArchiveCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Condition types of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackupCondition {
    /// The data exist and can be restored.
    Ready,
}

impl fmt::Display for BackupCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Condition types of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScheduleCondition {
    /// Backups are requested at the scheduled times.
    Ready,
}

impl fmt::Display for ScheduleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $name:ident,)*) => {
        /// Reason of a condition or an event. Each failure that a user can encounter has its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $meaning])+ $name,)* }

        impl Reason {
            /// All reasons, for the documentation and its tests.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns what the reason means, for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($meaning),+),)* }
            }
        }
    };
}

reasons! {
    /// The backend is ready: the server answers, the export is the expected one, and has space for new volumes.
    AllChecksPassed,
    /// The server responds, and the export exists.
    ServerAnswers,
    /// The export has the expected identity.
    IdentityVerified,
    /// A file could be created and removed.
    WritesSucceed,
    /// The export has space for new volumes.
    SpaceAvailable,
    /// The name of the server cannot be resolved.
    NameResolutionFailed,
    /// The server refuses the connection: no process listens on the port.
    ConnectionRefused,
    /// The connection attempt timed out.
    ConnectionTimedOut,
    /// There is no route to the server.
    ServerUnreachable,
    /// The server accepts the connection but does not respond to calls.
    ServerNotResponding,
    /// The connection was lost before the reply arrived.
    ConnectionLost,
    /// The server supports none of the requested NFS versions.
    ProtocolNotSupported,
    /// The server sent a reply that violates the protocol.
    ProtocolViolation,
    /// The server requires a security flavor other than `sys`.
    SecurityFlavorUnsupported,
    /// The path of the export does not exist.
    ExportNotFound,
    /// The path of the export refers to another server.
    ExportMoved,
    /// The server does not allow mounting a subdirectory of an export.
    SubdirectoryMountRefused,
    /// The path of the export contains a symbolic link.
    SymlinkInPath,
    /// The path of the export is not a directory.
    NotADirectory,
    /// The server denies access.
    AccessDenied,
    /// The server denies access, and the operator could not bind a reserved port.
    ReservedPortRequired,
    /// The operation requires root, and the server squashes root.
    RootSquashed,
    /// The export is read-only.
    ReadOnly,
    /// The export has no free space.
    NoSpace,
    /// The export has no free inodes.
    NoInodes,
    /// The quota is exceeded.
    QuotaExceeded,
    /// The file handle of the root of the export is stale.
    StaleHandle,
    /// The export does not have the expected identity.
    IdentityMismatch,
    /// The export was rolled back, etcd was restored, or another process works in this cluster's folder.
    BeaconMismatch,
    /// Another installation worked in this cluster's folder, and may still run.
    BeaconObserved,
    /// The records of the backend's volumes belong to another cluster than the one in the Secret.
    RecordsSecretMismatch,
    /// `.nfs-operator` on the export was changed by someone else.
    ReservedDirectoryUnsafe,
    /// The server reports an I/O error.
    ServerFault,
    /// The server refuses a call with a status that has no reason of its own.
    ServerRefused,
    /// A file or directory changed during the operation.
    ChangedMeanwhile,
    /// The directory is on a different file system than the root of the export.
    CrossesFileSystems,
    /// The identity of the export has not been verified on the current connection yet.
    IdentityNotConfirmed,
    /// An administrator suspended the backend.
    Suspended,
    /// The backend is being deleted.
    Deleting,
    /// The last probe of the backend is outdated.
    ProbeOutdated,
    /// The backend has not been probed yet.
    NotProbed,
    /// Another instance of the operator became the leader.
    Fenced,
    /// A field of the spec is invalid.
    InvalidSpec,
    /// Nodes may be unable to resolve the name of the server.
    NodesMayNotResolve,
    /// The request exceeds a limit.
    LimitExceeded,
    /// Some deleted directories could not be purged.
    TrashStuck,
    /// No deleted directory is waiting to be purged.
    TrashEmpty,
    /// Deleted data is being purged.
    Purging,
    /// The last scan found no orphans.
    NoOrphansFound,
    /// The last scan found orphans.
    OrphansFound,
    /// The export has not been scanned for orphans yet.
    NotScanned,
    /// All records of this cluster without a volume are signed.
    RecordsSigned,
    /// Some records are not signed by this cluster. No objects are created from them.
    RecordsUnsigned,
    /// The quota agent of the export runs and can limit directories.
    QuotaAgentReady,
    /// There is no heartbeat of a quota agent on the export.
    QuotaAgentMissing,
    /// The quota agent wrote a heartbeat, and it is not known yet whether it still runs.
    QuotaAgentObserved,
    /// The quota agent does not renew its heartbeat.
    QuotaAgentNotResponding,
    /// The heartbeat of the quota agent is damaged or not signed with the key of this cluster.
    QuotaAgentUntrusted,
    /// The quota agent runs, and the file system of the export cannot limit directories.
    QuotasNotSupported,
    /// The limits of the volumes are being removed.
    QuotaBeingRemoved,
    /// A record was adopted at an administrator's request (event).
    RecordAdopted,
    /// A record was not adopted (event).
    RecordNotAdopted,
    /// Directories with other fileids than recorded were accepted at an administrator's request (event).
    DirectoriesAccepted,
    /// The directory of a volume or archive was not accepted (event).
    DirectoryNotAccepted,

    /// The claim was provisioned.
    Provisioned,
    /// The claim is being provisioned.
    Provisioning,
    /// The claim was assigned to a backend, and the result of a call to it is not known yet.
    OutcomeUnknown,
    /// No backend can currently serve the claim.
    NoBackendAvailable,
    /// The StorageClass names backends that do not exist.
    BackendNotFound,
    /// The namespace may not use any of the backends.
    NamespaceNotAllowed,
    /// The backends that the claim may use lack the requested capacity.
    CapacityExceeded,
    /// Each group of the backend's gidRange is in use.
    GroupsExhausted,
    /// The scheduler selected a node that no backend serves.
    NodeNotServed,
    /// The allowedTopologies of the StorageClass and the nodeAffinity of the backend exclude each other.
    TopologyMismatch,
    /// The StorageClass of the claim does not exist.
    StorageClassNotFound,
    /// The StorageClass has an unknown parameter or an invalid value.
    InvalidParameter,
    /// Block volumes are not supported.
    BlockVolumeUnsupported,
    /// The access mode is none of ReadWriteOnce, ReadOnlyMany, ReadWriteMany and ReadWriteOncePod.
    AccessModeUnsupported,
    /// The claim has a selector, which only matches existing volumes.
    SelectorUnsupported,
    /// VolumeAttributesClasses are not supported.
    AttributesClassUnsupported,
    /// The data source is not supported.
    DataSourceUnsupported,
    /// The volume is being copied from another volume or an archive.
    Copying,
    /// A copy failed and is restarted.
    CopyFailed,
    /// A copy preserves the owners of files, and the server does not let the operator change owners.
    CopyNeedsChown,
    /// The source was removed during the copy.
    CopySourceGone,
    /// The claim or archive to copy does not exist, is not bound, or cannot be read at the moment.
    CopySourceNotReady,
    /// The source claim cannot be copied to this claim.
    CopySourceUnsuitable,
    /// The directory pattern does not result in a valid directory name.
    InvalidDirectoryName,
    /// The directory exists and was not created by the operator.
    DirectoryExists,
    /// The directory exists, and adopting it could expose the data of another namespace.
    DirectoryNotAdoptable,
    /// The directory is to be shared, and tenants could choose it.
    DirectoryNotShareable,
    /// The directory that claims are to share does not exist.
    SharedDirectoryMissing,
    /// The server creates snapshots for backups.
    SnapshotCreated,
    /// The server has no snapshot that can be copied, or none that proves that the data are the claim's.
    SnapshotUnavailable,
    /// The directory would overlap with another volume, archive or backend.
    DirectoryOverlaps,
    /// The server did not apply the requested mode.
    ModeRefused,
    /// The server did not apply the requested owner.
    OwnerRefused,
    /// The server maps owners by name and does not accept the numeric ID.
    IdMappingRequired,
    /// The server ignores the groups that a client sends for its users.
    GroupsIgnored,
    /// An annotation on the claim requests an override that its backend does not allow.
    OverrideRefused,
    /// An annotation on the claim has an invalid value.
    InvalidOverride,
    /// The API server permanently rejected the volume.
    VolumeRefused,
    /// Another PersistentVolume has the name of the volume.
    VolumeNameTaken,
    /// The volume of the claim no longer exists.
    VolumeLost,

    /// The data of the volume was archived.
    VolumeArchived,
    /// The data of the volume was deleted.
    VolumeDeleted,
    /// The data of the volume was left in place.
    VolumeRetained,
    /// The data of the volume could not be reclaimed.
    VolumeFailedDelete,
    /// The directory of the volume does not exist.
    DirectoryMissing,
    /// The export has no record of the volume.
    RecordMissing,
    /// The record of the volume is damaged, belongs to another claim, or is in a state that forbids the operation.
    RecordUnusable,
    /// The annotations and the path of the volume contradict each other or the export.
    ReclaimUnsafe,
    /// The backend of the volume does not exist.
    ReclaimBackendMissing,
    /// The reclaim policy is neither Delete nor Retain.
    RecycleUnsupported,

    /// A directory was archived and its object created (event on the claim); the data of the archive exists.
    Archived,
    /// The data of the archive exists and can be restored.
    DataPresent,
    /// The archive has a legal hold.
    LegalHold,
    /// The archive has not expired.
    NotExpired,
    /// No rule purges the archive.
    KeptIndefinitely,
    /// The archive cannot be purged, because it has a legal hold.
    ArchiveHeld,
    /// The namespace has the maximum number of archives on the backend.
    ArchiveLimitReached,
    /// The directory of the archive does not exist at the recorded location.
    ArchiveMissing,
    /// Another object has the name of the archive.
    ArchiveNameTaken,
    /// The name is reserved for the archive of a deleted volume, and no export has a record of that archive.
    ArchiveNameReserved,
    /// The archive was purged (event).
    ArchivePurged,
    /// The object was deleted, and the data stay on the export (event).
    ArchiveReleased,
    /// The object was created for existing data on the export (event).
    ArchiveImported,
    /// The requested archive does not exist, or may not be restored to the namespace of the claim.
    ArchiveNotFound,
    /// The requested archive is being purged, deleted, or restored to another claim, or its volume still exists.
    ArchiveBusy,
    /// The claim requests less storage than the archive needs.
    ClaimTooSmall,
    /// The archive has expired.
    ArchiveExpired,
    /// The clocks of the operator and the API server disagree on whether an archive has expired (event).
    ClocksDisagree,
    /// The object of the archive was older than its record, which made its retention stricter (event).
    RetentionRestored,
    /// The archive is being restored.
    ArchiveRestoring,
    /// The archive was restored (event).
    ArchiveRestored,
    /// The backend does not let tenants of the namespace create backups.
    SelfServiceNotAllowed,
    /// Tenants have the maximum number or size of backups on the backend.
    BackupQuotaExceeded,
    /// The schedule requests backups at its times.
    Scheduled,
    /// The last scheduled time passed without backups.
    ScheduleMissed,
    /// The schedule requested no backup for some of its claims at the last time.
    ClaimsSkipped,
    /// The schedule selects no claims.
    NoClaimsSelected,
    /// The namespace has more schedules than are served.
    TooManySchedules,

    /// The volumes of the backend are being recreated from its records; claims wait until that is complete.
    Readopting,
    /// No recovery of volumes is requested.
    NothingToReadopt,
    /// All live records of the backend have a volume again.
    VolumesReadopted,
    /// Some records of the backend were skipped when its volumes were recreated.
    VolumesLeftOut,
    /// A recreated volume is reserved for the claim, and the control plane has not bound it yet.
    VolumeReserved,
    /// The record of the claim's previous volume was skipped when volumes were recreated.
    VolumeLeftOut,
    /// A volume in use is recorded for a claim of this name, and its object does not exist.
    RecordedVolumeMissing,

    /// The volume of the claim contains more data than requested.
    OverRequest,

    /// The limit of the volume is in force.
    LimitInForce,
    /// The limit of the volume was ordered and is not in force yet.
    LimitPending,
    /// The quota agent cannot set the limit of the volume.
    LimitFailed,
    /// The volume has a directory that several volumes share, whose size is not limited.
    SharedDirectoryUnlimited,

    /// A claim was provisioned (event of the ProvisionController library).
    ProvisioningSucceeded,
    /// A claim could not be provisioned (event of the ProvisionController library).
    ProvisioningFailed,
    /// Objects created for a claim could not be removed (event of the ProvisionController library).
    ProvisioningCleanupFailed,
    /// A volume was expanded (event of external-resizer).
    VolumeResizeSuccessful,
    /// A volume could not be expanded (event of external-resizer).
    VolumeResizeFailed,
    /// The scheduler was asked to select another node (event).
    Rescheduled,
    /// The server did not apply the default mode (event).
    ModeNotKept,
    /// A StorageClass under a provisioner alias has an unknown parameter, which is ignored (event).
    ParameterIgnored,
}

impl Reason {
    /// Returns the reason with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.to_string() == name)
    }

    /// Returns true for problems with the connection to the server.
    pub fn is_connectivity(self) -> bool {
        matches!(
            self,
            Self::NameResolutionFailed
                | Self::ConnectionRefused
                | Self::ConnectionTimedOut
                | Self::ServerUnreachable
                | Self::ServerNotResponding
                | Self::ConnectionLost
        )
    }

    /// Returns true for a lack of space, which tenants cause and end with what they write to their volumes.
    pub fn is_lack_of_space(self) -> bool {
        matches!(
            self,
            Self::NoSpace | Self::NoInodes | Self::QuotaExceeded | Self::CapacityExceeded
        )
    }

    /// Returns true if only a probe of the backend is missing. It is about to follow, and nobody has to do anything.
    pub fn awaits_probe(self) -> bool {
        matches!(self, Self::NotProbed | Self::ProbeOutdated)
    }

    /// Returns true if a backend that is Ready, or not, for this reason is as an administrator wants it.
    pub fn is_intended(self) -> bool {
        matches!(self, Self::AllChecksPassed | Self::Suspended | Self::Deleting)
    }

    /// Returns true if the export may be another one than the backend's: nobody should accept it without finding out why.
    pub fn is_export_in_doubt(self) -> bool {
        matches!(
            self,
            Self::IdentityMismatch | Self::BeaconMismatch | Self::RecordsSecretMismatch | Self::ReservedDirectoryUnsafe
        )
    }

    /// Returns true if no quota agent enforces sizes on the export.
    pub fn is_quota_agent_failure(self) -> bool {
        matches!(
            self,
            Self::QuotaAgentMissing
                | Self::QuotaAgentNotResponding
                | Self::QuotaAgentUntrusted
                | Self::QuotasNotSupported
        )
    }

    /// Returns true if a claim that waits for this reason needs whoever operates the platform. Otherwise, its author has
    /// to correct the claim or its data source, an administrator decided that it waits, or its data are being copied.
    pub fn is_platform_fault(self) -> bool {
        !matches!(
            self,
            Self::Suspended
                | Self::Deleting
                | Self::LimitExceeded
                | Self::NamespaceNotAllowed
                | Self::BlockVolumeUnsupported
                | Self::AccessModeUnsupported
                | Self::SelectorUnsupported
                | Self::AttributesClassUnsupported
                | Self::DataSourceUnsupported
                | Self::Copying
                | Self::CopySourceGone
                | Self::CopySourceNotReady
                | Self::CopySourceUnsuitable
                | Self::InvalidDirectoryName
                | Self::SnapshotUnavailable
                | Self::OverrideRefused
                | Self::InvalidOverride
                | Self::ArchiveNotFound
                | Self::ArchiveBusy
                | Self::ClaimTooSmall
                | Self::ArchiveExpired
        )
    }

    /// Returns true for refusals of a claim or backup that last until somebody changes it, its source or a setting. Time does
    /// not end them.
    pub fn lasts_until_changed(self) -> bool {
        matches!(
            self,
            Self::InvalidSpec
                | Self::InvalidParameter
                | Self::InvalidOverride
                | Self::OverrideRefused
                | Self::StorageClassNotFound
                | Self::BackendNotFound
                | Self::NamespaceNotAllowed
                | Self::SelfServiceNotAllowed
                | Self::BlockVolumeUnsupported
                | Self::AccessModeUnsupported
                | Self::SelectorUnsupported
                | Self::AttributesClassUnsupported
                | Self::DataSourceUnsupported
                | Self::CopySourceUnsuitable
                | Self::ArchiveNameTaken
                | Self::ArchiveNameReserved
                | Self::ArchiveExpired
                | Self::ClaimTooSmall
        )
    }

    /// Returns true for errors that affect the whole backend, or that leave open what was done: the backend is probed again,
    /// and the operation repeated.
    pub fn needs_probe(error: &ExportError) -> bool {
        Self::from(error.kind()).is_backend_wide() || error.outcome_unknown()
    }

    /// Returns true for problems that affect all claims of the backend: it is probed again, and its claims wait.
    pub fn is_backend_wide(self) -> bool {
        self.is_connectivity()
            || matches!(
                self,
                Self::NoSpace
                    | Self::NoInodes
                    | Self::QuotaExceeded
                    | Self::ReadOnly
                    | Self::AccessDenied
                    | Self::ReservedPortRequired
                    | Self::StaleHandle
                    | Self::ServerFault
                    | Self::IdentityMismatch
                    | Self::IdentityNotConfirmed
                    | Self::BeaconMismatch
                    | Self::BeaconObserved
                    | Self::RecordsSecretMismatch
                    | Self::ReservedDirectoryUnsafe
                    | Self::Fenced
            )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<ErrorKind> for Reason {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::AccessDenied => Self::AccessDenied,
            ErrorKind::ArchiveBusy => Self::ArchiveBusy,
            ErrorKind::ArchiveHeld => Self::ArchiveHeld,
            ErrorKind::ArchiveMissing => Self::ArchiveMissing,
            ErrorKind::ArchiveNotFound => Self::ArchiveNotFound,
            ErrorKind::BeaconMismatch => Self::BeaconMismatch,
            ErrorKind::BeaconObserved => Self::BeaconObserved,
            ErrorKind::ChangedMeanwhile => Self::ChangedMeanwhile,
            ErrorKind::ConnectionLost => Self::ConnectionLost,
            ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            ErrorKind::ConnectionTimedOut => Self::ConnectionTimedOut,
            ErrorKind::CopyFailed => Self::CopyFailed,
            ErrorKind::CopyNeedsChown => Self::CopyNeedsChown,
            ErrorKind::CopySourceGone => Self::CopySourceGone,
            ErrorKind::CopyTooLarge => Self::CopySourceUnsuitable,
            ErrorKind::CrossesFileSystems => Self::CrossesFileSystems,
            ErrorKind::DirectoryExists => Self::DirectoryExists,
            ErrorKind::DirectoryMissing => Self::DirectoryMissing,
            ErrorKind::DirectoryNotAdoptable => Self::DirectoryNotAdoptable,
            ErrorKind::DirectoryNotShareable => Self::DirectoryNotShareable,
            ErrorKind::DirectoryOverlaps => Self::DirectoryOverlaps,
            ErrorKind::ExportMoved => Self::ExportMoved,
            ErrorKind::ExportNotFound => Self::ExportNotFound,
            ErrorKind::Fenced => Self::Fenced,
            ErrorKind::GroupsExhausted => Self::GroupsExhausted,
            ErrorKind::IdMappingRequired => Self::IdMappingRequired,
            ErrorKind::IdentityMismatch => Self::IdentityMismatch,
            ErrorKind::IdentityNotConfirmed => Self::IdentityNotConfirmed,
            ErrorKind::InvalidDirectoryName => Self::InvalidDirectoryName,
            ErrorKind::LimitExceeded => Self::LimitExceeded,
            ErrorKind::ModeRefused => Self::ModeRefused,
            ErrorKind::NameResolutionFailed => Self::NameResolutionFailed,
            ErrorKind::NoInodes => Self::NoInodes,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::NotADirectory => Self::NotADirectory,
            ErrorKind::OwnerRefused => Self::OwnerRefused,
            ErrorKind::ProtocolNotSupported => Self::ProtocolNotSupported,
            ErrorKind::ProtocolViolation => Self::ProtocolViolation,
            ErrorKind::QuotaExceeded => Self::QuotaExceeded,
            ErrorKind::ReadOnly => Self::ReadOnly,
            ErrorKind::ReclaimUnsafe => Self::ReclaimUnsafe,
            ErrorKind::RecordMissing => Self::RecordMissing,
            ErrorKind::RecordNotAdopted => Self::RecordNotAdopted,
            ErrorKind::RecordUnusable => Self::RecordUnusable,
            ErrorKind::ReservedDirectoryUnsafe => Self::ReservedDirectoryUnsafe,
            ErrorKind::ReservedPortRequired => Self::ReservedPortRequired,
            ErrorKind::RootSquashed => Self::RootSquashed,
            ErrorKind::SecurityFlavorUnsupported => Self::SecurityFlavorUnsupported,
            ErrorKind::ServerFault => Self::ServerFault,
            ErrorKind::ServerNotResponding => Self::ServerNotResponding,
            ErrorKind::ServerRefused => Self::ServerRefused,
            ErrorKind::ServerUnreachable => Self::ServerUnreachable,
            ErrorKind::SharedDirectoryMissing => Self::SharedDirectoryMissing,
            ErrorKind::SnapshotUnavailable => Self::SnapshotUnavailable,
            ErrorKind::StaleHandle => Self::StaleHandle,
            ErrorKind::SubdirectoryMountRefused => Self::SubdirectoryMountRefused,
            ErrorKind::SymlinkInPath => Self::SymlinkInPath,
        }
    }
}
