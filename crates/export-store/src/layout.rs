//! Names that the operator uses on an export, and checks of such names.
//!
//! ```text
//! .nfs-operator/identity                      the export's identity
//! .nfs-operator/<cluster ID>/records/<volume> one record per volume
//! .nfs-operator/<cluster ID>/parents/<hash>   one record per parent directory in a pattern
//! .nfs-operator/<cluster ID>/beacon           a nonce that is renewed constantly
//! .nfs-operator/<cluster ID>/reserve          space for records on a full export
//! .nfs-operator/<cluster ID>/trash/<namespace>_<volume>.<seconds>
//! .nfs-operator/<cluster ID>/staging/<volume>/tree     a copy that is not complete
//! .nfs-operator/<cluster ID>/staging/<volume>/manifest its manifest, if it becomes a backup
//! .nfs-operator/<cluster ID>/manifests/<volume> manifest of a backup
//! .nfs-operator/<cluster ID>/quota/orders/<volume>     the size that the operator wants for a volume
//! .nfs-operator/<cluster ID>/quota/reports/<volume>    the limit that is in force, written by the quota agent
//! .nfs-operator/<cluster ID>/quota/agent               heartbeat of the quota agent
//! .nfs-operator/<cluster ID>/quota/usage               usage of all volumes, written by the quota agent
//! archived-…                                  archives
//! .nfs-operator-deleted-<volume>              tombstones, beside directories that cannot be moved into the trash
//! ```

use crate::error::ExportError;
use crate::request::ClaimRef;
use nfs_client::Name;

/// Folder with all data of the operator about an export, at the export's root.
pub const RESERVED: &str = ".nfs-operator";
/// File in [`RESERVED`] with the export's identity.
pub const IDENTITY: &str = "identity";
/// Prefix, in a cluster's folder, of the file name of an unpublished identity.
const IDENTITY_DRAFT: &str = "identity-draft-";
/// File, in a cluster's folder, with the beacon.
pub const BEACON: &str = "beacon";
/// Prefix, in a cluster's folder, of the file that becomes the beacon.
const BEACON_DRAFT: &str = "beacon-draft-";
/// File, in a cluster's folder, that is given up to make room for records on a full export.
pub const RESERVE: &str = "reserve";
/// Spare file for a record, in the cluster's folder. No volume has such a name.
pub const SPARE: &str = ".spare";
/// The next spare file, while a record is replaced.
pub const NEXT_SPARE: &str = ".spare-next";
/// Folder, in a cluster's folder, with the records.
pub const RECORDS: &str = "records";
/// Folder, in a cluster's folder, with deleted directories that are not purged yet.
pub const TRASH: &str = "trash";
/// Folder, in a cluster's folder, with unfinished copies.
pub const STAGING: &str = "staging";
/// Folder, in a cluster's folder, with the records of the parent directories that the operator made.
pub const PARENTS: &str = "parents";
/// Folder, in a volume's staging folder, with the copy.
pub const STAGED_TREE: &str = "tree";
/// Folder beside the copy, with a name for each file that has several hard links, by its fileid in the source.
pub const STAGED_LINKS: &str = "links";
/// File beside the copy, with its manifest.
pub const STAGED_MANIFEST: &str = "manifest";
/// Folder beside the copy of a backup, with what an interrupted attempt left.
pub const STAGED_FORMER: &str = "former";
/// Folder beside the copy of a backup, with what is about to be moved into the trash.
pub const STAGED_DISCARDED: &str = "discarded";
/// Folder, in a cluster's folder, with the manifests of backups.
pub const MANIFESTS: &str = "manifests";
/// Folder, in a cluster's folder, that the operator and the quota agent share.
pub const QUOTA: &str = "quota";
/// Folder, in [`QUOTA`], with what the operator wants for each volume.
pub const QUOTA_ORDERS: &str = "orders";
/// Folder, in [`QUOTA`], with what is in force for each volume.
pub const QUOTA_REPORTS: &str = "reports";
/// File, in [`QUOTA`], with the heartbeat of the quota agent.
pub const QUOTA_AGENT: &str = "agent";
/// File, in [`QUOTA`], with the usage of all volumes.
pub const QUOTA_USAGE: &str = "usage";
/// Prefix of the names of archives.
pub const ARCHIVED: &str = "archived-";

