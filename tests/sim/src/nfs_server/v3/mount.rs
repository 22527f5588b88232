//! MOUNT: from a path to the handle of an export (RFC 1813 appendix I).

use std::net::SocketAddr;

use nfs_client::wire::v3::{EXPORT, MNT, MOUNT_VERSION};
use nfs_client::wire::{AUTH_SYS, Decoder, Encoder};

use crate::nfs_server::exports::Node;
use crate::nfs_server::file_system::{Caller, Kind};
use crate::nfs_server::rpc::{Call, Rejection};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// MNTPATHLEN.
const MAX_PATH: usize = 1024;

/// Executes a call of MOUNT.
pub fn execute(state: &State, peer: SocketAddr, call: &Call) -> Result<Vec<u8>, Rejection> {
    if !state.options.v3 {
        return Err(Rejection::NoProgram);
    }
    if call.version != MOUNT_VERSION {
        return Err(Rejection::NoVersion(MOUNT_VERSION, MOUNT_VERSION));
    }
    let mut results = Encoder::new();
    match call.procedure {
        0 => {}
        number if number == MNT.number => {
            let mut arguments = Decoder::new(call.arguments.clone());
            let path = arguments.opaque("path", MAX_PATH).map_err(|_| Rejection::Garbage)?;
            match mount(state, peer, &String::from_utf8_lossy(&path)) {
                Ok(root) => results.u32(0).opaque(&root.handle()).u32(1).u32(AUTH_SYS),
                Err(status) => results.u32(status.0),
            };
        }
        number if number == EXPORT.number => {
            for export in state.namespace.exports.iter().filter(|export| export.offered) {
                // To every client.
                results.boolean(true).opaque(export.path.as_bytes()).boolean(false);
            }
            results.boolean(false);
        }
        _ => return Err(Rejection::NoProcedure),
    }
    Ok(results.into_bytes())
}

/// Resolves a path in the export that contains it. Directories below an export can be mounted; symbolic links are not
/// followed.
fn mount(state: &State, peer: SocketAddr, path: &str) -> NfsResult<Node> {
    let namespace = &state.namespace;
    let (number, below) = namespace.closest(path).ok_or(NfsStat::NOENT)?;
    if !namespace.export(number)?.admits(peer.port()) {
        return Err(NfsStat::ACCESS);
    }
    let mut node = namespace.export_root(number, peer.port())?;
    for name in below {
        let mut place = namespace.place(node)?;
        let disk = namespace.disk(&place.disk)?;
        place.ino = disk.lookup(&Caller::ROOT, place.ino, name.as_bytes())?;
        if matches!(disk.inode(place.ino)?.kind, Kind::Symlink(_)) {
            return Err(NfsStat::INVAL);
        }
        node = namespace.node(number, &place)?;
    }
    let place = namespace.place(node)?;
    namespace.disk(&place.disk)?.directory(place.ino)?;
    Ok(node)
}
