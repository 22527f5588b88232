//! A simulated NFS server: NFSv4.2, 4.1, 4.0 and 3 over a model of file systems, in memory and in virtual time.
//!
//! * [`file_system`] is the model: inodes whose numbers are reused at once, permissions, space, snapshots.
//! * [`exports`] decides what of its disks a server offers, and what a handle means.
//! * [`v4`] and [`v3`] speak the protocols with the client's own codec.
//! * [`server`] controls a server: restarts, failures, other disks in place of its own.
//! * [`network`] connects clients with servers: [`Host`] is a [`Transport`](nfs_client::Transport).
//! * [`faults`] decides what happens to each call, from a seed or by script.
//! * [`events`] tells the oracle who changed what; [`node`] acts as a machine that mounted a volume.
//!
//! A server depends on nothing but the calls that it receives, tokio's clock, and its seed: the same run gives the same
//! results.

mod connection;
mod dispatch;
pub mod events;
pub mod exports;
pub mod faults;
pub mod file_system;
pub mod network;
pub mod node;
mod operations;
mod rpc;
pub mod server;
pub mod state;
pub mod status;
mod v3;
mod v4;

pub use events::{Actor, Event};
pub use exports::{Export, Place, Squash};
pub use faults::{Fault, FaultRates, Faults};
pub use file_system::{FileSystem, FileSystemOptions};
pub use network::{Host, Network};
pub use server::{Availability, NfsServer, Restart};
pub use state::ServerOptions;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
