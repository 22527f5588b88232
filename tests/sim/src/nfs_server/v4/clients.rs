//! Clients, their sessions and their opens (RFC 8881 sections 2.4, 2.10 and 8.2; RFC 7530 section 9.1).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use nfs_client::wire::v4::StateId;
use tokio::time::Instant;

use crate::nfs_server::file_system::Object;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// A client ID.
pub type ClientId = u64;

/// A session ID.
pub type SessionId = [u8; 16];

/// A client.
#[derive(Debug, Clone)]
pub struct Client {
    /// `co_ownerid`, in NFSv4.0 `nfs_client_id4.id`.
    pub owner: Bytes,
    /// Identifies the life of the client.
    pub verifier: [u8; 8],
    /// User ID that registered it.
    pub principal: u32,
    /// Whether it was confirmed, by CREATE_SESSION or SETCLIENTID_CONFIRM.
    pub confirmed: bool,
    /// Sequence ID of the next CREATE_SESSION.
    pub sequence: u32,
    /// The reply to the last CREATE_SESSION.
    pub last_session: Option<Vec<u8>>,
    /// Whether RECLAIM_COMPLETE was received.
    pub reclaim_complete: bool,
    /// Verifier of SETCLIENTID_CONFIRM.
    pub confirmation: [u8; 8],
    /// End of its lease.
    pub lease_until: Instant,
}

/// What a slot knows of its newest request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SlotReply {
    /// There was none, or its reply was not cached.
    #[default]
    Uncached,
    /// It is being executed.
    InProgress,
    /// Its reply.
    Cached(Bytes),
}

/// A slot of a session (RFC 8881 section 2.10.6.1).
#[derive(Debug, Clone, Default)]
pub struct Slot {
    /// Sequence ID of the newest request.
    pub sequence: u32,
    /// Arguments of the newest request, to detect a false retry.
    pub request: Bytes,
    /// Reply to it.
    pub reply: SlotReply,
}

/// A session.
#[derive(Debug, Clone)]
pub struct Session {
    /// The client that it belongs to.
    pub client: ClientId,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// Maximum number of operations in a COMPOUND.
    pub max_operations: u32,
    /// Maximum size of a cached reply.
    pub max_cached: u32,
    /// Maximum size of a reply.
    pub max_reply: u32,
}

impl Session {
    /// Whether a request is being executed.
    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.reply == SlotReply::InProgress)
    }
}

/// An open file.
#[derive(Debug, Clone)]
pub struct Open {
    /// The client.
    pub client: ClientId,
    /// The disk of the file.
    pub disk: String,
    /// The file.
    pub object: Object,
    /// Sequence of the stateid.
    pub sequence: u32,
    /// share_access.
    pub access: u32,
    /// Whether OPEN_CONFIRM is due (NFSv4.0).
    pub unconfirmed: bool,
}

/// All clients, sessions and opens of a server.
#[derive(Debug, Default)]
pub struct ClientTable {
    clients: BTreeMap<ClientId, Client>,
    sessions: BTreeMap<SessionId, Session>,
    opens: BTreeMap<[u8; 12], Open>,
    next: u32,
}

/// Files whose opens ended: disk and object.
pub type EndedOpens = Vec<(String, Object)>;

