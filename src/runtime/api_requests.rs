//! Metrics of requests to the API server, with the names of client-go, which dashboards of controllers query.

use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tower::service_fn;

use crate::runtime::metrics::durations;

/// Counts the requests of all clients of a process. Clones share the counters.
#[derive(Clone)]
pub struct ApiRequests {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<MethodLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: String,
}

impl Default for ApiRequests {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(durations),
        }
    }
}

impl ApiRequests {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Requests to the API server, by HTTP method and status code; `<error>`: without a response",
            self.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until the response to a request to the API server begins, in seconds",
            self.seconds.clone(),
        );
    }

    /// Returns a client whose requests are counted.
    pub fn counted(&self, client: Client) -> Client {
        let (requests, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = service_fn(move |request: Request<Body>| {
            let (requests, client) = (requests.clone(), client.clone());
            async move { requests.send(&client, request).await }
        });
        Client::new(service, namespace)
    }

    async fn send(&self, client: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (method, started) = (request.method().clone(), Instant::now());
        let response = client.send(request).await;
        let status = response.as_ref().ok().map(Response::status);
        self.record(&method, status, started.elapsed());
        response
    }

    /// Records a request, with the status of its response, if there was one.
    pub fn record(&self, method: &Method, status: Option<StatusCode>, elapsed: Duration) {
        let method = method.to_string();
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned());
        let of_method = MethodLabels { method: method.clone() };
        self.seconds.get_or_create(&of_method).observe(elapsed.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { code, method }).inc();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use std::convert::Infallible;

    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::runtime::reads;

    #[tokio::test]
    async fn requests_are_counted_by_method_and_code() {
        let missing = service_fn(async |_: Request<Body>| {
            let body =
                Body::from(br#"{"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}"#.to_vec());
            let response = Response::builder().status(404).body(body).unwrap();
            Ok::<_, Infallible>(response)
        });
        let requests = ApiRequests::default();
        let api: Api<Namespace> = Api::all(requests.counted(Client::new(missing, "default")));
        for name in ["a", "b"] {
            assert!(reads::get_opt(&api, name).await.unwrap().is_none());
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        requests.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        assert!(
            text.contains(r#"rest_client_requests_total{code="404",method="GET"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"rest_client_request_duration_seconds_count{method="GET"} 2"#),
            "{text}"
        );
    }
}
