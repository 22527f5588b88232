//! Recovery of calls when the server or the network misbehaves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::client::Client;
use super::compound::Compound;
use super::constants::{code, op};
use super::garbled::Garbled;
use super::scripted::{Fault, Server};
use crate::call_options::CallOptions;
use crate::connection_manager::IDLE_TIMEOUT;
use crate::transport::Tcp;
use crate::{ClientOwner, Credential, FileHandle, Name, NfsError, RemoveOutcome, SourcePort, Status, Target};

/// No call takes that long, even on a machine that stalls.
const DEADLINE: Duration = Duration::from_secs(60);
const DELAY: Fault = Fault::Last(code::DELAY);

fn target(port: u16) -> Target {
    Target {
        port,
        source_port: SourcePort::Any,
        owner: ClientOwner {
            owner: b"test".to_vec(),
            verifier: [1; 8],
        },
        deadline: DEADLINE,
        ..Target::new("127.0.0.1", "/")
    }
}

async fn connect(target: Target) -> Result<Client, NfsError> {
    let deadline = Instant::now() + target.deadline;
    Client::connect(target, Arc::new(Tcp), Arc::new(()), IDLE_TIMEOUT, deadline).await
}

fn options(deadline: Duration) -> CallOptions {
    CallOptions {
        credential: Credential::default(),
        deadline: Instant::now() + deadline,
        generation: None,
    }
}

async fn connected(faults: &[Fault]) -> (Server, Client) {
    let server = Server::start(faults).await;
    let client = connect(target(server.port)).await.unwrap();
    (server, client)
}

/// The same without a network: the server runs in this process, so that the time of the test can be paused and nothing
/// depends on the speed of the machine.
async fn connected_in_process(faults: &[Fault]) -> (Server, Client) {
    let server = Server::new(2049, faults);
    let client = connect_in_process(&server, IDLE_TIMEOUT).await;
    (server, client)
}

async fn connect_in_process(server: &Server, idle: Duration) -> Client {
    let (transport, deadline) = (Arc::new(server.clone()), Instant::now() + DEADLINE);
    Client::connect(target(server.port), transport, Arc::new(()), idle, deadline)
        .await
        .unwrap()
}

fn handle() -> FileHandle {
    FileHandle(Bytes::from_static(b"handle"))
}

/// A call that changes something: REMOVE of this name.
async fn change(client: &Client, name: &str) -> Result<(), NfsError> {
    let mut compound = Compound::new("changing");
    compound.at(&handle()).modifying_op(op::REMOVE).opaque(name.as_bytes());
    let mut reply = client.call(options(DEADLINE), &compound).await?;
    reply.op(op::PUTFH)?;
    reply.op(op::REMOVE)?;
    reply.change_info()
}

/// A call that changes nothing.
async fn look(client: &Client, deadline: Duration) -> Result<(), NfsError> {
    let mut compound = Compound::new("looking");
    compound.at(&handle());
    client.call(options(deadline), &compound).await?.op(op::PUTFH)
}

#[tokio::test]
async fn a_change_whose_reply_was_cut_off_is_answered_from_the_reply_cache() {
    let (server, client) = connected(&[Fault::CutAfter]).await;
    change(&client, "a").await.unwrap();
    assert_eq!(server.state().removed, ["a"]);
    assert_eq!((server.arrived(), server.connections()), (2, 2));
    assert_eq!(client.generation(), 2);
}

#[tokio::test]
async fn a_change_that_was_cut_off_before_it_was_carried_out_is_carried_out_once() {
    let (server, client) = connected(&[Fault::CutBefore, Fault::CutBefore, Fault::CutAfter, Fault::CutBefore]).await;
    change(&client, "a").await.unwrap();
    assert_eq!(server.state().removed, ["a"]);
}

