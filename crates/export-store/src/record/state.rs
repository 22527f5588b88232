//! How far a directory is, and what a record says of an archive.

use serde::{Deserialize, Serialize};

use crate::request::ClaimRef;

/// What a directory was before it was archived, and what was agreed about the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveState {
    /// The archive's name at the export's root.
    pub target: String,
    /// Permission bits that the directory had.
    pub mode: u32,
    /// Owner that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// When it was decided to archive it, in seconds since 1970; absent in records of release 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// The volume's size, as a quantity; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The volume's StorageClass; absent as above, and when it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What was agreed about the archive.
    #[serde(default)]
    pub terms: RetentionTerms,
    /// What it is a copy of; absent when it is the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyState>,
}

/// What an archive is a copy of, which was made because somebody asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyState {
    /// The volume that was copied.
    pub volume: String,
    /// The uid of the object that asked: another one of that name begins its own.
    pub asked_by: String,
    /// What was copied and what was not, in words; absent as long as it is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

impl ArchiveState {
    /// The same archive, with these terms.
    #[must_use]
    pub fn on(&self, terms: &RetentionTerms) -> Self {
        Self {
            terms: terms.clone(),
            ..self.clone()
        }
    }
}

/// What the archive's object says shall become of it, so that an object that is lost comes back with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetentionTerms {
    /// It is held: nobody purges it.
    pub held: bool,
    /// When it expires, in seconds since 1970; absent = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// Deleting the object deletes the data.
    pub delete: bool,
}

/// Where an archive is being restored to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreTarget {
    /// The volume that gets the data.
    pub volume: String,
    /// The claim that the volume is for.
    pub claim: ClaimRef,
    /// The volume's directory, relative to the export's path.
    pub directory: String,
}

/// How far a directory is. Each state is written before the step that it names is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name")]
pub enum State {
    /// It is being made.
    Creating,
    /// It is there and judged; a volume has it or is about to.
    Live,
    /// It is empty and being removed, or was.
    RemovingEmpty,
    /// It is being renamed to an archive.
    Archiving(ArchiveState),
    /// It is an archive.
    Archived(ArchiveState),
    /// It is a copy that is being made, or was, and becomes an archive. The record's directory is the one that is copied.
    Copying(ArchiveState),
    /// It is an archive that is being renamed into the trash, or was.
    Purging {
        /// The archive.
        archive: ArchiveState,
        /// When that was decided, in seconds since 1970; part of the name in the trash, and nothing hangs on it.
        since: i64,
    },
    /// It is an archive that is being renamed to a volume's directory, or was.
    Restoring {
        /// The archive.
        archive: ArchiveState,
        /// Whose it becomes.
        to: RestoreTarget,
    },
    /// It is being renamed into the trash, or was.
    Deleting {
        /// When that was decided, in seconds since 1970; part of the name in the trash, and nothing hangs on it.
        since: i64,
    },
    /// It is being renamed to a tombstone beside it, or was, because it can't be moved into the trash.
    Tombstone {
        /// As above.
        since: i64,
    },
}

impl State {
    /// Whether the directory is, or is about to be, a volume's.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Creating | Self::Live)
    }

    /// The archive that the directory is, or is until the step that is announced.
    pub fn archive(&self) -> Option<&ArchiveState> {
        match self {
            Self::Archived(archive) | Self::Purging { archive, .. } | Self::Restoring { archive, .. } => Some(archive),
            _ => None,
        }
    }

    /// The archive that the directory is, was, or becomes.
    pub fn note(&self) -> Option<&ArchiveState> {
        match self {
            Self::Archiving(note) | Self::Copying(note) => Some(note),
            other => other.archive(),
        }
    }

    /// The state in words.
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
