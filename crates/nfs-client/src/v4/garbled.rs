//! Garbled replies.

use crate::rpc::record;
use crate::xdr::Encoder;

/// What is wrong with a reply on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Garbled {
    /// It comes twice.
    Twice,
    /// It answers the call that is made next.
    OfTheNextCall,
    /// It answers a call that was never made.
    WrongXid,
    /// Seventeen replies to calls that were never made.
    Strays,
    /// Half of the record, and then nothing.
    Half,
    /// Each byte is a fragment.
    ByteByByte,
    /// The header of the last fragment has the maximum length (2 GiB less one byte).
    LongestLast,
    /// The same with the bit of the last fragment not set.
    LongestMore,
    /// Fragments without content, and without end.
    EmptyFragments,
    /// It is a call message.
    Call,
    /// Accepted, and SYSTEM_ERR.
    SystemError,
    /// Results that are counted as 2^30.
    ManyResults,
    /// A tag of 2^31 bytes.
    LongTag,
    /// It ends in the middle of its results.
    Short,
    /// Additional bytes follow its results.
    Long,
}

/// A record that holds the reply to a call, carried out with these results.
pub fn reply(xid: u32, body: &[u8]) -> Vec<u8> {
    headed(xid, 1, 0, body)
}

fn headed(xid: u32, message_type: u32, accept_status: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Encoder::new();
    message
        .u32(xid)
        .u32(message_type)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(accept_status);
    message.raw(body);
    record::frame(message.as_bytes())
}

impl Garbled {
    /// What is sent instead of the reply.
    pub fn bytes(self, xid: u32, body: &[u8]) -> Vec<u8> {
        let right = reply(xid, body);
        let header = |length: u32| length.to_be_bytes().to_vec();
        match self {
            Self::Twice => [right.clone(), right].concat(),
            Self::OfTheNextCall => reply(xid.wrapping_add(1), body),
            Self::WrongXid => reply(xid ^ 0x5555_5555, body),
            Self::Strays => (0..17)
                .flat_map(|stray| reply(xid.wrapping_add(1000 + stray), body))
                .collect(),
            Self::Half => right[..right.len() / 2].to_vec(),
            Self::ByteByByte => {
                let (last, rest) = right[4..].split_last().unwrap();
                let each = rest.iter().flat_map(|byte| [header(1), vec![*byte]].concat());
                each.chain([header(1 | 1 << 31), vec![*last]].concat()).collect()
            }
            Self::LongestLast => [header(u32::MAX), body.to_vec()].concat(),
            Self::LongestMore => [header(u32::MAX >> 1), body.to_vec()].concat(),
            Self::EmptyFragments => header(0).repeat(100_000),
            Self::Call => headed(xid, 0, 0, body),
            Self::SystemError => headed(xid, 1, 5, &[]),
            Self::ManyResults => {
                let mut results = Encoder::new();
                results.u32(0).u32(0).u32(1 << 30).raw(&body[12.min(body.len())..]);
                reply(xid, results.as_bytes())
            }
            Self::LongTag => {
                let mut results = Encoder::new();
                results.u32(0).u32(1 << 31).raw(body);
                reply(xid, results.as_bytes())
            }
            Self::Short => reply(xid, &body[..body.len() - 8]),
            Self::Long => reply(xid, &[body, &[0; 64]].concat()),
        }
    }
}
