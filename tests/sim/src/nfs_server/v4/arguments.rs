//! Arguments of operations (RFC 7863, the XDR description of NFSv4.2; RFC 7531 of NFSv4.0; RFC 8276).

use bytes::Bytes;
use nfs_client::wire::v4::{StateId, op};
use nfs_client::wire::{Decoder, XdrError};

use super::attributes::{self, RawAttributes};
use crate::nfs_server::file_system::AttributeChanges;
use crate::nfs_server::status::NfsResult;

/// Maximum length of a name on the wire: longer than a file system allows, so that the file system refuses it.
const MAX_NAME: usize = 4096;
/// Maximum length of opaque items other than data.
const MAX_OPAQUE: usize = 1024;
/// Maximum length of data.
const MAX_DATA: usize = 1 << 21;

/// Operations without arguments of their own that the client never sends, but a probe may.
const RESTOREFH: u32 = 31;
const RENEW: u32 = 30;

/// Decodes a stateid.
fn stateid(arguments: &mut Decoder) -> Result<StateId, XdrError> {
    Ok(StateId {
        sequence: arguments.u32("stateid")?,
        other: arguments.array("stateid")?,
    })
}

/// How OPEN finds its file.
#[derive(Debug, Clone)]
pub enum Claim {
    /// By name (CLAIM_NULL).
    Name(Bytes),
    /// The current handle (CLAIM_FH).
    Handle,
}

/// How OPEN creates its file.
#[derive(Debug, Clone)]
pub enum CreateHow {
    /// It may exist.
    Unchecked(NfsResult<AttributeChanges>),
    /// It must not exist.
    Guarded(NfsResult<AttributeChanges>),
    /// It must not exist, unless it was created with this verifier.
    Exclusive([u8; 8], NfsResult<AttributeChanges>),
}

/// An operation with its arguments.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names of the RFC")]
pub enum Operation {
    Access(u32),
    Close {
        stateid: StateId,
    },
    Commit,
    Create {
        kind: u32,
        target: Bytes,
        name: Bytes,
        set: NfsResult<AttributeChanges>,
    },
    DelegReturn,
    GetAttr(Vec<u32>),
    GetFh,
    Link {
        name: Bytes,
    },
    Lookup {
        name: Bytes,
    },
    NVerify(RawAttributes),
    Open {
        access: u32,
        client: u64,
        create: Option<CreateHow>,
        claim: Claim,
    },
    OpenConfirm {
        stateid: StateId,
    },
    PutFh(Bytes),
    PutRootFh,
    Read {
        stateid: StateId,
        offset: u64,
        count: u32,
    },
    ReadDir {
        cookie: u64,
        verifier: [u8; 8],
        max_size: u32,
        attributes: Vec<u32>,
    },
    ReadLink,
    Remove {
        name: Bytes,
    },
    Rename {
        from: Bytes,
        to: Bytes,
    },
    Renew {
        client: u64,
    },
    RestoreFh,
    SaveFh,
    SetAttr {
        stateid: StateId,
        set: NfsResult<AttributeChanges>,
    },
    SetClientId {
        verifier: [u8; 8],
        id: Bytes,
    },
    SetClientIdConfirm {
        client: u64,
        confirmation: [u8; 8],
    },
    Verify(RawAttributes),
    Write {
        stateid: StateId,
        offset: u64,
        stable: u32,
        data: Bytes,
    },
    BindConnToSession {
        session: [u8; 16],
    },
    ExchangeId {
        verifier: [u8; 8],
        owner: Bytes,
        flags: u32,
    },
    CreateSession {
        client: u64,
        sequence: u32,
        channel: Channel,
    },
    DestroySession {
        session: [u8; 16],
    },
    Sequence {
        session: [u8; 16],
        sequence: u32,
        slot: u32,
        cache: bool,
    },
    DestroyClientId {
        client: u64,
    },
    ReclaimComplete {
        one_fs: bool,
    },
    Copy {
        from: u64,
        to: u64,
        count: u64,
    },
    Clone {
        from: u64,
        to: u64,
        count: u64,
    },
    Seek {
        offset: u64,
        what: u32,
    },
    OffloadStatus,
    OffloadCancel,
    GetXattr {
        name: Bytes,
    },
    SetXattr {
        how: u32,
        name: Bytes,
        value: Bytes,
    },
    ListXattrs {
        cookie: u64,
        max_size: u32,
    },
    /// An operation that the minor version does not have.
    Illegal,
    /// Arguments that cannot be decoded.
    Malformed,
}

