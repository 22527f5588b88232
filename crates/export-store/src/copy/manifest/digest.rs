//! Checksums of content: SHA-256 of each block, and of the digests of all blocks if there are several. The blocks of a
//! large file are read concurrently, so that one hash over all of it would have to keep parts in memory.

use ring::digest::{Context, SHA256, digest};

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// Size of a block, in bytes. The last one may be shorter.
pub(crate) const BLOCK: u64 = 1 << 20;

/// Returns the digest of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    to_array(digest(&SHA256, bytes))
}

fn to_array(digest: ring::digest::Digest) -> Digest {
    let mut array = Digest::default();
    // SHA-256 has 32 bytes.
    for (to, from) in array.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    array
}

/// Digest of a file's content, from the digests of its blocks in order.
pub(crate) struct ContentDigest {
    blocks: Context,
    first: Option<Digest>,
    count: u64,
    length: u64,
}

/// Digest of a block while its parts are read in order.
pub(crate) struct BlockDigest {
    context: Context,
    length: u64,
}

impl BlockDigest {
    pub(crate) fn new() -> Self {
        Self {
            context: Context::new(&SHA256),
            length: 0,
        }
    }

    /// Adds bytes that follow.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Returns the digest and the number of bytes.
    pub(crate) fn finish(self) -> (Digest, u64) {
        (to_array(self.context.finish()), self.length)
    }
}

impl ContentDigest {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Context::new(&SHA256),
            first: None,
            count: 0,
            length: 0,
        }
    }

    /// Adds the next block.
    pub(crate) fn add(&mut self, (block, length): (Digest, u64)) {
        self.blocks.update(&block);
        self.first.get_or_insert(block);
        self.count += 1;
        self.length += length;
    }

    /// Returns the digest if the blocks have `size` bytes.
    pub(crate) fn finish(self, size: u64) -> Option<Digest> {
        match (self.length == size, self.count) {
            (false, _) => None,
            (true, 0) => Some(digest_of(b"")),
            (true, 1) => self.first,
            (true, _) => Some(to_array(self.blocks.finish())),
        }
    }
}
