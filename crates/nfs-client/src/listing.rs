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
    has_advanced: bool,
    entries: Vec<Entry>,
}

impl PageBuilder {
    /// Starts the page at `from`, with the cookie verifier of the reply.
    pub fn new(from: Option<PageCookie>, verifier: [u8; 8]) -> Self {
        let mut position = from.unwrap_or_else(|| PageCookie::start(verifier));
        position.verifier = verifier;
        Self {
            position,
            has_advanced: false,
            entries: Vec::new(),
        }
    }

    /// Advances to the next entry.
    pub fn advance(&mut self, cookie: u64) -> Result<(), String> {
        // Some servers of version 3 number the entries from 0, which is also the position before the first one.
        if cookie == 0 && self.position.is_start() {
            return Ok(());
        }
        if self.position.advance(cookie) {
            self.has_advanced = true;
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
        if !self.has_advanced && !end {
            return Err("a page that leads no further and is not the last".to_owned());
        }
        Ok(Page {
            entries: self.entries,
            next: (!end).then_some(self.position),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn page(from: Option<PageCookie>, cookies: &[u64], end: bool) -> Result<Option<PageCookie>, String> {
        let mut page = PageBuilder::new(from, [0; 8]);
        for cookie in cookies {
            page.advance(*cookie)?;
        }
        page.finish(end).map(|page| page.next)
    }

    #[test]
    fn a_listing_whose_first_entry_has_the_cookie_0_continues_after_its_last_one() {
        let next = page(None, &[0, 1, 2], false).unwrap();
        assert!(next.is_some());
        assert_eq!(page(next, &[3], true), Ok(None));
        assert_eq!(page(None, &[0], true), Ok(None));
    }

    #[test]
    fn a_listing_that_starts_again_is_a_cycle() {
        assert!(page(None, &[0], false).is_err());
        assert!(page(None, &[], false).is_err());
        assert!(page(None, &[1, 0, 1], false).is_err());
        let next = page(None, &[0, 1], false).unwrap();
        assert!(page(next, &[0, 1], false).is_err());
        assert!(page(next, &[1], false).is_err());
    }
}