/// `channel_attrs4`, as far as it is negotiated.
#[derive(Debug, Clone, Copy)]
pub struct Channel {
    /// Maximum size of a request.
    pub request: u32,
    /// Maximum size of a reply.
    pub reply: u32,
    /// Maximum size of a cached reply.
    pub cached: u32,
    /// Operations in a COMPOUND.
    pub operations: u32,
    /// Slots.
    pub slots: u32,
}

/// Decodes the operations of a COMPOUND, each with its number. Nothing after an operation that cannot be decoded can be.
pub fn decode_operations(minor: u32, count: u32, arguments: &mut Decoder) -> Vec<(u32, Operation)> {
    let mut operations = Vec::new();
    for _ in 0..count {
        let Ok(number) = arguments.u32("operation") else {
            operations.push((op::PUTFH, Operation::Malformed));
            break;
        };
        let operation = if has_operation(minor, number) {
            decode(number, minor, arguments).unwrap_or(Operation::Malformed)
        } else {
            Operation::Illegal
        };
        let ends = matches!(operation, Operation::Illegal | Operation::Malformed);
        operations.push((number, operation));
        if ends {
            break;
        }
    }
    operations
}

/// Whether a minor version has an operation.
fn has_operation(minor: u32, number: u32) -> bool {
    let sessionless = [op::OPEN_CONFIRM, RENEW, op::SETCLIENTID, op::SETCLIENTID_CONFIRM];
    match minor {
        0 => number < op::BIND_CONN_TO_SESSION,
        1 => number < op::COPY && !sessionless.contains(&number),
        _ => !sessionless.contains(&number),
    }
}

fn decode(number: u32, minor: u32, arguments: &mut Decoder) -> Result<Operation, XdrError> {
    let name = |arguments: &mut Decoder| arguments.opaque("name", MAX_NAME);
    let hyper = |arguments: &mut Decoder| arguments.u64("hyper");
    Ok(match number {
        3 => Operation::Access(arguments.u32("access")?),
        op::CLOSE => {
            arguments.u32("sequence")?;
            Operation::Close {
                stateid: stateid(arguments)?,
            }
        }
        op::COMMIT => {
            arguments.array::<12>("range")?;
            Operation::Commit
        }
        op::CREATE => create(arguments)?,
        op::DELEGRETURN => {
            stateid(arguments)?;
            Operation::DelegReturn
        }
        op::GETATTR => Operation::GetAttr(attributes::read_bitmap(arguments)?),
        op::GETFH => Operation::GetFh,
        op::LINK => Operation::Link { name: name(arguments)? },
        op::LOOKUP => Operation::Lookup { name: name(arguments)? },
        op::NVERIFY => Operation::NVerify(attributes::read_raw(arguments)?),
        op::OPEN => open(arguments)?,
        op::OPEN_CONFIRM => {
            let confirmed = stateid(arguments)?;
            arguments.u32("sequence")?;
            Operation::OpenConfirm { stateid: confirmed }
        }
        op::PUTFH => Operation::PutFh(arguments.opaque("handle", 128)?),
        op::PUTROOTFH => Operation::PutRootFh,
        op::READ => Operation::Read {
            stateid: stateid(arguments)?,
            offset: hyper(arguments)?,
            count: arguments.u32("count")?,
        },
        op::READDIR => {
            let (cookie, verifier) = (hyper(arguments)?, arguments.array("verifier")?);
            arguments.u32("dircount")?;
            Operation::ReadDir {
                cookie,
                verifier,
                max_size: arguments.u32("maxcount")?,
                attributes: attributes::read_bitmap(arguments)?,
            }
        }
        op::READLINK => Operation::ReadLink,
        op::REMOVE => Operation::Remove { name: name(arguments)? },
        op::RENAME => Operation::Rename {
            from: name(arguments)?,
            to: name(arguments)?,
        },
        RENEW => Operation::Renew {
            client: hyper(arguments)?,
        },
        RESTOREFH => Operation::RestoreFh,
        op::SAVEFH => Operation::SaveFh,
        op::SETATTR => Operation::SetAttr {
            stateid: stateid(arguments)?,
            set: attributes::read_changes(arguments)?,
        },
        op::SETCLIENTID => {
            let verifier = arguments.array("verifier")?;
            let id = arguments.opaque("id", MAX_OPAQUE)?;
            arguments.u32("callback program")?;
            arguments.opaque("netid", MAX_OPAQUE)?;
            arguments.opaque("address", MAX_OPAQUE)?;
            arguments.u32("callback ident")?;
            Operation::SetClientId { verifier, id }
        }
        op::SETCLIENTID_CONFIRM => Operation::SetClientIdConfirm {
            client: hyper(arguments)?,
            confirmation: arguments.array("confirmation")?,
        },
        op::VERIFY => Operation::Verify(attributes::read_raw(arguments)?),
        op::WRITE => Operation::Write {
            stateid: stateid(arguments)?,
            offset: hyper(arguments)?,
            stable: arguments.u32("stable")?,
            data: arguments.opaque("data", MAX_DATA)?,
        },
        number if number >= op::BIND_CONN_TO_SESSION && minor > 0 => return decode_newer(number, arguments),
        _ => Operation::Illegal,
    })
}

