//! The content of a regular file: pages, and holes between them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of a page, in bytes; space is charged by the page.
pub const PAGE: u64 = 4096;

/// The content of a regular file. Clones share their pages until one of them changes, so that a snapshot is cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pages: BTreeMap<u64, Arc<[u8]>>,
    size: u64,
}

/// Splits a range into (page, offset in the page, length), page by page.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset.saturating_add(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % PAGE;
        let length = (PAGE - within).min(end - at);
        let piece = (at / PAGE, within as usize, length as usize);
        at += length;
        Some(piece)
    })
}

impl Content {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Disk usage in bytes.
    pub fn used(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Returns the bytes of a range, as far as the file has them.
    pub fn read(&self, offset: u64, count: u64) -> Vec<u8> {
        let count = count.min(self.size.saturating_sub(offset));
        let mut bytes = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        for (page, within, length) in pieces(offset, count) {
            match self.pages.get(&page).and_then(|page| page.get(within..within + length)) {
                Some(data) => bytes.extend_from_slice(data),
                None => bytes.resize(bytes.len() + length, 0),
            }
        }
        bytes
    }

    /// Returns the whole content.
    pub fn bytes(&self) -> Vec<u8> {
        self.read(0, self.size)
    }

    /// Number of pages that a write to this range would add.
    pub fn missing_pages(&self, offset: u64, length: u64) -> u64 {
        pieces(offset, length)
            .filter(|(page, ..)| !self.pages.contains_key(page))
            .count() as u64
    }

    /// Writes at an offset; a gap before it becomes a hole.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (number, within, length) in pieces(offset, data.len() as u64) {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            let mut page = match self.pages.get(&number) {
                Some(page) => page.to_vec(),
                None => vec![0; PAGE as usize],
            };
            if let Some(place) = page.get_mut(within..within + piece.len()) {
                place.copy_from_slice(piece);
            }
            self.pages.insert(number, page.into());
        }
        self.size = self.size.max(offset.saturating_add(data.len() as u64));
    }

    /// Cuts or extends the file; what is added is a hole.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            let last = size / PAGE;
            let _ = self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(page) = self.pages.get(&last) {
                let mut page = page.to_vec();
                if let Some(tail) = page.get_mut((size % PAGE) as usize..) {
                    tail.fill(0);
                }
                self.pages.insert(last, page.into());
            }
        }
        self.size = size;
    }

    /// Returns the next offset with data, or the next in a hole; the end of the file counts as a hole (RFC 7862 section 11.5).
    pub fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        let mut at = offset;
        while at < self.size {
            if self.pages.contains_key(&(at / PAGE)) == data {
                return Some(at);
            }
            at = (at / PAGE + 1) * PAGE;
        }
        (!data).then_some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zeros_and_take_no_space() {
        let mut content = Content::default();
        content.write(2 * PAGE + 10, b"data");
        assert_eq!((content.size(), content.used()), (2 * PAGE + 14, PAGE));
        assert_eq!(content.seek(0, true), Some(2 * PAGE));
        assert_eq!(content.seek(2 * PAGE, false), Some(content.size()));
        assert_eq!(content.read(2 * PAGE + 8, 100), b"\0\0data");
        content.set_size(2 * PAGE + 12);
        content.set_size(3 * PAGE);
        assert_eq!(content.read(2 * PAGE + 10, 4), b"da\0\0");
        assert_eq!(content.seek(3 * PAGE, true), None);
    }

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut content = Content::default();
        content.write(0, b"before");
        let snapshot = content.clone();
        content.write(0, b"after!");
        assert_eq!(snapshot.bytes(), b"before");
    }
}
