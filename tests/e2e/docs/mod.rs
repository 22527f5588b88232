//! Commands of the documentation.

pub mod commands;
mod gitops;
mod guide_cluster;
pub mod migration_guide;
