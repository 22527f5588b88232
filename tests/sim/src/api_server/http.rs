//! The server as a service beneath `kube::Client`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Answer, to_bytes};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, header};
use export_store::WallClock;
use kube::client::Body;
use nfs_operator::runtime::clients::ApiService;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, service_fn};

use super::answer::Refusal;
use super::kinds::Kind;
use super::list;
use super::request::{Parameters, Target};
use super::store::{Change, Key, Snapshot, Store};
use super::watch::Watch;
use super::write::{PatchType, Writer};
use crate::life::Life;

/// Maximum size of a request's body.
const MAX_BODY: usize = 4 << 20;
/// Size of what most objects fit into.
pub const TYPICAL_BODY: usize = 4096;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is answered.
    None,
    /// It is refused before it is executed.
    Refuse(u16),
    /// It is executed, and then answered with an internal error.
    FailAfter,
    /// The connection is cut before it is executed.
    CutBefore,
    /// It is executed, and the connection is cut before the answer.
    CutAfter,
    /// The connection is cut, and it is executed after this time.
    ExecuteLate(Duration),
}

/// Decides what happens to requests and watches.
pub trait Faults: std::fmt::Debug + Send + Sync {
    /// Returns the delay of a request, what happens to it, and the delay of its answer.
    fn request(&self, client: &str, method: &str, path: &str) -> (Duration, Fault, Duration);
    /// Returns the delay of an event of a kind.
    fn watch_delay(&self, client: &str, plural: &str) -> Duration;
    /// Returns true if a watch ends now.
    fn cuts_watch(&self, client: &str) -> bool;
    /// Called after a request was executed, with the code of its answer, and whether it changed anything.
    fn answered(&self, client: &str, method: &str, path: &str, answer: (u16, bool));
}

/// A server that always answers at once.
#[derive(Debug, Clone, Copy)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn request(&self, _client: &str, _method: &str, _path: &str) -> (Duration, Fault, Duration) {
        (Duration::ZERO, Fault::None, Duration::ZERO)
    }

    fn watch_delay(&self, _client: &str, _plural: &str) -> Duration {
        Duration::ZERO
    }

    fn cuts_watch(&self, _client: &str) -> bool {
        false
    }

    fn answered(&self, _client: &str, _method: &str, _path: &str, _answer: (u16, bool)) {}
}

/// The connection of one client.
#[derive(Debug, Clone)]
pub struct Link {
    client: Arc<str>,
    life: Life,
    faults: Arc<dyn Faults>,
}

impl Link {
    /// Waits while the client is paused, and forever once it was killed: nothing that it sends arrives, and nothing arrives
    /// at it.
    pub async fn wait_while_paused(&self) {
        self.life.wait_until_running().await;
    }

    /// Returns true if a watch of this client ends now.
    pub fn cuts_watch(&self) -> bool {
        self.faults.cuts_watch(&self.client)
    }

    /// Returns the delay of an event of a kind.
    pub fn watch_delay(&self, plural: &str) -> Duration {
        self.faults.watch_delay(&self.client, plural)
    }
}

/// The server. Clones share its state.
#[derive(Debug, Clone)]
pub struct ApiServer {
    store: Arc<Mutex<Store>>,
}

impl ApiServer {
    /// Creates an empty server. UIDs depend on the seed, and times on the clock.
    pub fn new(seed: u64, clock: Arc<dyn WallClock>) -> Self {
        Self {
            store: Arc::new(Mutex::new(Store::new(seed, clock))),
        }
    }

