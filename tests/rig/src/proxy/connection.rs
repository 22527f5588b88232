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
    Framing, Shared,
    hook::{Action, Direction, Passing},
    record::{Records, Unit},
};

/// How many records may be on their way at once: with a delay they queue up here.
const QUEUE: usize = 1024;
const CHUNK: usize = 64 << 10;

/// Why a connection ended before both sides had closed it.
enum End {
    /// Both ends get a reset.
    Reset,
    /// What was sent arrives, then the connection is closed.
    Close,
}

/// Serves a client's connection to its end.
pub(super) async fn serve(shared: &Shared, number: u64, mut client: TcpStream) {
    // From here on: an earlier cut is not ours.
    let mut cuts = shared.cuts.subscribe();
    let connected = tokio::select! {
        connected = connect(shared) => connected,
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
            shared,
            number,
            direction: Direction::Up,
        };
        let down = Pump {
            shared,
            number,
            direction: Direction::Down,
        };
        tokio::select! {
            ended = async {
                tokio::try_join!(up.run(from_client, to_server), down.run(from_server, to_client))
            } => ended.err(),
            _ = cuts.changed() => Some(End::Reset),
        }
    };
    if matches!(end, Some(End::Reset)) {
        reset(&client);
        reset(&server);
    }
}

async fn connect(shared: &Shared) -> io::Result<TcpStream> {
    released(shared).await;
    let server = TcpStream::connect(shared.upstream).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// Makes the close that follows a reset; without it the peer would see an orderly end.
fn reset(stream: &TcpStream) {
    // It fails only on a socket that is gone already.
    let _set = stream.set_zero_linger();
}

/// Waits until the proxy does not hang.
async fn released(shared: &Shared) {
    let mut settings: watch::Receiver<_> = shared.settings.subscribe();
    // The sender lives in `shared`.
    let _changed = settings.wait_for(|settings| !settings.hang).await;
}

/// One direction of one connection.
#[derive(Clone, Copy)]
struct Pump<'a> {
    shared: &'a Shared,
    number: u64,
    direction: Direction,
}

impl Pump<'_> {
    async fn run(self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), End> {
        let (queue, queued) = mpsc::channel(QUEUE);
        tokio::try_join!(self.read(from, queue), self.write(queued, to)).map(drop)
    }

    async fn read(self, mut from: ReadHalf<'_>, queue: mpsc::Sender<(Instant, Unit)>) -> Result<(), End> {
        let mut chunk = vec![0; CHUNK];
        let mut records = Records::default();
        loop {
            let length = from.read(&mut chunk).await.map_err(|_| End::Reset)?;
            let read = chunk.get(..length).unwrap_or_default();
            let now = Instant::now();
            let put = async |unit| queue.send((now, unit)).await.map_err(|_| End::Reset);
            if self.shared.framing == Framing::Bytes {
                put(Unit {
                    raw: read.to_vec(),
                    record: Vec::new(),
                })
                .await?;
            } else {
                records.push(read);
                while let Some(unit) = records.next().map_err(|_| End::Reset)? {
                    put(unit).await?;
                }
            }
            if length == 0 {
                return put(records.rest()).await;
            }
        }
    }

    async fn write(self, mut queued: mpsc::Receiver<(Instant, Unit)>, mut to: WriteHalf<'_>) -> Result<(), End> {
        while let Some((came, unit)) = queued.recv().await {
            let mut due = came + self.shared.settings.borrow().delay(self.direction);
            if !unit.record.is_empty() {
                let passing = Passing {
                    connection: self.number,
                    direction: self.direction,
                    record: &unit.record,
                };
                match self.shared.hooks.ask(passing) {
                    Action::Forward => {}
                    Action::Drop => continue,
                    Action::Cut => return Err(End::Reset),
                    Action::Delay(longer) => due += longer,
                }
            }
            sleep_until(due).await;
            released(self.shared).await;
            let allowed = self.shared.take_budget(self.direction, unit.raw.len());
            let bytes = unit.raw.get(..allowed).unwrap_or_default();
            to.write_all(bytes).await.map_err(|_| End::Reset)?;
            if allowed < unit.raw.len() {
                return Err(End::Close);
            }
        }
        to.shutdown().await.map_err(|_| End::Reset)
    }
}
