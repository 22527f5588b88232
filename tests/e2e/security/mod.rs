//! Permissions and admission policies.

pub mod permissions;
