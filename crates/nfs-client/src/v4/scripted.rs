//! A scripted server for the tests of recovery: sessions with slots and a reply cache, a few operations, and faults on
//! demand.

mod clients;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::constants::{code, op};
use super::garbled::{self, Garbled};
use crate::rpc::record;
use crate::transport::{Streams, Transport};
use crate::xdr::{Decoder, Encoder};
use crate::{NfsError, SourcePort};

/// Fault in one call of a test (one with PUTFH); calls of the connection manager are always served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// None.
    Serve,
    /// The connection is cut before the call is executed.
    CutBefore,
    /// The connection is cut after it.
    CutAfter,
    /// Executed; then the server restarts: the connection is cut, sessions and clients are dropped.
    RestartAfter,
    /// The server restarts before the call is executed.
    RestartBefore,
    /// Never answered nor executed.
    Hang,
    /// The last operation fails with this status.
    Last(u32),
    /// The session is dropped, the client is not: BADSESSION.
    ForgetSession,
    /// Session and client are dropped while the connection stands.
    ForgetClient,
    /// Answered with the results of another operation.
    OtherOperation,
    /// Refused with this status, without any result.
    Whole(u32),
    /// SEQUENCE fails with this status (SEQ_MISORDERED, REQ_TOO_BIG, …).
    Sequence(u32),
    /// REP_TOO_BIG_TO_CACHE, if the reply must be cached.
    TooBigToCache,
    /// Executed; the reply is garbled.
    Garbled(Garbled),
}

/// Slot → newest sequence ID and the reply to it.
type Slots = HashMap<u32, (u32, Vec<u8>)>;

#[derive(Debug, Default)]
pub struct State {
    pub faults: VecDeque<Fault>,
    /// Names that were removed.
    pub removed: Vec<String>,
    /// Calls of tests that arrived, retransmissions included.
    pub arrived: usize,
    pub connections: usize,
    /// owner → verifier, client id, confirmed.
    clients: HashMap<Vec<u8>, ([u8; 8], u64, bool)>,
    sessions: HashMap<[u8; 16], Slots>,
    next: u64,
    /// Whether the reply cache is disabled.
    pub is_reply_cache_disabled: bool,
    /// Until then the last operation of each call fails with this status.
    pub busy: Option<(Instant, u32)>,
    /// The minor version that the server supports; if absent, any but 0.
    pub minor: Option<u32>,
    /// Connections are accepted, and nothing is answered.
    pub mute: bool,
}

#[derive(Debug, Clone)]
pub struct Server {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl Transport for Server {
    fn resolve<'a>(&'a self, _server: &'a str, _deadline: Instant) -> BoxFuture<'a, Result<Vec<IpAddr>, NfsError>> {
        Box::pin(std::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])))
    }

    fn connect<'a>(
        &'a self,
        _server: &'a str,
        _port: u16,
        _source_port: SourcePort,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Streams, NfsError>> {
        let (client_end, server_end) = tokio::io::duplex(4 << 20);
        self.state().connections += 1;
        tokio::spawn(self.clone().serve(server_end));
        let (source, sink) = tokio::io::split(client_end);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        Box::pin(std::future::ready(Ok(Streams {
            source: Box::new(source),
            sink: Box::new(sink),
            local: address,
            peer: address,
        })))
    }
}

enum After {
    Reply(Vec<u8>),
    Nothing,
    Cut,
    Garbled(Garbled, Vec<u8>),
}

