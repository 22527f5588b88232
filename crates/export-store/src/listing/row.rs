//! Types of an export listing.

use serde::Serialize;

use crate::record::State;
use crate::text::truncate;

/// The longest name of a Kubernetes object, in bytes.
const LONGEST_TEXT: usize = 253;

/// What lies on an export.
#[derive(Debug, Default)]
pub struct ExportListing {
    /// Identity of the export; unset if it has none, or an invalid one.
    pub identity: Option<String>,
    /// In the order of clusters and volumes; what has no record comes last.
    pub rows: Vec<ListedDirectory>,
    /// What could not be looked at, and why.
    pub unseen: Vec<String>,
}

/// Result of checking the signature of a row's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Signature {
    /// The key says that its cluster wrote it.
    Signed,
    /// It has none: an earlier release or another client wrote it.
    Unsigned,
    /// It has one that the key says is wrong: changed, copied from elsewhere, or another cluster's.
    Wrong,
    /// It has one, and no key was given.
    Unchecked,
    /// There is no record, or none that can be read.
    None,
}

/// Whether a directory is at its recorded path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It is.
    There,
    /// Something else has its name.
    Other,
    /// Nothing has.
    Missing,
    /// No path is known.
    Unknown,
}

/// One record, or one archive without any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedDirectory {
    /// The cluster whose record it is; empty without one.
    pub cluster: String,
    /// The volume, by the record's name; empty without one.
    pub volume: String,
    /// The record's state; `Damaged` when it can't be read, `Unrecorded` without one.
    pub state: &'static str,
    /// Where the data are: an archive's name, else the volume's directory.
    pub directory: String,
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub claim: String,
    /// The backend's name.
    pub backend: String,
    /// When it was archived, in seconds since 1970.
    pub archived_at: Option<i64>,
    /// What the claim had asked for, of an archive.
    pub size: Option<String>,
    /// Whether the directory is there.
    pub presence: Presence,
    /// Whether the record is signed.
    pub signature: Signature,
    /// Why a record can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the directory should be there: not while it is being made or removed.
    #[serde(skip)]
    pub expected: bool,
}

impl ListedDirectory {
    /// Whether a person should look.
    pub fn is_odd(&self) -> bool {
        self.why.is_some()
            || self.cluster.is_empty()
            || (self.expected && self.presence != Presence::There)
            || self.signature == Signature::Wrong
    }
}

/// A text as far as it is shown.
pub(super) fn text(text: &str) -> String {
    truncate(text, LONGEST_TEXT).to_owned()
}

/// A row of which nothing is known but that.
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

/// The state as records spell it.
pub(super) fn state(state: &State) -> &'static str {
    match state {
        State::Creating => "Creating",
        State::Live => "Live",
        State::RemovingEmpty => "RemovingEmpty",
        State::Archiving(_) => "Archiving",
        State::Archived(_) => "Archived",
        State::Copying(_) => "Copying",
        State::Purging { .. } => "Purging",
        State::Restoring { .. } => "Restoring",
        State::Deleting { .. } => "Deleting",
        State::Tombstone { .. } => "Tombstone",
    }
}
