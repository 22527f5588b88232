//! A simulated Kubernetes API server: one process's memory, virtual time, and the semantics that the operator relies on.
//!
//! It serves the kinds that the operator uses ([`kinds`]): reads, paged lists, watches, creates, deletes with
//! preconditions and finalizers, updates, merge, JSON and apply patches, and the status subresource. A table of request
//! sequences compares its answers with those of a real API server (`tests/semantics`).

pub mod answer;
mod apply;
mod fields;
mod http;
pub mod kinds;
mod list;
mod patch;
mod request;
mod schema;
mod store;
mod validation;
mod watch;
mod write;

pub use http::{ApiServer, Fault, Faults, NoFaults};
pub use schema::{SCHEMAS, schemas};
pub use store::{Change, ChangeKind, Key, Snapshot};
