//! Faults of a server, one after the other, in calls with and without a session. The server runs in this process and the
//! time is paused, so nothing here depends on the speed of the machine.

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
use crate::{ClientOwner, Credential, FileHandle, Name, NfsError, RemoveOutcome, SourcePort, Status, Target};

const DEADLINE: Duration = Duration::from_secs(20);

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

async fn connect(server: &Server) -> Result<Client, NfsError> {
    let target = Target {
        port: server.port,
        source_port: SourcePort::Any,
        owner: ClientOwner {
            owner: b"test".to_vec(),
            verifier: [1; 8],
        },
        deadline: DEADLINE,
        ..Target::new("in this process", "/")
    };
    let transport = Arc::new(server.clone());
    Client::connect(target, transport, Arc::new(()), IDLE_TIMEOUT, Instant::now() + DEADLINE).await
}

/// A server of that minor version, and a client of it.
async fn connected(minor: u32, faults: &[Fault]) -> (Server, Client) {
    let server = Server::new(2049, faults);
    server.state().minor = Some(minor);
    let client = connect(&server).await.unwrap();
    (server, client)
}

async fn change(client: &Client, name: &str) -> Result<(), NfsError> {
    let mut compound = Compound::new("changing");
    compound.at(&handle()).modifying_op(op::REMOVE).opaque(name.as_bytes());
    let mut reply = client.call(options(), &compound).await?;
    reply.op(op::PUTFH)?;
    reply.op(op::REMOVE)?;
    reply.change_info()
}

async fn look(client: &Client) -> Result<(), NfsError> {
    let mut compound = Compound::new("looking");
    compound.at(&handle());
    client.call(options(), &compound).await?.op(op::PUTFH)
}

/// What a call comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Well.
    Done,
    /// An error that says that a change may have been carried out, and that a look was not answered.
    Unknown,
}

/// Sends a change and a look into the same fault: each ends as it should before its deadline, nothing is carried out
/// twice, and the next calls go through.
async fn check(fault: Fault, minor: u32, change_ends: End, look_ends: End) {
    let case = format!("{fault:?} over 4.{minor}");
    let (server, client) = connected(minor, &[fault]).await;
    let began = Instant::now();
    match (change(&client, "a").await, change_ends) {
        (Ok(()), End::Done) => assert_eq!(server.state().removed, ["a"], "{case}"),
        (Err(error), End::Unknown) => {
            assert!(error.outcome_unknown(), "{case}: {error}");
            assert!(server.removed() <= 1, "{case}");
        }
        (outcome, _) => panic!("{case}: a change came to {outcome:?}"),
    }
    server.state().faults.push_back(fault);
    match (look(&client).await, look_ends) {
        (Ok(()), End::Done) => {}
        (Err(error), End::Unknown) => assert!(!error.outcome_unknown(), "{case}: {error}"),
        (outcome, _) => panic!("{case}: a look came to {outcome:?}"),
    }
    assert!(began.elapsed() <= 2 * DEADLINE, "{case}: {:?}", began.elapsed());
    for number in 0..8 {
        change(&client, &number.to_string()).await.unwrap();
    }
    look(&client).await.unwrap();
    let removed = server.state().removed.clone();
    let distinct: std::collections::HashSet<_> = removed.iter().collect();
    assert_eq!(distinct.len(), removed.len(), "{case}: {removed:?}");
}

