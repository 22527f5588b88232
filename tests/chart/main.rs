#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! What people install: the Helm chart, config/, the kinds and the samples, against a real API server.

mod generated;
mod helm;
mod install;
mod kinds;
mod objects;
mod releases;
mod render;
mod samples;
mod security;

/// Why a test could not go on.
pub type Failure = Box<dyn std::error::Error>;
/// How a test ends.
pub type Test = Result<(), Failure>;