/// Prefix of the file to which a record is written before it replaces the previous one. No volume name begins with a
/// dot.
const DRAFT: &str = ".draft-";
/// Prefix of the names of tombstones.
const TOMBSTONE: &str = ".nfs-operator-deleted-";
/// Separates, in the names of the trash, the namespace from the volume. Neither contains it.
const SEPARATOR: char = '_';
/// Prefix of the names, within the trash, of directories that were moved up from a great depth.
const RAISED: &str = ".nfs-operator-deep-";
/// Prefix of the names of probe files.
const PROBE: &str = "probe-";
/// Prefix of the names of files that show the server's clock.
const CLOCK: &str = "clock-";

/// Maximum length of a name on some servers, in bytes.
const MAX_NAME_LEN: usize = 143;

/// Maximum length of a volume name with a record, in bytes: with the longest prefix, it stays below [`MAX_NAME_LEN`]. Provisioners use names such as `pvc-<uid>` with 40 bytes.
pub const MAX_VOLUME_NAME_LEN: usize = 110;

/// Reports whether a file was left by an interrupted probe, look at the clock, or creation of an identity.
pub fn is_leftover(name: &Name) -> bool {
    [PROBE, CLOCK, IDENTITY_DRAFT, BEACON_DRAFT]
        .iter()
        .any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()))
}

/// Reports whether a file is the draft of a record.
pub fn is_draft(name: &Name) -> bool {
    name.as_bytes().starts_with(DRAFT.as_bytes())
}

/// Reports whether a name is valid for an archive: `archived-`, followed by characters that a directory's segment may
/// contain.
pub fn is_archive_name(name: &str) -> bool {
    name.strip_prefix(ARCHIVED).is_some_and(|rest| {
        !rest.is_empty()
            && name.len() <= 255
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    })
}

/// Creates a name. Never fails for the constants above.
pub fn name(text: &str) -> Result<Name, ExportError> {
    Name::new(text.to_owned()).map_err(|error| ExportError::NameUnusable {
        name: text.to_owned(),
        why: error.to_string(),
    })
}

/// Returns the name of an unpublished identity. It contains the identity's ID, so that concurrent processes do not use
/// the same file.
pub fn identity_draft(id: &str) -> Result<Name, ExportError> {
    name(&format!("{IDENTITY_DRAFT}{id}"))
}

/// Returns the name of a cluster's folder: the cluster's ID, which is a UID.
pub fn cluster(id: &str) -> Result<Name, ExportError> {
    checked(id)
}

/// Returns the name of a volume's record.
pub fn record(volume: &str) -> Result<Name, ExportError> {
    checked(volume)
}

/// Returns the name of the draft of a volume's record.
pub fn draft(volume: &str) -> Result<Name, ExportError> {
    checked(volume).and_then(|_| name(&format!("{DRAFT}{volume}")))
}

/// Returns the volume of a record's draft.
pub fn drafted_volume(name: &Name) -> Option<&str> {
    std::str::from_utf8(name.as_bytes()).ok()?.strip_prefix(DRAFT)
}

/// Returns the name of a volume's directory in the trash. The namespace of the claim is in it, because the namespaces
/// take turns. The time distinguishes directories of volumes with the same name.
pub fn trashed(claim: &ClaimRef, volume: &str, since: i64) -> Result<Name, ExportError> {
    in_trash(&claim.namespace, volume, &since.to_string())
}

/// Returns the name in the trash of a volume's directory that is deleted without a record of the deletion. It contains
/// the fileid, so that it says what the record would.
pub fn trashed_unrecorded(claim: &ClaimRef, volume: &str, file_id: u64) -> Result<Name, ExportError> {
    in_trash(&claim.namespace, volume, &format!("f{file_id}"))
}

/// A namespace that is too long for the name is truncated; namespaces with the same beginning then share their turns.
fn in_trash(namespace: &str, volume: &str, suffix: &str) -> Result<Name, ExportError> {
    checked(volume)?;
    let own = format!("{volume}.{suffix}");
    let room = MAX_NAME_LEN.saturating_sub(own.len() + SEPARATOR.len_utf8());
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match namespace.get(..room.min(namespace.len())) {
        Some(namespace) if !namespace.is_empty() && namespace.bytes().all(is_label) => {
            name(&format!("{namespace}{SEPARATOR}{own}"))
        }
        // The record is damaged: the directory shares the turns of those without a namespace.
        _ => name(&own),
    }
}