/// Decodes operations of NFSv4.1 and later.
fn decode_newer(number: u32, arguments: &mut Decoder) -> Result<Operation, XdrError> {
    let hyper = |arguments: &mut Decoder| arguments.u64("hyper");
    let session = |arguments: &mut Decoder| arguments.array::<16>("session");
    let xattr = |arguments: &mut Decoder| arguments.opaque("attribute's name", MAX_NAME);
    Ok(match number {
        op::BIND_CONN_TO_SESSION => {
            let session = session(arguments)?;
            arguments.u32("direction")?;
            arguments.boolean("RDMA")?;
            Operation::BindConnToSession { session }
        }
        op::EXCHANGE_ID => {
            let (verifier, owner) = (arguments.array("verifier")?, arguments.opaque("owner", MAX_OPAQUE)?);
            let flags = arguments.u32("flags")?;
            // State protection, which is always SP4_NONE, and the implementation ID are not used.
            arguments.u32("state protection")?;
            for _ in 0..arguments.count("implementation", 20)? {
                arguments.opaque("domain", MAX_OPAQUE)?;
                arguments.opaque("name", MAX_OPAQUE)?;
                arguments.array::<12>("date")?;
            }
            Operation::ExchangeId { verifier, owner, flags }
        }
        op::CREATE_SESSION => {
            let (client, sequence) = (hyper(arguments)?, arguments.u32("sequence")?);
            arguments.u32("flags")?;
            let fore = channel(arguments)?;
            channel(arguments)?;
            arguments.u32("callback program")?;
            for _ in 0..arguments.count("callback security", 4)? {
                // AUTH_NONE, which the client sends, has no parameters.
                arguments.u32("flavor")?;
            }
            Operation::CreateSession {
                client,
                sequence,
                channel: fore,
            }
        }
        op::DESTROY_SESSION => Operation::DestroySession {
            session: session(arguments)?,
        },
        op::SEQUENCE => {
            let (session, sequence) = (session(arguments)?, arguments.u32("sequence")?);
            let slot = arguments.u32("slot")?;
            arguments.u32("highest slot")?;
            Operation::Sequence {
                session,
                sequence,
                slot,
                cache: arguments.boolean("cache")?,
            }
        }
        op::DESTROY_CLIENTID => Operation::DestroyClientId {
            client: hyper(arguments)?,
        },
        op::RECLAIM_COMPLETE => Operation::ReclaimComplete {
            one_fs: arguments.boolean("one_fs")?,
        },
        op::COPY => {
            stateid(arguments)?;
            stateid(arguments)?;
            let (from, to, count) = (hyper(arguments)?, hyper(arguments)?, hyper(arguments)?);
            arguments.boolean("consecutive")?;
            arguments.boolean("synchronous")?;
            match arguments.u32("source servers")? {
                0 => Operation::Copy { from, to, count },
                value => {
                    return Err(XdrError::Invalid {
                        what: "source servers",
                        value,
                    });
                }
            }
        }
        op::OFFLOAD_STATUS => {
            stateid(arguments)?;
            Operation::OffloadStatus
        }
        op::OFFLOAD_CANCEL => {
            stateid(arguments)?;
            Operation::OffloadCancel
        }
        op::SEEK => {
            stateid(arguments)?;
            Operation::Seek {
                offset: hyper(arguments)?,
                what: arguments.u32("what")?,
            }
        }
        op::CLONE => {
            stateid(arguments)?;
            stateid(arguments)?;
            Operation::Clone {
                from: hyper(arguments)?,
                to: hyper(arguments)?,
                count: hyper(arguments)?,
            }
        }
        op::GETXATTR => Operation::GetXattr {
            name: xattr(arguments)?,
        },
        op::SETXATTR => Operation::SetXattr {
            how: arguments.u32("how")?,
            name: xattr(arguments)?,
            value: arguments.opaque("value", MAX_DATA)?,
        },
        op::LISTXATTRS => Operation::ListXattrs {
            cookie: hyper(arguments)?,
            max_size: arguments.u32("maxcount")?,
        },
        _ => Operation::Illegal,
    })
}

