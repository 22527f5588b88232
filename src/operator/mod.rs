//! What all reconcilers share: clients, caches, books, events, metrics, HTTP endpoints and the retry policy.

pub mod backends;
pub mod clients;
pub mod context;
pub mod copies;
pub mod drop_in;
pub mod election;
pub mod events;
mod exposition;
pub mod gate;
pub mod guard;
pub mod http;
pub mod inventory;
mod last_check;
pub mod lease;
pub mod metrics;
pub mod readiness;
pub mod reschedules;
pub mod retry;
mod rivals;
pub mod run;
pub mod stop;
pub mod term;
pub mod told;
pub mod waiting;
pub mod watched;
mod watches;
pub mod writes;
