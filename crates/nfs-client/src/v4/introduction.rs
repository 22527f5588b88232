//! Making ourselves known to the server: with a session where it has them (NFSv4.1 and later), else with a client id
//! (NFSv4.0). Which version: the newest that works, of those asked for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::call;
use super::client::Shared;
use super::client_id;
use super::establish::{self, Client};
use super::numbers::code;
use super::session::Session;
use super::sessions::{self, Created};
use crate::rpc::connection::Connection;
use crate::{NfsError, Protocol, Status, VersionChoice};

/// Lease time until the server has told its own (RFC 8881 section 5.8.1.11 leaves it to the server; 90 s is usual).
pub(super) const ASSUMED_LEASE: Duration = Duration::from_secs(90);

/// Operations in a compound that we begin with where no session says how many: knfsd's limit. A server that takes
/// fewer says RESOURCE, and they are halved.
const OPERATIONS_WITHOUT_SESSION: u32 = 50;

/// What the keeper remembers between sessions.
#[derive(Default)]
pub(super) struct Memory {
    /// Whether we ever were connected: from then on we ask before we take.
    pub introduced: bool,
    /// The minor version that was agreed on.
    pub protocol: Option<Protocol>,
    /// Our client on the server, and the sequence number of its next CREATE_SESSION.
    pub client: Option<(u64, u32)>,
    /// The session was lost although nothing explains it but a successor.
    pub taken: bool,
    pub lease: Option<Duration>,
    /// Operations in a compound and implementation, in the server's own words.
    pub operations: u32,
    pub implementation: String,
}

/// The versions to try, the best first. What worked before comes before anything newer: a server that was upgraded
/// gets its new version when the client is made anew.
fn protocols(choice: VersionChoice, known: Option<Protocol>) -> Vec<Protocol> {
    let newest_first = [Protocol::V4_2, Protocol::V4_1, Protocol::V4_0];
    match choice {
        VersionChoice::Exactly(protocol) => vec![protocol],
        VersionChoice::Auto | VersionChoice::Newest4 => {
            let others = newest_first.into_iter().filter(|protocol| Some(*protocol) != known);
            known.into_iter().chain(others).collect()
        }
    }
}

/// Makes a session, or what stands for it in NFSv4.0.
pub(super) async fn introduce(
    shared: &Shared,
    memory: &mut Memory,
    connection: &Connection,
    deadline: Instant,
) -> Result<Session, NfsError> {
    let asked = protocols(shared.target.version, memory.protocol);
    let mut refused = None;
    for protocols in asked.chunk_by(|one, other| (*one == Protocol::V4_0) == (*other == Protocol::V4_0)) {
        let introduced = match protocols {
            [Protocol::V4_0, ..] => without_session(shared, memory, connection, deadline).await,
            minors => with_session(shared, memory, connection, minors, deadline).await,
        };
        match introduced {
            Err(NfsError::ProtocolNotSupported { cause, .. }) => refused = Some(cause),
            introduced => return introduced,
        }
    }
    let asked: Vec<_> = asked.iter().map(Protocol::to_string).collect();
    Err(NfsError::ProtocolNotSupported {
        asked: asked.join(" or "),
        cause: refused.unwrap_or_default(),
    })
}

/// Introduces us to a server without sessions (RFC 7530 section 9.1.1).
async fn without_session(
    shared: &Shared,
    memory: &mut Memory,
    connection: &Connection,
    deadline: Instant,
) -> Result<Session, NfsError> {
    let Some(offer) = client_id::offer(connection, deadline).await? else {
        return Err(NfsError::ProtocolNotSupported {
            asked: Protocol::V4_0.to_string(),
            cause: "NFS4ERR_MINOR_VERS_MISMATCH".to_owned(),
        });
    };
    // At once, not when a file is created first: what a predecessor with our owner left open ends before our first
    // change, and a file that it is about to create is refused.
    let id = client_id::set(connection, &shared.target.owner, deadline).await?;
    *shared.client_id.lock().await = Some(id);
    memory.protocol = Some(Protocol::V4_0);
    memory.lease = offer.lease;
    (memory.operations, memory.implementation) = (0, String::new());
    shared
        .most_operations
        .fetch_min(OPERATIONS_WITHOUT_SESSION, Ordering::Relaxed);
    Ok(Session::none(offer.sizes))
}

/// Makes a session, by the rule of [`super::establish`].
async fn with_session(
    shared: &Shared,
    memory: &mut Memory,
    connection: &Connection,
    minors: &[Protocol],
    deadline: Instant,
) -> Result<Session, NfsError> {
    let owner = &shared.target.owner;
    let mut client = None;
    if memory.introduced {
        match establish::exchange_id(connection, owner, minors, true, deadline).await {
            Ok(ours) if ours.confirmed => client = Some(ours),
            Err(NfsError::Status {
                action,
                status: Status::NotSame,
            }) => {
                return Err(NfsError::Fenced { action });
            }
            Ok(_) | Err(NfsError::Status { .. }) if memory.taken => {
                return Err(NfsError::Fenced {
                    action: "returning to the server",
                });
            }
            Ok(_) | Err(NfsError::Status { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let client = match client {
        Some(client) => client,
        None => establish::exchange_id(connection, owner, minors, false, deadline).await?,
    };
    let (session, operations) = create(memory, connection, &client, deadline).await?;
    sessions::reclaim_complete(connection, &session, deadline).await?;
    memory.introduced = true;
    memory.taken = false;
    memory.protocol = Some(if client.minor == 2 {
        Protocol::V4_2
    } else {
        Protocol::V4_1
    });
    memory.lease = sessions::lease(connection, &session, deadline).await?;
    let most = operations.min(call::MOST_OPERATIONS);
    shared.most_operations.fetch_min(most, Ordering::Relaxed);
    (memory.operations, memory.implementation) = (operations, client.implementation.clone());
    Ok(session)
}

/// CREATE_SESSION with the right sequence number. A confirmed client's is known to whoever made its former sessions;
/// the server's own idea of it is the second guess (RFC 8881 section 18.35.3 leaves it undefined then).
async fn create(
    memory: &mut Memory,
    connection: &Connection,
    client: &Client,
    deadline: Instant,
) -> Result<(Session, u32), NfsError> {
    let known = memory
        .client
        .filter(|(id, _)| *id == client.id)
        .map(|(_, sequence)| sequence);
    let guesses = known
        .into_iter()
        .chain([client.sequence, client.sequence.wrapping_add(1)]);
    let mut refusal = code::SEQ_MISORDERED;
    for sequence in guesses {
        match sessions::create_session(connection, client, sequence, deadline).await? {
            Created::Session(session, operations) => {
                memory.client = Some((client.id, sequence.wrapping_add(1)));
                return Ok((session, operations));
            }
            Created::Refused(code) => refusal = code,
        }
        if refusal != code::SEQ_MISORDERED {
            break;
        }
    }
    memory.client = None;
    Err(establish::refused("making a session (CREATE_SESSION)", refusal))
}
