//! Permissions and admission policies.

pub mod hostile_text;
pub mod operator_account;
pub mod permissions;
