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

/// How many records may be on their way at once: with a delay they queue up here.
const MAX_QUEUED_RECORDS: usize = 1024;
const READ_BUFFER_BYTES: usize = 64 << 10;

/// Why a connection ended before both sides had closed it.
enum Termination {
    /// Both ends get a reset.
    Reset,
    /// What was sent arrives, then the connection is closed.
    Close,
}

/// Serves a client's connection to its end.
pub(super) async fn serve(state: &ProxyState, number: u64, mut client: TcpStream) {
    // From here on: an earlier cut is not ours.
    let mut cuts = state.cuts.subscribe();
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

/// Makes the close that follows a reset; without it the peer would see an orderly end.
fn reset(stream: &TcpStream) {
    // It fails only on a socket that is gone already.
    let _set = stream.set_zero_linger();
}

/// Waits until the proxy does not hang.
async fn wait_while_hanging(state: &ProxyState) {
    let mut settings: watch::Receiver<_> = state.settings.subscribe();
    // The sender lives in `state`.
    let _changed = settings.wait_for(|settings| !settings.hang).await;
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
        let mut chunk = vec![0; READ_BUFFER_BYTES];
        let mut records = RecordParser::default();
        loop {
            let length = from.read(&mut chunk).await.map_err(|_| Termination::Reset)?;
            let read = chunk.get(..length).unwrap_or_default();
            let now = Instant::now();
            let put = async |chunk| queue.send((now, chunk)).await.map_err(|_| Termination::Reset);
            if self.state.framing == Framing::Bytes {
                put(Chunk {
                    raw: read.to_vec(),
                    record: Vec::new(),
                })
                .await?;
            } else {
                records.push(read);
                while let Some(chunk) = records.next().map_err(|_| Termination::Reset)? {
                    put(chunk).await?;
                }
            }
            if length == 0 {
                return put(records.rest()).await;
            }
        }
    }

    async fn write(
        self,
        mut queued: mpsc::Receiver<(Instant, Chunk)>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Termination> {
        while let Some((came, chunk)) = queued.recv().await {
            let mut due = came + self.state.settings.borrow().delay(self.direction);
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
