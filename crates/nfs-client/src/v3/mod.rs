//! NFSv3 (RFC 1813) with MOUNT version 3 (RFC 1813 appendix I) and rpcbind version 2 (RFC 1833 section 3).
//!
//! The protocol has no sessions: the server keeps no state for the client and cannot recognize a retransmission. So a call
//! that changes something is sent again only where a repetition is harmless; otherwise its outcome is unknown once its
//! reply is lost. It has no VERIFY either: the fileid of a name is looked up just before a rename or removal, in a call of
//! its own. `..` is never looked up: at the root of an export it leads out of the export.

mod attributes;
mod call;
mod client;
pub mod constants;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod io;
mod lookup;
mod mount;
mod namespace;
mod readdir;
mod results;
mod rpcbind;
mod small_files;
mod status;

pub use client::Client;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod mount_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test support fails by panicking")]
mod scripted;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;