impl ClientTable {
    fn next_number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Returns a client by ID.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(&id)
    }

    /// Returns a client by ID, to change it.
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&id)
    }

    /// Returns the client with this owner.
    pub fn by_owner(&self, owner: &[u8], confirmed: bool) -> Option<(ClientId, &Client)> {
        let mut clients = self.clients.iter();
        let found = clients.find(|(_, client)| client.owner == owner && client.confirmed == confirmed);
        found.map(|(id, client)| (*id, client))
    }

    /// Adds an unconfirmed client, in place of another unconfirmed one with the same owner. Returns its ID, which holds the
    /// number of the server's life.
    pub fn register(
        &mut self,
        boot: u32,
        owner: Bytes,
        verifier: [u8; 8],
        principal: u32,
        lease: Duration,
    ) -> ClientId {
        self.clients
            .retain(|_, client| client.confirmed || client.owner != owner);
        let number = self.next_number();
        let id = (u64::from(boot) << 32) | u64::from(number);
        self.clients.insert(
            id,
            Client {
                owner,
                verifier,
                principal,
                confirmed: false,
                sequence: 1,
                last_session: None,
                reclaim_complete: false,
                confirmation: u64::from(number).to_be_bytes(),
                lease_until: Instant::now() + lease,
            },
        );
        id
    }

    /// Whether a request of the client is being executed.
    pub fn is_busy(&self, id: ClientId) -> bool {
        self.sessions
            .values()
            .any(|session| session.client == id && session.is_busy())
    }

    /// Whether the client has sessions.
    pub fn has_sessions(&self, id: ClientId) -> bool {
        self.sessions.values().any(|session| session.client == id)
    }

    /// Removes a client with its sessions and opens.
    pub fn remove(&mut self, id: ClientId) -> EndedOpens {
        self.clients.remove(&id);
        self.sessions.retain(|_, session| session.client != id);
        self.take_opens(|open| open.client == id)
    }

    fn take_opens(&mut self, ends: impl Fn(&Open) -> bool) -> EndedOpens {
        let ended = self.opens.extract_if(.., |_, open| ends(open));
        ended.map(|(_, open)| (open.disk, open.object)).collect()
    }

    /// Renews a client's lease.
    pub fn renew(&mut self, id: ClientId, lease: Duration) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.lease_until = Instant::now() + lease;
        }
    }

    /// Removes the clients whose lease expired.
    pub fn expire(&mut self) -> EndedOpens {
        let now = Instant::now();
        let clients = self.clients.iter();
        let expired: Vec<_> = clients
            .filter(|(id, client)| client.lease_until < now && !self.is_busy(**id))
            .map(|(id, _)| *id)
            .collect();
        expired.into_iter().flat_map(|id| self.remove(id)).collect()
    }

    /// Removes everything: a restart without stable storage.
    pub fn forget_all(&mut self) -> EndedOpens {
        self.clients.clear();
        self.sessions.clear();
        self.take_opens(|_| true)
    }

    /// Forgets the requests in progress: a restart with persistent sessions, after which they may be sent again. A COMPOUND
    /// that was interrupted has been executed in part.
    pub fn abandon_calls(&mut self) {
        for slot in self.sessions.values_mut().flat_map(|session| &mut session.slots) {
            if slot.reply == SlotReply::InProgress {
                slot.reply = SlotReply::Uncached;
            }
        }
    }

    /// Adds a session.
    pub fn add_session(&mut self, session: Session) -> SessionId {
        let id = (u128::from(session.client) << 64) | u128::from(self.next_number());
        let id = id.to_be_bytes();
        self.sessions.insert(id, session);
        id
    }

    /// Returns a session.
    pub fn session(&self, id: &SessionId) -> NfsResult<&Session> {
        self.sessions.get(id).ok_or(NfsStat::BADSESSION)
    }

    /// Returns a slot, to change it.
    pub fn slot_mut(&mut self, id: &SessionId, slot: u32) -> NfsResult<&mut Slot> {
        let session = self.sessions.get_mut(id).ok_or(NfsStat::BADSESSION)?;
        session.slots.get_mut(slot as usize).ok_or(NfsStat::BADSLOT)
    }

    /// Removes a session.
    pub fn remove_session(&mut self, id: &SessionId) -> NfsResult<()> {
        self.sessions.remove(id).map(drop).ok_or(NfsStat::BADSESSION)
    }

    /// Adds an open; returns its stateid.
    pub fn open(&mut self, boot: u32, open: Open) -> StateId {
        let number = self.next_number();
        let mut other = [0; 12];
        for (place, byte) in other
            .iter_mut()
            .zip(boot.to_be_bytes().into_iter().chain(u64::from(number).to_be_bytes()))
        {
            *place = byte;
        }
        let stateid = StateId {
            sequence: open.sequence,
            other,
        };
        self.opens.insert(other, open);
        stateid
    }

    /// Returns the open of a stateid, unless it belongs to another file.
    pub fn open_mut(&mut self, stateid: StateId, object: Object) -> NfsResult<&mut Open> {
        let open = self.opens.get_mut(&stateid.other).ok_or(NfsStat::BAD_STATEID)?;
        if open.object == object {
            Ok(open)
        } else {
            Err(NfsStat::BAD_STATEID)
        }
    }

    /// Ends an open.
    pub fn close(&mut self, stateid: StateId) -> EndedOpens {
        let open = self.opens.remove(&stateid.other);
        open.into_iter().map(|open| (open.disk, open.object)).collect()
    }
}
