//! Condition types and reasons: what `kubectl describe` shows.

use std::fmt;

pub use super::verdict::PlannedCondition;
use export_store::ErrorKind;

/// The condition types of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendCondition {
    /// The summary: claims can be provisioned here.
    Ready,
    /// The server answers and the export is there.
    Reachable,
    /// Directories can be made and removed.
    Writable,
    /// There is room for new volumes.
    CapacityAvailable,
    /// The export is the one that it was.
    IdentityConfirmed,
    /// Nothing that was deleted is stuck.
    TrashPurged,
    /// Every directory has its volume, and every volume its directory.
    NoOrphans,
    /// The volumes that were lost with their cluster are there again.
    Readopted,
    /// No record is there that this cluster did not sign.
    RecordsTrusted,
}

impl fmt::Display for BackendCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The condition types of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArchiveCondition {
    /// The data are where they should be, and can be restored.
    Available,
    /// Its time is over.
    Expired,
    /// It is on its way into the trash.
    Purging,
    /// It is on its way to a volume.
    Restoring,
    /// The data are not where they should be.
    Missing,
}

impl fmt::Display for ArchiveCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition is as it is, or an event was sent. Each failure that a person can meet has its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, for the documentation's completeness.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

reasons! {
    /// All is well.
    Ready,
    /// The server's name does not resolve.
    NameResolutionFailed,
    /// Nothing listens at the server's port.
    ConnectionRefused,
    /// No answer to the connection request.
    ConnectionTimedOut,
    /// No route to the server.
    ServerUnreachable,
    /// Connected, and calls are not answered.
    ServerNotResponding,
    /// The connection broke, and the reply with it.
    ConnectionLost,
    /// The server speaks none of the versions asked for.
    ProtocolNotSupported,
    /// The server's answers make no sense.
    ProtocolViolation,
    /// The server wants another security flavour than `sys`.
    SecurityFlavorUnsupported,
    /// The export's path is not there.
    ExportNotFound,
    /// The export's path leads to another server.
    ExportMoved,
    /// The server mounts only whole exports, not directories below.
    SubdirectoryMountRefused,
    /// The export's path leads through a symbolic link.
    SymlinkInPath,
    /// The export's path is no directory.
    NotADirectory,
    /// The server refuses us.
    AccessDenied,
    /// The server refuses us, and we had no reserved port.
    ReservedPortRequired,
    /// Something that was asked for needs root, and the server squashes it.
    RootSquashed,
    /// The export is read-only.
    ReadOnly,
    /// No space left.
    NoSpace,
    /// No inodes left.
    NoInodes,
    /// The quota is used up.
    QuotaExceeded,
    /// The server no longer knows the export's root.
    StaleHandle,
    /// The export isn't the one that it was.
    IdentityMismatch,
    /// `.nfs-operator` on the export is not as we made it.
    ReservedDirectoryUnsafe,
    /// The server reports an error of its disks.
    ServerFault,
    /// The server refuses a call for a reason that has no name of its own here.
    ServerRefused,
    /// What was looked at is another thing by now.
    ChangedMeanwhile,
    /// The directory is not on the file system of the export's root.
    CrossesFileSystems,
    /// The identity was not read yet on the present connection.
    IdentityNotConfirmed,
    /// An administrator suspended the backend.
    Suspended,
    /// The backend is being deleted.
    Deleting,
    /// The backend's last probe is too old to be believed.
    ProbeOutdated,
    /// The backend was not probed yet.
    NotProbed,
    /// Another operator took over.
    Fenced,
    /// A field of the spec cannot be used.
    InvalidSpec,
    /// Nodes may be unable to resolve the server's name.
    NodesMayNotResolve,
    /// What was asked is outside a limit.
    LimitExceeded,
    /// Some of what was deleted could not be purged.
    TrashStuck,
    /// Nothing waits to be purged.
    TrashEmpty,
    /// What was deleted is being purged.
    Purging,
    /// The last scan found no directory, volume or record alone.
    NoOrphansFound,
    /// The last scan found some.
    OrphansFound,
    /// The export was not scanned for orphans yet.
    NotScanned,
    /// Every record of this cluster that has no volume is signed.
    RecordsSigned,
    /// Records are there that this cluster did not sign: nothing is made of them.
    RecordsUnsigned,
    /// A record was adopted on an administrator's word (event).
    RecordAdopted,
    /// A record was not adopted (event).
    RecordNotAdopted,

    /// The claim has its volume.
    Provisioned,
    /// The claim is being provisioned.
    Provisioning,
    /// The claim is placed, and the outcome of a call on its backend is not known yet.
    OutcomeUnknown,
    /// No backend can serve the claim now.
    NoBackendAvailable,
    /// The class names backends that do not exist.
    BackendNotFound,
    /// The namespace may not use any of the backends.
    NamespaceNotAllowed,
    /// The backends that the claim may use lack the room that it asks for.
    CapacityExceeded,
    /// The scheduler selected a node that no backend serves.
    NodeNotServed,
    /// The class's topologies and the backends' node affinities have no node in common.
    TopologyMismatch,
    /// The claim's StorageClass does not exist.
    StorageClassNotFound,
    /// The StorageClass has a parameter that we don't know, or a value that it can't have.
    InvalidParameter,
    /// Volumes are file systems here: no block devices.
    BlockVolumeUnsupported,
    /// NFS can't keep a volume to one pod.
    AccessModeUnsupported,
    /// A selector asks for an existing volume.
    SelectorUnsupported,
    /// VolumeAttributesClasses are not supported.
    AttributesClassUnsupported,
    /// The data source is not supported.
    DataSourceUnsupported,
    /// The claim's volume is being copied from another one or an archive.
    Copying,
    /// A copy failed, and is begun anew.
    CopyFailed,
    /// A copy keeps the owners of files, and the operator may not give files away.
    CopyNeedsChown,
    /// What was copied was removed meanwhile.
    CopySourceGone,
    /// The claim or archive to copy is not there, not bound, or can't be read now.
    CopySourceNotReady,
    /// The claim to copy can't be copied to this one.
    CopySourceUnsuitable,
    /// The pattern can't be made into a directory's name.
    InvalidDirectoryName,
    /// The directory is there and is not ours.
    DirectoryExists,
    /// The directory would overlap another volume, archive or backend.
    DirectoryOverlaps,
    /// The server did not keep the mode.
    ModeRefused,
    /// The server did not keep the owner.
    OwnerRefused,
    /// The server maps owners by name and does not know the number.
    IdMappingRequired,
    /// An annotation on the claim asks for what its backend does not allow.
    OverrideRefused,
    /// An annotation on the claim has a value that it can't have.
    InvalidOverride,
    /// The API server refused the volume for good.
    VolumeRefused,
    /// Another object has the volume's name.
    VolumeNameTaken,
    /// The claim's volume is gone.
    VolumeLost,

    /// The volume's data was archived.
    VolumeArchived,
    /// The volume's data was deleted.
    VolumeDeleted,
    /// The volume's data was left in place.
    VolumeRetained,
    /// The volume's data could not be reclaimed.
    VolumeFailedDelete,
    /// The volume's directory is nowhere.
    DirectoryMissing,
    /// The export has no record of the volume.
    RecordMissing,
    /// The volume's record on the export is damaged, another claim's, or in a state that forbids what was asked.
    RecordUnusable,
    /// The volume's annotations and its path contradict each other, or what is on the export.
    ReclaimUnsafe,
    /// The volume's backend does not exist.
    ReclaimBackendMissing,
    /// Recycle is not supported.
    RecycleUnsupported,

    /// A directory was archived, and its object made (event on the claim); the archive's data are there.
    Archived,
    /// The archive is held.
    ArchiveHeld,
    /// The archive's directory is not where it should be.
    ArchiveMissing,
    /// Another object has the archive's name.
    ArchiveNameTaken,
    /// The archive was purged (event).
    ArchivePurged,
    /// The archive that a claim asks for does not exist.
    ArchiveNotFound,
    /// The archive that a claim asks for is not for its namespace.
    ArchiveNotAllowed,
    /// The archive that a claim asks for is being purged, deleted, or restored to another claim.
    ArchiveBusy,
    /// The claim asks for less than its archive holds.
    ClaimTooSmall,
    /// The archive's time is over.
    ArchiveExpired,
    /// The operator's clock and the API server's differ in whether an archive's time is over (event).
    ClocksDisagree,
    /// The archive is being restored.
    ArchiveRestoring,
    /// The archive was restored (event).
    ArchiveRestored,

    /// The volumes of a backend are being made again from its records; claims wait for that.
    Readopting,
    /// Every live record of a backend has its volume again.
    VolumesReadopted,
    /// Some records of a backend were left out when its volumes were made again.
    VolumesLeftOut,
    /// A volume that was made again is there for the claim, and the control plane has not bound it yet.
    VolumeReserved,
    /// The record of a volume that was the claim's was left out when volumes were made again.
    VolumeLeftOut,

    /// The claim's volume holds more than it asked for.
    OverRequest,

    /// A claim is provisioned (event of the ProvisionController library).
    ProvisioningSucceeded,
    /// A claim could not be provisioned (event of the ProvisionController library).
    ProvisioningFailed,
    /// What was made for a claim could not be removed (event of the ProvisionController library).
    ProvisioningCleanupFailed,
    /// A claim got more (event of external-resizer).
    VolumeResizeSuccessful,
    /// A claim could not get more (event of external-resizer).
    VolumeResizeFailed,
    /// The selected node was given back to the scheduler (event).
    Rescheduled,
    /// The server did not keep the default mode (event).
    ModeNotKept,
    /// A class under an alias has a parameter that means nothing (event).
    ParameterIgnored,
}

