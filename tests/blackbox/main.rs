#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! Black-box tests: the program and its parts against real servers.

mod capacity;
mod claims;
mod crashes;
mod export_crash;
mod export_identity;
mod export_lab;
mod export_purge;
mod export_reclaim;
mod export_rules;
mod failures;
mod ganesha;
mod identity;
mod idle;
mod names;
mod nfs_client;
mod outages;
mod policies;
mod probe;
mod program;
mod reasons;
mod refusals;
mod scene;
mod stage;
mod standby;
mod storm;
mod trees;
mod witness;
