//! Replies to reads, writes, copies and requests for attributes: invalid ones are rejected.

use super::compound::{Compound, Reply};
use super::constants::op;
use super::copy_offload::{decode_copy, decode_offload_status};
use super::io::{decode_write, link_target, part};
use super::xattrs::{names, value};
use crate::NfsError;
use crate::xdr::{Decoder, Encoder};

/// The reply to one operation, with this behind its status.
fn reply(number: u32, fill: impl FnOnce(&mut Encoder)) -> Reply {
    let mut compound = Compound::new("testing");
    compound.op(number);
    let mut message = Encoder::new();
    message.u32(0).opaque(b"").u32(1).u32(number).u32(0);
    fill(&mut message);
    Reply::new(&compound, Decoder::new(message.into_bytes().into())).unwrap()
}

/// The same, begun already.
fn begun(number: u32, fill: impl FnOnce(&mut Encoder)) -> Reply {
    let mut reply = reply(number, fill);
    reply.op(number).unwrap();
    reply
}

fn makes_no_sense<T>(result: Result<T, NfsError>) -> bool {
    matches!(result, Err(NfsError::Protocol { .. }))
}

#[test]
fn a_read_brings_no_more_than_was_asked_for_and_something_before_the_end() {
    let read = |end: bool, bytes: &[u8]| {
        let mut reply = reply(op::READ, |message| {
            message.boolean(end).opaque(bytes);
        });
        part(&mut reply, 4)
    };
    assert_eq!(read(false, b"abc").unwrap().bytes, "abc");
    assert!(read(true, b"").unwrap().eof);
    assert!(makes_no_sense(read(false, b"abcde")), "more than was asked for");
    assert!(makes_no_sense(read(false, b"")), "nothing forever");
}

#[test]
fn a_write_takes_something_and_no_more_than_there_was() {
    let write = |count: u32, committed: u32| {
        let mut reply = reply(op::WRITE, |message| {
            message.u32(count).u32(committed).fixed(&[7; 8]);
        });
        decode_write(&mut reply, 10)
    };
    assert!(!write(10, 0).unwrap().stable);
    assert!(write(1, 2).unwrap().stable);
    for (count, committed) in [(0, 0), (11, 0), (u32::MAX, 2), (10, 3)] {
        assert!(makes_no_sense(write(count, committed)), "{count} {committed}");
    }
}

#[test]
fn a_links_target_is_bounded() {
    let link = |length: usize| {
        let mut reply = begun(op::READLINK, |message| {
            message.opaque(&vec![b'x'; length]);
        });
        link_target(&mut reply)
    };
    assert_eq!(link(4096).unwrap().len(), 4096);
    assert!(makes_no_sense(link(4097)));
}

#[test]
fn one_copy_has_at_most_one_name_in_the_background() {
    let copy = |stateids: u32| {
        let mut reply = begun(op::COPY, |message| {
            message.u32(stateids);
            for _ in 0..stateids.min(2) {
                message.u32(1).fixed(&[3; 12]);
            }
            message.u64(5).u32(0).fixed(&[7; 8]).boolean(true).boolean(true);
        });
        decode_copy(&mut reply)
    };
    assert!(copy(0).is_ok() && copy(1).is_ok());
    assert!(makes_no_sense(copy(2)));
    assert!(makes_no_sense(copy(u32::MAX)));
    let status = |ends: u32| {
        let mut reply = begun(op::OFFLOAD_STATUS, |message| {
            message.u64(5).u32(ends).u32(0).u32(0);
        });
        decode_offload_status(&mut reply)
    };
    assert_eq!(status(0).unwrap(), (5, None));
    assert_eq!(status(1).unwrap(), (5, Some(0)));
    assert!(makes_no_sense(status(2)));
}

#[test]
fn attributes_names_are_bounded_and_never_empty() {
    let list = |each: &[&[u8]], count: u32| {
        let mut reply = begun(op::LISTXATTRS, |message| {
            message.u64(9).u32(count);
            for name in each {
                message.opaque(name);
            }
            message.boolean(true);
        });
        names(&mut reply)
    };
    let (cookie, all, end) = list(&[b"a/b", b"colour"], 2).unwrap();
    assert_eq!((cookie, all.len(), end), (9, 2, true));
    assert!(makes_no_sense(list(&[b""], 1)));
    assert!(makes_no_sense(list(&[b"a\0b"], 1)));
    assert!(makes_no_sense(list(&[&[b'a'; 256]], 1)));
    assert!(makes_no_sense(list(&[b"a"], 1 << 30)));
    let mut long = begun(op::GETXATTR, |message| {
        message.opaque(&vec![1; (64 << 10) + 1]);
    });
    assert!(makes_no_sense(value(&mut long)));
}
