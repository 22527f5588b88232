//! State of a directory, and metadata of an archive, in a record.

use serde::{Deserialize, Serialize};

use crate::request::ClaimRef;

/// Attributes of a directory from before it was archived, and metadata of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveState {
    /// Name of the archive at the export's root.
    pub target: String,
    /// Original permission bits of the directory.
    pub mode: u32,
    /// Original owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Original group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Time of the decision to archive the directory, in seconds since 1970; unset in records of release 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// Creation time of the volume, in seconds since 1970, by the API server's clock: the age of the data. Unset as above,
    /// and if the age of the data is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_created: Option<i64>,
    /// Retention, in seconds, that was in effect when the directory was archived; unset as above, and if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<i64>,
    /// Size of the volume, as a quantity; unset as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// StorageClass of the volume; unset as above, and if the volume had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Retention terms of the archive.
    #[serde(default)]
    pub terms: RetentionTerms,
    /// Revision of the object that the terms are from; unset in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<TermsRevision>,
    /// Source of the copy; unset if the archive is the volume's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyState>,
    /// The object was deleted and the data were kept: no object is created until somebody imports the archive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// Source of an archive that is a requested copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyState {
    /// The copied volume.
    pub volume: String,
    /// UID of the requesting object. Another object of the same name starts its own copy.
    #[serde(rename = "askedBy")]
    pub requested_by: String,
    /// What was copied and what was left out, as text; unset until the copy is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What was copied, as numbers; unset as above, and in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<CopiedAmount>,
    /// Manifest of the copy; unset as above, and if nothing confirms it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestRef>,
    /// Part of the copy that is complete; only until all of it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Snapshot of the server that was copied; unset as above, and if the data were copied while in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CopiedSnapshot>,
    /// Files of the copy may be hard links to those of other copies, so that nobody may ever write to them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_files: bool,
}

/// Snapshot that was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopiedSnapshot {
    /// Its name.
    pub name: String,
    /// A time before the snapshot, by the server's clock, in seconds since 1970; unset if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_after: Option<i64>,
}

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopiedAmount {
    /// Names: files, links and directories.
    pub files: u64,
    /// Size of the content, in bytes.
    pub bytes: u64,
    /// Files that are hard links to those of the previous copy.
    pub reused_files: u64,
    /// Size of these files, in bytes.
    pub reused_bytes: u64,
}

/// Reference to the manifest of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestRef {
    /// Position of the root chunk in the manifest's file, in bytes.
    pub offset: u64,
    /// Length of the root chunk, in bytes.
    pub length: u32,
    /// SHA-256 of the root chunk, in hexadecimal.
    pub sha256: String,
}

/// Part of an unfinished copy that is complete, for the next attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Fileid of the root of the copy.
    pub tree: u64,
    /// Manifest of the part that is complete.
    pub manifest: ManifestRef,
    /// What it saves the next attempt, in bytes. Only compared with that of other checkpoints of the same copy.
    pub saving: u64,
}

impl ArchiveState {
    /// Returns the same archive with these terms of an object. It is not released: it has an object.
    #[must_use]
    pub fn with_terms(&self, terms: &RetentionTerms, revision: Option<&TermsRevision>) -> Self {
        Self {
            terms: terms.clone(),
            revision: revision.cloned(),
            released: false,
            ..self.clone()
        }
    }

    /// Reports whether files may be hard links to those of other archives.
    pub fn shares_files(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.shares_files)
    }

    /// Reports whether the terms are from this object, whatever its generation.
    pub fn is_bound_to(&self, object: &TermsRevision) -> bool {
        self.revision
            .as_ref()
            .is_some_and(|recorded| recorded.uid == object.uid && !recorded.uid.is_empty())
    }

    /// Reports whether the terms are these, and from this object, and this revision is not older than the one that they
    /// are from.
    pub fn has_terms_of(&self, terms: &RetentionTerms, object: &TermsRevision) -> bool {
        let recorded = self.revision.as_ref().map(|recorded| recorded.generation);
        self.terms == *terms
            && self.is_bound_to(object)
            && recorded.is_some_and(|recorded| recorded <= object.generation)
    }
}

/// Retention terms from the archive's object, stored so that a lost object can be recreated with them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetentionTerms {
    /// The archive is on legal hold and is not purged.
    pub held: bool,
    /// Time of expiration, in seconds since 1970; never if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// Deleting the object deletes the data.
    pub delete: bool,
}

/// Revision of the object that retention terms are from. It shows if an object is older than the record, for example after
/// etcd was restored from a backup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TermsRevision {
    /// UID of the object; empty if the terms are those that the operator chose for a new archive.
    pub uid: String,
    /// Generation of the object.
    pub generation: i64,
}

/// Target of the restore of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreTarget {
    /// The volume that gets the data.
    pub volume: String,
    /// The claim of that volume.
    pub claim: ClaimRef,
    /// Path of the volume's directory, relative to the export's path.
    pub directory: String,
}

/// State of a directory. Each state is recorded before the step that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name")]
pub enum State {
    /// The directory is being created.
    Creating,
    /// The directory exists, and its attributes were checked. A volume uses it, or will.
    Live,
    /// The empty directory is being removed, or was removed.
    RemovingEmpty,
    /// The directory is being renamed to an archive.
    Archiving(ArchiveState),
    /// The directory is an archive.
    Archived(ArchiveState),
    /// A copy is being made, or was made, that becomes an archive. The record's directory is the source.
    Copying(ArchiveState),
    /// The archive is being renamed into the trash, or was.
    Purging {
        /// Metadata of the archive.
        archive: ArchiveState,
        /// Time of the decision, in seconds since 1970. It is part of the name in the trash and has no other use.
        since: i64,
    },
    /// The archive is being renamed to a volume's directory, or was.
    Restoring {
        /// Metadata of the archive.
        archive: ArchiveState,
        /// Target of the restore.
        to: RestoreTarget,
    },
    /// The directory is being renamed into the trash, or was.
    Deleting {
        /// Time of the decision, in seconds since 1970. It is part of the name in the trash and has no other use.
        since: i64,
    },
    /// The directory is being renamed to a tombstone beside it, or was, because it cannot be moved into the trash.
    Tombstone {
        /// Time of the decision, in seconds since 1970.
        since: i64,
    },
}

impl State {
    /// Reports whether the directory belongs to a volume, or is about to.
    pub fn belongs_to_volume(&self) -> bool {
        matches!(self, Self::Creating | Self::Live)
    }

    /// Returns the metadata of the archive that the directory is, or is until the announced step.
    pub fn archive(&self) -> Option<&ArchiveState> {
        match self {
            Self::Archived(archive) | Self::Purging { archive, .. } | Self::Restoring { archive, .. } => Some(archive),
            _ => None,
        }
    }

    /// Returns the metadata of the archive that the directory is, was or becomes.
    pub fn archive_info(&self) -> Option<&ArchiveState> {
        match self {
            Self::Archiving(archive) | Self::Copying(archive) => Some(archive),
            other => other.archive(),
        }
    }

    /// Returns the state as text.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Creating => "being made",
            Self::Live => "in use",
            Self::RemovingEmpty => "being removed, because it is empty",
            Self::Archiving(_) => "being archived",
            Self::Archived(_) => "archived",
            Self::Copying(_) => "a copy that is being made",
            Self::Purging { .. } => "an archive that is being purged",
            Self::Restoring { .. } => "an archive that is being restored",
            Self::Deleting { .. } | Self::Tombstone { .. } => "being deleted",
        }
    }
}
