//! nfs-operator turns NFS exports into self-service Kubernetes storage.
//!
//! Each module uses only modules above it in this list; `tests/layers.rs` fails when one does not.

pub mod api;
pub mod app;
pub mod background;
pub mod compat;
pub mod controllers;
pub mod decide;
pub mod recovery;
pub mod runtime;
pub mod state;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod hostile_names;
