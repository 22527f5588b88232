//! Decoders of NFSv4's results, for [`crate::fuzzing`].

use bytes::Bytes;

use super::attributes as wire;
use super::compound::{Compound, Reply};
use super::constants::op;
use super::{client_id, copy_offload, handshake, io, open_v40, readdir, session, small_files, xattrs};
use crate::auth::ReplyVerifier;
use crate::fuzzing::records_of;
use crate::rpc::message::{self, RpcReply};
use crate::xdr::{Decoder, Encoder};
use crate::{Name, NfsError, SetAttributes};

/// A whole reply record; the operations in it count as requested.
pub fn replies(record: &[u8]) {
    results_of(record, &mut |_, _| ());
}

/// Decodes a reply record; passes each decoded result to `visit`, as its operation and its bytes.
pub fn results_of(record: &[u8], visit: &mut dyn FnMut(u32, Bytes)) {
    let Ok(RpcReply::Success(results)) = message::decode_reply(Bytes::copy_from_slice(record), ReplyVerifier::Sys)
    else {
        return;
    };
    let Ok(mut reply) = Reply::new(&Compound::new("fuzzing"), results) else {
        return;
    };
    let in_session = reply.expect_next_result() == Some(op::SEQUENCE);
    if in_session && !sequence(&mut reply) {
        return;
    }
    while let Some(number) = reply.expect_next_result() {
        // The result begins after the operation's number and status.
        let begin = reply.rest();
        if result(&mut reply, number, in_session).is_err() {
            return;
        }
        let (whole, remaining) = (begin.rest(), reply.rest().left());
        let end = whole.len().saturating_sub(remaining);
        visit(number, whole.slice(8.min(end)..end));
    }
}

fn sequence(reply: &mut Reply) -> bool {
    let Ok(Some((0, results))) = reply.sequence() else {
        return false;
    };
    results.array::<36>("SEQUENCE").is_ok()
}

/// Decodes the result of one operation as the client does.
fn result(reply: &mut Reply, number: u32, in_session: bool) -> Result<(), NfsError> {
    match number {
        op::GETFH => reply.handle().map(drop),
        op::GETATTR => reply.attributes().map(|found| drop(found.file_attributes())),
        op::SETATTR => reply.set_attributes(),
        op::OPEN if in_session => small_files::opened(reply).map(drop),
        op::WRITE => small_files::written(reply).map(drop),
        op::READ => small_files::data(reply, 1 << 16).map(drop),
        _ => {
            reply.op(number)?;
            after_the_status(reply, number)
        }
    }
}

fn after_the_status(reply: &mut Reply, number: u32) -> Result<(), NfsError> {
    match number {
        op::READDIR => readdir::page(reply, None).map(drop),
        op::REMOVE | op::LINK => reply.change_info(),
        op::RENAME => reply.change_info().and_then(|()| reply.change_info()),
        op::CREATE => {
            reply.change_info()?;
            reply.take(wire::read_bitmap).map(drop)
        }
        op::CLOSE => reply.stateid().map(drop),
        op::READLINK => io::link_target(reply).map(drop),
        op::COMMIT => io::verifier(reply).map(drop),
        op::SEEK => copy_offload::decode_seek(reply).map(drop),
        op::COPY => copy_offload::decode_copy(reply).map(drop),
        op::OFFLOAD_STATUS => copy_offload::decode_offload_status(reply).map(drop),
        op::GETXATTR => xattrs::value(reply).map(drop),
        op::SETXATTR => reply.change_info(),
        op::LISTXATTRS => xattrs::names(reply).map(drop),
        op::OPEN => reply.take(open_v40::read_open).map(drop),
        op::OPEN_CONFIRM => reply.take(open_v40::read_stateid).map(drop),
        op::SETCLIENTID => reply.take(client_id::decode_client_id).map(drop),
        op::EXCHANGE_ID => reply
            .take(|results| handshake::decode_exchange_id(results, 1))
            .map(drop),
        op::CREATE_SESSION => reply.take(session::decode_session).map(drop),
        _ => Ok(()),
    }
}

/// `fattr4`; attributes that the client can set are encoded and decoded again.
pub fn attributes(data: &[u8]) {
    let Ok(found) = wire::read(&mut Decoder::new(Bytes::copy_from_slice(data))) else {
        return;
    };
    drop(found.clone().full_attributes());
    let Ok(node) = found.file_attributes() else { return };
    let set = SetAttributes {
        mode: Some(node.mode),
        uid: node.uid,
        gid: node.gid,
        ..SetAttributes::default()
    };
    let mut message = Encoder::new();
    wire::settable(&mut message, set);
    let back = wire::read(&mut Decoder::new(message.into_bytes().into()));
    assert!(
        back.is_ok_and(|back| back.mode == set.mode),
        "set and read back: {set:?}"
    );
}

/// The results of EXCHANGE_ID and CREATE_SESSION.
pub fn session(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    drop(handshake::decode_exchange_id(&mut Decoder::new(data.clone()), 1));
    drop(session::decode_session(&mut Decoder::new(data)));
}

/// The results of NFSv4.0's SETCLIENTID, OPEN and OPEN_CONFIRM.
pub fn opening(data: &[u8]) {
    let results = || Decoder::new(Bytes::copy_from_slice(data));
    drop(client_id::decode_client_id(&mut results()));
    drop(open_v40::read_stateid(&mut results()));
    if open_v40::read_open(&mut results()).is_ok() {
        assert!(
            data.len() >= 48,
            "an open without all that every open has: {} bytes",
            data.len()
        );
    }
}

/// A directory listed to its end: a stream of records, each the result of one READDIR. The client stops at an invalid page.
pub fn directory(pages: &[u8]) {
    let mut from = None;
    for results in records_of(pages) {
        let Ok(page) = read_page(&results, from) else { return };
        for entry in &page.entries {
            assert!(Name::new(Bytes::copy_from_slice(entry.name.as_bytes())).is_ok());
        }
        if page.next.is_none() {
            return;
        }
        from = page.next;
    }
}

fn read_page(results: &[u8], from: Option<crate::PageCookie>) -> Result<crate::Page, NfsError> {
    let mut compound = Compound::new("fuzzing");
    compound.op(op::READDIR);
    let mut message = Encoder::new();
    message.u32(0).opaque(b"").u32(1).u32(op::READDIR).u32(0).raw(results);
    let mut reply =
        Reply::new(&compound, Decoder::new(message.into_bytes().into())).map_err(|error| NfsError::Protocol {
            action: "fuzzing",
            cause: error.to_string(),
            outcome_unknown: false,
        })?;
    reply.op(op::READDIR)?;
    readdir::page(&mut reply, from)
}

/// Whether a listing with an entry of this name is accepted.
#[cfg(any(test, feature = "fuzzing"))]
pub fn lists(name: &[u8]) -> bool {
    let mut results = Encoder::new();
    // The verifier, one entry with a cookie, a name and no attributes, and the end.
    results.fixed(&[0; 8]).u32(1).u64(7).opaque(name).u32(0).u32(0);
    results.u32(0).boolean(true);
    read_page(results.as_bytes(), None).is_ok_and(|page| page.entries.len() == 1)
}
