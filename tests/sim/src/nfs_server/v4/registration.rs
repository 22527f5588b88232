//! Registering clients: EXCHANGE_ID (RFC 8881 section 18.35) and SETCLIENTID (RFC 7530 sections 16.33 and 16.34).

use bytes::Bytes;
use nfs_client::wire::Encoder;

use super::clients::ClientId;
use super::compound::Compound;
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// eia_flags: update a confirmed record.
const UPD_CONFIRMED: u32 = 0x4000_0000;
/// eir_flags: the server is no pNFS server; the record is confirmed.
const USE_NON_PNFS: u32 = 0x0001_0000;
const CONFIRMED: u32 = 0x8000_0000;

impl Compound {
    fn principal(&self) -> u32 {
        self.credential.as_ref().map_or(u32::MAX, |caller| caller.uid)
    }

    /// EXCHANGE_ID. The cases have the numbers of RFC 8881 section 18.35.4.
    pub(super) fn exchange_id(
        &self,
        state: &mut State,
        verifier: [u8; 8],
        owner: Bytes,
        flags: u32,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let principal = self.principal();
        let known = state.clients.by_owner(&owner, true);
        let known = known.map(|(id, client)| (id, client.verifier == verifier, client.principal == principal));
        let id = match (flags & UPD_CONFIRMED != 0, known) {
            // 7: no confirmed record to update; 8: another verifier; 9: another principal; 6: an update.
            (true, None) => return Err(NfsStat::NOENT),
            (true, Some((_, false, _))) => return Err(NfsStat::NOT_SAME),
            (true, Some((_, true, false))) => return Err(NfsStat::PERM),
            (true, Some((id, true, true))) => id,
            // 3: another principal has the owner.
            (false, Some((_, _, false))) => return Err(NfsStat::CLID_INUSE),
            // 2: the same client again.
            (false, Some((id, true, true))) => id,
            // 1 and 4: a new client; 5: a client that restarted, whose old record ends when this one is confirmed.
            (false, None | Some((_, false, true))) => {
                let lease = state.options.lease;
                state.clients.register(state.boot, owner, verifier, principal, lease)
            }
        };
        let client = state.clients.get(id).ok_or(NfsStat::SERVERFAULT)?;
        let confirmed = if client.confirmed { CONFIRMED } else { 0 };
        result.u64(id).u32(client.sequence).u32(USE_NON_PNFS | confirmed);
        // SP4_NONE, server owner, scope, and one implementation ID.
        result.u32(0).u64(0).opaque(b"sim").opaque(b"sim");
        result
            .u32(1)
            .opaque(b"example.org")
            .opaque(b"simulated server")
            .u64(0)
            .u32(0);
        Ok(())
    }

    /// SETCLIENTID.
    pub(super) fn set_client_id(
        &self,
        state: &mut State,
        verifier: [u8; 8],
        owner: Bytes,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let principal = self.principal();
        if let Some((id, client)) = state.clients.by_owner(&owner, true) {
            if client.principal != principal {
                return Err(NfsStat::CLID_INUSE);
            }
            if client.verifier == verifier {
                // Only the callback is updated.
                result.u64(id).fixed(&client.confirmation);
                return Ok(());
            }
        }
        let lease = state.options.lease;
        let id = state.clients.register(state.boot, owner, verifier, principal, lease);
        let client = state.clients.get(id).ok_or(NfsStat::SERVERFAULT)?;
        result.u64(id).fixed(&client.confirmation);
        Ok(())
    }

    /// SETCLIENTID_CONFIRM.
    pub(super) fn confirm_client_id(state: &mut State, id: ClientId, confirmation: [u8; 8]) -> NfsResult<()> {
        let client = state.clients.get(id).ok_or(NfsStat::STALE_CLIENTID)?;
        if client.confirmation != confirmation {
            return Err(NfsStat::STALE_CLIENTID);
        }
        Self::confirm(state, id)
    }

    /// Confirms a client, and ends an earlier one with the same owner: this fences off its calls. While one of them is being
    /// executed, the answer is DELAY, as from the Linux server.
    pub(super) fn confirm(state: &mut State, id: ClientId) -> NfsResult<()> {
        let client = state.clients.get(id).ok_or(NfsStat::STALE_CLIENTID)?;
        if !client.confirmed
            && let Some((earlier, _)) = state.clients.by_owner(&client.owner, true)
        {
            if state.clients.is_busy(earlier) {
                return Err(NfsStat::DELAY);
            }
            let opens = state.clients.remove(earlier);
            state.close(opens);
        }
        let lease = state.options.lease;
        if let Some(client) = state.clients.get_mut(id) {
            client.confirmed = true;
        }
        state.clients.renew(id, lease);
        Ok(())
    }

    /// RENEW.
    pub(super) fn renew(state: &mut State, id: ClientId) -> NfsResult<()> {
        if state.clients.get(id).is_none_or(|client| !client.confirmed) {
            return Err(NfsStat::STALE_CLIENTID);
        }
        let lease = state.options.lease;
        state.clients.renew(id, lease);
        Ok(())
    }

    /// DESTROY_CLIENTID (RFC 8881 section 18.50).
    pub(super) fn destroy_client(state: &mut State, id: ClientId) -> NfsResult<()> {
        if state.clients.get(id).is_none() {
            return Err(NfsStat::STALE_CLIENTID);
        }
        if state.clients.has_sessions(id) {
            return Err(NfsStat::CLIENTID_BUSY);
        }
        let opens = state.clients.remove(id);
        state.close(opens);
        Ok(())
    }

    /// RECLAIM_COMPLETE (RFC 8881 section 18.51).
    pub(super) fn reclaim_complete(&self, state: &mut State, one_fs: bool) -> NfsResult<()> {
        let client = self.client.and_then(|id| state.clients.get_mut(id));
        let client = client.ok_or(NfsStat::STALE_CLIENTID)?;
        if !one_fs && std::mem::replace(&mut client.reclaim_complete, true) {
            return Err(NfsStat::COMPLETE_ALREADY);
        }
        Ok(())
    }
}
