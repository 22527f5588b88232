//! The agent on a folder of this machine, with a file system in memory that counts its projects.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attacks;
mod fixture;
mod folders;
mod kills;
mod orders;
mod projects;
mod robustness;
mod serve;
mod visits;
