//! COMPOUND: its operations are executed in order until one fails, and are not atomic together (RFC 8881 section 16.2).

use std::net::SocketAddr;

use bytes::Bytes;
use nfs_client::wire::v4::{StateId, op};
use nfs_client::wire::{Decoder, Encoder, XdrError};

use super::arguments::{Operation, decode_operations};
use super::clients::{ClientId, SessionId, SlotReply};
use crate::nfs_server::events::Actor;
use crate::nfs_server::exports::{Node, Target};
use crate::nfs_server::file_system::Caller;
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Maximum length of a tag.
const MAX_TAG: usize = 1024;
/// Room that the result of an operation without data takes at most, in bytes.
const MAX_RESULT: usize = 512;
/// Status of success.
const OK: u32 = 0;

/// The slot that a compound uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsedSlot {
    pub(super) session: SessionId,
    pub(super) slot: u32,
    /// Whether the reply must be cached.
    pub(super) cache: bool,
    pub(super) max_cached: u32,
    pub(super) max_reply: u32,
}

/// A compound that is being executed.
#[derive(Debug)]
pub struct Compound {
    pub(super) minor: u32,
    operations: std::vec::IntoIter<(u32, Operation)>,
    /// Number of operations that the client announced.
    pub(super) announced: u32,
    /// The arguments as they were sent: a retransmission has the same.
    pub(super) request: Bytes,
    pub(super) credential: Option<Caller>,
    pub(super) peer: SocketAddr,
    pub(super) current: Option<Node>,
    saved: Option<Node>,
    /// The current stateid.
    pub(super) stateid: Option<StateId>,
    pub(super) slot: Option<UsedSlot>,
    pub(super) client: Option<ClientId>,
    /// The reply of the reply cache, for a retransmission.
    pub(super) replay: Option<Bytes>,
    /// Whether the first operation that belongs to no session fails with DELAY.
    busy: bool,
    results: Encoder,
    count: u32,
}

impl Compound {
    /// Decodes the arguments of COMPOUND.
    pub fn decode(request: Bytes, credential: Option<Caller>, peer: SocketAddr) -> Result<Self, XdrError> {
        let mut arguments = Decoder::new(request.clone());
        arguments.opaque("tag", MAX_TAG)?;
        let (minor, announced) = (arguments.u32("minor version")?, arguments.u32("operations")?);
        Ok(Self {
            minor,
            operations: decode_operations(minor, announced, &mut arguments).into_iter(),
            announced,
            request,
            credential,
            peer,
            current: None,
            saved: None,
            stateid: None,
            slot: None,
            client: None,
            replay: None,
            busy: false,
            results: Encoder::new(),
            count: 0,
        })
    }

    /// Returns the operations by number.
    pub fn operations(&self) -> Vec<u32> {
        self.operations.as_slice().iter().map(|(number, _)| *number).collect()
    }

    /// Lets the compound fail with DELAY before it does anything.
    pub fn set_busy(&mut self) {
        self.busy = true;
    }

    /// Executes the next operation. Returns the results once there are no more to execute.
    pub fn step(&mut self, state: &mut State) -> Option<Bytes> {
        if !state.options.minor_versions.contains(&self.minor) {
            return Some(self.encode(NfsStat::MINOR_VERS_MISMATCH.0).into());
        }
        let Some((number, operation)) = self.operations.next() else {
            return Some(self.finish(state, OK));
        };
        let mut result = Encoder::new();
        let executed = self
            .check_order(number)
            .and_then(|()| self.check_size(number))
            .and_then(|()| self.execute(state, operation, &mut result));
        if let Some(reply) = self.replay.take() {
            return Some(reply);
        }
        let status = executed.map_or_else(|status| status.0, |()| OK);
        let number = if status == NfsStat::OP_ILLEGAL.0 {
            OP_ILLEGAL
        } else {
            number
        };
        self.results.u32(number).u32(status);
        self.count += 1;
        match (status, number) {
            (OK, _) => {
                self.results.raw(result.as_bytes());
                return None;
            }
            // `attrsset` follows any status.
            (_, op::SETATTR) => {
                self.results.u32(0);
            }
            _ => {}
        }
        Some(self.finish(state, status))
    }

