//! The words of a directory's listing: entries, pages, and where the next page begins.

use super::{FileKind, FsId, Name};

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The entry's name.
    pub name: Name,
    /// Kind; absent when the server could not tell (`rdattr_error`).
    pub kind: Option<FileKind>,
    /// Size in bytes; absent as for `kind`.
    pub size: Option<u64>,
    /// Number in its file system; absent as for `kind`. For a mount point this is the covered directory's.
    pub fileid: Option<u64>,
    /// File system; absent as for `kind`. Differs from its directory's when another file system begins here.
    pub fsid: Option<FsId>,
    /// Bytes on the disk; absent as for `kind`, when the server doesn't say, and when it wasn't asked
    /// ([`Export::list_with_usage`](super::Export::list_with_usage)).
    pub used: Option<u64>,
    /// Number of hard links; absent as for `used`.
    pub links: Option<u32>,
}

/// A part of a directory's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries, in the server's order.
    pub entries: Vec<Entry>,
    /// Where the next page begins; absent at the end.
    pub next: Option<PageCookie>,
}

/// The server's mark for the place where a listing goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCookie {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
    /// A cookie passed earlier: meeting it again means that the listing goes in circles (Brent's algorithm).
    mark: u64,
    /// Entries since `mark`, and how many there may be before it is set anew.
    steps: u64,
    stride: u64,
}

impl PageCookie {
    /// The beginning of a listing.
    pub(crate) fn start(verifier: [u8; 8]) -> Self {
        // Cookie 0 is never an entry's (RFC 8881 section 18.23.3).
        Self {
            cookie: 0,
            verifier,
            mark: 0,
            steps: 0,
            stride: 1,
        }
    }

    /// Goes on past the entry with this cookie; false when the listing came by there before. However long a listing
    /// is, a circle in it is noticed within three times its length.
    pub(crate) fn advance(&mut self, cookie: u64) -> bool {
        if cookie == self.mark || cookie == self.cookie {
            return false;
        }
        self.cookie = cookie;
        self.steps += 1;
        if self.steps >= self.stride {
            (self.mark, self.steps, self.stride) = (cookie, 0, self.stride.saturating_mul(2));
        }
        true
    }
}
