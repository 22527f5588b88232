//! Names on an export: which ones are allowed, and how long ones are shortened. Pure.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::text::{hexadecimal, quoted};
use nfs_client::Name;
use nfs_client::address::{AddressError, ExportAddress, path_components};

/// Maximum length of a name on an NFS server, in bytes (`NAME_MAX` of common file systems).
pub const MAX_NAME_LEN: usize = 255;
/// Maximum length of a directory path, in bytes, including separators. The rest of `PATH_MAX` (4,096) is for the node,
/// which prepends its own path. A mount call takes at most 1,024 bytes (RFC 1813, `MNTPATHLEN`).
pub const MAX_PATH_LEN: usize = 1024;
/// Prefix of the names of archives.
pub const ARCHIVE_PREFIX: &str = "archived-";

/// Minimum name length that a server must support: with less, the part between the prefix and the suffix of an
/// archive's name would be meaningless. The lowest known limit is 143 bytes.
const SHORTEST_LIMIT: usize = 64;
/// Number of hexadecimal digits of the hash in a shortened name. A collision is harmless (the overlap is refused), so
/// 64 bits are enough.
const HASH_LENGTH: usize = 16;
/// Number of hexadecimal digits of the hash of a volume's UID in the name of an archive.
const UNIQUE_LENGTH: usize = 8;
/// Length that [`DirectoryPath::fit`] leaves free: the prefix, `-` and the unique part, `-` and a counter of two
/// digits.
const ARCHIVE_ROOM: usize = ARCHIVE_PREFIX.len() + 1 + UNIQUE_LENGTH + 1 + 2;

/// Names that belong to the operator or to servers, in lower case. The other rules refuse them, too. This list gives
/// the correct reason, and keeps refusing them if those rules are relaxed.
const RESERVED: &[&str] = &[".nfs-operator", ".snap", ".snapshot", ".zfs", "lost+found"];

/// Returns the name of a server's snapshot, if it is valid: letters, digits, and `._:@+-`, of which snapshot schedulers make
/// names. It does not begin with `.` or `-`.
pub fn snapshot_name(text: &str) -> Option<Name> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@+-".contains(&byte);
    let is_valid = !text.starts_with(['.', '-']) && text.len() <= MAX_NAME_LEN && text.bytes().all(is_allowed);
    Name::new(text.to_owned()).ok().filter(|_| is_valid)
}

/// A directory on an export, relative to the export's path: one or more valid segments.
///
/// Segments match `[A-Za-z0-9._-]`, so the path is ASCII. Use [`DirectoryPath::folded`] for comparisons without case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DirectoryPath(Vec<String>);

impl DirectoryPath {
    /// Parses `a/b/c`. Checks the names of directories to create, adopt, move or remove.
    ///
    /// # Errors
    /// The first segment that violates a rule, with the rule and the remedy.
    pub fn parse(text: &str) -> Result<Self, NamingError> {
        if text.is_empty() {
            return Err(NamingError::Empty);
        }
        Self::of_segments(text.split('/').map(str::to_owned).collect())
    }

    /// Checks a path that is split into segments already.
    fn of_segments(segments: Vec<String>) -> Result<Self, NamingError> {
        let length = length_of(&segments);
        if length > MAX_PATH_LEN {
            return Err(NamingError::PathTooLong { length });
        }
        if let Some(empty) = segments.iter().position(String::is_empty) {
            return Err(NamingError::EmptySegment {
                path: quoted(&segments.join("/")),
                position: empty + 1,
            });
        }
        segments.iter().try_for_each(|segment| {
            check_segment(segment)?;
            check_length(segment, MAX_NAME_LEN)
        })?;
        Ok(Self(segments))
    }

    /// Creates a directory path from segments, of which the last one may be too long: it is shortened so that the name of
    /// its archive fits in 255 bytes. For a server with a lower limit, call [`DirectoryPath::fit`] on the result.
    ///
    /// # Errors
    /// The path is too long, or a segment breaks a rule.
    pub fn from_segments(segments: Vec<String>) -> Result<Self, NamingError> {
        // Check the length before shortening: a name cut from a value of 256 KiB is never intended.
        let length = length_of(&segments);
        if length > MAX_PATH_LEN {
            return Err(NamingError::PathTooLong { length });
        }
        segments.iter().try_for_each(|segment| check_segment(segment))?;
        Self::of_segments(fitted(segments, MAX_NAME_LEN)?)
    }

