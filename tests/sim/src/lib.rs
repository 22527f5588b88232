//! Deterministic simulation: the operator in virtual time, against simulated API servers, NFS servers, users and
//! faults, on one thread and from one seed.

pub mod actors;
mod api_faults;
pub mod api_server;
pub mod chance;
pub mod clock;
pub mod life;
pub mod nfs_server;
mod objects;
pub mod oracle;
mod process;
mod sites;
pub mod trace;
mod transport;
pub mod world;

pub use process::options;
