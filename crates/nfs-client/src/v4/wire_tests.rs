//! Data from malicious or broken servers: decoding it at most fails.

use bytes::Bytes;
use proptest::prelude::*;

use super::attributes::{self, DecodedAttributes};
use super::compound::{Compound, Reply};
use super::constants::{attribute, op};
use super::readdir;

use crate::auth::ReplyVerifier;
use crate::rpc::message::{self, Rejection, RpcReply};
use crate::rpc::record;
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{FileKind, NfsError, PageCookie, SetAttributes, Status};

fn decoder(fill: impl FnOnce(&mut Encoder)) -> Decoder {
    let mut message = Encoder::new();
    fill(&mut message);
    Decoder::new(message.into_bytes().into())
}

/// `fattr4` with these words of the bitmap and these values.
fn found(words: &[u32], values: impl FnOnce(&mut Encoder)) -> Result<DecodedAttributes, XdrError> {
    let mut inner = Encoder::new();
    values(&mut inner);
    attributes::read(&mut decoder(|message| {
        message.u32(words.len() as u32);
        for word in words {
            message.u32(*word);
        }
        message.opaque(inner.as_bytes());
    }))
}

#[test]
fn items_are_read_back_as_they_were_written_and_padded() {
    let mut items = decoder(|message| {
        message
            .u32(7)
            .u64(1 << 40)
            .boolean(true)
            .opaque(b"abcde")
            .fixed(b"xyz")
            .opaque(b"");
    });
    assert_eq!(items.u32("").unwrap(), 7);
    assert_eq!(items.u64("").unwrap(), 1 << 40);
    assert!(items.boolean("").unwrap());
    assert_eq!(items.opaque("", 5).unwrap().as_ref(), b"abcde");
    assert_eq!(&items.array::<3>("").unwrap(), b"xyz");
    assert_eq!(items.opaque("", 0).unwrap().as_ref(), b"");
    assert_eq!(items.left(), 0);
}

/// Whether a decoder refuses what it is given.
type Refused = fn(&mut Decoder) -> bool;

#[test]
fn lengths_that_promise_more_than_there_is_are_refused_before_anything_is_taken() {
    let cases: [(&str, Vec<u32>, Refused); 7] = [
        ("opaque over its limit", vec![9, 0, 0, 0], |d| d.opaque("", 8).is_err()),
        ("opaque over the record", vec![u32::MAX, 0], |d| {
            d.opaque("", usize::MAX).is_err()
        }),
        ("opaque without its padding", vec![5, 0], |d| d.opaque("", 8).is_err()),
        ("count over the record", vec![1 << 30, 0, 0], |d| {
            d.count("", 4).is_err()
        }),
        ("array cut off", vec![1, 2], |d| d.array::<12>("").is_err()),
        ("hyper cut off", vec![1], |d| d.u64("").is_err()),
        ("a bool of 2", vec![2], |d| d.boolean("").is_err()),
    ];
    for (case, words, refused) in cases {
        let mut items = decoder(|message| {
            words.iter().for_each(|word| {
                message.u32(*word);
            })
        });
        assert!(refused(&mut items), "{case}");
    }
}

#[test]
fn attributes_come_back_as_the_server_reports_them() {
    let node = (1 << attribute::TYPE) | (1 << attribute::SIZE) | (1 << attribute::FSID) | (1 << attribute::FILEID);
    let more = (1 << (attribute::MODE - 32)) | (1 << (attribute::OWNER - 32)) | (1 << (attribute::OWNER_GROUP - 32));
    let found = found(&[node, more], |values| {
        values
            .u32(2)
            .u64(4096)
            .u64(1)
            .u64(2)
            .u64(99)
            .u32(0o2755)
            .opaque(b"1000")
            .opaque(b"root@example.org");
    });
    let attributes = found.unwrap().file_attributes().unwrap();
    assert_eq!(
        (attributes.kind, attributes.mode, attributes.fileid),
        (FileKind::Directory, 0o2755, 99)
    );
    assert_eq!((attributes.uid, attributes.owner.as_str()), (Some(1000), "1000"));
    assert_eq!((attributes.gid, attributes.group.as_str()), (None, "root@example.org"));
    assert_eq!(attributes.links, 1);
}

#[test]
fn owners_are_numbers_only_when_spelled_so() {
    let cases: [(&[u8], Option<u32>); 7] = [
        (b"0", Some(0)),
        (b"4294967295", Some(u32::MAX)),
        (b"4294967296", None),
        (b"", None),
        (b"0@example.org", None),
        (b"+1", None),
        (b"nobody", None),
    ];
    let words = [(1 << 1) | (1 << 4) | (1 << 8) | (1 << 20), (1 << 1) | (1 << 4)];
    for (owner, uid) in cases {
        let found = found(&words, |values| {
            values.u32(1).u64(0).u64(0).u64(0).u64(1).u32(0o600).opaque(owner);
        });
        assert_eq!(found.unwrap().file_attributes().unwrap().uid, uid, "{owner:?}");
    }
}

