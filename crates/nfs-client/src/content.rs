//! What a file holds and all that is known about it: the words in which trees are copied.

use bytes::Bytes;

use super::{Attributes, FileHandle};

/// A moment, as a file system keeps it: seconds since 1970, and nanoseconds below 1,000,000,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970; before it, negative. NFSv3 has none before 1970 or after 2106.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// When an object was last read and changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Times {
    /// Last read.
    pub accessed: Time,
    /// Content last changed.
    pub modified: Time,
}

/// All attributes that a copy keeps or needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullAttributes {
    /// Those of every node.
    pub attributes: Attributes,
    /// Its times.
    pub times: Times,
    /// Another one after each change of the object (RFC 8881 section 5.8.1.4; in NFSv3 the ctime).
    pub change: u64,
    /// When anything of it but the time of reading was changed last (ctime); absent where the server does not tell.
    pub altered: Option<Time>,
    /// Bytes that it takes on the disk; fewer than its size where it has holes.
    pub used: u64,
}

impl FullAttributes {
    /// What a later look is compared with.
    pub fn change_token(&self) -> ChangeToken {
        ChangeToken {
            change: self.change,
            size: self.attributes.size,
            modified: self.times.modified,
            altered: self.altered,
        }
    }
}

/// What tells whether a file was changed between two looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeToken {
    pub(super) change: u64,
    pub(super) size: u64,
    pub(super) modified: Time,
    pub(super) altered: Option<Time>,
}

impl ChangeToken {
    /// Whether the file was changed between the two. A change attribute that moved alone says that it was read: some file
    /// systems move it with the time of reading, and nothing but that leaves size, mtime and ctime as they are.
    pub fn differs_from(&self, other: &Self) -> bool {
        let times = |mark: &Self| (mark.size, mark.modified, mark.altered);
        self.change != other.change && (self.altered.is_none() || times(self) != times(other))
    }
}

/// What a name led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupResult {
    /// The handle.
    pub handle: FileHandle,
    /// Its attributes.
    pub details: FullAttributes,
    /// The beginning of a regular file, and its mark after it was read; absent when it is no regular file, or could not be
    /// read.
    pub begin: Option<(Data, ChangeToken)>,
}

/// Bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The bytes: fewer than asked for where the server likes, none only at the end of the file.
    pub bytes: Bytes,
    /// The server says that the file ends with them.
    pub end: bool,
}

/// What a WRITE came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes taken, at least one.
    pub count: usize,
    /// They are on stable storage already.
    pub stable: bool,
    /// The server's life: when it is another one at the COMMIT, what was not stable may be lost (RFC 8881 section 18.3).
    pub verifier: [u8; 8],
}

/// What a copy on the server came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Bytes copied, from the beginning of what was asked for: servers copy less at a time as they like; 0 at the end of
    /// the source.
    pub count: u64,
    /// They are on stable storage already.
    pub stable: bool,
    /// As in [`Written`]; none after a copy that the server did in the background without saying.
    pub verifier: Option<[u8; 8]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_as_changed_unless_nothing_but_its_change_attribute_moved() {
        let at = |seconds| Time { seconds, nanos: 0 };
        let before = ChangeToken {
            change: 1,
            size: 10,
            modified: at(5),
            altered: Some(at(6)),
        };
        let read = ChangeToken { change: 2, ..before };
        for (what, after, changed) in [
            ("not touched", before, false),
            ("read", read, false),
            ("cut", ChangeToken { size: 9, ..read }, true),
            (
                "written",
                ChangeToken {
                    modified: at(7),
                    ..read
                },
                true,
            ),
            (
                "written, and its mtime put back",
                ChangeToken {
                    altered: Some(at(7)),
                    ..read
                },
                true,
            ),
        ] {
            assert_eq!(after.differs_from(&before), changed, "{what}");
        }
        let untold = |mark: ChangeToken| ChangeToken { altered: None, ..mark };
        assert!(untold(read).differs_from(&untold(before)), "no ctime to tell it by");
        assert!(!untold(before).differs_from(&untold(before)));
    }
}
