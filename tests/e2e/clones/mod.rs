//! Clones of claims.

pub mod claims;
