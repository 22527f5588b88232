//! The codec and the numbers of the protocols, for a server that speaks them with this client. Not part of the stable API.

pub use crate::auth::{AUTH_NONE, AUTH_SYS};
pub use crate::rpc::message::NFS_PROGRAM;
pub use crate::rpc::record;
pub use crate::xdr::{Decoder, Encoder, XdrError};

/// Numbers of NFSv3, MOUNT and rpcbind.
pub mod v3 {
    pub use crate::v3::constants::{EXPORT, GETPORT, MNT, MOUNT_PROGRAM, MOUNT_VERSION, nfs};
}

/// Numbers of NFSv4, and stateids.
pub mod v4 {
    pub use crate::v4::compound::StateId;
    pub use crate::v4::constants::{attribute, kind, op};
}