#[test]
fn attributes_that_make_no_sense_are_refused() {
    assert!(
        found(&[1 << attribute::TYPE], |values| {
            values.u32(0);
        })
        .is_err(),
        "no such type"
    );
    assert!(found(&[1 << attribute::TYPE], |_| ()).is_err(), "cut off");
    assert!(
        found(&[1 << attribute::TYPE], |values| {
            values.u64(1);
        })
        .is_err(),
        "bytes left over"
    );
    assert!(
        found(&[1 << 2], |values| {
            values.u32(1);
        })
        .is_err(),
        "not requested"
    );
    assert!(found(&[0; 9], |_| ()).is_err(), "a bitmap without end");
    let long = vec![b'x'; 2000];
    assert!(
        found(&[0, 1 << (attribute::OWNER - 32)], |values| {
            values.opaque(&long);
        })
        .is_err(),
        "a long owner"
    );
    assert_eq!(found(&[0], |_| ()).unwrap().file_attributes(), Err("type"));
}

#[test]
fn what_we_set_is_encoded_in_the_order_of_the_attributes_numbers() {
    let mut set = decoder(|message| {
        attributes::settable(
            message,
            SetAttributes {
                mode: Some(0o17777),
                uid: Some(0),
                gid: Some(65_534),
                ..SetAttributes::default()
            },
        );
    });
    assert_eq!(
        attributes::read_bitmap(&mut set).unwrap(),
        [0, (1 << 1) | (1 << 4) | (1 << 5)]
    );
    let mut values = Decoder::new(set.opaque("", 100).unwrap());
    assert_eq!(values.u32("").unwrap(), 0o7777);
    assert_eq!(values.opaque("", 10).unwrap().as_ref(), b"0");
    assert_eq!(values.opaque("", 10).unwrap().as_ref(), b"65534");
}

#[test]
fn rejections_are_told_apart() {
    let reply = |words: &[u32]| {
        let mut message = Encoder::new();
        for word in words {
            message.u32(*word);
        }
        match message::decode_reply(message.into_bytes().into(), ReplyVerifier::Sys).unwrap() {
            RpcReply::Rejected(rejection) => rejection,
            RpcReply::Success(_) => panic!("accepted"),
        }
    };
    assert_eq!(reply(&[1, 1, 1, 1, 5]), Rejection::TooWeak);
    assert_eq!(reply(&[1, 1, 1, 1, 1]), Rejection::AuthError(1));
    assert!(matches!(reply(&[1, 1, 1, 0, 2, 2]), Rejection::Unavailable(_)));
    assert!(matches!(reply(&[1, 1, 0, 0, 0, 2, 3, 3]), Rejection::Unavailable(cause) if cause.contains("3 to 3")));
    assert_eq!(reply(&[1, 1, 0, 0, 0, 4]), Rejection::GarbageArgs);
    assert_eq!(reply(&[1, 1, 0, 0, 0, 5]), Rejection::SystemError(5));
}

#[tokio::test]
async fn records_are_joined_from_fragments_within_bounds() {
    let fragment = |length: u32, last: bool| (length | if last { 1 << 31 } else { 0 }).to_be_bytes().to_vec();
    let read = async |bytes: Vec<u8>| record::read(&mut bytes.as_slice()).await;
    let two = [
        fragment(2, false),
        b"ab".to_vec(),
        fragment(0, false),
        fragment(1, true),
        b"c".to_vec(),
    ]
    .concat();
    assert_eq!(read(two).await.unwrap().unwrap().as_ref(), b"abc");
    assert_eq!(read(record::frame(b"abc")).await.unwrap().unwrap().as_ref(), b"abc");
    assert!(read(vec![]).await.unwrap().is_none(), "closed between records");
    assert!(read(vec![0x80]).await.is_err(), "closed within a header");
    assert!(
        read([fragment(5, true), b"ab".to_vec()].concat()).await.is_err(),
        "closed within a record"
    );
    assert!(read(fragment(u32::MAX >> 1, true)).await.is_err(), "a promise of 2 GiB");
    assert!(
        read(fragment(0, false).repeat(5000)).await.is_err(),
        "empty fragments without end"
    );
    let most = vec![0; record::MAX_RECORD];
    let over = [fragment(most.len() as u32, false), most, fragment(1, true), vec![0]].concat();
    assert!(read(over).await.is_err(), "over the limit by a second fragment");
}