    /// With sessions, SEQUENCE comes first, except for the operations that need none (RFC 8881 section 2.10.6.2).
    fn check_order(&self, number: u32) -> NfsResult<()> {
        if self.minor == 0 {
            return Ok(());
        }
        let alone = matches!(
            number,
            op::EXCHANGE_ID
                | op::CREATE_SESSION
                | op::DESTROY_SESSION
                | op::BIND_CONN_TO_SESSION
                | op::DESTROY_CLIENTID
        );
        match (self.count, number) {
            (0, op::SEQUENCE) => Ok(()),
            (0, _) if alone && self.announced == 1 => Ok(()),
            (0, _) if alone => Err(NfsStat::NOT_ONLY_OP),
            (0, _) => Err(NfsStat::OP_NOT_IN_SESSION),
            (_, op::SEQUENCE) => Err(NfsStat::SEQUENCE_POS),
            _ => Ok(()),
        }
    }

    /// Fails before an operation whose result would not fit into the reply or the reply cache.
    fn check_size(&self, number: u32) -> NfsResult<()> {
        let Some(slot) = self.slot else { return Ok(()) };
        let size = self.results.encoded_len() + MAX_RESULT;
        if slot.cache && size > slot.max_cached as usize && number != op::READ {
            return Err(NfsStat::REP_TOO_BIG_TO_CACHE);
        }
        if size > slot.max_reply as usize {
            return Err(NfsStat::REP_TOO_BIG);
        }
        Ok(())
    }

    fn finish(&mut self, state: &mut State, status: u32) -> Bytes {
        let reply: Bytes = self.encode(status).into();
        if let Some(used) = self.slot.take()
            && let Ok(slot) = state.clients.slot_mut(&used.session, used.slot)
        {
            slot.reply = if used.cache || self.count == 1 {
                SlotReply::Cached(reply.clone())
            } else {
                SlotReply::Uncached
            };
        }
        reply
    }

    fn encode(&self, status: u32) -> Vec<u8> {
        let mut reply = Encoder::new();
        reply
            .u32(status)
            .opaque(b"")
            .u32(self.count)
            .raw(self.results.as_bytes());
        reply.into_bytes()
    }

    /// Bytes that a reply with data may still have.
    pub(super) fn room(&self) -> usize {
        let most = self.slot.map_or(usize::MAX, |slot| slot.max_reply as usize);
        most.saturating_sub(self.results.encoded_len() + MAX_RESULT)
    }

    /// Who executes this compound.
    pub(super) fn actor(&self, state: &State) -> Actor {
        let client = self.client.and_then(|id| state.clients.get(id));
        Actor::Client {
            address: self.peer.ip(),
            owner: client.map(|client| client.owner.clone()).unwrap_or_default(),
            uid: self.credential.as_ref().map_or(0, |caller| caller.uid),
        }
    }

    /// The current handle.
    pub(super) fn current(&self) -> NfsResult<Node> {
        self.current.ok_or(NfsStat::NOFILEHANDLE)
    }

    /// The object of the current handle.
    pub(super) fn target(&self, state: &State) -> NfsResult<Target> {
        self.target_of(state, self.current()?)
    }

    /// The object of the saved handle.
    pub(super) fn saved_target(&self, state: &State) -> NfsResult<Target> {
        self.target_of(state, self.saved.ok_or(NfsStat::NOFILEHANDLE)?)
    }

    fn target_of(&self, state: &State, node: Node) -> NfsResult<Target> {
        state.namespace.target(node, self.credential.as_ref(), self.peer.port())
    }

