//! A scripted server for the tests of the client: NFS and MOUNT on one port, answers on demand.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::Client;
use super::constants::{MOUNT_PROGRAM, nfs};
use crate::call_options::CallOptions;
use crate::connection_manager::IDLE_TIMEOUT;
use crate::rpc::record;
use crate::transport::Tcp;
use crate::xdr::{Decoder, Encoder};
use crate::{Credential, FileHandle, NfsError, Protocol, SourcePort, Target, VersionChoice};

/// What the server does with a call.
pub enum Answer {
    /// Results.
    Results(Encoder),
    /// The RPC layer refuses: what follows the reply status.
    Denied(Encoder),
    /// The RPC layer accepts and refuses: what follows the verifier.
    Unavailable(Encoder),
    /// The connection is cut.
    Cut,
    /// Nothing.
    Silence,
    /// The reply of a server without faults.
    Usual,
}

/// A call: program, procedure, arguments.
pub struct Request {
    pub program: u32,
    pub procedure: u32,
    pub arguments: Decoder,
}

/// Whether this procedure of NFS is called; MOUNT's have the same numbers.
pub fn on(procedure: u32, request: &Request) -> bool {
    request.program != MOUNT_PROGRAM && request.procedure == procedure
}

type Script = dyn Fn(usize, &Request) -> Answer + Send + Sync;

pub struct Server {
    pub port: u16,
    /// Procedures of NFS that were called, in order.
    pub calls: Arc<Mutex<Vec<u32>>>,
}

impl Server {
    /// `script` gets the number of earlier calls of this procedure.
    pub async fn start(script: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (log, script): (_, Arc<Script>) = (Arc::clone(&calls), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&log), Arc::clone(&script)));
            }
        });
        Self { port, calls }
    }

    pub fn count(&self, procedure: u32) -> usize {
        let calls = self.calls.lock();
        calls.iter().filter(|called| **called == procedure).count()
    }

    pub fn target(&self) -> Target {
        Target {
            version: VersionChoice::Exactly(Protocol::V3),
            port: self.port,
            mount_port: Some(self.port),
            source_port: SourcePort::Any,
            deadline: Duration::from_secs(60),
            ..Target::new("127.0.0.1", "/export")
        }
    }

    pub async fn connect(&self) -> Result<Client, NfsError> {
        Client::connect(
            self.target(),
            Arc::new(Tcp),
            Arc::new(()),
            IDLE_TIMEOUT,
            within(60).deadline,
        )
        .await
    }

    pub async fn client(&self) -> Client {
        self.connect().await.unwrap()
    }
}

pub fn within(seconds: u64) -> CallOptions {
    CallOptions {
        credential: Credential::default(),
        deadline: Instant::now() + Duration::from_secs(seconds),
        generation: None,
    }
}

pub fn handle(name: &str) -> FileHandle {
    FileHandle(bytes::Bytes::copy_from_slice(name.as_bytes()))
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<u32>>>, script: Arc<Script>) {
    while let Ok(Some(call)) = record::read(&mut stream).await {
        let mut call = Decoder::new(call);
        let xid = call.u32("xid").unwrap();
        call.array::<8>("call, version").unwrap();
        let program = call.u32("program").unwrap();
        call.u32("version").unwrap();
        let procedure = call.u32("procedure").unwrap();
        for _ in ["credential", "verifier"] {
            call.u32("flavor").unwrap();
            call.opaque("body", 400).unwrap();
        }
        let request = Request {
            program,
            procedure,
            arguments: call,
        };
        let before = {
            let mut log = log.lock();
            let number = if program == MOUNT_PROGRAM {
                1000 + procedure
            } else {
                procedure
            };
            let before = log.iter().filter(|called| **called == number).count();
            log.push(number);
            before
        };
        let mut reply = Encoder::new();
        reply.u32(xid).u32(1);
        let answer = match script(before, &request) {
            Answer::Usual => Answer::Results(usual(&request)),
            answer => answer,
        };
        match answer {
            Answer::Results(results) => reply.u32(0).u32(0).u32(0).u32(0).raw(results.as_bytes()),
            Answer::Unavailable(status) => reply.u32(0).u32(0).u32(0).raw(status.as_bytes()),
            Answer::Denied(why) => reply.u32(1).raw(why.as_bytes()),
            Answer::Cut | Answer::Usual => return,
            Answer::Silence => continue,
        };
        stream.write_all(&record::frame(reply.as_bytes())).await.unwrap();
    }
}

/// Attributes of a directory or file with this fileid.
pub fn attributes(to: &mut Encoder, kind: u32, fileid: u64) {
    to.u32(kind).u32(0o755).u32(1).u32(0).u32(0).u64(0).u64(0).u64(0);
    to.u64(77).u64(fileid).fixed(&[0; 24]);
}

/// A status alone, for results that need no more.
pub fn status(code: u32) -> Answer {
    let mut results = Encoder::new();
    results.u32(code);
    Answer::Results(results)
}

/// LOOKUP's answer: a directory (2) or file (1).
pub fn found(kind: u32, fileid: u64) -> Answer {
    let mut results = Encoder::new();
    results.u32(0).opaque(b"found").boolean(true);
    attributes(&mut results, kind, fileid);
    results.boolean(false);
    Answer::Results(results)
}

fn usual(request: &Request) -> Encoder {
    let mut results = Encoder::new();
    if request.program == MOUNT_PROGRAM {
        match request.procedure {
            1 => results.u32(0).opaque(b"root").u32(1).u32(1),
            _ => results.boolean(false),
        };
        return results;
    }
    match request.procedure {
        nfs::NULL => {}
        nfs::GETATTR => {
            results.u32(0);
            attributes(&mut results, 2, 1);
        }
        nfs::SETATTR => {
            results.u32(0).boolean(false).boolean(true);
            attributes(&mut results, 1, 5);
        }
        nfs::CREATE => {
            results.u32(0).boolean(true).opaque(b"file").boolean(true);
            attributes(&mut results, 1, 5);
        }
        nfs::WRITE => {
            results
                .u32(0)
                .boolean(false)
                .boolean(false)
                .u32(7)
                .u32(2)
                .fixed(&[0; 8]);
        }
        nfs::FSINFO => {
            results.u32(0).boolean(false);
            for size in [65_536, 65_536, 1, 65_536, 65_536, 1, 4096] {
                results.u32(size);
            }
        }
        nfs::PATHCONF => {
            results.u32(0).boolean(false).u32(1000).u32(143);
        }
        nfs::LOOKUP => {
            results.u32(2).boolean(false);
        }
        _ => {
            results.u32(0).boolean(false).boolean(false);
        }
    }
    results
}
