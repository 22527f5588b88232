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
mod drop_in;
mod drop_in_races;
mod drop_in_start;
mod export_crash;
mod export_identity;
mod export_lab;
mod export_purge;
mod export_reclaim;
mod export_rules;
mod failures;
mod ganesha;
mod guide;
mod identity;
mod idle;
mod inherited;
mod inherited_refused;
mod names;
mod nfs_client;
mod old;
mod outages;
mod policies;
mod program;
mod reasons;
mod refusals;
mod scene;
mod stage;
mod standby;
mod static_volumes;
mod storm;
mod trees;
mod witness;
