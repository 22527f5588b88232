//! Record marking (RFC 5531 section 11), bounded.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum size of a record, in bytes: the 1 MiB requested for a session, and headers.
pub const MAX_RECORD: usize = (1 << 20) + (64 << 10);

/// Maximum number of fragments in a record. Servers send one; without a bound, empty ones could continue forever.
const MAX_FRAGMENTS: usize = 1024;

/// Memory that a header can claim before the data arrives. Records up to this size are read without reallocation.
const MAX_RESERVED: usize = 64 << 10;

/// Set in the header of the last fragment of a record.
const LAST_FRAGMENT: u32 = 1 << 31;

/// Programs of other protocols, such as SSH, begin with text, which looks like a very long record.
const NO_NFS: &str = "which no NFS server sends: make sure that an NFS server has this port";

/// Frames a message as one record of one fragment.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(message.len() + 4);
    // Messages are far below 2 GiB: the request size of the session bounds them.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX) & !LAST_FRAGMENT;
    record.extend_from_slice(&(length | LAST_FRAGMENT).to_be_bytes());
    record.extend_from_slice(message);
    record
}

/// Reads one record; `None` if the peer closed the connection between records.
///
/// Beyond 64 KiB, memory grows with the data that arrives, not with the length in a header.
pub async fn read(source: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Bytes>> {
    let mut record = Vec::new();
    for fragment in 0..MAX_FRAGMENTS {
        let mut header = [0; 4];
        if fragment == 0 {
            if source.read(&mut header[..1]).await? == 0 {
                return Ok(None);
            }
            source.read_exact(&mut header[1..]).await?;
        } else {
            source.read_exact(&mut header).await?;
        }
        let header = u32::from_be_bytes(header);
        let length = (header & !LAST_FRAGMENT) as usize;
        if record.len() + length > MAX_RECORD {
            return Err(invalid(format!("a record of more than {MAX_RECORD} bytes, {NO_NFS}")));
        }
        record.reserve(length.min(MAX_RESERVED));
        let taken = (&mut *source).take(length as u64).read_to_end(&mut record).await?;
        if taken != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if header & LAST_FRAGMENT != 0 {
            return Ok(Some(record.into()));
        }
    }
    Err(invalid(format!(
        "a record of more than {MAX_FRAGMENTS} fragments, {NO_NFS}"
    )))
}

fn invalid(cause: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}
