//! Backends: readiness and its reasons, identity, capacity, orphans.

pub mod capacity;
pub mod failures;
pub mod identity;
pub mod identity_unreported;
pub mod nfsv3;
pub mod orphans;
pub mod reasons;
mod restored_export;
pub mod shared_export;
pub mod small_servers;