fn create(arguments: &mut Decoder) -> Result<Operation, XdrError> {
    let kind = arguments.u32("type")?;
    let target = match kind {
        5 => arguments.opaque("link's target", MAX_NAME)?,
        3 | 4 => {
            arguments.u64("device")?;
            Bytes::new()
        }
        _ => Bytes::new(),
    };
    Ok(Operation::Create {
        kind,
        target,
        name: arguments.opaque("name", MAX_NAME)?,
        set: attributes::read_changes(arguments)?,
    })
}

fn open(arguments: &mut Decoder) -> Result<Operation, XdrError> {
    arguments.u32("sequence")?;
    let access = arguments.u32("share access")? & 3;
    arguments.u32("share deny")?;
    let client = arguments.u64("client id")?;
    arguments.opaque("owner", MAX_OPAQUE)?;
    let create = match arguments.u32("open type")? {
        0 => None,
        _ => Some(match arguments.u32("create mode")? {
            0 => CreateHow::Unchecked(attributes::read_changes(arguments)?),
            1 => CreateHow::Guarded(attributes::read_changes(arguments)?),
            2 => CreateHow::Exclusive(arguments.array("verifier")?, Ok(AttributeChanges::default())),
            _ => CreateHow::Exclusive(arguments.array("verifier")?, attributes::read_changes(arguments)?),
        }),
    };
    let claim = match arguments.u32("claim")? {
        0 => Claim::Name(arguments.opaque("name", MAX_NAME)?),
        4 => Claim::Handle,
        value => return Err(XdrError::Invalid { what: "claim", value }),
    };
    Ok(Operation::Open {
        access,
        client,
        create,
        claim,
    })
}

fn channel(arguments: &mut Decoder) -> Result<Channel, XdrError> {
    arguments.u32("header padding")?;
    let channel = Channel {
        request: arguments.u32("request size")?,
        reply: arguments.u32("reply size")?,
        cached: arguments.u32("cached size")?,
        operations: arguments.u32("operations")?,
        slots: arguments.u32("slots")?,
    };
    for _ in 0..arguments.count("RDMA", 4)? {
        arguments.u32("RDMA")?;
    }
    Ok(channel)
}
