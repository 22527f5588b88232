//! `/healthz`, `/readyz` and `/metrics`.
//!
//! Whoever can reach the ports can open connections, so each address has limits: memory stays bounded however many
//! clients connect and however slow they are, and the connections of one client replace each other, not those of others.

mod metrics_token;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::runtime::metrics::Metrics;
use crate::runtime::prometheus_text::{self, OPEN_METRICS, PLAIN};
use crate::runtime::readiness::{Readiness, ReadinessState};
use crate::runtime::watchdog::Watchdog;
use crate::runtime::write_fence::WriteFence;
use metrics_token::{MetricsToken, TokenError};

/// Maximum number of open connections per address. One more closes the oldest of the client with the most.
const MAX_CONNECTIONS: usize = 64;
/// Maximum size of a request's header, in bytes: the smallest that hyper accepts.
const MAX_HEADER: usize = 8192;
/// Time limit for receiving a request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a connection, which carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of metrics texts in memory: with metrics per volume, one can have megabytes, and a slow client holds it
/// until the time limit.
const MAX_METRICS_TEXTS: usize = 4;
/// Pause after a connection could not be accepted, for example because the process has too many open files.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_secs(1);

/// Addresses and protection of the HTTP endpoints.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Address of `/metrics`, and of the probes for clients that do not use the probes' own address.
    pub http_addr: SocketAddr,
    /// Address of `/healthz` and `/readyz`.
    pub probe_addr: SocketAddr,
    /// File with the token that `/metrics` requires. If unset, it requires none.
    pub metrics_token_file: Option<PathBuf>,
}

/// The HTTP endpoints cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// An address cannot be bound.
    #[error("cannot listen on {address} ({flag}): {cause}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// The thread of the watchdog cannot be started.
    #[error("cannot start the thread of the watchdog, which /healthz needs: {0}")]
    Watchdog(#[source] io::Error),
    /// The token of `/metrics` cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// What `/healthz` and `/readyz` report.
#[derive(Clone, Default)]
pub struct Probed {
    /// For `/healthz`.
    pub watchdog: Watchdog,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/readyz`.
    pub write_fence: WriteFence,
}

#[derive(Clone)]
struct MetricsEndpoint {
    metrics: Arc<Metrics>,
    token: Option<MetricsToken>,
    texts: Arc<Semaphore>,
}

/// Listens on both addresses, and serves in the background until the process ends.
///
/// # Errors
/// An address cannot be bound, or the token cannot be read.
pub async fn serve(options: HttpOptions, probed: Probed, metrics: Arc<Metrics>) -> Result<(), ListenError> {
    let token = match options.metrics_token_file {
        Some(path) => Some(MetricsToken::open(path).await?),
        None => None,
    };
    let endpoint = MetricsEndpoint {
        metrics,
        token,
        texts: Arc::new(Semaphore::new(MAX_METRICS_TEXTS)),
    };
    let probes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(probed);
    let all = Router::new()
        .route("/metrics", get(metrics_text))
        .with_state(endpoint)
        .merge(probes.clone());
    let probe_listener = bind(options.probe_addr, "--probe-addr").await?;
    let listener = bind(options.http_addr, "--http-addr").await?;
    tokio::spawn(accept_connections(probe_listener, probes));
    tokio::spawn(accept_connections(listener, all));
    Ok(())
}

/// Listens on an address. 0.0.0.0 stands for all addresses: the address of the pod may be an IPv6 address, to which the
/// kubelet sends its probes.
async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ListenError> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        // Fails where IPv6 is disabled.
        && let Ok(both) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await
    {
        return Ok(both);
    }
    let bound = TcpListener::bind(address).await;
    bound.map_err(|cause| ListenError::Bind { address, flag, cause })
}

/// An open connection.
struct Connection {
    client: IpAddr,
    task: AbortHandle,
}

/// Serves each connection in a task of its own, at most [`MAX_CONNECTIONS`] at a time.
async fn accept_connections(listener: TcpListener, app: Router) {
    let mut open: VecDeque<Connection> = VecDeque::new();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                if !is_of_one_connection(&error) {
                    tracing::warn!("cannot accept HTTP connections: {error}");
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                }
                continue;
            }
        };
        open.retain(|connection| !connection.task.is_finished());
        let clients: Vec<IpAddr> = open.iter().map(|connection| connection.client).collect();
        if open.len() >= MAX_CONNECTIONS
            && let Some(closed) = oldest_of_most(&clients).and_then(|position| open.remove(position))
        {
            closed.task.abort();
        }
        let task = tokio::spawn(serve_connection(stream, app.clone())).abort_handle();
        open.push_back(Connection { client, task });
    }
}

/// Returns the position of the oldest connection of the client that has the most. `clients` has one entry for each
/// connection, the oldest first.
fn oldest_of_most(clients: &[IpAddr]) -> Option<usize> {
    let count = |client: &IpAddr| clients.iter().filter(|other| *other == client).count();
    let most = clients.iter().map(count).max()?;
    clients.iter().position(|client| count(client) == most)
}

/// Returns true if accepting the next connection can succeed at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Serves one request, and closes the connection.
async fn serve_connection(stream: TcpStream, app: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("HTTP connection: {error}"),
        Err(_) => tracing::debug!("HTTP connection: closed after {} s", CONNECTION_TIMEOUT.as_secs()),
    }
}

async fn healthz(State(probed): State<Probed>) -> Response {
    match probed.watchdog.check() {
        Ok(()) => "ok\n".into_response(),
        Err(stuck) => (StatusCode::SERVICE_UNAVAILABLE, format!("{stuck}\n")).into_response(),
    }
}

async fn readyz(State(endpoints): State<Probed>) -> Response {
    let not_yet = |what: String| (StatusCode::SERVICE_UNAVAILABLE, format!("not ready yet: {what}\n")).into_response();
    match endpoints.readiness.state() {
        ReadinessState::Leading(_) if !endpoints.write_fence.may_write() => {
            not_yet("the Lease could not be renewed in time, and nothing is written until it is".to_owned())
        }
        ReadinessState::Leading(missing) if missing.is_empty() => "ok\n".into_response(),
        ReadinessState::Leading(missing) => {
            not_yet(missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
        ReadinessState::Standby(leader) => format!("ok: standby, {leader} leads\n").into_response(),
        ReadinessState::Waiting(reason) => not_yet(reason),
    }
}

/// A metrics text. The permit is released once the text is sent or the connection is closed.
struct MetricsText {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for MetricsText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

async fn metrics_text(State(endpoint): State<MetricsEndpoint>, headers: HeaderMap) -> Response {
    if let Some(token) = &endpoint.token {
        match token.check(&headers).await {
            Ok(true) => {}
            Ok(false) => {
                let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
                return (StatusCode::UNAUTHORIZED, challenge, "a bearer token is required\n").into_response();
            }
            Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        }
    }
    let Ok(permit) = Arc::clone(&endpoint.texts).acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let text = match endpoint.metrics.text() {
        Ok(text) => text,
        Err(cause) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")).into_response(),
    };
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (kind, text) = if prometheus_text::accepts_open_metrics(accept.unwrap_or_default()) {
        (OPEN_METRICS, text)
    } else {
        (PLAIN, prometheus_text::plain(&text))
    };
    let body = Bytes::from_owner(MetricsText { text, _permit: permit });
    ([(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
