//! From a call to the program and version that executes it.

use std::net::SocketAddr;

use bytes::Bytes;
use nfs_client::wire::NFS_PROGRAM;
use nfs_client::wire::v3::{GETPORT, MOUNT_PROGRAM};
use tokio::time::sleep;

use super::faults::{CallSummary, Fault};
use super::rpc::{Call, Rejection};
use super::server::{NfsServer, Restart};
use super::v3;
use super::v4::Compound;

const COMPOUND: u32 = 1;

/// Describes a call to those who choose its fault.
pub fn summarize(call: &Call, peer: SocketAddr) -> CallSummary {
    let mut operations = Vec::new();
    if (call.program, call.version, call.procedure) == (NFS_PROGRAM, 4, COMPOUND) {
        let compound = Compound::decode(call.arguments.clone(), None, peer);
        operations = compound.map(|compound| compound.operations()).unwrap_or_default();
    }
    CallSummary {
        program: call.program,
        version: call.version,
        procedure: call.procedure,
        operations,
    }
}

/// Executes a call that arrived in the life `boot` of the server. `None` if the server crashed since.
pub async fn execute(
    server: &NfsServer,
    boot: u32,
    peer: SocketAddr,
    call: Call,
    fault: Option<Fault>,
) -> Option<Result<Bytes, Rejection>> {
    if call.program == NFS_PROGRAM && !server.state().options.auth_sys {
        return Some(Err(Rejection::TooWeak));
    }
    let busy = fault == Some(Fault::Busy);
    if (call.program, call.version) == (NFS_PROGRAM, 4) {
        return match call.procedure {
            0 => Some(Ok(Bytes::new())),
            COMPOUND => compound(server, boot, peer, call, fault).await,
            _ => Some(Err(Rejection::NoProcedure)),
        };
    }
    let mut state = server.state();
    if state.boot != boot {
        return None;
    }
    let result = match call.program {
        NFS_PROGRAM => v3::nfs::execute(&mut state, peer, &call, busy),
        MOUNT_PROGRAM => v3::mount::execute(&state, peer, &call),
        program if program == GETPORT.program => v3::rpcbind::execute(&state, &call),
        _ => Err(Rejection::NoProgram),
    };
    Some(result.map(Bytes::from))
}

async fn compound(
    server: &NfsServer,
    boot: u32,
    peer: SocketAddr,
    call: Call,
    fault: Option<Fault>,
) -> Option<Result<Bytes, Rejection>> {
    if server.state().options.minor_versions.is_empty() {
        return Some(Err(Rejection::NoVersion(3, 3)));
    }
    let Ok(mut compound) = Compound::decode(call.arguments, call.credential, peer) else {
        return Some(Err(Rejection::Garbage));
    };
    if fault == Some(Fault::Busy) {
        compound.set_busy();
    }
    let mut executed = 0;
    loop {
        {
            let mut state = server.state();
            if state.boot != boot {
                return None;
            }
            state.expire_leases();
            if let Some(results) = compound.step(&mut state) {
                return Some(Ok(results));
            }
        }
        executed += 1;
        match fault {
            Some(Fault::Interleave(time)) => sleep(time).await,
            Some(Fault::CrashAfter(operations)) if executed == operations => {
                server.restart(Restart::LosingClients);
                return None;
            }
            _ => {}
        }
    }
}
