//! The pages of a directory's listing, as they are decoded.

use bytes::Bytes;

use crate::{Entry, Name, Page, PageCookie};

/// Maximum length of a name on the wire, in bytes, so that the error for an invalid name can show it.
pub const MAX_NAME: usize = 4096;

/// Minimum size of a page, in bytes: an entry with the longest name fits.
pub const MIN_PAGE: u32 = 1024;

/// A page that is being decoded. Errors are the cause of a protocol error.
#[derive(Debug)]
pub struct PageBuilder {
    position: PageCookie,
    is_empty: bool,
    entries: Vec<Entry>,
}

impl PageBuilder {
    /// Starts the page at `from`, with the cookie verifier of the reply.
    pub fn new(from: Option<PageCookie>, verifier: [u8; 8]) -> Self {
        let mut position = from.unwrap_or_else(|| PageCookie::start(verifier));
        position.verifier = verifier;
        Self {
            position,
            is_empty: true,
            entries: Vec::new(),
        }
    }

    /// Advances to the next entry.
    pub fn advance(&mut self, cookie: u64) -> Result<(), String> {
        self.is_empty = false;
        if self.position.advance(cookie) {
            return Ok(());
        }
        Err(format!("the listing is a cycle (cookie {cookie})"))
    }

    /// Decodes the name of an entry.
    pub fn name(name: &[u8]) -> Result<Name, String> {
        // Names outlive the page; a slice would keep the whole of it in memory.
        Name::new(Bytes::copy_from_slice(name))
            .map_err(|error| format!("invalid name of an entry, \"{}\": {error}", name.escape_ascii()))
    }

    /// Appends an entry.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Number of entries so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the page. `end`: no page follows.
    pub fn finish(self, end: bool) -> Result<Page, String> {
        if self.is_empty && !end {
            return Err("a page without entries that is not the last".to_owned());
        }
        Ok(Page {
            entries: self.entries,
            next: (!end).then_some(self.position),
        })
    }
}