    /// Returns the segments, at least one.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Returns the last segment: the directory's own name.
    pub fn last_segment(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// Returns the segments as names for the NFS client.
    pub fn names(&self) -> Vec<Name> {
        self.0
            .iter()
            .filter_map(|segment| Name::new(segment.clone()).ok())
            .collect()
    }

    /// Returns the segments in lower case: servers may fold case, so two paths that differ only in case count as one.
    pub fn folded(&self) -> Vec<String> {
        self.0.iter().map(|segment| segment.to_ascii_lowercase()).collect()
    }

    /// Reports whether the paths are the same, or one contains the other, ignoring case.
    pub fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.folded(), &other.folded())
    }

    /// Shortens the last segment so that the name of its archive fits on a server with a maximum name length of
    /// `name_max` bytes. A shortened segment ends with a hash of the whole path. The same path and limit give the same
    /// result.
    ///
    /// # Errors
    /// Another segment is longer than `name_max`, or `name_max` is too low.
    pub fn fit(self, name_max: usize) -> Result<Self, NamingError> {
        fitted(self.0, name_max).map(Self)
    }
}

impl fmt::Display for DirectoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// Returns the name at the export's root for the archive of a directory.
///
/// Attempt 0 is `archived-<last segment>`, like in nfs-subdir. Attempt 1 adds a part that is specific to the volume,
/// and later attempts add a counter. The name is never longer than `name_max`; values below 64 count as 64
/// ([`DirectoryPath::fit`] refuses such servers before anything is created on them).
pub fn archive_name(last_segment: &str, volume_uid: &str, attempt: u32, name_max: usize) -> String {
    let unique = hash(volume_uid, UNIQUE_LENGTH);
    let suffix = match attempt {
        0 => String::new(),
        1 => format!("-{unique}"),
        counter => format!("-{unique}-{counter}"),
    };
    let limit = name_max.clamp(SHORTEST_LIMIT, MAX_NAME_LEN);
    let room = limit.saturating_sub(ARCHIVE_PREFIX.len() + suffix.len());
    let name = shortened(last_segment, room, last_segment);
    format!("{ARCHIVE_PREFIX}{name}{suffix}")
}

/// Reports whether a name on a server looks like an archive's. Ignores case, because servers may fold case.
pub fn is_archive_name(name: &[u8]) -> bool {
    name.get(..ARCHIVE_PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(ARCHIVE_PREFIX.as_bytes()))
}

/// Reason why a path is not valid as the export path of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportPathError {
    /// The path is invalid on every server.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The path leads into the operator's data on another export.
    #[error("path {0} leads into the operator's folder on an export: use the path of the export itself")]
    Reserved(String),
}

/// Checks the path of an export before it is sent to a server.
///
/// # Errors
/// The first component that violates a rule.
pub fn check_export_path(path: &str) -> Result<(), ExportPathError> {
    path_components(path)?;
    match path.split('/').any(is_reserved_for_operator) {
        true => Err(ExportPathError::Reserved(quoted(path))),
        false => Ok(()),
    }
}

/// Parses `SERVER:/PATH`, with an IPv6 address in brackets.
///
/// # Errors
/// The part that violates a rule.
pub fn parse_export_address(text: &str) -> Result<ExportAddress, ExportPathError> {
    let address = ExportAddress::parse(text)?;
    check_export_path(&address.path)?;
    Ok(address)
}

/// Reports whether two paths, as segments in lower case, are the same, or one contains the other.
pub(crate) fn overlap(one: &[String], other: &[String]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Reports whether a path component is the operator's folder on an export, or a tombstone. Ignores case, because
/// servers may fold case.
fn is_reserved_for_operator(component: &str) -> bool {
    let folded = component.to_ascii_lowercase();
    folded == ".nfs-operator" || folded.starts_with(".nfs-operator-")
}

/// Reason why a text is not a valid directory name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamingError {
    /// The name is empty.
    #[error("the directory's name is empty: name at least one segment below the export")]
    Empty,
    /// Two consecutive separators, or one at the beginning or end.
    #[error("segment {position} of {path} is empty: name it relative to the export, with single `/` between segments")]
    EmptySegment {
        /// The path, shortened for display.
        path: String,
        /// Number of the segment, starting with 1.
        position: usize,
    },
    /// A character that is not allowed.
    #[error("segment {segment} holds {character:?}: only letters, digits, `.`, `_` and `-` are allowed")]
    ForbiddenCharacter {
        /// The segment, shortened for display.
        segment: String,
        /// The first character that is not allowed.
        character: char,
    },
    /// `.`, `..`, hidden names, and names that Windows servers would truncate.
    #[error("segment {segment} begins or ends with `.`: begin and end it with another character")]
    DotAtEnd {
        /// The segment, shortened for display.
        segment: String,
    },
    /// A name that is reserved for the operator or for servers.
    #[error("segment {segment} is reserved for the operator or the server: choose another name")]
    Reserved {
        /// The segment.
        segment: String,
    },
    /// A name like that of an archive.
    #[error("segment {segment} begins with `{ARCHIVE_PREFIX}`, as only archives do: choose another name")]
    ArchivePrefix {
        /// The segment, shortened for display.
        segment: String,
    },
    /// The segment is longer than the limit.
    #[error("segment {segment} has {length} bytes and at most {limit} are possible: shorten it")]
    SegmentTooLong {
        /// The segment, shortened for display.
        segment: String,
        /// Length of the segment in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The path is too long.
    #[error(
        "the directory's path has {length} bytes and at most {MAX_PATH_LEN} are allowed: shorten the pattern or its values"
    )]
    PathTooLong {
        /// Length of the path in bytes.
        length: usize,
    },
    /// The server's maximum name length is too low.
    #[error(
        "the server supports names of at most {limit} bytes, and at least {SHORTEST_LIMIT} are required: use another file system"
    )]
    NameLimitTooSmall {
        /// The server's limit in bytes.
        limit: usize,
    },
}

