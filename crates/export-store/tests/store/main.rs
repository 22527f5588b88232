#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! Tests against real servers, and against a server that misbehaves on purpose.

mod adopt;
mod archive_crash;
mod beacon;
mod copy;
mod copy_crash;
mod count;
mod crash;
mod created_snapshots;
mod faults;
mod fixture;
mod full;
mod groups;
mod heap;
mod identity;
mod incremental;
mod kernel;
mod limits;
#[path = "../../../nfs-client/tests/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "some helpers are for the tests of the client")]
mod nfs;
mod other_clusters;
mod parents;
mod purge;
mod reclaim;
mod resume;
mod round_trips;
mod rules;
mod sharing;
mod snapshots;
mod trust;
