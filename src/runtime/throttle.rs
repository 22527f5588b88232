//! Protects an overloaded API server: limits the concurrent requests of all backends together, and honors `Retry-After`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response, StatusCode, header};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::service_fn;

use crate::runtime::retry::jittered;

/// Maximum number of concurrent requests. Each backend has slots of its own, and with many backends all of them together
/// would be more than the API server grants to one client (docs/security.md, Budget).
const MAX_REQUESTS: usize = 64;

/// Maximum pause that the API server can ask for, so that a wrong value does not stop the operator.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Limits and pauses the requests of one client.
struct Throttle {
    slots: Semaphore,
    /// No request is sent before this time.
    resume_at: Mutex<Instant>,
}

/// Returns a client whose requests wait for one of [`MAX_REQUESTS`] slots, and for the time that the API server asked for
/// in its last answer. A request that was refused is not repeated here: only its caller knows whether it is still needed.
pub fn throttled(client: Client) -> Client {
    let throttle = Arc::new(Throttle {
        slots: Semaphore::new(MAX_REQUESTS),
        resume_at: Mutex::new(Instant::now()),
    });
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (throttle, client) = (Arc::clone(&throttle), client.clone());
        async move { throttle.send(&client, request).await }
    });
    Client::new(service, namespace)
}

impl Throttle {
    async fn send(&self, client: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let slot = loop {
            self.wait_until_resumed().await;
            // The semaphore is never closed.
            let slot = self.slots.acquire().await.ok();
            if *self.resume_at.lock() <= Instant::now() {
                break slot;
            }
        };
        let response = client.send(request).await?;
        drop(slot);
        if let Some(pause) = retry_after(&response) {
            let resume_at = Instant::now() + jittered(pause.min(MAX_PAUSE));
            let mut current = self.resume_at.lock();
            *current = resume_at.max(*current);
        }
        Ok(response)
    }

    async fn wait_until_resumed(&self) {
        let resume_at = *self.resume_at.lock();
        tokio::time::sleep_until(resume_at).await;
    }
}

/// Returns the pause that an overloaded API server asks for. Kubernetes sends it in seconds.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    if !matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        return None;
    }
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Notify;
    use tower::BoxError;

    use super::*;

    fn request() -> Request<Body> {
        Request::get("/api").body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_is_sent_before_the_time_that_the_server_asked_for() {
        let (began, arrivals) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let arrived = Arc::clone(&arrivals);
        let server = service_fn(move |_: Request<Body>| {
            let mut arrived = arrived.lock();
            arrived.push(began.elapsed().as_secs());
            let response = match arrived.len() {
                1 => Response::builder().status(429).header("Retry-After", "7"),
                2 => Response::builder().status(429).header("Retry-After", "1000000"),
                _ => Response::builder().status(200),
            };
            std::future::ready(Ok::<_, BoxError>(response.body(Body::empty()).unwrap()))
        });
        let client = throttled(Client::new(server, "default"));
        assert_eq!(client.send(request()).await.unwrap().status(), 429);
        for _ in 0..2 {
            client.send(request()).await.unwrap();
        }
        let arrivals = arrivals.lock().clone();
        assert!(
            matches!(arrivals.as_slice(), [0, 7..=8, 67..=75]),
            "a pause is extended by up to a tenth, and bounded: {arrivals:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_limit_wait() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (answer, counts) = (Arc::new(Notify::new()), (Arc::clone(&now), Arc::clone(&most)));
        let released = Arc::clone(&answer);
        let server = service_fn(move |_: Request<Body>| {
            let (released, (now, most)) = (Arc::clone(&released), counts.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                released.notified().await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        let client = throttled(Client::new(server, "default"));
        let requests = (0..MAX_REQUESTS * 3).map(|_| client.send(request()));
        let release = async {
            for _ in 0..MAX_REQUESTS * 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                answer.notify_one();
            }
        };
        let (answers, ()) = tokio::join!(join_all(requests), release);
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::Relaxed), MAX_REQUESTS);
    }
}
