//! A server in front of the API server that adds volumes of another driver to every list of volumes. They do not exist in
//! etcd: as many real ones would take gigabytes of memory, and half an hour to create.
//!
//! Everything else is forwarded. Nothing happens to the simulated volumes, so they are in lists and in the initial events
//! of watches, and never in later events.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    error::{Result, ResultExt as _},
    ports,
};

const LIST: &str = "/api/v1/persistentvolumes";
/// Begins the continue tokens of pages that are not the API server's.
const TOKEN: &str = "simulated-";
/// Objects in a page without a limit.
const PAGE: usize = 500;

type ServedBody = UnsyncBoxBody<Bytes, kube::Error>;

/// A running server on a free port of 127.0.0.1, without TLS. Dropping it closes all connections.
#[derive(Debug)]
pub struct SimulatedVolumes {
    url: String,
    _accepting: JoinSet<()>,
}

impl SimulatedVolumes {
    /// Starts a server that adds `volumes` to lists, and forwards requests with the credentials of `client`.
    pub async fn start(client: Client, volumes: usize) -> Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, ports::free()?);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on port {}", address.1))?;
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::new(Server { client, volumes })));
        Ok(Self {
            url: format!("http://127.0.0.1:{}", address.1),
            _accepting: accepting,
        })
    }

    /// Returns its URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

async fn accept(listener: TcpListener, server: Arc<Server>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A client that gave up in the meantime connects again.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream, server.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, server: Arc<Server>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    // The client sees the error, too.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

struct Server {
    client: Client,
    volumes: usize,
}

impl Server {
    async fn answer(&self, request: Request<Incoming>) -> Response<ServedBody> {
        let plan = plan(request.method(), request.uri(), self.volumes);
        let only_metadata = asks_for_metadata(request.headers());
        match plan {
            Plan::Page { first, end } => json_response(&page(first, end, self.volumes, only_metadata)),
            Plan::Forward { path, events } => match self.forward(request, &path).await {
                Ok(response) if events && response.status().is_success() => self.with_events(response, only_metadata),
                Ok(response) => response.map(BodyExt::boxed_unsync),
                Err(error) => failure(&error.to_string()),
            },
        }
    }

    async fn forward(&self, request: Request<Incoming>, path: &str) -> Result<Response<Body>> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await.with_context(|| "read a request".into())?;
        head.uri = path.parse().with_context(|| format!("forward {path}"))?;
        // The client adds its own.
        head.headers.remove(header::HOST);
        head.headers.remove(header::AUTHORIZATION);
        let request = Request::from_parts(head, Body::from(body.to_bytes()));
        let sent = self.client.send(request).await;
        sent.with_context(|| format!("forward {path}"))
    }

    /// Adds the simulated volumes before the initial events of a watch.
    fn with_events(&self, response: Response<Body>, only_metadata: bool) -> Response<ServedBody> {
        let events = (0..self.volumes).map(move |number| {
            let mut event = json!({ "type": "ADDED", "object": volume(number, only_metadata) }).to_string();
            event.push('\n');
            Ok(Frame::data(Bytes::from(event)))
        });
        response.map(|body| StreamBody::new(stream::iter(events).chain(BodyStream::new(body))).boxed_unsync())
    }
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Answer with simulated volumes from `first` on, without `end`.
    Page { first: usize, end: usize },
    /// Ask the API server for this path, and add initial events if `events` is set.
    Forward { path: String, events: bool },
}

/// Decides what to do with a request. Pages with simulated volumes precede those of the API server.
fn plan(method: &Method, uri: &http::Uri, volumes: usize) -> Plan {
    let path = uri.path_and_query().map_or(uri.path(), |path| path.as_str());
    let forward = |path: &str, events| Plan::Forward {
        path: path.into(),
        events,
    };
    if method != Method::GET || uri.path() != LIST || volumes == 0 {
        return forward(path, false);
    }
    let parameters = || uri.query().unwrap_or_default().split('&');
    let parameter = |name: &str| parameters().find_map(|parameter| parameter.strip_prefix(name)?.strip_prefix('='));
    if parameter("watch").is_some_and(|watch| watch != "false" && watch != "0") {
        return forward(path, parameter("sendInitialEvents") == Some("true"));
    }
    let first = match parameter("continue").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => match token.strip_prefix(TOKEN).map(str::parse) {
            Some(Ok(first)) => first,
            // The API server's own token.
            _ => return forward(path, false),
        },
    };
    if first >= volumes {
        let own: Vec<&str> = parameters()
            .filter(|parameter| !parameter.starts_with("continue="))
            .collect();
        return forward(&format!("{LIST}?{}", own.join("&")), false);
    }
    let limit = parameter("limit").and_then(|limit| limit.parse().ok());
    let limit = limit.filter(|limit| *limit > 0).unwrap_or(PAGE);
    Plan::Page {
        first,
        end: (first + limit).min(volumes),
    }
}

fn asks_for_metadata(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata"))
}

