//! Helpers that tests of several features share.

pub mod audit;
pub mod dedicated_cluster;
pub mod denial;
pub mod legacy_provisioner;
pub mod populator;
pub mod shared;
pub mod shell;
#[path = "../../../crates/export-store/tests/store/fixture.rs"]
#[allow(dead_code, reason = "some helpers are for the tests of export-store")]
pub mod store;
pub mod velero;
