#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;

use axum::http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;

const UID: &str = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0";

fn changed(change: impl FnOnce(&mut BTreeMap<String, ByteString>)) -> Option<Fault> {
    let mut secret_object = secret("records", UID, &[7; KEY_LENGTH]);
    change(secret_object.data.as_mut().unwrap());
    parse(&secret_object).err()
}

#[test]
fn what_is_made_is_read_again_and_cannot_be_edited() {
    let secret_object = secret("records", UID, &[7; KEY_LENGTH]);
    assert_eq!(parse(&secret_object).unwrap().cluster_id, UID);
    assert_eq!(secret_object.immutable, Some(true));
}

#[test]
fn a_damaged_secret_is_refused_by_the_name_of_what_is_wrong() {
    let set = |name: &str, value: &[u8]| {
        let (name, value) = (name.to_owned(), ByteString(value.to_vec()));
        changed(|data| drop(data.insert(name, value))).map(|(field, _)| field)
    };
    assert_eq!(changed(|_| ()), None);
    assert_eq!(changed(|data| drop(data.remove(KEY))), Some((KEY, "is missing".into())));
    assert_eq!(
        changed(|data| drop(data.remove(CLUSTER_ID))).map(|(field, _)| field),
        Some(CLUSTER_ID)
    );
    assert_eq!(changed(BTreeMap::clear).map(|(field, _)| field), Some(KEY));
    for wrong in [&b""[..], &[7; 31], &[7; 33], &[b'a'; 64]] {
        assert_eq!(set(KEY, wrong), Some(KEY), "{wrong:?}");
        assert_eq!(set(PREVIOUS_KEY, wrong), Some(PREVIOUS_KEY), "{wrong:?}");
    }
    assert_eq!(set(PREVIOUS_KEY, &[8; KEY_LENGTH]), None);
    let newline = format!("{UID}\n");
    let upper = UID.to_uppercase();
    for wrong in [
        "",
        "identity",
        "../../../../../../../../../etc/passwd",
        &*newline,
        &*upper,
    ] {
        assert_eq!(set(CLUSTER_ID, wrong.as_bytes()), Some(CLUSTER_ID), "{wrong:?}");
    }
    assert!(parse(&Secret::default()).is_err());
}

type Requests = Arc<Mutex<Vec<String>>>;

/// Starts an API server that returns these responses in order. Returns a client and the requests received.
fn answering(answers: Vec<(u16, Value)>) -> (Client, Requests) {
    let requests = Requests::default();
    let (heard, answers) = (Arc::clone(&requests), Mutex::new(VecDeque::from(answers)));
    let service = service_fn(move |request: Request<Body>| {
        let line = format!("{} {}", request.method(), request.uri().path());
        heard.lock().push(line);
        let (status, answer) = answers.lock().pop_front().unwrap();
        let answer = Body::from(answer.to_string().into_bytes());
        ready(Ok::<_, BoxError>(
            Response::builder().status(status).body(answer).unwrap(),
        ))
    });
    (Client::new(service, "operators"), requests)
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {},
        "status": "Failure", "message": reason, "reason": reason, "code": code,
    });
    (code, status)
}

fn found(cluster_id: &str) -> (u16, Value) {
    let secret_object = secret("records", cluster_id, &[7; KEY_LENGTH]);
    (200, serde_json::to_value(secret_object).unwrap())
}

fn kube_system() -> (u16, Value) {
    let metadata = json!({"name": "kube-system", "uid": UID});
    let kind = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata});
    (200, kind)
}

async fn ensured(client: &Client) -> Result<RecordsSecretData, SecretError> {
    let secret = RecordsSecret {
        namespace: None,
        name: "records".to_owned(),
    };
    secret.ensure(client).await
}

const GET: &str = "GET /api/v1/namespaces/operators/secrets/records";
const POST: &str = "POST /api/v1/namespaces/operators/secrets";

#[tokio::test]
async fn of_two_that_make_it_at_once_the_winners_counts() {
    let winners = UID.replace('0', "1");
    let (client, requests) = answering(vec![
        failure(404, "NotFound"),
        kube_system(),
        failure(409, "AlreadyExists"),
        found(&winners),
    ]);
    assert_eq!(ensured(&client).await.unwrap().cluster_id, winners);
    let requests = requests.lock();
    assert_eq!(*requests, [GET, "GET /api/v1/namespaces/kube-system", POST, GET]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_starting_is_asked_again_and_nothing_is_made_meanwhile() {
    let (client, requests) = answering(vec![
        failure(503, "ServiceUnavailable"),
        failure(429, "TooManyRequests"),
        failure(500, "InternalError"),
        found(UID),
    ]);
    assert_eq!(ensured(&client).await.unwrap().cluster_id, UID);
    assert_eq!(*requests.lock(), [GET; 4]);
}

#[tokio::test]
async fn one_that_may_not_be_read_or_is_damaged_is_the_end_and_is_never_written_over() {
    let mut half = found(UID);
    half.1["data"].as_object_mut().unwrap().remove(KEY);
    for (answer, part) in [
        (failure(403, "Forbidden"), "cannot read the Secret operators/records"),
        (half, "the Secret operators/records is invalid: data.key is missing"),
    ] {
        let (client, requests) = answering(vec![answer]);
        let error = ensured(&client).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(*requests.lock(), [GET]);
    }
}
