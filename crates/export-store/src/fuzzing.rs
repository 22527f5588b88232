//! The decoders of files on an export, where any client may write.
//!
//! A new decoder is one entry in [`DECODERS`]. Its corpus is the folder of the same name in `fuzz/corpus`.

use super::record::Record;
use super::{copy, identity};
use crate::naming::DirectoryPath;
pub use nfs_client::fuzzing::Decoder;

#[cfg(test)]
mod recording;

/// All decoders.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "export-records",
        run: record,
    },
    Decoder {
        name: "export-identities",
        run: identity::parse_anything,
    },
    Decoder {
        name: "export-manifests",
        run: copy::decode_manifest,
    },
];

/// Parses a record under the volume name that it contains.
fn record(bytes: &[u8]) {
    let volume = serde_json::from_slice::<serde_json::Value>(bytes)
        .ok()
        .and_then(|value| Some(value.get("volume")?.as_str()?.to_owned()));
    let Ok(record) = Record::parse(&volume.unwrap_or_default(), bytes) else {
        return;
    };
    assert_eq!(
        DirectoryPath::parse(&record.directory.to_string()).as_ref(),
        Ok(&record.directory)
    );
    // A record whose bytes all need escapes may be too long to write.
    if let Ok(written) = record.to_bytes() {
        assert_eq!(Record::parse(&record.volume, &written), Ok(record));
    }
}

/// The tests of the client's decoders, run on these decoders and on the corpus of this crate.
#[cfg(test)]
#[path = "../../nfs-client/src/fuzzing/tests.rs"]
mod tests;
