#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! End-to-end tests: the operator with a real Kubernetes API server and real NFS servers, by feature.

mod archives;
mod backends;
mod claims;
mod cli;
mod clones;
mod docs;
mod faults;
mod ha;
mod kernel;
mod migration;
mod observability;
mod reclaim;
mod recovery;
mod security;
mod support;
