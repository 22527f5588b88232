//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862): sessions with an exactly-once reply cache, and compounds. NFSv4.0 (RFC
//! 7530) is the same without sessions: [`sessionless`] calls, a [`client_id`], and [`opens`] for creating files.

mod attributes;
mod call;
mod client;
mod client_id;
mod compound;
mod content;
mod directories;
mod establish;
mod files;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod introduction;
mod keeper;
mod listing;
mod numbers;
mod offers;
mod opens;
mod paths;
mod ranges;
mod removals;
mod session;
mod sessionless;
mod sessions;
mod status;
mod xattrs;

pub use client::Client;
pub use offers::offered;

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
