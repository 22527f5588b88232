//! Outages of servers, and many failing claims.

pub mod failing_claims;
pub mod outages;
pub mod refused_writes;
pub mod replaced_objects;
