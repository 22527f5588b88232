#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! End-to-end tests: the operator with a real Kubernetes API server and real NFS servers, by feature.
//!
//! To run one test, as root: `cargo test --workspace --test e2e -- --exact claims::provisioning::NAME`. Without `--exact`,
//! a part of the name selects several. `--workspace` reuses the dependencies that `make test` built.

mod archives;
mod attacks;
mod backends;
mod backups;
mod claims;
mod cli;
mod clones;
mod docs;
mod faults;
mod ha;
mod kernel;
mod migration;
mod node;
mod observability;
mod quotas;
mod reclaim;
mod recovery;
mod security;
mod support;