/// Checks a segment against all rules except the maximum length.
///
/// # Errors
/// The rule that the segment violates.
pub fn check_segment(segment: &str) -> Result<(), NamingError> {
    if RESERVED.iter().any(|name| segment.eq_ignore_ascii_case(name)) {
        return Err(NamingError::Reserved {
            segment: quoted(segment),
        });
    }
    check_alphabet(segment)?;
    if segment.starts_with('.') || segment.ends_with('.') {
        return Err(NamingError::DotAtEnd {
            segment: quoted(segment),
        });
    }
    check_archive_prefix(segment)
}

/// Checks that a text contains only characters that segments may contain.
///
/// # Errors
/// The first character that is not allowed.
pub fn check_alphabet(segment: &str) -> Result<(), NamingError> {
    let forbidden = |character: &char| !(character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-'));
    match segment.chars().find(forbidden) {
        Some(character) => Err(NamingError::ForbiddenCharacter {
            segment: quoted(segment),
            character,
        }),
        None => Ok(()),
    }
}

/// Checks that a segment does not start like the name of an archive.
///
/// # Errors
/// The segment starts like the name of an archive.
pub fn check_archive_prefix(segment: &str) -> Result<(), NamingError> {
    if is_archive_name(segment.as_bytes()) {
        return Err(NamingError::ArchivePrefix {
            segment: quoted(segment),
        });
    }
    Ok(())
}

/// Checks the length of one segment.
///
/// # Errors
/// The segment is longer than `limit` bytes.
pub fn check_length(segment: &str, limit: usize) -> Result<(), NamingError> {
    if segment.len() > limit {
        return Err(NamingError::SegmentTooLong {
            segment: quoted(segment),
            length: segment.len(),
            limit,
        });
    }
    Ok(())
}

/// Returns the segments with the last one shortened as described at [`DirectoryPath::fit`].
fn fitted(mut segments: Vec<String>, name_max: usize) -> Result<Vec<String>, NamingError> {
    if name_max < SHORTEST_LIMIT {
        return Err(NamingError::NameLimitTooSmall { limit: name_max });
    }
    let limit = name_max.min(MAX_NAME_LEN);
    let whole = segments.join("/");
    let last = segments.pop().ok_or(NamingError::Empty)?;
    segments.iter().try_for_each(|segment| check_length(segment, limit))?;
    segments.push(shortened(&last, limit.saturating_sub(ARCHIVE_ROOM), &whole));
    Ok(segments)
}

/// Returns `name` or, if it is longer than `room` bytes, its beginning and a hash of `whole`. `room` is never below 35
/// ([`SHORTEST_LIMIT`] minus the longest prefix and suffix).
fn shortened(name: &str, room: usize, whole: &str) -> String {
    if name.len() <= room {
        return name.to_owned();
    }
    let end = name.floor_char_boundary(room.saturating_sub(HASH_LENGTH + 1));
    let start = name.get(..end).unwrap_or_default();
    format!("{start}-{}", hash(whole, HASH_LENGTH))
}

/// Returns the first `length` digits of the hexadecimal SHA-256 hash of `text`.
pub(crate) fn hash(text: &str, length: usize) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut digits = hexadecimal(&digest);
    digits.truncate(length);
    digits
}

fn length_of(segments: &[String]) -> usize {
    segments.iter().map(String::len).sum::<usize>() + segments.len().saturating_sub(1)
}

#[cfg(test)]
mod tests;
