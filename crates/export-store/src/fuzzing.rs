//! The decoders of what the operator keeps on an export, where anybody may write.

use super::identity;
use super::record::Record;
use crate::naming::DirectoryPath;
pub use nfs_client::fuzzing::Decoder;

#[cfg(test)]
mod recording;

/// One line each; the corpus has the same name.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "export-records",
        run: record,
    },
    Decoder {
        name: "export-identities",
        run: identity::parse_anything,
    },
];

/// A record of whatever volume it says it is about.
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
    // Too long when every byte of it has to be escaped; never another record.
    if let Ok(written) = record.to_bytes() {
        assert_eq!(Record::parse(&record.volume, &written), Ok(record));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::path::Path;

    use super::DECODERS;

    #[test]
    fn every_decoder_has_a_corpus_and_takes_it() {
        for decoder in DECODERS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(decoder.name);
            let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
            assert!(!inputs.is_empty(), "{} has no corpus", decoder.name);
            for input in inputs {
                (decoder.run)(&std::fs::read(input.unwrap().path()).unwrap());
            }
        }
    }
}
