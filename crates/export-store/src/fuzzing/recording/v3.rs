//! Inputs from a conversation in NFSv3.

use super::{Corpus, target};
use nfs_client::fuzzing::{framed, v3_fuzzing};
use nfs_client::{Client, Protocol};

/// Procedure numbers (RFC 1813 section 3.3, appendix I).
const GETATTR: u32 = 1;
const SETATTR: u32 = 2;
const READDIR: u32 = 16;
const READDIRPLUS: u32 = 17;
const MNT: u32 = 1;
const EXPORT: u32 = 5;

/// Mounts a path that is not exported, so that the client requests the list of exports.
pub(super) async fn record_missing_export(ports: (u16, u16)) {
    let mut elsewhere = target(ports, Protocol::V3);
    elsewhere.path = "/export/elsewhere".into();
    Client::connect(elsewhere).await.unwrap_err();
}

/// Assigns replies to the decoders that read them, by the procedures of the calls.
pub(super) fn take_apart(nfs: &[(u32, Vec<u8>)], mounts: &[(u32, Vec<u8>)], corpus: &mut Corpus) {
    for (procedure, reply) in nfs {
        let shape = format!("3-{procedure:02}-{}", reply.len() / 64);
        corpus.add("v3-replies", shape, &[&procedure.to_be_bytes(), &reply[..]].concat());
        let Some(results) = v3_fuzzing::results_of(reply) else {
            continue;
        };
        let shape = format!("3-{procedure:02}-{}", results.len());
        match *procedure {
            GETATTR | SETATTR => corpus.add("v3-attributes", shape, &results),
            READDIR | READDIRPLUS => corpus.add("v3-directories", shape, &framed(&[&results, &results])),
            _ => {}
        }
    }
    for (procedure, reply) in mounts {
        // The results of MNT begin with a status, which the decoder reads as part of them. Those of EXPORT have none.
        let results = &reply[24..];
        match *procedure {
            MNT => corpus.add("v3-mount", format!("mnt-{}", results.len()), results),
            EXPORT => corpus.add("v3-mount", format!("exports-{}", results.len()), results),
            _ => {}
        }
    }
    // rpcbind is not behind a proxy. Its reply contains only a port.
    corpus.add("v3-mount", "port".into(), &2049_u32.to_be_bytes());
}
