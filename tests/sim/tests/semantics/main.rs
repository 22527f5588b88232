//! The simulated API server answers as the real one does: every sequence of requests in [`table`] is sent to both.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod applies;
mod archives;
mod creates;
mod deletes;
mod lists;
mod patches;
mod requests;
mod statuses;
mod table;
mod updates;
mod volumes;
mod watches;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::{Request, header};
use futures::StreamExt as _;
use kube::Client;
use kube::client::Body;
use rig::cluster::Component;
use rig::{Cluster, RunDir};
use serde_json::{Value, json};
use sim::api_server::{ApiServer, NoFaults};
use sim::clock::SimulatedClock;
use sim::life::Life;
use tokio::time::{Instant, sleep, timeout};

use requests::{FORGET_HISTORY, Sequence, Step};

/// Maximum time until an expected event of a watch arrives.
const STALL: Duration = Duration::from_secs(60);
/// Time without an event after which a watch of the real server has shown everything.
const QUIET: Duration = Duration::from_secs(1);
/// The same for the simulated server, which has sent everything once it has answered.
const SIMULATED_QUIET: Duration = Duration::from_millis(50);

/// What a server answered: the code, and what remains of the body without what differs between any two servers.
type Answer = (u16, Value);

/// One of the servers.
enum Server {
    Real(Box<Cluster>),
    Simulated(ApiServer),
}

impl Server {
    async fn client(&self) -> Client {
        match self {
            Self::Real(cluster) => cluster.client().await.unwrap(),
            Self::Simulated(server) => {
                let service = server.service("test", Life::default(), Arc::new(NoFaults));
                Client::new(service, "default")
            }
        }
    }

    /// Forgets the changes that there were: watches cannot resume, and lists cannot be continued.
    async fn forget_history(&mut self) {
        match self {
            Self::Real(cluster) => cluster.forget_history().await.unwrap(),
            Self::Simulated(server) => server.compact(),
        }
    }
}

/// Sends the requests of a sequence one after the other. `expected` are the answers of the other server: a watch does not
/// end before it has as many events.
async fn run(server: &mut Server, sequence: &Sequence, expected: &[Answer]) -> Vec<Answer> {
    let mut client = server.client().await;
    let mut saved = BTreeMap::new();
    let mut shown = Shown::default();
    let mut answers = Vec::new();
    for (number, step) in sequence.steps.iter().enumerate() {
        if step.method == FORGET_HISTORY {
            server.forget_history().await;
            client = server.client().await;
            answers.push((0, Value::Null));
            continue;
        }
        let events = expected.get(number).and_then(|(_, body)| Some(body.as_array()?.len()));
        let (code, body) = send(&client, step, &saved, events).await;
        saved.insert(format!("{number}"), body.clone());
        answers.push((code, shown.normalized(code, body)));
    }
    answers
}