#[tokio::test]
async fn a_change_whose_reply_was_lost_with_the_session_is_never_sent_again() {
    for fault in [Fault::RestartAfter, Fault::RestartBefore] {
        let (server, client) = connected(&[fault]).await;
        let error = change(&client, "a").await.unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        assert_eq!(server.arrived(), 1);
        change(&client, "b").await.unwrap();
        assert_eq!(server.state().removed.last().unwrap(), "b");
    }
}

#[tokio::test]
async fn a_look_whose_reply_was_lost_with_the_session_is_repeated() {
    let (server, client) = connected(&[Fault::RestartAfter, Fault::ForgetSession]).await;
    look(&client, DEADLINE).await.unwrap();
    assert_eq!(server.arrived(), 3);
}

#[tokio::test]
async fn a_change_that_the_server_refused_for_a_lost_session_is_sent_in_the_next() {
    let (server, client) = connected(&[Fault::ForgetSession]).await;
    change(&client, "a").await.unwrap();
    assert_eq!(server.state().removed, ["a"]);
}

#[tokio::test]
async fn a_session_that_goes_with_its_client_while_the_connection_stands_was_taken_from_us() {
    let (_server, client) = connected(&[Fault::ForgetClient]).await;
    let error = change(&client, "a").await.unwrap_err();
    assert!(matches!(error, NfsError::Fenced { .. }), "{error}");
    let error = look(&client, DEADLINE).await.unwrap_err();
    assert!(matches!(error, NfsError::Fenced { .. }), "{error}");
}

