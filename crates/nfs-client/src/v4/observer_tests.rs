//! What an observer learns of calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::client::Client;
use super::compound::Compound;
use super::constants::{code, op};
use super::scripted::{Fault, Server};
use crate::call_options::CallOptions;
use crate::connection_manager::IDLE_TIMEOUT;
use crate::{CallKind, CallObserver, CallOutcome, Credential, FileHandle, NfsError, Target};

const DEADLINE: Duration = Duration::from_secs(20);

async fn connect(server: &Server, observer: Arc<dyn CallObserver>) -> Client {
    let target = Target {
        deadline: DEADLINE,
        ..Target::new("in this process", "/")
    };
    let (transport, deadline) = (Arc::new(server.clone()), Instant::now() + DEADLINE);
    Client::connect(target, transport, observer, IDLE_TIMEOUT, deadline)
        .await
        .unwrap()
}

fn options() -> CallOptions {
    CallOptions {
        credential: Credential::default(),
        deadline: Instant::now() + DEADLINE,
        generation: None,
    }
}

fn handle() -> FileHandle {
    FileHandle(Bytes::from_static(b"handle"))
}

fn change() -> Compound {
    let mut compound = Compound::new("changing");
    compound.at(&handle()).modifying_op(op::REMOVE).opaque(b"name");
    compound
}

/// Writes down what it observes.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl CallObserver for Notes {
    fn call_ended(&self, kind: CallKind, elapsed: Duration, outcome: CallOutcome<'_>) {
        let outcome = match outcome {
            CallOutcome::Answered(None) => "ok".to_owned(),
            CallOutcome::Answered(Some(status)) => format!("{status:?}"),
            CallOutcome::Failed(error) => error.to_string(),
        };
        let note = format!("{kind:?} after {} s: {outcome}", elapsed.as_secs());
        self.0.lock().push(note);
    }

    fn connect_ended(&self, error: Option<&NfsError>) {
        let note = error.map_or_else(|| "connected".to_owned(), |error| format!("not connected: {error}"));
        self.0.lock().push(note);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_learns_of_each_call_and_connection_once() {
    let server = Server::new(2049, &[]);
    let notes = Arc::new(Notes::default());
    let client = connect(&server, notes.clone()).await;
    assert_eq!(notes.take(), ["connected"]);
    for (fault, seen) in [
        (Fault::Serve, vec!["Change after 0 s: ok"]),
        // Repeated on the next connection: one call all the same.
        (Fault::CutAfter, vec!["connected", "Change after 0 s: ok"]),
        (Fault::Last(code::NXIO), vec!["Change after 0 s: Io"]),
        (Fault::Hang, vec!["Change after 20 s: changing: no answer within 20 s"]),
    ] {
        server.state().faults.push_back(fault);
        let _ = client.call(options(), &change()).await;
        // The connection manager reports after the call.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(notes.take(), seen, "{fault:?}");
    }
}

#[test]
fn the_kind_of_a_compound_is_that_of_its_first_change() {
    let of = |changes: &[u32], reads: &[u32]| {
        let mut compound = Compound::new("test");
        compound.at(&handle());
        for number in reads {
            compound.op(*number);
        }
        for number in changes {
            compound.modifying_op(*number);
        }
        compound.kind()
    };
    for (changes, reads, kind) in [
        (&[][..], &[op::GETATTR][..], CallKind::Lookup),
        (&[], &[op::READDIR], CallKind::List),
        (&[], &[op::LOOKUP, op::READ], CallKind::Read),
        (&[op::RENAME], &[op::LOOKUP], CallKind::Change),
        // A small file is created, not only written.
        (&[op::OPEN, op::WRITE], &[], CallKind::Change),
        (&[op::WRITE], &[], CallKind::Write),
        (&[op::COPY], &[], CallKind::Write),
    ] {
        assert_eq!(of(changes, reads), kind, "{changes:?} {reads:?}");
    }
}
