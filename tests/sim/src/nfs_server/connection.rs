//! A connection: records in, records out, and what faults make of them.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use nfs_client::wire::record;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::dispatch;
use super::faults::{Fault, Plan};
use super::rpc::{self, Call};
use super::server::NfsServer;

/// What is sent to a client: a reply, or the end of the connection.
enum Output {
    Reply(Bytes),
    Cut,
}

/// Serves a connection until either end closes it, or `cuts` changes.
pub async fn serve(
    server: NfsServer,
    peer: SocketAddr,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    mut cuts: watch::Receiver<u64>,
) {
    let (source, sink) = tokio::io::split(stream);
    let (outputs, queue) = mpsc::unbounded_channel();
    tokio::select! {
        biased;
        _ = cuts.changed() => {}
        () = write_replies(sink, queue) => {}
        () = read_calls(&server, peer, source, outputs) => {}
    }
}

async fn read_calls(
    server: &NfsServer,
    peer: SocketAddr,
    mut source: ReadHalf<impl AsyncRead>,
    outputs: mpsc::UnboundedSender<Output>,
) {
    while let Ok(Some(message)) = record::read(&mut source).await {
        let Ok(call) = Call::decode(message) else { return };
        // The call is executed even if its connection ends first: a server does not notice.
        server.spawn(answer(server.clone(), peer, call, outputs.clone()));
    }
}

async fn write_replies(mut sink: WriteHalf<impl AsyncWrite>, mut queue: mpsc::UnboundedReceiver<Output>) {
    while let Some(Output::Reply(reply)) = queue.recv().await {
        if sink.write_all(&record::frame(&reply)).await.is_err() {
            return;
        }
    }
}

async fn answer(server: NfsServer, peer: SocketAddr, call: Call, outputs: mpsc::UnboundedSender<Output>) {
    // The receiver is gone once the connection is.
    let send = |output| drop(outputs.send(output));
    let (boot, Plan { latency, fault }) = {
        let mut state = server.state();
        let plan = state.faults.plan(|| dispatch::summarize(&call, peer));
        (state.boot, plan)
    };
    pause(latency).await;
    match fault {
        Some(Fault::Hang) => return,
        Some(Fault::CutBefore) => return send(Output::Cut),
        Some(Fault::Hold(time)) => pause(time).await,
        _ => {}
    }
    server.reachable().await;
    let xid = call.xid;
    let Some(results) = dispatch::execute(&server, boot, peer, call, fault).await else {
        return;
    };
    let reply = rpc::encode_reply(xid, results.as_deref().map_err(|rejection| *rejection));
    pause(latency).await;
    server.reachable().await;
    match fault {
        Some(Fault::CutAfter) => return send(Output::Cut),
        Some(Fault::LoseReply) => return,
        Some(Fault::RepeatReply) => send(Output::Reply(reply.clone())),
        _ => {}
    }
    send(Output::Reply(reply));
}

/// Sleeps, unless there is nothing to wait for: a call without delay needs no turn of the clock.
async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}
