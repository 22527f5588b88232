//! Commands of the documentation.

pub mod commands;
mod gitops;
pub mod migration_guide;