/// Returns a page of a list. The API server's pages always follow, and with them the version of the list.
fn page(first: usize, end: usize, volumes: usize, only_metadata: bool) -> Value {
    let items: Vec<Value> = (first..end).map(|number| volume(number, only_metadata)).collect();
    let (api_version, kind) = match only_metadata {
        true => ("meta.k8s.io/v1", "PartialObjectMetadataList"),
        false => ("v1", "PersistentVolumeList"),
    };
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "resourceVersion": "1", "continue": format!("{TOKEN}{end}"), "remainingItemCount": volumes - end },
        "items": items,
    })
}

/// Returns a bound volume as a CSI driver's provisioner creates it.
fn volume(number: usize, only_metadata: bool) -> Value {
    let uid = format!("5a0c7e52-0000-4000-8000-{number:012x}");
    let name = format!("pvc-{uid}");
    let fields = |manager: &str, subresource: &str| {
        json!({
            "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": manager, "operation": "Update",
            "subresource": subresource, "time": "2026-01-01T00:00:00Z",
            "fieldsV1": { "f:metadata": { "f:annotations": { ".": {}, "f:pv.kubernetes.io/provisioned-by": {} } },
                          "f:spec": { "f:accessModes": {}, "f:capacity": { ".": {}, "f:storage": {} }, "f:csi": {
                              ".": {}, "f:driver": {}, "f:volumeAttributes": {}, "f:volumeHandle": {} } } },
        })
    };
    let mut object = json!({
        "apiVersion": if only_metadata { "meta.k8s.io/v1" } else { "v1" },
        "kind": if only_metadata { "PartialObjectMetadata" } else { "PersistentVolume" },
        "metadata": {
            "name": name, "uid": uid, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "csi.example.com",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"],
            "managedFields": [fields("csi-provisioner", ""), fields("kube-controller-manager", "status")],
        },
    });
    let more = json!({
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "10Gi" },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": format!("team-{}", number % 1000),
                "name": format!("data-{number}"), "uid": format!("5a0c7e52-0000-4000-9000-{number:012x}"),
                "resourceVersion": "1",
            },
            "csi": {
                "driver": "csi.example.com", "fsType": "ext4", "volumeHandle": format!("vol-{number:017x}"),
                "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": "1767225600000-1234-csi.example.com" },
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "block",
            "volumeMode": "Filesystem",
        },
        "status": { "phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z" },
    });
    if !only_metadata {
        crate::objects::merge(&mut object, &more);
    }
    object
}

fn json_response(value: &Value) -> Response<ServedBody> {
    let mut response = Response::new(full(value.to_string()));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn failure(message: &str) -> Response<ServedBody> {
    let mut response = Response::new(full(message.into()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

fn full(text: String) -> ServedBody {
    Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed_unsync()
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]
mod tests {
    use super::*;

    fn planned(path: &str) -> Plan {
        plan(&Method::GET, &path.parse().unwrap(), 1200)
    }

    fn forwarded(path: &str, events: bool) -> Plan {
        Plan::Forward {
            path: path.into(),
            events,
        }
    }

    #[test]
    fn pages_with_simulated_volumes_come_before_those_of_the_api_server() {
        let pages = [
            ("limit=500", Plan::Page { first: 0, end: 500 }),
            ("limit=500&continue=simulated-500", Plan::Page { first: 500, end: 1000 }),
            (
                "continue=simulated-1000&limit=500",
                Plan::Page { first: 1000, end: 1200 },
            ),
            (
                "limit=500&continue=simulated-1200&a=b",
                forwarded(&format!("{LIST}?limit=500&a=b"), false),
            ),
            (
                "limit=500&continue=ey",
                forwarded(&format!("{LIST}?limit=500&continue=ey"), false),
            ),
        ];
        for (query, expected) in pages {
            assert_eq!(planned(&format!("{LIST}?{query}")), expected, "{query}");
        }
        let last = page(1000, 1200, 1200, false);
        assert_eq!(last["items"].as_array().unwrap().len(), 200);
        assert_eq!(last["metadata"]["continue"], "simulated-1200");
    }

    #[test]
    fn everything_else_is_forwarded() {
        let watch = format!("{LIST}?watch=true&resourceVersion=5");
        assert_eq!(planned(&watch), forwarded(&watch, false));
        let initial = format!("{LIST}?watch=true&sendInitialEvents=true");
        assert_eq!(planned(&initial), forwarded(&initial, true));
        let one = format!("{LIST}/pvc-1");
        assert_eq!(planned(&one), forwarded(&one, false));
        let uri = LIST.parse().unwrap();
        assert_eq!(plan(&Method::POST, &uri, 1200), forwarded(LIST, false));
        assert_eq!(plan(&Method::GET, &uri, 0), forwarded(LIST, false));
    }

    #[test]
    fn metadata_of_a_volume_has_no_spec() {
        assert_eq!(volume(1, true).get("spec"), None);
        assert_eq!(volume(1, false)["spec"]["csi"]["driver"], "csi.example.com");
        assert_ne!(
            volume(1, false)["metadata"]["name"],
            volume(2, false)["metadata"]["name"]
        );
    }
}
