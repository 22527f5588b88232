//! Decoders of NFSv3's, MOUNT's and rpcbind's results, for [`crate::fuzzing`].

use bytes::Bytes;

use super::attributes as wire;
use super::constants::nfs;
use super::{io, mount, readdir, results, rpcbind};
use crate::auth::ReplyVerifier;
use crate::fuzzing::records_of;
use crate::rpc::message::{self, RpcReply};
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{Attributes, FileKind, Name};

#[cfg(any(test, feature = "fuzzing"))]
pub use super::mount::mounts;

/// The results of MNT, EXPORT and GETPORT.
pub fn mounting(data: &[u8]) {
    let results = || Decoder::new(Bytes::copy_from_slice(data));
    drop(mount::decode_mnt(&mut results()));
    drop(mount::decode_exports(&mut results()));
    if let Ok(port) = rpcbind::decode_port(&mut results()) {
        assert_ne!(port, 0, "a port that nobody listens on");
    }
}

/// A procedure number and a whole reply record: a reply does not contain the procedure.
pub fn replies(data: &[u8]) {
    let mut parts = Decoder::new(Bytes::copy_from_slice(data));
    let Ok(procedure) = parts.u32("procedure") else { return };
    if let Some(results) = results_of(&parts.rest()) {
        drop(result(&mut Decoder::new(results), procedure));
    }
}

/// Returns the results after the status of a successful reply record.
pub fn results_of(record: &[u8]) -> Option<Bytes> {
    let Ok(RpcReply::Success(mut results)) = message::decode_reply(Bytes::copy_from_slice(record), ReplyVerifier::Sys)
    else {
        return None;
    };
    let code = results.u32("status").ok()?;
    (code == 0).then(|| results.rest())
}

/// Decodes the results of one procedure as the client does.
fn result(results: &mut Decoder, procedure: u32) -> Result<(), XdrError> {
    match procedure {
        nfs::GETATTR => wire::read(results).map(drop),
        nfs::READLINK => io::link_target(results).map(drop),
        nfs::SYMLINK => results::created(results).map(drop),
        nfs::COMMIT => io::verifier(results).map(drop),
        nfs::SETATTR => wire::wcc_data(results).map(drop),
        nfs::LOOKUP => results::lookup(results).map(drop),
        nfs::READ => results::data(results, 1 << 16).map(drop),
        nfs::WRITE => results::written(results).map(drop),
        nfs::CREATE | nfs::MKDIR => results::created(results).map(drop),
        nfs::READDIR | nfs::READDIRPLUS => {
            drop(readdir::any_page(results.clone(), None, procedure == nfs::READDIRPLUS));
            Ok(())
        }
        nfs::FSSTAT => results::statistics(results).map(drop),
        nfs::FSINFO => results::sizes(results).map(drop),
        nfs::PATHCONF => results::name_max(results).map(drop),
        // Only the status is decoded.
        _ => Ok(()),
    }
}

/// `fattr3`, `post_op_attr` and `wcc_data`; decoded attributes are encoded and decoded again.
pub fn attributes(data: &[u8]) {
    let results = || Decoder::new(Bytes::copy_from_slice(data));
    for found in [
        wire::read(&mut results()).ok(),
        wire::optional(&mut results()).ok().flatten(),
        wire::wcc_data(&mut results()).ok().flatten(),
    ]
    .into_iter()
    .flatten()
    {
        let back = wire::read(&mut Decoder::new(written(&found)));
        assert_eq!(back, Ok(found), "written back, it is something else");
    }
}

/// `fattr3`.
fn written(attributes: &Attributes) -> Bytes {
    let kind = match attributes.kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 5,
        FileKind::Other => 7,
    };
    let mut message = Encoder::new();
    message.u32(kind).u32(attributes.mode).u32(attributes.links);
    message.u32(attributes.uid.unwrap_or_default());
    message.u32(attributes.gid.unwrap_or_default());
    message.u64(attributes.size).fixed(&[0; 16]);
    message.u64(attributes.fsid.major).u64(attributes.fileid);
    message.fixed(&[0; 24]);
    message.into_bytes().into()
}

/// A directory listed to its end: a stream of records, each the results of one READDIRPLUS or READDIR. The client stops at
/// an invalid page.
pub fn directory(pages: &[u8]) {
    for plus in [true, false] {
        let mut from = None;
        for results in records_of(pages) {
            let Ok(page) = readdir::any_page(Decoder::new(results), from, plus) else {
                break;
            };
            for entry in &page.entries {
                assert!(Name::new(Bytes::copy_from_slice(entry.name.as_bytes())).is_ok());
            }
            if page.next.is_none() {
                break;
            }
            from = page.next;
        }
    }
}

/// Whether a listing with an entry of this name is accepted.
#[cfg(any(test, feature = "fuzzing"))]
pub fn lists(name: &[u8]) -> bool {
    let mut results = Encoder::new();
    // No attributes, the verifier, one entry with a fileid, a name and a cookie, and the end.
    results.u32(0).fixed(&[0; 8]).u32(1).u64(7).opaque(name).u64(7);
    results.u32(0).boolean(true);
    let page = readdir::any_page(Decoder::new(results.into_bytes().into()), None, false);
    page.is_ok_and(|page| page.entries.len() == 1)
}
