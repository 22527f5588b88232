//! RPC records in a byte stream (record marking, RFC 5531 section 11).

use std::io;

/// Maximum size of a record. NFS servers send a few megabytes at most, so a larger record is not RPC.
const MAX_RECORD: usize = 64 << 20;
/// The bit in a fragment's header that marks the last fragment of a record.
const LAST_FRAGMENT: u32 = 1 << 31;

/// A unit that the proxy forwards.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The bytes as received, including record marks.
    pub(super) raw: Vec<u8>,
    /// The record without its marks; empty if the bytes are not a record.
    pub(super) record: Vec<u8>,
}

impl Chunk {
    /// Returns bytes that are not parsed.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            raw: bytes.to_vec(),
            record: Vec::new(),
        }
    }
}

/// Collects bytes until a record is complete.
#[derive(Debug, Default)]
pub(super) struct RecordParser {
    buffer: Vec<u8>,
}

impl RecordParser {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete record, if there is one.
    pub(super) fn next(&mut self) -> io::Result<Option<Chunk>> {
        let mut record = Vec::new();
        let mut rest = self.buffer.as_slice();
        loop {
            let Some((header, after)) = rest.split_first_chunk::<4>() else {
                return Ok(None);
            };
            let header = u32::from_be_bytes(*header);
            let length = (header & !LAST_FRAGMENT) as usize;
            if length + record.len() > MAX_RECORD {
                return Err(io::Error::other("a record larger than 64 MiB: this is not RPC"));
            }
            let Some((fragment, after)) = after.split_at_checked(length) else {
                return Ok(None);
            };
            record.extend_from_slice(fragment);
            rest = after;
            if header & LAST_FRAGMENT != 0 {
                let left = rest.len();
                let raw = self.buffer.drain(..self.buffer.len() - left).collect();
                return Ok(Some(Chunk { raw, record }));
            }
        }
    }

    /// Returns the bytes of an incomplete record.
    pub(super) fn rest(self) -> Chunk {
        Chunk {
            raw: self.buffer,
            record: Vec::new(),
        }
    }
}

/// Returns whether a record contains these bytes.
pub fn has_bytes(record: &[u8], pattern: &[u8]) -> bool {
    record.windows(pattern.len().max(1)).any(|window| window == pattern)
}

/// Encodes a string or opaque: length, bytes, padding (RFC 4506 section 4.10).
pub fn encode_opaque(bytes: &[u8]) -> Vec<u8> {
    // No name is longer than 4 GiB.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut wire = length.to_be_bytes().to_vec();
    wire.extend_from_slice(bytes);
    wire.resize(wire.len().next_multiple_of(4), 0);
    wire
}

/// Encodes the beginning of NFSv4's RENAME (operation 29, RFC 8881 section 18.26) of a name.
pub fn encode_rename(old_name: &[u8]) -> Vec<u8> {
    [29_u32.to_be_bytes().to_vec(), encode_opaque(old_name)].concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn records_are_assembled_from_fragments_of_any_size() {
        let wire = [
            &[0, 0, 0, 2][..],
            b"ab",
            &[0x80, 0, 0, 1],
            b"c",
            &[0x80, 0, 0, 0],
            &[0x80, 0, 0, 2],
            b"d",
        ]
        .concat();
        let mut records = RecordParser::default();
        let mut chunks = Vec::new();
        for byte in &wire {
            records.push(&[*byte]);
            chunks.extend(records.next().unwrap());
        }
        let found: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.record.as_slice()).collect();
        assert_eq!(found, [&b"abc"[..], b""]);
        let raw: Vec<u8> = chunks
            .into_iter()
            .chain([records.rest()])
            .flat_map(|chunk| chunk.raw)
            .collect();
        assert_eq!(raw, wire);
    }

    #[test]
    fn a_stream_that_is_not_rpc_is_an_error() {
        let mut records = RecordParser::default();
        records.push(b"GET / HTTP/1.1\r\n");
        assert!(records.next().is_err());
    }

    #[test]
    fn a_rename_is_found_by_its_name() {
        let record = [
            &b"header"[..],
            &encode_rename(b"volume"),
            &encode_opaque(b"archived-volume"),
        ]
        .concat();
        assert!(has_bytes(&record, &encode_rename(b"volume")));
        assert!(!has_bytes(&record, &encode_rename(b"volume2")));
    }
}
