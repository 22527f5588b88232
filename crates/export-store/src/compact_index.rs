//! Indexes in four bytes.

use std::alloc::{Layout, handle_alloc_error};

/// Returns an index of something in memory in four bytes. A process with four billion volumes is out of memory, and ends as
/// if an allocation failed: an index that is wrong would hide a path.
pub(crate) fn compact_index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u32; 1 << 30]>()))
}
