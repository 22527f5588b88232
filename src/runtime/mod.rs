//! Infrastructure for the controllers: leader election, API clients, events, metrics, HTTP endpoints, retries.

pub mod api_error;
pub mod api_requests;
pub mod clients;
pub mod clock;
pub mod concurrency_limiter;
pub mod election;
pub mod events;
pub mod fair_semaphore;
mod fenced_stream;
mod held_lease;
pub mod http;
pub mod lease;
pub mod lease_renewal;
mod list_pages;
pub mod metrics;
pub mod process_metrics;
mod prometheus_text;
pub mod readiness;
pub mod reads;
pub mod records_secret;
pub mod retry;
pub mod shutdown;
mod throttle;
pub mod waiting;
pub mod watch_filters;
pub mod write_fence;
pub mod writes;