/// A READDIR reply with these entries (cookie, name).
fn page(entries: &[(u64, &[u8])], end: bool, from: Option<PageCookie>) -> Result<crate::Page, NfsError> {
    let mut compound = Compound::new("listing");
    compound.op(op::READDIR);
    let results = decoder(|message| {
        message.u32(0).opaque(b"").u32(1).u32(op::READDIR).u32(0).fixed(&[9; 8]);
        for (cookie, name) in entries {
            message
                .u32(1)
                .u64(*cookie)
                .opaque(name)
                .u32(1)
                .u32(1 << attribute::FILEID)
                .u32(8)
                .u64(cookie + 100);
        }
        message.u32(0).boolean(end);
    });
    let mut reply = Reply::new(&compound, results).unwrap();
    reply.op(op::READDIR).unwrap();
    readdir::page(&mut reply, from)
}

#[test]
fn a_listing_names_the_entry_that_it_cannot_take() {
    let good = page(&[(1, b"a"), (2, &[0xff, 0xfe])], true, None).unwrap();
    assert_eq!(good.entries[1].name.as_bytes(), [0xff, 0xfe]);
    assert_eq!((good.entries[1].fileid, good.next), (Some(102), None));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        let error = page(&[(1, b"a"), (2, bad)], true, None).unwrap_err();
        let shown = bad.escape_ascii().to_string();
        assert!(
            matches!(&error, NfsError::Protocol { cause, .. } if cause.contains(&shown)),
            "{error}"
        );
    }
}

#[test]
fn a_listing_that_goes_in_circles_ends() {
    assert!(
        page(&[(5, b"a"), (5, b"b")], false, None).is_err(),
        "the same cookie twice"
    );
    assert!(page(&[], false, None).is_err(), "nothing, and no end");
    let mut from = None;
    let mut pages = 0u64;
    let error = loop {
        pages += 1;
        match page(&[(pages % 1000 + 1, b"a")], false, from) {
            Ok(page) => from = page.next,
            Err(error) => break error,
        }
        assert!(pages < 4000, "no circle found");
    };
    assert!(matches!(error, NfsError::Protocol { .. }), "{error}");
    let mut straight = PageCookie::start([0; 8]);
    assert!((1..100_000).all(|cookie| straight.advance(cookie * 3)));
}

#[test]
fn results_answer_what_was_asked_and_nothing_else() {
    let mut compound = Compound::new("testing");
    compound.op(op::PUTROOTFH);
    compound.op(op::SAVEFH);
    let reply = |words: &[u32]| {
        Reply::new(
            &compound,
            decoder(|message| {
                words.iter().for_each(|word| {
                    message.u32(*word);
                })
            }),
        )
    };
    let mut failed = reply(&[2, 0, 1, op::PUTROOTFH, 2]).unwrap();
    assert_eq!(failed.op(op::PUTROOTFH).unwrap_err().status(), Some(Status::NotFound));
    let mut other = reply(&[0, 0, 1, op::SAVEFH, 0]).unwrap();
    assert!(matches!(other.op(op::PUTROOTFH), Err(NfsError::Protocol { .. })));
    let mut fewer = reply(&[0, 0, 1, op::PUTROOTFH, 0]).unwrap();
    fewer.op(op::PUTROOTFH).unwrap();
    assert!(matches!(fewer.op(op::SAVEFH), Err(NfsError::Protocol { .. })));
    let mut goes_on = reply(&[0, 0, 2, op::PUTROOTFH, 13, op::SAVEFH, 0]).unwrap();
    assert!(matches!(goes_on.op(op::PUTROOTFH), Err(NfsError::Protocol { .. })));
    assert!(
        reply(&[0, 0, 1 << 30, op::PUTROOTFH, 0]).is_err(),
        "a count that cannot be"
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        let _ = message::reply_xid(&bytes);
        let _ = message::decode_reply(bytes.clone(), ReplyVerifier::Sys);
        let _ = attributes::read(&mut Decoder::new(bytes.clone()));
        let mut compound = Compound::new("testing");
        compound.op(op::READDIR);
        if let Ok(mut reply) = Reply::new(&compound, Decoder::new(bytes.clone())) {
            let _ = reply.sequence();
            let _ = reply.op(op::READDIR);
            let _ = readdir::page(&mut reply, None);
        }
    }

    #[test]
    fn arbitrary_results_after_a_valid_head_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut compound = Compound::new("testing");
        compound.op(op::READDIR);
        compound.file_ref();
        let results = decoder(|message| {
            message.u32(0).opaque(b"").u32(3).u32(op::READDIR).u32(0).raw(&bytes);
            message.raw(&[0; 64]);
        });
        let mut reply = Reply::new(&compound, results).unwrap();
        reply.op(op::READDIR).unwrap();
        let _ = readdir::page(&mut reply, None);
        let _ = reply.file_ref();
    }

    #[test]
    fn arbitrary_records_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut rest = bytes.as_slice();
        futures::executor::block_on(async { while let Ok(Some(_)) = record::read(&mut rest).await {} });
    }
}
