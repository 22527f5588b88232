#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! Tests against real servers: nfs-ganesha, and the Linux kernel's server in the rig's emulated machine.

mod client;
mod conformance;
mod faults;
mod kernel;
mod sessionless;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "some helpers are for the tests of other crates")]
mod support;
