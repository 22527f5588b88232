//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::runtime::metrics::Metrics;
use crate::runtime::prometheus_text::{self, OPEN_METRICS, PLAIN};
use crate::runtime::readiness::{Readiness, ReadinessState};

/// The HTTP endpoints cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (--http-addr): {cause}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    cause: std::io::Error,
}

#[derive(Clone)]
struct Endpoints {
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

/// Listens on `address`, and serves in the background until the process ends.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(address: SocketAddr, readiness: Readiness, metrics: Arc<Metrics>) -> Result<(), ListenError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|cause| ListenError { address, cause })?;
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Endpoints { readiness, metrics });
    tokio::spawn(async move {
        if let Err(cause) = axum::serve(listener, app).await {
            tracing::error!("the HTTP endpoints ended: {cause}");
        }
    });
    Ok(())
}

async fn readyz(State(endpoints): State<Endpoints>) -> Response {
    let not_yet = |what: String| (StatusCode::SERVICE_UNAVAILABLE, format!("not ready yet: {what}\n")).into_response();
    match endpoints.readiness.state() {
        ReadinessState::Leading(missing) if missing.is_empty() => "ok\n".into_response(),
        ReadinessState::Leading(missing) => {
            not_yet(missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
        ReadinessState::Standby(leader) => format!("ok: standby, {leader} leads\n").into_response(),
        ReadinessState::Waiting(reason) => not_yet(reason),
    }
}

async fn metrics_text(State(endpoints): State<Endpoints>, headers: HeaderMap) -> Response {
    let text = match endpoints.metrics.text() {
        Ok(text) => text,
        Err(cause) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")).into_response(),
    };
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (kind, text) = if prometheus_text::takes_open_metrics(accept.unwrap_or_default()) {
        (OPEN_METRICS, text)
    } else {
        (PLAIN, prometheus_text::plain(&text))
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
