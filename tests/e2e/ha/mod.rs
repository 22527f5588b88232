//! High availability: crashes and failover.

pub mod crashes;
pub mod standby;
