#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! The Helm chart, config/, the CRDs and the samples, tested with a real API server.

mod generated;
mod guides;
mod helm;
mod install;
mod kinds;
mod objects;
mod releases;
mod render;
mod samples;
mod security;
mod subchart;

/// The error of a test.
pub type Failure = Box<dyn std::error::Error>;
/// The result of a test.
pub type Test = Result<(), Failure>;
