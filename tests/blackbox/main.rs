#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
//! Black-box tests: the program and its parts against real servers.

mod claims;
mod export_crash;
mod export_identity;
mod export_lab;
mod export_purge;
mod export_reclaim;
mod export_rules;
mod ganesha;
mod identity;
mod names;
mod nfs_client;
mod policies;
mod scene;
mod trees;
