//! Commands of the documentation.

pub mod commands;
pub mod migration_guide;
