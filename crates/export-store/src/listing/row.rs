//! Types of an export listing.

use serde::Serialize;

use crate::record::State;
use crate::text::truncate;

/// Maximum length of the name of a Kubernetes object, in bytes.
const MAX_TEXT_LEN: usize = 253;

/// Result of listing an export.
#[derive(Debug, Default)]
pub struct ExportListing {
    /// Identity of the export; unset if it has none, or an invalid one.
    pub identity: Option<String>,
    /// Sorted by cluster and volume. Directories without a record come last.
    pub rows: Vec<ListedDirectory>,
    /// Parts that could not be read, and the reasons.
    pub unseen: Vec<String>,
}

/// Result of checking the signature of a row's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Signature {
    /// The signature is valid: its cluster wrote the record.
    Valid,
    /// There is no signature: an earlier release or another client wrote the record.
    Missing,
    /// The signature is invalid: the record was changed, copied from elsewhere, or signed with another key.
    Invalid,
    /// There is a signature, and no key was given to verify it.
    Unchecked,
    /// There is no readable record.
    None,
}

/// Presence of a directory at its recorded path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Presence {
    /// The directory is at its path.
    Present,
    /// Something else has its name.
    Replaced,
    /// Nothing has its name.
    Missing,
    /// The presence could not be determined, or no path is known.
    Unknown,
}

/// A record, or an archive without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedDirectory {
    /// ID of the cluster that has the record; empty without one.
    pub cluster: String,
    /// Name of the volume in the record; empty without one.
    pub volume: String,
    /// State of the record; `Damaged` if it cannot be read, `Unrecorded` if there is none.
    pub state: &'static str,
    /// Path of the data: the archive's name, or else the volume's directory.
    pub directory: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// Name of the backend.
    pub backend: String,
    /// Time of the decision to archive it, in seconds since 1970.
    #[serde(skip)]
    pub archived_at: Option<i64>,
    /// Size of the volume, for an archive.
    #[serde(rename = "requestedSize")]
    pub size: Option<String>,
    /// Presence of the directory.
    pub presence: Presence,
    /// Result of checking the record's signature.
    pub signature: Signature,
    /// Reason why the record cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The directory should exist; false while it is being created or removed.
    #[serde(skip)]
    pub expected: bool,
}

impl ListedDirectory {
    /// Reports whether the row needs attention.
    pub fn needs_attention(&self) -> bool {
        self.why.is_some()
            || self.cluster.is_empty()
            || (self.expected && self.presence != Presence::Present)
            || self.signature == Signature::Invalid
    }
}

/// Truncates a text for display.
pub(super) fn text(text: &str) -> String {
    truncate(text, MAX_TEXT_LEN).to_owned()
}

/// Returns a row with only a state.
pub(super) fn nothing(state: &'static str) -> ListedDirectory {
    ListedDirectory {
        cluster: String::new(),
        volume: String::new(),
        state,
        directory: String::new(),
        namespace: String::new(),
        claim: String::new(),
        backend: String::new(),
        archived_at: None,
        size: None,
        presence: Presence::Unknown,
        signature: Signature::None,
        why: None,
        expected: true,
    }
}

/// Returns the state as records spell it. `Released` is an archive that is kept without an object.
pub(super) fn state(state: &State) -> &'static str {
    match state {
        State::Creating => "Creating",
        State::Live => "Live",
        State::RemovingEmpty => "RemovingEmpty",
        State::Archiving(_) => "Archiving",
        State::Archived(archive) if archive.released => "Released",
        State::Archived(_) => "Archived",
        State::Copying(_) => "Copying",
        State::Purging { .. } => "Purging",
        State::Restoring { .. } => "Restoring",
        State::Deleting { .. } => "Deleting",
        State::Tombstone { .. } => "Tombstone",
    }
}