/// Returns the deletion time of a trash entry, in seconds since 1970.
pub fn trashed_since(name: &Name) -> Option<i64> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    text.rsplit_once('.')?.1.parse().ok()
}

/// Returns the volume that a trash entry is named after.
pub fn trashed_volume(name: &Name) -> Option<&str> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let own = text.split_once(SEPARATOR).map_or(text, |(_, own)| own);
    own.rsplit_once('.').map(|(volume, _)| volume)
}

/// Returns the namespace in the name of a trash entry; empty if it contains none.
pub fn trashed_namespace(name: &Name) -> &str {
    let text = std::str::from_utf8(name.as_bytes()).unwrap_or_default();
    text.split_once(SEPARATOR).map_or("", |(namespace, _)| namespace)
}

/// Returns a name for a directory that is moved to the top of its tree in the trash. It is random, because clients may
/// still create names there.
pub fn raised() -> Result<Name, ExportError> {
    name(&format!("{RAISED}{:032x}", rand::random::<u128>()))
}

/// Returns the name of a volume's staging folder.
pub fn staged(volume: &str) -> Result<Name, ExportError> {
    checked(volume)
}

/// Returns the name of a volume's tombstone.
pub fn tombstone(volume: &str) -> Result<Name, ExportError> {
    checked(volume).and_then(|_| name(&format!("{TOMBSTONE}{volume}")))
}

/// Returns the name of a backend's probe file.
pub fn probe(backend_uid: &str) -> Result<Name, ExportError> {
    checked(backend_uid).and_then(|_| name(&format!("{PROBE}{backend_uid}")))
}

/// Returns the name of the file with which a backup of a backend's volume reads the server's clock.
pub fn clock(backend_uid: &str) -> Result<Name, ExportError> {
    checked(backend_uid).and_then(|_| name(&format!("{CLOCK}{backend_uid}")))
}

/// Returns the name of a backup's manifest, by its record.
pub fn manifest(record: &str) -> Result<Name, ExportError> {
    checked(record)
}

/// Returns the name of the file that becomes the beacon, by the backend that writes it.
pub fn beacon_draft(backend_uid: &str) -> Result<Name, ExportError> {
    checked(backend_uid).and_then(|_| name(&format!("{BEACON_DRAFT}{backend_uid}")))
}

/// Checks a name. Names of Kubernetes objects are DNS subdomains, so any other name is refused.
fn checked(text: &str) -> Result<Name, ExportError> {
    let fits = text.len() <= MAX_VOLUME_NAME_LEN;
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
        why: format!("a name of at most {MAX_VOLUME_NAME_LEN} lower-case letters, digits, `-` and `.` is needed"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_name_in_the_trash_contains_the_namespace_the_volume_and_the_time() {
        let claim = |namespace: &str| ClaimRef {
            namespace: namespace.to_owned(),
            namespace_uid: String::new(),
            name: String::new(),
            uid: String::new(),
        };
        let (long, longest) = ("v".repeat(MAX_VOLUME_NAME_LEN), "n".repeat(63));
        for (namespace, volume, expected) in [
            ("team", "pvc-1", "team_pvc-1.7"),
            ("", "pvc-1", "pvc-1.7"),
            ("../team", "pvc-1", "pvc-1.7"),
            ("a_b", "pvc-1", "pvc-1.7"),
            ("ä", "pvc-1", "pvc-1.7"),
            ("team", "pvc.with.dots", "team_pvc.with.dots.7"),
            (&longest, &long, &format!("{}_{long}.7", "n".repeat(30))),
        ] {
            let name = trashed(&claim(namespace), volume, 7).unwrap();
            assert_eq!(name.to_string(), expected);
            assert_eq!((trashed_volume(&name), trashed_since(&name)), (Some(volume), Some(7)));
            let found = trashed_namespace(&name);
            assert!(
                namespace.starts_with(found) && found.is_empty() != expected.contains('_'),
                "{expected}"
            );
        }
        let name = trashed_unrecorded(&claim("team"), "pvc-1", 9).unwrap();
        assert_eq!(name.to_string(), "team_pvc-1.f9");
        assert_eq!((trashed_volume(&name), trashed_since(&name)), (Some("pvc-1"), None));
        assert!(trashed(&claim("team"), "../pvc-1", 7).is_err());
    }
}
