//! One connection through the proxy.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    Framing, ProxyState,
    hook::{Action, Direction, PassingRecord},
    record::{Chunk, RecordParser},
};

/// Maximum number of records that wait for their delay in one direction.
const MAX_QUEUED_RECORDS: usize = 1024;
const READ_BUFFER_BYTES: usize = 64 << 10;

/// Why a connection ended before both sides closed it.
enum Termination {
    /// Both ends are reset.
    Reset,
    /// Data that was sent is delivered, then the connection is closed.
    Close,
}

/// Serves a client's connection until it ends. `cuts` changes with each cut since the connection was accepted: earlier
/// cuts do not concern it, and no later one is missed.
pub(super) async fn serve(state: &ProxyState, number: u64, mut client: TcpStream, mut cuts: watch::Receiver<()>) {
    let connected = tokio::select! {
        connected = connect(state) => connected,
        _ = cuts.changed() => Err(io::ErrorKind::ConnectionReset.into()),
    };
    let Ok(mut server) = connected else {
        reset(&client);
        return;
    };
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = Pump {
            state,
            number,
            direction: Direction::Up,
        };
        let down = Pump {
            state,
            number,
            direction: Direction::Down,
        };
        tokio::select! {
            ended = async {
                tokio::try_join!(up.run(from_client, to_server), down.run(from_server, to_client))
            } => ended.err(),
            _ = cuts.changed() => Some(Termination::Reset),
        }
    };
    if matches!(end, Some(Termination::Reset)) {
        reset(&client);
        reset(&server);
    }
}

async fn connect(state: &ProxyState) -> io::Result<TcpStream> {
    wait_while_hanging(state).await;
    let server = TcpStream::connect(state.upstream).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// Makes the following close send a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    // This fails only if the socket is already closed.
    let _ = stream.set_zero_linger();
}

/// Waits while the proxy hangs.
async fn wait_while_hanging(state: &ProxyState) {
    let mut settings: watch::Receiver<_> = state.settings.subscribe();
    // This cannot fail, because `state` owns the sender.
    let _ = settings.wait_for(|settings| !settings.hang).await;
}

/// One direction of one connection.
#[derive(Clone, Copy)]
struct Pump<'a> {
    state: &'a ProxyState,
    number: u64,
    direction: Direction,
}

impl Pump<'_> {
    async fn run(self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), Termination> {
        let (queue, queued) = mpsc::channel(MAX_QUEUED_RECORDS);
        tokio::try_join!(self.read(from, queue), self.write(queued, to)).map(drop)
    }

    async fn read(self, mut from: ReadHalf<'_>, queue: mpsc::Sender<(Instant, Chunk)>) -> Result<(), Termination> {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut records = RecordParser::default();
        loop {
            let length = from.read(&mut buffer).await.map_err(|_| Termination::Reset)?;
            let read = buffer.get(..length).unwrap_or_default();
            let now = Instant::now();
            let enqueue = async |chunk| queue.send((now, chunk)).await.map_err(|_| Termination::Reset);
            if self.state.framing == Framing::Bytes && length > 0 {
                enqueue(Chunk::of_bytes(read)).await?;
                continue;
            }
            records.push(read);
            while let Some(chunk) = records.next().map_err(|_| Termination::Reset)? {
                enqueue(chunk).await?;
            }
            if length == 0 {
                return enqueue(records.rest()).await;
            }
        }
    }

    async fn write(
        self,
        mut queued: mpsc::Receiver<(Instant, Chunk)>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Termination> {
        while let Some((received, chunk)) = queued.recv().await {
            let mut due = received + self.state.settings.borrow().delay(self.direction);
            if !chunk.record.is_empty() {
                let passing = PassingRecord {
                    connection: self.number,
                    direction: self.direction,
                    record: &chunk.record,
                };
                match self.state.hooks.run(passing) {
                    Action::Forward => {}
                    Action::Drop => continue,
                    Action::Cut => return Err(Termination::Reset),
                    Action::Delay(longer) => due += longer,
                }
            }
            sleep_until(due).await;
            wait_while_hanging(self.state).await;
            let allowed = self.state.consume_budget(self.direction, chunk.raw.len());
            let bytes = chunk.raw.get(..allowed).unwrap_or_default();
            to.write_all(bytes).await.map_err(|_| Termination::Reset)?;
            if allowed < chunk.raw.len() {
                return Err(Termination::Close);
            }
        }
        to.shutdown().await.map_err(|_| Termination::Reset)
    }
}
