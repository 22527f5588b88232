//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862): compounds in sessions with an exactly-once reply cache. NFSv4.0 (RFC 7530) is the
//! same without sessions: calls through [`sessionless`], a [`client_id`], and file creation through [`open_v40`].

mod attributes;
mod call;
mod client;
mod client_id;
pub mod compound;
pub mod constants;
mod copy_offload;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod io;
mod lookup;
mod namespace;
mod open_v40;
mod probe_versions;
mod readdir;
mod session;
mod sessionless;
mod slot_request;
mod small_files;
mod status;
mod xattrs;

pub use client::Client;
pub use probe_versions::probe_versions;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod content_tests;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod fault_tests;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support fails by panicking"
)]
mod garbled;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod observer_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod recovery_tests;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support fails by panicking"
)]
mod scripted;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod wire_tests;
