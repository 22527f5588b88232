//! The simulated API server answers as the real one does: every sequence of requests in [`table`] is sent to both.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod table;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::http::{Request, header};
use kube::Client;
use kube::client::Body;
use rig::{Cluster, RunDir};
use serde_json::{Value, json};
use sim::api_server::{ApiServer, NoFaults};
use sim::clock::SimulatedClock;
use sim::life::Life;
use tokio::time::Instant;

use table::{Sequence, Step};

/// What a server answered: the code, and what remains of the body without what differs between any two servers.
type Answer = (u16, Value);

/// Sends the requests of a sequence one after the other.
async fn run(client: &Client, sequence: &Sequence) -> Vec<Answer> {
    let mut saved = BTreeMap::new();
    let mut answers = Vec::new();
    for (number, step) in sequence.steps.iter().enumerate() {
        let (code, body) = send(client, step, &saved).await;
        saved.insert(format!("{number}"), body.clone());
        answers.push((code, normalized(code, body)));
    }
    answers
}

async fn send(client: &Client, step: &Step, saved: &BTreeMap<String, Value>) -> Answer {
    let uri = with_values(step.path, saved);
    let mut request = Request::builder().method(step.method).uri(uri);
    if !step.content_type.is_empty() {
        request = request.header(header::CONTENT_TYPE, step.content_type);
    }
    let body = match &step.body {
        Value::Null => Vec::new(),
        body => with_values(&body.to_string(), saved).into_bytes(),
    };
    let answer = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let bytes = to_bytes(axum::body::Body::new(answer.into_body()), 1 << 20)
        .await
        .unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
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

/// Removes what differs between any two servers: identifiers, times, field managers, and the words of refusals.
fn normalized(code: u16, mut body: Value) -> Value {
    if code >= 400 {
        let causes = body
            .pointer("/details/causes")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let fields: Vec<Value> = causes.iter().map(|cause| cause["field"].clone()).collect();
        return json!({"reason": body["reason"], "fields": fields});
    }
    if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
        for item in items {
            *item = item.pointer("/metadata/name").cloned().unwrap_or_default();
        }
    }
    if body["kind"] == "Status" {
        return json!({"status": body["status"]});
    }
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(field);
        }
        for field in ["deletionTimestamp", "continue"] {
            if let Some(value) = metadata.get_mut(field) {
                *value = json!("set");
            }
        }
    }
    body
}

#[tokio::test]
async fn the_simulated_api_server_answers_as_the_real_one() {
    let run_dir = RunDir::new().unwrap();
    let cluster = Cluster::start(&run_dir).await.unwrap();
    cluster
        .apply_crds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds"))
        .await
        .unwrap();
    let real = cluster.client().await.unwrap();
    let clock = SimulatedClock::new(Instant::now());
    let server = ApiServer::new(1, Arc::new(clock));
    let simulated = Client::new(server.service("test", Life::default(), Arc::new(NoFaults)), "default");
    let mut wrong = Vec::new();
    for sequence in table::sequences() {
        let (expected, found) = (run(&real, &sequence).await, run(&simulated, &sequence).await);
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
    cluster.stop().await.unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
