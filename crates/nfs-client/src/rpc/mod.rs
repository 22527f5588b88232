//! Remote procedure calls over TCP (RFC 5531): records, messages, and a connection with many calls in flight.

pub mod connection;
pub mod message;
pub mod record;
