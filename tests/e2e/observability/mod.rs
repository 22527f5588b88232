//! Metrics, alerts, usage and idle load.

pub mod http;
pub mod idle;
pub mod metrics;
pub mod prometheus;
pub mod usage;