    fn execute(&mut self, state: &mut State, operation: Operation, result: &mut Encoder) -> NfsResult<()> {
        if self.busy && !matches!(operation, Operation::Sequence { .. }) {
            return Err(NfsStat::DELAY);
        }
        match operation {
            Operation::Illegal => Err(NfsStat::OP_ILLEGAL),
            Operation::Malformed => Err(NfsStat::BADXDR),
            Operation::PutRootFh => {
                self.current = Some(state.namespace.root(self.peer.port())?);
                Ok(())
            }
            Operation::PutFh(handle) => self.put_handle(state, &handle),
            Operation::GetFh => {
                result.opaque(&self.current()?.handle());
                Ok(())
            }
            Operation::SaveFh => {
                self.saved = Some(self.current()?);
                Ok(())
            }
            Operation::RestoreFh => {
                self.current = Some(self.saved.ok_or(NfsStat::NOFILEHANDLE)?);
                Ok(())
            }
            // Clients and sessions.
            Operation::ExchangeId { verifier, owner, flags } => self.exchange_id(state, verifier, owner, flags, result),
            Operation::SetClientId { verifier, id } => self.set_client_id(state, verifier, id, result),
            Operation::SetClientIdConfirm { client, confirmation } => {
                Self::confirm_client_id(state, client, confirmation)
            }
            Operation::Renew { client } => Self::renew(state, client),
            Operation::CreateSession {
                client,
                sequence,
                channel,
            } => Self::create_session(state, client, sequence, channel, result),
            Operation::DestroySession { session } => state.clients.remove_session(&session),
            Operation::BindConnToSession { session } => Self::bind(state, session, result),
            Operation::DestroyClientId { client } => Self::destroy_client(state, client),
            Operation::ReclaimComplete { one_fs } => self.reclaim_complete(state, one_fs),
            Operation::Sequence {
                session,
                sequence,
                slot,
                cache,
            } => self.sequence(state, (session, sequence, slot, cache), result),
            // Names and attributes.
            Operation::Lookup { name } => self.lookup(state, &name),
            Operation::GetAttr(requested) => super::attributes::write(state, self.current()?, None, &requested, result),
            Operation::Verify(expected) => match super::attributes::is_same(state, self.current()?, &expected)? {
                true => Ok(()),
                false => Err(NfsStat::NOT_SAME),
            },
            Operation::NVerify(expected) => match super::attributes::is_same(state, self.current()?, &expected)? {
                true => Err(NfsStat::SAME),
                false => Ok(()),
            },
            Operation::SetAttr { stateid, set } => self.set_attributes(state, stateid, set?, result),
            Operation::Access(requested) => self.access(state, requested, result),
            Operation::Create {
                kind,
                target,
                name,
                set,
            } => self.create(state, kind, target, &name, set?, result),
            Operation::Link { name } => self.link(state, &name, result),
            Operation::Remove { name } => self.remove(state, &name, result),
            Operation::Rename { from, to } => self.rename(state, &from, &to, result),
            Operation::ReadLink => self.read_link(state, result),
            Operation::ReadDir {
                cookie,
                verifier,
                max_size,
                attributes,
            } => self.read_directory(state, (cookie, verifier), max_size, &attributes, result),
            // Files.
            Operation::Open {
                access,
                client,
                create,
                claim,
            } => self.open(state, access, client, create, claim, result),
            Operation::OpenConfirm { stateid } => self.confirm_open(state, stateid, result),
            Operation::Close { stateid } => self.close(state, stateid, result),
            Operation::DelegReturn => Err(NfsStat::BAD_STATEID),
            Operation::Read { stateid, offset, count } => self.read(state, stateid, offset, count, result),
            Operation::Write {
                stateid,
                offset,
                stable,
                data,
            } => self.write(state, stateid, offset, (stable, &data), result),
            Operation::Commit => self.commit(state, result),
            Operation::GetXattr { name } => self.get_xattr(state, &name, result),
            Operation::SetXattr { how, name, value } => self.set_xattr(state, how, name, value, result),
            Operation::ListXattrs { cookie, max_size } => self.list_xattrs(state, cookie, max_size, result),
            // Ranges of files.
            Operation::Copy { from, to, count } => self.copy(state, from, to, count, result),
            Operation::Clone { from, to, count } => self.clone_range(state, from, to, count),
            Operation::Seek { offset, what } => self.seek(state, offset, what, result),
            // Every copy is synchronous.
            Operation::OffloadStatus | Operation::OffloadCancel => Err(NfsStat::BAD_STATEID),
        }
    }

    fn put_handle(&mut self, state: &State, handle: &[u8]) -> NfsResult<()> {
        let node = Node::from_handle(handle)?;
        if matches!(node, Node::Object { .. }) {
            self.target_of(state, node)?;
        }
        self.current = Some(node);
        self.stateid = None;
        Ok(())
    }
}

/// The number in the result of an operation that does not exist.
const OP_ILLEGAL: u32 = 10_044;

/// Encodes `change_info4` of a directory between two values of its change attribute.
pub(super) fn change_info(result: &mut Encoder, before: u64, after: u64) {
    result.boolean(true).u64(before).u64(after);
}