#[tokio::test]
async fn another_client_with_our_owner_fences_us_off_even_over_a_cut_connection() {
    let (server, old) = connected(&[Fault::CutBefore]).await;
    let mut successor = target(server.port);
    successor.owner.verifier = [2; 8];
    let new = connect(successor).await.unwrap();
    let error = look(&old, DEADLINE).await.unwrap_err();
    assert!(matches!(error, NfsError::Fenced { .. }), "{error}");
    look(&new, DEADLINE).await.unwrap();
    assert_eq!(new.generation(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_server_puts_off_are_repeated_until_their_deadline() {
    let (server, client) = connected_in_process(&[DELAY, Fault::Sequence(code::DELAY), DELAY]).await;
    change(&client, "a").await.unwrap();
    assert_eq!((server.arrived(), server.removed()), (4, 1));
    server.state().faults.extend([DELAY; 100]);
    let mut compound = Compound::new("looking");
    compound.at(&handle());
    let began = Instant::now();
    let mut reply = client
        .call(options(Duration::from_millis(400)), &compound)
        .await
        .unwrap();
    assert_eq!(reply.op(op::PUTFH).unwrap_err().status(), Some(Status::Delayed));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_removal_of_many_goes_on_past_one_that_is_put_off() {
    let (server, client) = connected(&[DELAY]).await;
    let names: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| Name::new(name.as_bytes()).unwrap())
        .collect();
    let outcomes = client.remove_batch(&handle(), &names, options(DEADLINE)).await.unwrap();
    assert_eq!(outcomes, vec![RemoveOutcome::Removed; 3]);
    assert_eq!(server.state().removed, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_refused_number_of_operations_is_halved() {
    let (server, client) = connected(&[Fault::Whole(code::RESOURCE)]).await;
    assert_eq!(client.max_operations(), 15);
    let names: Vec<_> = (0..20)
        .map(|number| Name::new(format!("{number}").into_bytes()).unwrap())
        .collect();
    let outcomes = client.remove_batch(&handle(), &names, options(DEADLINE)).await.unwrap();
    assert_eq!(outcomes, vec![RemoveOutcome::Removed; 20]);
    assert_eq!(client.max_operations(), 7);
    assert_eq!((server.arrived(), server.removed()), (5, 20));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_fails_the_call_at_its_deadline_and_keeps_the_slot() {
    let (server, client) = connected_in_process(&[Fault::Hang; 4]).await;
    let began = Instant::now();
    for _ in 0..4 {
        // A connection is silent if its last answer is older than the call.
        tokio::time::advance(Duration::from_millis(1)).await;
        let error = look(&client, Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, NfsError::NotResponding { .. }), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(2));
    // Silence ended the connections; on the next, a lone SEQUENCE settles each slot, and all four work again.
    for number in 0..8 {
        change(&client, &number.to_string()).await.unwrap();
    }
    assert_eq!(server.removed(), 8);
}

#[tokio::test]
async fn a_cancelled_call_keeps_its_slot_until_the_server_is_done_with_it() {
    let (server, client) = connected(&[Fault::Hang]).await;
    let cancelled = tokio::time::timeout(Duration::from_millis(100), change(&client, "cancelled")).await;
    assert!(cancelled.is_err());
    for number in 0..8 {
        change(&client, &number.to_string()).await.unwrap();
    }
    // The cancelled call's slot was not among those used: its sequence number is still the one that hangs.
    assert_eq!(server.removed(), 8);
    assert!(!server.state().removed.contains(&"cancelled".to_owned()));
}

#[tokio::test]
async fn answers_to_calls_that_were_never_made_end_the_connection() {
    let (server, client) = connected(&[Fault::Garbled(Garbled::Strays)]).await;
    change(&client, "a").await.unwrap();
    assert_eq!((server.connections(), server.removed()), (2, 1));
}

#[tokio::test]
async fn an_answer_to_another_operation_makes_no_sense() {
    let (_server, client) = connected(&[Fault::OtherOperation]).await;
    let error = change(&client, "a").await.unwrap_err();
    assert!(
        matches!(
            error,
            NfsError::Protocol {
                outcome_unknown: true,
                ..
            }
        ),
        "{error}"
    );
    change(&client, "b").await.unwrap();
}

#[tokio::test]
async fn a_repetition_whose_reply_was_not_kept_leaves_a_change_unknown_and_repeats_a_look() {
    let (server, client) = connected(&[Fault::CutAfter, Fault::Serve, Fault::CutAfter]).await;
    server.state().is_reply_cache_disabled = true;
    let error = change(&client, "a").await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(server.state().removed, ["a"]);
    look(&client, DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_closed_port_and_a_silent_server_are_told_apart_when_connecting() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut hanging = target(silent.local_addr().unwrap().port());
    hanging.deadline = Duration::from_secs(1);
    let error = connect(hanging.clone()).await.unwrap_err();
    assert!(matches!(error, NfsError::NotResponding { .. }), "{error}");
    // Bound, so that nobody else gets the port, but not listening.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let error = connect(target(closed.local_addr().unwrap().port())).await.unwrap_err();
    assert!(matches!(error, NfsError::ConnectionRefused { .. }), "{error}");
    hanging.server = "no-such-name.invalid".to_owned();
    let error = connect(hanging.clone()).await.unwrap_err();
    assert!(matches!(error, NfsError::NameResolution { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_is_ended_and_recreated_for_the_next_call() {
    let server = Server::new(2049, &[]);
    let client = connect_in_process(&server, Duration::from_millis(200)).await;
    assert_eq!(server.sessions(), 1);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        look(&client, DEADLINE).await.unwrap();
    }
    assert_eq!((server.connections(), server.sessions()), (1, 1));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((server.connections(), server.sessions()), (1, 0));
    change(&client, "a").await.unwrap();
    assert_eq!((server.connections(), server.removed()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_ends_its_session() {
    let (server, client) = connected_in_process(&[]).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.sessions(), 0);
    let client = connect_in_process(&server, IDLE_TIMEOUT).await;
    client.close().await;
    assert_eq!(server.sessions(), 0);
    let error = look(&client, DEADLINE).await.unwrap_err();
    assert!(
        matches!(
            error,
            NfsError::ConnectionLost {
                outcome_unknown: false,
                ..
            }
        ),
        "{error}"
    );
}
