//! The decoders of what the operator keeps on an export, where anybody may write, for [`crate::fuzzing`].

use super::identity;
use super::record::Record;
use crate::fuzzing::Decoder;
use crate::naming::DirectoryPath;

/// One line each; the corpus has the same name.
pub(crate) const DECODERS: &[Decoder] = &[
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
