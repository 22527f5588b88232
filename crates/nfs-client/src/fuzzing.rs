//! The decoders of data from a server, by name, for the fuzz targets and for tests with arbitrary data.
//!
//! A new decoder is one line in [`DECODERS`]; its corpus is the directory of the same name in `fuzz/corpus`. Not part
//! of the stable API.

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use super::auth::ReplyVerifier;
use super::rpc::{message, record};
use super::v3;
use super::v4::fuzzing::{attributes, directory, opening, replies, session};
use super::xdr::{self, Encoder};

#[cfg(test)]
mod tests;

/// A decoder of data from a server.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// The name of its corpus.
    pub name: &'static str,
    /// Decodes; panics only if an invariant is broken: decoded data must encode to the same bytes, a listing contains only
    /// valid names. Most inputs end in an error.
    pub run: fn(&[u8]),
}

/// All decoders.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "records",
        run: records,
    },
    Decoder {
        name: "xdr",
        run: items,
    },
    Decoder {
        name: "messages",
        run: messages,
    },
    Decoder {
        name: "v4-replies",
        run: replies,
    },
    Decoder {
        name: "v4-attributes",
        run: attributes,
    },
    Decoder {
        name: "v4-sessions",
        run: session,
    },
    Decoder {
        name: "v4-directories",
        run: directory,
    },
    Decoder {
        name: "v40-opens",
        run: opening,
    },
    Decoder {
        name: "v3-mount",
        run: v3::fuzzing::mounting,
    },
    Decoder {
        name: "v3-replies",
        run: v3::fuzzing::replies,
    },
    Decoder {
        name: "v3-attributes",
        run: v3::fuzzing::attributes,
    },
    Decoder {
        name: "v3-directories",
        run: v3::fuzzing::directory,
    },
];

/// Returns the complete records of a stream.
pub fn records_of(stream: &[u8]) -> Vec<Bytes> {
    // In two pieces: the result must not depend on how the data arrives.
    let (first, second) = stream.split_at(stream.len() / 2);
    let mut source = first.chain(second);
    let mut records = Vec::new();
    futures::executor::block_on(async {
        while let Ok(Some(record)) = record::read(&mut source).await {
            records.push(record);
        }
    });
    records
}

/// Frames records into a stream.
pub fn framed(records: &[&[u8]]) -> Vec<u8> {
    records.iter().flat_map(|record| record::frame(record)).collect()
}

pub use super::{
    v3::fuzzing as v3_fuzzing,
    v4::fuzzing::{lists, results_of},
};

fn records(stream: &[u8]) {
    for record in records_of(stream) {
        assert!(record.len() <= record::MAX_RECORD);
        assert_eq!(records_of(&record::frame(&record)), [record], "framed and read again");
    }
}

/// Decodes items selected by the word before each; encodes and decodes each again.
fn items(data: &[u8]) {
    let mut items = xdr::Decoder::new(Bytes::copy_from_slice(data));
    while let Ok(choice) = items.u32("choice") {
        let mut back = Encoder::new();
        let same = match choice % 6 {
            0 => items.u32("").map(|item| {
                back.u32(item);
                again(&back, |items| items.u32("")) == Ok(item)
            }),
            1 => items.u64("").map(|item| {
                back.u64(item);
                again(&back, |items| items.u64("")) == Ok(item)
            }),
            2 => items.boolean("").map(|item| {
                back.boolean(item);
                again(&back, |items| items.boolean("")) == Ok(item)
            }),
            3 => items.array::<7>("").map(|item| {
                back.fixed(&item);
                again(&back, |items| items.array("")) == Ok(item)
            }),
            4 => items.opaque("", 1024).map(|item| {
                back.opaque(&item);
                again(&back, |items| items.opaque("", 1024)) == Ok(item)
            }),
            _ => items.count("", 4).map(|count| count <= items.left() / 4),
        };
        match same {
            Ok(same) => assert!(same, "written back, it is something else"),
            Err(_) => return,
        }
    }
}

fn again<T>(
    written: &Encoder,
    read: impl FnOnce(&mut xdr::Decoder) -> Result<T, xdr::XdrError>,
) -> Result<T, xdr::XdrError> {
    read(&mut xdr::Decoder::new(Bytes::copy_from_slice(written.as_bytes())))
}

fn messages(record: &[u8]) {
    let record = Bytes::copy_from_slice(record);
    let xid = message::reply_xid(&record);
    if message::decode_reply(record, ReplyVerifier::Sys).is_ok() {
        assert!(xid.is_some(), "a reply without a call that it belongs to");
    }
}

/// Returns a file handle with these bytes, for tests of other crates.
pub fn file_handle(bytes: &'static [u8]) -> crate::FileHandle {
    crate::FileHandle(bytes::Bytes::from_static(bytes))
}