/// Checks a fault in a session (`.0`, `.1`: how a change and a look end) and without one.
async fn check_both(fault: Fault, session: (End, End), sessionless: (End, End)) {
    check(fault, 1, session.0, session.1).await;
    check(fault, 0, sessionless.0, sessionless.1).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_cut_before_or_after_a_call_costs_a_session_nothing_and_a_bare_change_its_outcome() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        check_both(fault, (End::Done, End::Done), (End::Unknown, End::Done)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_in_a_call_leaves_a_change_unknown_and_a_look_repeated() {
    for fault in [Fault::RestartBefore, Fault::RestartAfter] {
        check_both(fault, (End::Unknown, End::Done), (End::Unknown, End::Done)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_never_comes_ends_at_the_deadline() {
    check_both(Fault::Hang, (End::Unknown, End::Unknown), (End::Unknown, End::Unknown)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_twice_is_taken_once() {
    let fault = Fault::Garbled(Garbled::Twice);
    check_both(fault, (End::Done, End::Done), (End::Done, End::Done)).await;
}

#[tokio::test(start_paused = true)]
async fn replies_to_other_calls_are_not_taken_for_ours() {
    for garbled in [Garbled::WrongXid, Garbled::OfTheNextCall] {
        let fault = Fault::Garbled(garbled);
        check_both(fault, (End::Unknown, End::Unknown), (End::Unknown, End::Unknown)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_one_call_is_not_taken_for_the_answer_to_another_in_a_session() {
    let (server, client) = connected(1, &[Fault::Garbled(Garbled::OfTheNextCall)]).await;
    // Both are on their way when the answer to the first comes under the number of the second.
    let (one, two) = futures::join!(change(&client, "one"), change(&client, "two"));
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(error.outcome_unknown(), "{error}");
    }
    assert_eq!(server.state().removed, ["one", "two"]);
    change(&client, "three").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replies_without_end_to_calls_that_were_never_made_end_the_connection() {
    let fault = Fault::Garbled(Garbled::Strays);
    check_both(fault, (End::Done, End::Done), (End::Unknown, End::Done)).await;
}

#[tokio::test(start_paused = true)]
async fn half_a_record_and_then_silence_ends_at_the_deadline() {
    let fault = Fault::Garbled(Garbled::Half);
    check_both(fault, (End::Unknown, End::Unknown), (End::Unknown, End::Unknown)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_in_fragments_of_one_byte_is_read() {
    let fault = Fault::Garbled(Garbled::ByteByByte);
    check_both(fault, (End::Done, End::Done), (End::Done, End::Done)).await;
}

#[tokio::test(start_paused = true)]
async fn records_that_are_too_long_or_never_end_cost_the_connection() {
    for garbled in [Garbled::LongestLast, Garbled::LongestMore, Garbled::EmptyFragments] {
        let fault = Fault::Garbled(garbled);
        check_both(fault, (End::Done, End::Done), (End::Unknown, End::Done)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_where_a_reply_should_be_is_no_reply() {
    let fault = Fault::Garbled(Garbled::Call);
    check_both(fault, (End::Unknown, End::Unknown), (End::Unknown, End::Unknown)).await;
}

#[tokio::test(start_paused = true)]
async fn replies_that_make_no_sense_leave_a_change_unknown() {
    let garbled = [
        Garbled::SystemError,
        Garbled::ManyResults,
        Garbled::LongTag,
        Garbled::Short,
    ];
    for garbled in garbled {
        let fault = Fault::Garbled(garbled);
        for minor in [0, 1] {
            let case = format!("{garbled:?} over 4.{minor}");
            let (server, client) = connected(minor, &[fault]).await;
            let error = change(&client, "a").await.unwrap_err();
            assert!(
                matches!(
                    &error,
                    NfsError::Protocol {
                        outcome_unknown: true,
                        ..
                    }
                ),
                "{case}: {error}"
            );
            change(&client, "b").await.unwrap();
            assert_eq!(server.state().removed, ["a", "b"], "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_the_results_do_no_harm() {
    let fault = Fault::Garbled(Garbled::Long);
    check_both(fault, (End::Done, End::Done), (End::Done, End::Done)).await;
}

#[tokio::test(start_paused = true)]
async fn delay_and_grace_for_five_seconds_are_waited_out() {
    for minor in [0, 1] {
        for status in [code::DELAY, code::GRACE] {
            let (server, client) = connected(minor, &[]).await;
            let end = Instant::now() + Duration::from_secs(5);
            server.state().busy = Some((end, status));
            change(&client, "a").await.unwrap();
            assert!(Instant::now() >= end && server.arrived() > 3);
            assert_eq!(server.state().removed, ["a"]);
            let end = Instant::now() + DEADLINE + DEADLINE;
            server.state().busy = Some((end, status));
            let error = look(&client).await.unwrap_err();
            assert_eq!(error.status(), Some(Status::Delayed));
            assert!(Instant::now() < end);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_or_misordered_session_is_recreated_and_the_call_repeated() {
    for fault in [
        Fault::ForgetSession,
        Fault::Sequence(code::SEQ_MISORDERED),
        Fault::Sequence(code::BADSESSION),
        Fault::Sequence(code::DEADSESSION),
        Fault::Sequence(code::BADSLOT),
        Fault::Sequence(code::CONN_NOT_BOUND_TO_SESSION),
    ] {
        check(fault, 1, End::Done, End::Done).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_says_nothing_ends_at_the_deadline() {
    let server = Server::new(2049, &[]);
    server.state().mute = true;
    let began = Instant::now();
    let error = connect(&server).await.unwrap_err();
    assert!(matches!(error, NfsError::NotResponding { .. }), "{error}");
    assert!(began.elapsed() <= DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn a_compound_that_is_too_large_is_halved_wherever_the_server_notices() {
    let names: Vec<_> = (0..40)
        .map(|number| Name::new(format!("{number}").into_bytes()).unwrap())
        .collect();
    let faults = [
        (1, Fault::Whole(code::RESOURCE)),
        (1, Fault::Sequence(code::TOO_MANY_OPS)),
        (1, Fault::Sequence(code::REQ_TOO_BIG)),
        (1, Fault::Sequence(code::REP_TOO_BIG)),
        (1, Fault::Last(code::RESOURCE)),
        (1, Fault::Last(code::REP_TOO_BIG)),
        (0, Fault::Whole(code::RESOURCE)),
        (0, Fault::Last(code::RESOURCE)),
    ];
    for (minor, fault) in faults {
        let (server, client) = connected(minor, &[fault]).await;
        let most = client.max_operations();
        let outcomes = client.remove_batch(&handle(), &names, options()).await.unwrap();
        assert_eq!(outcomes, vec![RemoveOutcome::Removed; 40], "{fault:?} over 4.{minor}");
        assert_eq!(server.removed(), 40, "{fault:?} over 4.{minor}");
        assert!(client.max_operations() < most, "{fault:?} over 4.{minor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_too_big_to_keep_is_asked_for_without_keeping() {
    let (server, client) = connected(1, &[Fault::TooBigToCache]).await;
    change(&client, "a").await.unwrap();
    assert_eq!((server.arrived(), server.removed()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_leaves_the_connection_usable() {
    for minor in [0, 1] {
        let (server, client) = connected(minor, &[Fault::Hang; 3]).await;
        for number in 0..3 {
            let name = format!("cancelled {number}");
            let call = change(&client, &name);
            assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
        }
        for number in 0..100 {
            change(&client, &number.to_string()).await.unwrap();
        }
        assert_eq!((server.removed(), server.connections()), (100, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_hangs_up_is_not_stormed() {
    for minor in [0, 1] {
        let (server, client) = connected(minor, &[Fault::CutBefore; 1000]).await;
        look(&client).await.unwrap_err();
        assert!(server.connections() < 40, "{} connections", server.connections());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_brought_down_to_an_older_minor_version_is_spoken_to_in_that() {
    let (server, client) = connected(1, &[]).await;
    server.state().minor = Some(0);
    look(&client).await.unwrap();
    assert_eq!(client.negotiated().protocol, crate::Protocol::V4_0);
    change(&client, "a").await.unwrap();
}
