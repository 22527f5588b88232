//! What was done to a server's disks, by whom.

use std::net::IpAddr;

use bytes::Bytes;
use nfs_client::Time;

use super::file_system::Mutation;

/// Who changed something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A client of the protocol.
    Client {
        /// Its address.
        address: IpAddr,
        /// `co_ownerid` of its session; empty without a session.
        owner: Bytes,
        /// User ID of the call, before squashing.
        uid: u32,
    },
    /// A node that mounted a volume.
    Node(String),
    /// The administrator of the server.
    Administrator,
}

/// A change of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Number, from 0 in the life of the server.
    pub number: u64,
    /// The server's time.
    pub time: Time,
    /// Who did it.
    pub actor: Actor,
    /// The disk.
    pub disk: String,
    /// What was done.
    pub mutation: Mutation,
}