/// Sends a request, until the server has read what it needs for an answer: the real one has just been started.
async fn send(client: &Client, step: &Step, saved: &BTreeMap<String, Value>, events: Option<usize>) -> Answer {
    loop {
        let answer = send_once(client, step, saved, events).await;
        if answer.0 != 429 {
            return answer;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn send_once(client: &Client, step: &Step, saved: &BTreeMap<String, Value>, events: Option<usize>) -> Answer {
    let uri = with_values(step.path, saved);
    let is_watch = uri.contains("watch=true");
    let mut request = Request::builder().method(step.method).uri(uri);
    for (name, value) in [(header::CONTENT_TYPE, step.content_type), (header::ACCEPT, step.accept)] {
        if !value.is_empty() {
            request = request.header(name, value);
        }
    }
    let body = match &step.body {
        Value::Null => Vec::new(),
        body => with_values(&body.to_string(), saved).into_bytes(),
    };
    let answer = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let body = axum::body::Body::new(answer.into_body());
    if is_watch && code == 200 {
        return (code, Value::Array(watch(body, events).await));
    }
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Returns the events of a watch, once there are so many, and no other one follows for some time. The number is not known for
/// the simulated server, which is asked first.
async fn watch(body: axum::body::Body, at_least: Option<usize>) -> Vec<Value> {
    let (mut stream, mut bytes) = (body.into_data_stream(), Vec::new());
    loop {
        let events = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
        // The last one may be incomplete.
        let events: Vec<Value> = events.map_while(Result::ok).collect();
        let found = events.iter().filter(|event| event["type"] != "BOOKMARK").count();
        let pause = match at_least {
            None => SIMULATED_QUIET,
            Some(at_least) if found < at_least => STALL,
            Some(_) => QUIET,
        };
        match timeout(pause, stream.next()).await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.unwrap()),
            Ok(None) | Err(_) => return events,
        }
    }
}

/// Replaces `$N.field` by a field of the metadata in the answer to request `N`.
fn with_values(text: &str, saved: &BTreeMap<String, Value>) -> String {
    let mut text = text.to_owned();
    for (number, body) in saved {
        for field in ["uid", "resourceVersion", "continue"] {
            if let Some(value) = body.pointer(&format!("/metadata/{field}")).and_then(Value::as_str) {
                text = text.replace(&format!("${number}.{field}"), value);
            }
        }
    }
    text
}

/// The UIDs and resource versions of objects that a server has shown in a sequence.
#[derive(Default)]
struct Shown(BTreeMap<&'static str, Vec<Value>>);

impl Shown {
    /// Returns the number of an identifier among those that were shown, so that the same one has the same number.
    fn number(&mut self, field: &'static str, identifier: &Value) -> Value {
        let shown = self.0.entry(field).or_default();
        let known = shown.iter().position(|other| other == identifier);
        let number = known.unwrap_or(shown.len());
        if known.is_none() {
            shown.push(identifier.clone());
        }
        json!(number)
    }

    /// Removes what differs between any two servers: identifiers (only their numbers remain), times, field managers,
    /// bookmarks, and the words of refusals.
    fn normalized(&mut self, code: u16, mut body: Value) -> Value {
        if let Value::Array(events) = body {
            let events = events.into_iter().filter(|event| event["type"] != "BOOKMARK");
            return events.map(|event| self.event(event)).collect();
        }
        if code >= 400 {
            let causes = body
                .pointer("/details/causes")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let fields: Vec<Value> = causes.iter().map(|cause| cause["field"].clone()).collect();
            return json!({"reason": body["reason"], "fields": fields});
        }
        if body["kind"] == "Status" {
            return json!({"status": body["status"]});
        }
        let is_list = body.get("items").is_some();
        if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
            for item in items {
                *item = item.pointer("/metadata/name").cloned().unwrap_or_default();
            }
        }
        if let Some(status) = body.get_mut("status").and_then(Value::as_object_mut) {
            status.remove("lastPhaseTransitionTime");
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["creationTimestamp", "managedFields"] {
                metadata.remove(field);
            }
            if is_list {
                // Other objects may have been changed.
                metadata.remove("resourceVersion");
            }
            for field in ["uid", "resourceVersion"] {
                if let Some(value) = metadata.get_mut(field) {
                    *value = self.number(field, value);
                }
            }
            for field in ["deletionTimestamp", "continue"] {
                if let Some(value) = metadata.get_mut(field).filter(|value| **value != "") {
                    *value = json!("set");
                }
            }
        }
        body
    }

    /// The same for an event of a watch.
    fn event(&mut self, mut event: Value) -> Value {
        let code = if event["type"] == "ERROR" { 410 } else { 200 };
        let object = event["object"].take();
        event["object"] = self.normalized(code, object);
        event
    }
}

#[tokio::test]
async fn the_simulated_api_server_answers_as_the_real_one() {
    let run_dir = RunDir::new().unwrap();
    let cluster = Cluster::start(&run_dir).await.unwrap();
    cluster
        .apply_crds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds"))
        .await
        .unwrap();
    // No controller writes to the objects.
    cluster.kill9(Component::ControllerManager).await.unwrap();
    let simulated = ApiServer::new(1, Arc::new(SimulatedClock::new(Instant::now())));
    // Like that of the real one, its history does not begin with the first resource version.
    simulated.restore(&simulated.snapshot());
    let (mut real, mut simulated) = (Server::Real(Box::new(cluster)), Server::Simulated(simulated));
    let mut wrong = Vec::new();
    for sequence in table::sequences() {
        let found = run(&mut simulated, &sequence, &[]).await;
        let expected = run(&mut real, &sequence, &found).await;
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            if expected != found {
                let step = &sequence.steps[number];
                wrong.push(format!(
                    "{}, request {number} ({} {}):\n  real      {} {}\n  simulated {} {}",
                    sequence.name, step.method, step.path, expected.0, expected.1, found.0, found.1
                ));
            }
        }
    }
    if let Server::Real(cluster) = real {
        cluster.stop().await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
