//! Sessions: CREATE_SESSION, SEQUENCE with its reply cache, BIND_CONN_TO_SESSION (RFC 8881 sections 2.10 and 18.34 to 18.46).

use nfs_client::wire::Encoder;

use super::arguments::Channel;
use super::clients::{ClientId, Session, SessionId, Slot, SlotReply};
use super::compound::{Compound, UsedSlot};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Room for the headers of a request or reply with data, in bytes.
const HEADERS: u32 = 8 << 10;

impl Compound {
    /// CREATE_SESSION: confirms the client, which ends an earlier one with the same owner.
    pub(super) fn create_session(
        state: &mut State,
        id: ClientId,
        sequence: u32,
        channel: Channel,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let client = state.clients.get(id).ok_or(NfsStat::STALE_CLIENTID)?;
        if let Some(reply) = &client.last_session
            && sequence.wrapping_add(1) == client.sequence
        {
            result.raw(reply);
            return Ok(());
        }
        if sequence != client.sequence {
            return Err(NfsStat::SEQ_MISORDERED);
        }
        Self::confirm(state, id)?;
        let options = &state.options;
        let largest = options.max_transfer.saturating_add(HEADERS);
        let (max_request, max_reply) = (channel.request.min(largest), channel.reply.min(largest));
        let max_operations = channel.operations.min(options.max_operations);
        let max_cached = channel.cached.min(options.max_cached);
        let slots = channel.slots.clamp(1, options.slots);
        let session = state.clients.add_session(Session {
            client: id,
            slots: vec![Slot::default(); slots as usize],
            max_operations,
            max_cached,
            max_reply,
        });
        let mut reply = Encoder::new();
        reply.fixed(&session).u32(sequence).u32(0);
        // Fore channel, without RDMA.
        reply.u32(0).u32(max_request).u32(max_reply).u32(max_cached);
        reply.u32(max_operations).u32(slots).u32(0);
        // Back channel, which the server does not use.
        reply.u32(0).u32(4096).u32(4096).u32(0).u32(2).u32(1).u32(0);
        result.raw(reply.as_bytes());
        if let Some(client) = state.clients.get_mut(id) {
            client.sequence = sequence.wrapping_add(1);
            client.last_session = Some(reply.into_bytes());
        }
        Ok(())
    }

    /// BIND_CONN_TO_SESSION. Connections need no binding, as SEQUENCE binds them (RFC 8881 section 2.10.3.1).
    pub(super) fn bind(state: &State, session: SessionId, result: &mut Encoder) -> NfsResult<()> {
        state.clients.session(&session)?;
        // Fore channel only, no RDMA.
        result.fixed(&session).u32(1).boolean(false);
        Ok(())
    }

    /// SEQUENCE: starts a request on its slot, or finds the reply to a retransmission (RFC 8881 section 2.10.6.1).
    pub(super) fn sequence(
        &mut self,
        state: &mut State,
        (id, sequence, slot_number, cache): (SessionId, u32, u32, bool),
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let session = state.clients.session(&id)?;
        let client = session.client;
        let (max_operations, max_cached, max_reply) = (session.max_operations, session.max_cached, session.max_reply);
        let highest = u32::try_from(session.slots.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let slot = state.clients.slot_mut(&id, slot_number)?;
        if sequence == slot.sequence {
            return match &slot.reply {
                SlotReply::InProgress => Err(NfsStat::DELAY),
                _ if slot.request != self.request => Err(NfsStat::SEQ_FALSE_RETRY),
                SlotReply::Uncached => Err(NfsStat::RETRY_UNCACHED_REP),
                SlotReply::Cached(reply) => {
                    self.replay = Some(reply.clone());
                    Ok(())
                }
            };
        }
        if sequence != slot.sequence.wrapping_add(1) {
            return Err(NfsStat::SEQ_MISORDERED);
        }
        if self.announced > max_operations {
            return Err(NfsStat::TOO_MANY_OPS);
        }
        *slot = Slot {
            sequence,
            request: self.request.clone(),
            reply: SlotReply::InProgress,
        };
        self.client = Some(client);
        self.slot = Some(UsedSlot {
            session: id,
            slot: slot_number,
            cache,
            max_cached,
            max_reply,
        });
        let lease = state.options.lease;
        state.clients.renew(client, lease);
        result.fixed(&id).u32(sequence).u32(slot_number);
        // Highest slot, target highest slot, no status flags.
        result.u32(highest).u32(highest).u32(0);
        Ok(())
    }
}
