//! The names that we keep on an export, and which names can be ours.
//!
//! ```text
//! .nfs-operator/identity                      the export's identity
//! .nfs-operator/<cluster id>/records/<volume> one record a volume
//! .nfs-operator/<cluster id>/trash/<volume>.<seconds>
//! .nfs-operator/<cluster id>/staging/<volume>/tree     a copy that is not complete
//! archived-…                                  archives
//! .nfs-operator-deleted-<volume>              tombstones, beside what could not be moved into the trash
//! ```

use crate::error::ExportError;
use nfs_client::Name;

/// Everything that we keep about an export, at its root.
pub const RESERVED: &str = ".nfs-operator";
/// In [`RESERVED`]: the export's identity.
pub const IDENTITY: &str = "identity";
/// In a cluster's folder: what the name of an identity begins with before it is published.
const IDENTITY_DRAFT: &str = "identity-draft-";
/// In a cluster's folder: the records.
pub const RECORDS: &str = "records";
/// In a cluster's folder: what is deleted and not purged.
pub const TRASH: &str = "trash";
/// In a cluster's folder: copies that are not complete.
pub const STAGING: &str = "staging";
/// In a volume's folder there: the copy.
pub const STAGED_TREE: &str = "tree";
/// Beside it: a name for each file that has several, by its fileid in the source.
pub const STAGED_LINKS: &str = "links";
/// What an archive's name begins with.
pub const ARCHIVED: &str = "archived-";

/// What a record is written to before it takes the place of the former one. No volume's name begins with a dot.
const DRAFT: &str = ".draft-";
/// What a tombstone's name begins with.
const TOMBSTONE: &str = ".nfs-operator-deleted-";
/// What the name of a probe's file begins with.
const PROBE: &str = "probe-";

/// The longest volume name that we keep records about, in bytes: with the longest prefix it stays below the 143
/// bytes that some servers take for a name. Provisioners name volumes `pvc-<uid>`, which is 40.
pub const LONGEST_VOLUME_NAME: usize = 110;

/// Names that begin so are left from a probe, or from the making of an identity, that was cut off.
pub fn is_leftover(name: &Name) -> bool {
    [PROBE, IDENTITY_DRAFT]
        .iter()
        .any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()))
}

/// Whether this is the draft of a record.
pub fn is_draft(name: &Name) -> bool {
    name.as_bytes().starts_with(DRAFT.as_bytes())
}

/// Whether an archive can have this name: `archived-` and then what a directory's segment may hold.
pub fn is_archive_name(name: &str) -> bool {
    name.strip_prefix(ARCHIVED).is_some_and(|rest| {
        !rest.is_empty()
            && name.len() <= 255
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    })
}

/// A name of ours; never fails for the constants above.
pub fn name(text: &str) -> Result<Name, ExportError> {
    Name::new(text.to_owned()).map_err(|error| ExportError::NameUnusable {
        name: text.to_owned(),
        why: error.to_string(),
    })
}

/// The name of an identity before it is published; each has its own, so that rivals don't take it from each other.
pub fn identity_draft(id: &str) -> Result<Name, ExportError> {
    name(&format!("{IDENTITY_DRAFT}{id}"))
}

/// The name of the folder of a cluster: its id, which is a uid.
pub fn cluster(id: &str) -> Result<Name, ExportError> {
    checked(id)
}

/// The name of a volume's record.
pub fn record(volume: &str) -> Result<Name, ExportError> {
    checked(volume)
}

/// The name of the draft of a volume's record.
pub fn draft(volume: &str) -> Result<Name, ExportError> {
    checked(volume).and_then(|_| name(&format!("{DRAFT}{volume}")))
}

/// The name of a volume's directory in the trash. The time keeps apart the directories of volumes of the same name.
pub fn trashed(volume: &str, since: i64) -> Result<Name, ExportError> {
    checked(volume).and_then(|_| name(&format!("{volume}.{since}")))
}

/// When an entry of the trash was deleted, in seconds since 1970.
pub fn trashed_since(name: &Name) -> Option<i64> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    text.rsplit_once('.')?.1.parse().ok()
}

/// The name of a volume's folder among the copies.
pub fn staged(volume: &str) -> Result<Name, ExportError> {
    checked(volume)
}

/// The name of a volume's tombstone.
pub fn tombstone(volume: &str) -> Result<Name, ExportError> {
    checked(volume).and_then(|_| name(&format!("{TOMBSTONE}{volume}")))
}

/// The name of a backend's probe file.
pub fn probe(backend_uid: &str) -> Result<Name, ExportError> {
    checked(backend_uid).and_then(|_| name(&format!("{PROBE}{backend_uid}")))
}

/// Names of Kubernetes objects are DNS subdomains; anything else can't be one, whoever asks.
fn checked(text: &str) -> Result<Name, ExportError> {
    let fits = text.len() <= LONGEST_VOLUME_NAME;
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let edges = edge(text.as_bytes().first()) && edge(text.as_bytes().last());
    let all = text
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
    if fits && edges && all {
        return name(text);
    }
    Err(ExportError::NameUnusable {
        name: text.chars().take(300).collect(),
        why: format!("a name of at most {LONGEST_VOLUME_NAME} lower-case letters, digits, `-` and `.` is needed"),
    })
}
