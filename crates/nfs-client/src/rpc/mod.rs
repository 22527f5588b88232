//! ONC RPC version 2 (RFC 5531) over byte streams: records, messages, and a connection with many calls in flight.

pub mod call;
pub mod connection;
pub mod message;
pub mod record;
