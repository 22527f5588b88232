//! rpcbind: where MOUNT listens (RFC 1833 section 3).

use nfs_client::wire::v3::{GETPORT, MOUNT_PROGRAM};
use nfs_client::wire::{Decoder, Encoder, NFS_PROGRAM};

use crate::nfs_server::rpc::{Call, Rejection};
use crate::nfs_server::state::State;

/// Port of NFS.
const NFS_PORT: u16 = 2049;

/// Executes a call of rpcbind.
pub fn execute(state: &State, call: &Call) -> Result<Vec<u8>, Rejection> {
    if call.version != GETPORT.version {
        return Err(Rejection::NoVersion(GETPORT.version, GETPORT.version));
    }
    if call.procedure != GETPORT.number {
        return Err(Rejection::NoProcedure);
    }
    let mut arguments = Decoder::new(call.arguments.clone());
    let program = arguments.u32("program").map_err(|_| Rejection::Garbage)?;
    // 0: not registered.
    let port = match program {
        MOUNT_PROGRAM if state.options.v3 => state.options.mount_port,
        NFS_PROGRAM => NFS_PORT,
        _ => 0,
    };
    let mut results = Encoder::new();
    results.u32(port.into());
    Ok(results.into_bytes())
}
