#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]
//! What every decoder must take: real conversations, what once broke it, and anything else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

pub(super) fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Every input of a decoder's corpus, by its file's name.
fn inputs(decoder: &Decoder) -> Vec<(String, Vec<u8>)> {
    let folder = corpus().join(decoder.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

#[test]
fn every_decoder_has_a_corpus_and_takes_it() {
    let named: BTreeSet<String> = DECODERS.iter().map(|decoder| decoder.name.to_owned()).collect();
    let folders = std::fs::read_dir(corpus()).unwrap();
    let kept: BTreeSet<String> = folders
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(named, kept, "decoders, and folders in fuzz/corpus");
    for decoder in DECODERS.iter() {
        let inputs = inputs(decoder);
        assert!(!inputs.is_empty(), "{} has no corpus", decoder.name);
        for (name, input) in inputs {
            println!("{}/{name}", decoder.name);
            (decoder.run)(&input);
        }
    }
}

/// Real inputs of all decoders, with some bytes changed and the end cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let real: Vec<Vec<u8>> = DECODERS
        .iter()
        .flat_map(inputs)
        .map(|(_, input)| input)
        .filter(|input| !input.is_empty())
        .collect();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (proptest::sample::select(real), changes, any::<prop::sample::Index>()).prop_map(|(mut input, changes, end)| {
        for (place, byte) in changes {
            let place = place.index(input.len());
            input[place] = byte;
        }
        // Mostly whole: a cut is found early, and what comes after it is what is of interest.
        let end = end.index(4 * input.len());
        input.truncate(end.max(1));
        input
    })
}

proptest! {
    #[test]
    fn no_decoder_panics_whatever_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        DECODERS.iter().for_each(|decoder| (decoder.run)(&bytes));
    }

    #[test]
    fn no_decoder_panics_over_damaged_conversations(bytes in damaged()) {
        DECODERS.iter().for_each(|decoder| (decoder.run)(&bytes));
    }
}
