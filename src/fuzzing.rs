//! The decoders of bytes that others wrote, by name: what `fuzz/` feeds, and what the tests feed arbitrary bytes.
//!
//! A new decoder is one line in a table; its corpus is a folder of the same name in `fuzz/corpus`.

#[cfg(test)]
mod recording;
#[cfg(test)]
mod tests;

/// Something that reads what a server, or anybody on an export, wrote.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// The name of its corpus.
    pub name: &'static str,
    /// Decodes, and panics only if a promise is broken: what was decoded must be encoded back as it was, a listing
    /// holds nothing but names. Errors are what most inputs come to.
    pub run: fn(&[u8]),
}

/// Every decoder there is.
pub fn decoders() -> impl Iterator<Item = &'static Decoder> {
    crate::nfs::fuzzing::DECODERS
        .iter()
        .chain(crate::export::fuzzing::DECODERS)
}
