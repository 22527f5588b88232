//! nfs-operator turns NFS exports into self-service Kubernetes storage.
//!
//! The modules are layers, from the bottom: `api`, `decide`, `runtime`, `state`, `compat`, `background`, `recovery`,
//! `controllers`, `app`, `cli`. Each uses only those before it; `tests/layers.rs` checks this.

pub mod api;
pub mod app;
pub mod background;
pub mod cli;
pub mod compat;
pub mod controllers;
pub mod decide;
pub mod recovery;
pub mod runtime;
pub mod state;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod hostile_names;
