//! Many short texts in one allocation.

use crate::compact_index::compact_index;

/// A text in a [`TextArena`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TextSpan {
    start: u32,
    length: u32,
}

/// Texts in one allocation, each without the bytes that an allocation of its own would take.
#[derive(Debug, Default)]
pub(crate) struct TextArena {
    bytes: String,
    /// Bytes of the texts that were removed.
    removed: usize,
}

/// Minimum size of an arena that is worth a copy.
const MIN_COPIED: usize = 4096;

impl TextArena {
    /// Stores a text.
    pub(crate) fn insert(&mut self, text: &str) -> TextSpan {
        let (start, length) = (compact_index(self.bytes.len()), compact_index(text.len()));
        if self.bytes.len() + text.len() > self.bytes.capacity() {
            // Twice as much, as a string grows by itself, would be unused for half of the texts.
            self.bytes.reserve_exact((self.bytes.len() / 8).max(text.len() + 64));
        }
        self.bytes.push_str(text);
        TextSpan { start, length }
    }

    /// Returns a text that was stored here.
    pub(crate) fn get(&self, text: TextSpan) -> &str {
        let (start, length) = (text.start as usize, text.length as usize);
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    /// Removes a text. Its bytes are free after the next copy.
    pub(crate) fn remove(&mut self, text: TextSpan) {
        self.removed += text.length as usize;
    }

    /// Moves `texts`, which must be all that were not removed, to an allocation without the removed ones, if these have
    /// half of the bytes.
    pub(crate) fn compact<'a>(&mut self, texts: impl Iterator<Item = &'a mut TextSpan>) {
        if self.removed <= (self.bytes.len() / 2).max(MIN_COPIED) {
            return;
        }
        let mut copy = Self::default();
        copy.bytes.reserve_exact(self.bytes.len().saturating_sub(self.removed));
        for text in texts {
            *text = copy.insert(self.get(*text));
        }
        *self = copy;
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn texts_that_remain_are_found_after_others_were_removed_and_the_memory_is_free() {
        let mut arena = TextArena::default();
        let text = |number: usize| format!("text-{number}");
        let mut spans: Vec<_> = (0..5000).map(|number| arena.insert(&text(number))).collect();
        let full = arena.bytes.len();
        for number in (0..5000).rev() {
            if number % 10 != 0 {
                arena.remove(spans[number]);
                spans.remove(number);
                arena.compact(spans.iter_mut());
            }
        }
        assert!(arena.bytes.len() < full / 2, "{} of {full}", arena.bytes.len());
        for (index, span) in spans.iter().enumerate() {
            assert_eq!(arena.get(*span), text(index * 10));
        }
    }
}