impl Reason {
    /// Whether it speaks of the way to the server, and not of what was asked.
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
}

impl Reason {
    /// Whether it speaks of the backend as a whole, so that a probe should look and the others' claims be spared.
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
            ErrorKind::ArchiveNotAllowed => Self::ArchiveNotAllowed,
            ErrorKind::ArchiveNotFound => Self::ArchiveNotFound,
            ErrorKind::ChangedMeanwhile => Self::ChangedMeanwhile,
            ErrorKind::ConnectionLost => Self::ConnectionLost,
            ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            ErrorKind::ConnectionTimedOut => Self::ConnectionTimedOut,
            ErrorKind::CopyFailed => Self::CopyFailed,
            ErrorKind::CopyNeedsChown => Self::CopyNeedsChown,
            ErrorKind::CopySourceGone => Self::CopySourceGone,
            ErrorKind::CrossesFileSystems => Self::CrossesFileSystems,
            ErrorKind::DirectoryExists => Self::DirectoryExists,
            ErrorKind::DirectoryMissing => Self::DirectoryMissing,
            ErrorKind::DirectoryOverlaps => Self::DirectoryOverlaps,
            ErrorKind::ExportMoved => Self::ExportMoved,
            ErrorKind::ExportNotFound => Self::ExportNotFound,
            ErrorKind::Fenced => Self::Fenced,
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
            ErrorKind::StaleHandle => Self::StaleHandle,
            ErrorKind::SubdirectoryMountRefused => Self::SubdirectoryMountRefused,
            ErrorKind::SymlinkInPath => Self::SymlinkInPath,
        }
    }
}
