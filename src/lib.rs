//! nfs-operator turns NFS exports into self-service Kubernetes storage.
//!
//! The way of a claim through the code: [`controllers`] observe and plan, [`placement`], [`naming`], [`policy`] and
//! [`mount_options`] decide, [`export`] keeps the rules that protect data, [`nfs`] speaks to the server.

pub mod api;
pub mod controllers;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod hostile_names;
pub mod mount_options;
pub mod operator;
pub mod placement;
pub mod policy;
