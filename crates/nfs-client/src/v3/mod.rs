//! NFSv3 (RFC 1813) with MOUNT version 3 (its appendix I) and rpcbind's version 2 (RFC 1833 section 3).
//!
//! The protocol has no sessions: the server keeps nothing of us, and cannot tell a repeated call from a new one. So a
//! call that changes something is sent again only where a repetition does no harm; else its outcome is unknown once its
//! reply is lost. Nor has it VERIFY: a name's fileid is looked up just before a rename or removal, and whoever calls
//! must hold the name (design 6.4). `..` is never looked up: below an export's root it leads out of the export.

mod attributes;
mod call;
mod client;
mod content;
mod directories;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod keeper;
mod listing;
mod mount;
mod numbers;
mod paths;
mod removals;
mod results;
mod rpcbind;
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
