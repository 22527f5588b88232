//! Enforced sizes: the operator and a quota agent that the test plays.

pub mod agent;
mod claims;
mod key;
mod manifests;
mod volumes;