impl Server {
    /// A server in this process, which is its own [`Transport`]: the time of a test can then stand still.
    pub fn new(port: u16, faults: &[Fault]) -> Self {
        let state = State {
            faults: faults.iter().copied().collect(),
            ..State::default()
        };
        Self {
            port,
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub async fn start(faults: &[Fault]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = Self::new(listener.local_addr().unwrap().port(), faults);
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.state().connections += 1;
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        server
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Calls of tests that arrived.
    pub fn arrived(&self) -> usize {
        self.state().arrived
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    /// Number of sessions.
    pub fn sessions(&self) -> usize {
        self.state().sessions.len()
    }

    /// Names that were removed.
    pub fn removed(&self) -> usize {
        self.state().removed.len()
    }

    async fn serve(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        while let Ok(Some(call)) = record::read(&mut stream).await {
            let mut call = Decoder::new(call);
            let xid = call.u32("").unwrap();
            for _ in 0..5 {
                call.u32("").unwrap();
            }
            for _ in 0..2 {
                call.u32("").unwrap();
                call.opaque("", 400).unwrap();
            }
            call.opaque("tag", 0).unwrap();
            let minor = call.u32("minor").unwrap();
            let answer = self.state().compound(minor, call);
            let bytes = match answer {
                After::Reply(body) => garbled::reply(xid, &body),
                After::Nothing => continue,
                After::Cut => return,
                After::Garbled(how, body) => how.bytes(xid, &body),
            };
            // The client may have closed the connection.
            let _ = stream.write_all(&bytes).await;
        }
    }
}

/// A compound's operations behind their number.
fn counted(count: u32, operations: Decoder) -> Decoder {
    let mut message = Encoder::new();
    let rest = operations.left();
    let mut operations = operations;
    message.u32(count);
    for _ in 0..rest / 4 {
        message.u32(operations.u32("").unwrap());
    }
    Decoder::new(message.into_bytes().into())
}

/// The results of a compound.
fn results(status: u32, each: &[Vec<u8>]) -> Vec<u8> {
    let mut message = Encoder::new();
    message.u32(status).opaque(b"").u32(each.len() as u32);
    for result in each {
        message.raw(result);
    }
    message.into_bytes()
}

fn result(op: u32, status: u32, fill: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut message = Encoder::new();
    fill(message.u32(op).u32(status));
    message.into_bytes()
}

impl State {
    fn compound(&mut self, minor: u32, mut call: Decoder) -> After {
        if self.mute {
            return After::Nothing;
        }
        if self.minor.map_or(minor == 0, |spoken| spoken != minor) {
            return After::Reply(results(code::MINOR_VERS_MISMATCH, &[]));
        }
        let first = call.clone();
        let count = call.u32("count").unwrap();
        match call.u32("first operation").unwrap() {
            op::SEQUENCE => self.sequence(call, count),
            op::EXCHANGE_ID => After::Reply(self.exchange_id(call)),
            op::CREATE_SESSION => After::Reply(self.create_session(call)),
            op::BIND_CONN_TO_SESSION => {
                let id: [u8; 16] = call.array("").unwrap();
                let status = if self.sessions.contains_key(&id) {
                    code::OK
                } else {
                    code::BADSESSION
                };
                let body = result(op::BIND_CONN_TO_SESSION, status, |message| {
                    message.fixed(&id).u32(1).u32(0);
                });
                After::Reply(results(status, &[body]))
            }
            op::DESTROY_SESSION => {
                let id: [u8; 16] = call.array("").unwrap();
                self.sessions.remove(&id);
                After::Reply(results(0, &[result(op::DESTROY_SESSION, 0, |_| ())]))
            }
            op::PUTFH => self.sessionless(first),
            op::PUTROOTFH => After::Reply(self.carry_out(Vec::new(), first, Fault::Serve)),
            op::SETCLIENTID => {
                self.next += 1;
                let body = result(op::SETCLIENTID, 0, |message| {
                    message.u64(1).fixed(&[0; 8]);
                });
                After::Reply(results(0, &[body]))
            }
            other => After::Reply(results(0, &[result(other, 0, |_| ())])),
        }
    }

    /// A test's call without a session.
    fn sessionless(&mut self, call: Decoder) -> After {
        self.arrived += 1;
        let fault = self.faults.pop_front().unwrap_or(Fault::Serve);
        match fault {
            Fault::CutBefore | Fault::RestartBefore => return After::Cut,
            Fault::Hang => return After::Nothing,
            Fault::Whole(status) => return After::Reply(results(status, &[])),
            _ => {}
        }
        let body = self.carry_out(Vec::new(), call, fault);
        match fault {
            Fault::CutAfter | Fault::RestartAfter => After::Cut,
            Fault::Garbled(how) => After::Garbled(how, body),
            _ => After::Reply(body),
        }
    }

    fn sequence(&mut self, mut call: Decoder, count: u32) -> After {
        let id: [u8; 16] = call.array("").unwrap();
        let (sequence, slot) = (call.u32("").unwrap(), call.u32("").unwrap());
        call.u32("highest slot").unwrap();
        let keep = call.boolean("keep the reply").unwrap();
        let mut first = call.clone();
        let a_tests = count > 1 && first.u32("").unwrap() == op::PUTFH;
        let mut fault = Fault::Serve;
        if a_tests {
            self.arrived += 1;
            fault = self.faults.pop_front().unwrap_or(Fault::Serve);
        }
        let refused = |status| After::Reply(results(status, &[result(op::SEQUENCE, status, |_| ())]));
        match fault {
            Fault::CutBefore => return After::Cut,
            Fault::Hang => return After::Nothing,
            Fault::Sequence(status) => return refused(status),
            Fault::Whole(status) => return After::Reply(results(status, &[])),
            Fault::TooBigToCache if keep => return refused(code::REP_TOO_BIG_TO_CACHE),
            Fault::ForgetSession => self.sessions.clear(),
            Fault::ForgetClient | Fault::RestartBefore => {
                self.sessions.clear();
                self.clients.clear();
            }
            _ => {}
        }
        if fault == Fault::RestartBefore {
            return After::Cut;
        }
        let Some(slots) = self.sessions.get_mut(&id) else {
            return refused(code::BADSESSION);
        };
        let (last, cached) = slots.get(&slot).cloned().unwrap_or_default();
        let body = if sequence == last && self.is_reply_cache_disabled {
            results(
                code::RETRY_UNCACHED_REP,
                &[result(op::SEQUENCE, code::RETRY_UNCACHED_REP, |_| ())],
            )
        } else if sequence == last {
            cached
        } else if sequence == last + 1 {
            let head = result(op::SEQUENCE, 0, |message| {
                message.fixed(&id).u32(sequence).u32(slot).u32(3).u32(3).u32(0);
            });
            let body = self.carry_out(vec![head], counted(count - 1, call), fault);
            if let Some(slots) = self.sessions.get_mut(&id) {
                slots.insert(slot, (sequence, body.clone()));
            }
            body
        } else {
            return refused(code::SEQ_MISORDERED);
        };
        match fault {
            Fault::CutAfter => After::Cut,
            Fault::RestartAfter => {
                self.sessions.clear();
                self.clients.clear();
                After::Cut
            }
            Fault::Garbled(how) => After::Garbled(how, body),
            _ => After::Reply(body),
        }
    }

    fn carry_out(&mut self, mut each: Vec<Vec<u8>>, mut call: Decoder, mut fault: Fault) -> Vec<u8> {
        let count = call.u32("count").unwrap();
        if let Some((_, status)) = self.busy.filter(|(until, _)| Instant::now() < *until) {
            fault = Fault::Last(status);
        }
        for index in 0..count {
            let number = call.u32("").unwrap();
            if let Fault::Last(status) = fault
                && index + 1 == count
            {
                each.push(result(number, status, |_| ()));
                return results(status, &each);
            }
            let answered = if fault == Fault::OtherOperation {
                op::LINK
            } else {
                number
            };
            each.push(match number {
                op::PUTFH => {
                    call.opaque("", 128).unwrap();
                    result(answered, 0, |_| ())
                }
                op::REMOVE => {
                    let name: Bytes = call.opaque("", 255).unwrap();
                    self.removed.push(String::from_utf8_lossy(&name).into_owned());
                    result(answered, 0, |message| {
                        message.fixed(&[0; 20]);
                    })
                }
                op::RECLAIM_COMPLETE => {
                    call.u32("").unwrap();
                    result(number, 0, |_| ())
                }
                op::GETATTR => {
                    call.array::<12>("").unwrap();
                    // The lease time: 90 s.
                    result(number, 0, |message| {
                        message.u32(1).u32(1 << 10).u32(4).u32(90);
                    })
                }
                _ => result(number, 0, |_| ()),
            });
        }
        results(0, &each)
    }
}