    /// Returns a service for a client, which passes nothing while the client does not run.
    pub fn service(&self, client: &str, life: Life, faults: Arc<dyn Faults>) -> ApiService {
        let link = Link {
            client: client.into(),
            life,
            faults,
        };
        let server = self.clone();
        BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
            let (server, link) = (server.clone(), link.clone());
            async move { server.serve(link, request).await }
        }))
    }

    /// Executes a request of an actor at once. Patches are merge patches.
    pub fn call(&self, by: &str, method: &str, path: &str, body: &Value) -> Result<Arc<Value>, Refusal> {
        let target = Target::parse(path)?;
        let parameters = Parameters::default();
        let mut store = self.store.lock();
        let mut writer = Writer {
            store: &mut store,
            target: &target,
            parameters: &parameters,
            by,
        };
        let answer = match method {
            "POST" => writer.create(body.clone()),
            "PUT" => writer.replace(body.clone()),
            "PATCH" => writer.patch(PatchType::Merge, body),
            "DELETE" => writer.delete(body),
            _ => return list::get(&store, &target),
        };
        answer.map(|(_, object)| object)
    }

    /// Returns an object.
    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.store.lock().get(key).map(|stored| Arc::clone(&stored.object))
    }

    /// Returns all objects of a kind.
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        let kind = super::kinds::KINDS.iter().find(|kind| kind.plural == plural);
        kind.map(|kind| self.store.lock().list(kind, "")).unwrap_or_default()
    }

    /// Returns the time of the server.
    pub fn now(&self) -> jiff::Timestamp {
        self.store.lock().now()
    }

    /// Returns the current resource version.
    pub fn revision(&self) -> u64 {
        self.store.lock().revision()
    }

    /// Returns the resource version of the newest change of one of these kinds.
    pub fn revision_of(&self, plurals: &[&str]) -> u64 {
        self.store.lock().revision_of(plurals)
    }

    /// Returns the changes of a kind after a revision.
    pub fn changes_of(&self, plural: &str, revision: u64) -> Vec<Change> {
        let store = self.store.lock();
        let changes = store.changes_after(revision);
        changes.filter(|change| change.key.plural == plural).cloned().collect()
    }

    /// Returns a copy of all objects.
    pub fn snapshot(&self) -> Snapshot {
        self.store.lock().snapshot()
    }

    /// Replaces all objects by those of a snapshot, as a restore of etcd does.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.store.lock().restore(snapshot);
    }

    /// Forgets the history: watches cannot resume, and lists cannot be continued.
    pub fn compact(&self) {
        self.store.lock().compact();
    }

    async fn serve(&self, link: Link, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let (head, body) = request.into_parts();
        let body = to_bytes(Answer::new(body), MAX_BODY).await?;
        link.wait_while_paused().await;
        let (before, fault, after) = link.faults.request(&link.client, head.method.as_str(), head.uri.path());
        sleep(before).await;
        link.wait_while_paused().await;
        match fault {
            Fault::CutBefore => return Err("connection closed before message completed".into()),
            Fault::ExecuteLate(delay) => {
                let server = self.clone();
                tokio::spawn(async move {
                    sleep(delay).await;
                    // Nobody waits for the answer.
                    drop(server.execute(&link, &head, &body));
                });
                return Err("connection closed before message completed".into());
            }
            Fault::Refuse(429) => return Ok(refused(&Refusal::too_many_requests(1))),
            Fault::Refuse(code) => {
                let refusal = Refusal::new(
                    code,
                    "ServiceUnavailable",
                    "the server is currently unable to handle the request",
                );
                return Ok(refused(&refusal));
            }
            Fault::None | Fault::FailAfter | Fault::CutAfter => {}
        }
        let answer = self.execute(&link, &head, &body);
        sleep(after).await;
        link.wait_while_paused().await;
        match fault {
            Fault::CutAfter => return Err("connection closed before message completed".into()),
            Fault::FailAfter => return Ok(refused(&Refusal::internal_error())),
            _ => {}
        }
        Ok(match answer {
            Err(refusal) => refused(&refusal),
            Ok((code, Content::Object(object))) => {
                let mut body = Vec::with_capacity(TYPICAL_BODY);
                serde_json::to_writer(&mut body, &*object)?;
                response(code, Answer::from(body))
            }
            Ok((code, Content::Watch(watch))) => response(code, Answer::from_stream(watch.into_lines())),
        })
    }

    /// Executes a request.
    fn execute(&self, link: &Link, head: &Parts, body: &[u8]) -> Result<(u16, Content), Refusal> {
        let (method, path) = (head.method.as_str(), head.uri.path());
        let accept = head.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let content_type = head
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let call = Call {
            method: &head.method,
            path,
            query: head.uri.query().unwrap_or_default(),
            metadata_only: accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata")),
            content_type: content_type.unwrap_or_default(),
            body,
        };
        let revision = self.revision();
        let answer = self.answer(link, &call);
        let code = answer.as_ref().map_or_else(|refusal| refusal.code, |(code, _)| *code);
        let answered = (code, self.revision() != revision);
        link.faults.answered(&link.client, method, path, answered);
        answer
    }

    fn answer(&self, link: &Link, call: &Call<'_>) -> Result<(u16, Content), Refusal> {
        let target = Target::parse(call.path)?;
        let parameters = Parameters::parse(call.query);
        if call.method == Method::GET {
            if target.name.is_none() && parameters.is_set("watch") {
                let watch = Watch::begin(
                    Arc::clone(&self.store),
                    link.clone(),
                    target,
                    &parameters,
                    call.metadata_only,
                )?;
                return Ok((200, Content::Watch(Box::new(watch))));
            }
            let mut store = self.store.lock();
            let object = match target.name {
                Some(_) => list::get(&store, &target)?,
                None => Arc::new(list::list(&mut store, &target, &parameters)?),
            };
            return Ok((200, call.shown(object)));
        }
        let body = match call.body {
            [] => Value::Null,
            body => serde_json::from_slice(body)
                .map_err(|error| Refusal::bad_request(&format!("the body cannot be parsed: {error}")))?,
        };
        let mut store = self.store.lock();
        let mut writer = Writer {
            store: &mut store,
            target: &target,
            parameters: &parameters,
            by: &link.client,
        };
        let (code, object) = match (call.method.as_str(), &target.name) {
            ("POST", None) => writer.create(body)?,
            ("PUT", Some(_)) => writer.replace(body)?,
            ("PATCH", Some(_)) => writer.patch(call.patch_type(target.kind)?, &body)?,
            ("DELETE", Some(_)) => writer.delete(&body)?,
            _ => {
                let message = "the server does not allow this method on the requested resource";
                return Err(Refusal::new(405, "MethodNotAllowed", message));
            }
        };
        Ok((code, call.shown(object)))
    }
}

