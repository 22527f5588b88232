//! Passes the inputs of the fuzzer to the decoder that FUZZ_DECODER names.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nfs_client::fuzzing::{DECODERS, Decoder};

fn chosen() -> &'static Decoder {
    static CHOSEN: OnceLock<&Decoder> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_DECODER").unwrap_or_default();
        let known: Vec<&str> = DECODERS.iter().map(|decoder| decoder.name).collect();
        DECODERS
            .iter()
            .find(|decoder| decoder.name == name)
            .unwrap_or_else(|| panic!("FUZZ_DECODER={name:?} is none of {known:?}"))
    })
}

fuzz_target!(|data: &[u8]| (chosen().run)(data));
