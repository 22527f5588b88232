//! Enforced sizes: the operator and a quota agent that the test plays.

mod agent;
mod claims;
mod manifests;
mod volumes;