/// A request.
struct Call<'a> {
    method: &'a Method,
    path: &'a str,
    query: &'a str,
    metadata_only: bool,
    content_type: &'a str,
    body: &'a [u8],
}

impl Call<'_> {
    fn shown(&self, object: Arc<Value>) -> Content {
        match self.metadata_only {
            true => Content::Object(Arc::new(list::metadata_of(&object))),
            false => Content::Object(object),
        }
    }

    fn patch_type(&self, kind: &Kind) -> Result<PatchType, Refusal> {
        match self.content_type {
            "application/merge-patch+json" => Ok(PatchType::Merge),
            "application/strategic-merge-patch+json" if !kind.custom => Ok(PatchType::Strategic),
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/apply-patch+yaml" => Ok(PatchType::Apply),
            other => Err(Refusal::new(
                415,
                "UnsupportedMediaType",
                &format!("the body of the request was in an unknown format: {other}"),
            )),
        }
    }
}

/// The content of an answer.
enum Content {
    Object(Arc<Value>),
    Watch(Box<Watch>),
}

fn refused(refusal: &Refusal) -> Response<Answer> {
    let mut response = response(refusal.code, Answer::from(refusal.status.to_string()));
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn response(code: u16, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    if let Ok(status) = axum::http::StatusCode::from_u16(code) {
        *response.status_mut() = status;
    }
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
