//! External Data Representation (RFC 4506): encoding, and bounded decoding.

use bytes::{Buf, Bytes};

/// Why data from the wire could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The record ends within the item.
    #[error("{what} is truncated: {needed} bytes needed, {remaining} remaining")]
    Short {
        /// The item.
        what: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes remaining in the record.
        remaining: usize,
    },
    /// A length or count exceeds what the protocol or the client allows.
    #[error("{what} has a length of {length}, over the limit of {limit}")]
    TooLong {
        /// The item.
        what: &'static str,
        /// The length in the record.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A value out of range.
    #[error("{what} has the invalid value {value}")]
    Invalid {
        /// The item.
        what: &'static str,
        /// The value found.
        value: u32,
    },
}

/// Encodes a message. Encoding cannot fail.
#[derive(Debug, Default, Clone)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Returns an empty message.
    pub fn new() -> Self {
        Self(Vec::with_capacity(256))
    }

    /// Appends an unsigned integer or an enum.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends an unsigned hyper integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends a boolean.
    pub fn boolean(&mut self, value: bool) -> &mut Self {
        self.u32(u32::from(value))
    }

    /// Appends opaque data of a fixed length, padded to four bytes.
    pub fn fixed(&mut self, data: &[u8]) -> &mut Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends opaque data or a string of variable length.
    pub fn opaque(&mut self, data: &[u8]) -> &mut Self {
        // Nothing sent comes near 4 GiB: the request size of the session limits what callers pass.
        self.u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
        self.fixed(data)
    }

    /// Appends encoded bytes.
    pub fn raw(&mut self, encoded: &[u8]) -> &mut Self {
        self.0.extend_from_slice(encoded);
        self
    }

    /// Returns the length so far, in bytes.
    pub fn encoded_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes a message. Every length is checked against the remaining bytes before memory is allocated.
#[derive(Debug, Clone)]
pub struct Decoder(Bytes);

impl Decoder {
    /// Starts at the first byte of `data`.
    pub fn new(data: Bytes) -> Self {
        Self(data)
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes left.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn rest(&self) -> Bytes {
        self.0.clone()
    }

    fn need(&self, what: &'static str, needed: usize) -> Result<(), XdrError> {
        let remaining = self.0.len();
        if remaining < needed {
            Err(XdrError::Short {
                what,
                needed,
                remaining,
            })
        } else {
            Ok(())
        }
    }

    /// Decodes an unsigned integer or an enum.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, XdrError> {
        self.need(what, 4)?;
        Ok(self.0.get_u32())
    }

    /// Decodes an unsigned hyper integer.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, XdrError> {
        self.need(what, 8)?;
        Ok(self.0.get_u64())
    }

    /// Decodes a boolean: 0 or 1.
    pub fn boolean(&mut self, what: &'static str) -> Result<bool, XdrError> {
        match self.u32(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::Invalid { what, value }),
        }
    }

    /// Decodes opaque data of a fixed length.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], XdrError> {
        self.need(what, N.next_multiple_of(4))?;
        let mut data = [0; N];
        self.0.copy_to_slice(&mut data);
        self.0.advance(N.next_multiple_of(4) - N);
        Ok(data)
    }

    /// Decodes opaque data or a string of variable length, at most `limit` bytes.
    pub fn opaque(&mut self, what: &'static str, limit: usize) -> Result<Bytes, XdrError> {
        let length = self.u32(what)? as usize;
        if length > limit {
            return Err(XdrError::TooLong { what, length, limit });
        }
        self.need(what, length.next_multiple_of(4))?;
        let data = self.0.split_to(length);
        self.0.advance(length.next_multiple_of(4) - length);
        Ok(data)
    }

    /// Decodes the count of an array whose elements take at least `smallest` bytes each: never more than the bytes left can
    /// hold.
    pub fn count(&mut self, what: &'static str, smallest: usize) -> Result<usize, XdrError> {
        let length = self.u32(what)? as usize;
        let limit = self.0.len() / smallest.max(1);
        if length > limit {
            Err(XdrError::TooLong { what, length, limit })
        } else {
            Ok(length)
        }
    }
}
