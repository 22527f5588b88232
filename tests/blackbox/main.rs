#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
//! Black-box tests: the program and its parts against real servers.

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
mod idle;
mod nfs_client;
mod policies;
mod scene;
mod stage;
mod trees;
