#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashMap;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::runtime::clock::Clock;
use crate::runtime::held_lease::LeaseObject;
use crate::runtime::lease::HolderIdentity;

/// Timeout for a state that is reached in a second on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The Leases of an API server, by path. `None`: the server does not answer.
type Leases = Arc<Mutex<Option<HashMap<String, Lease>>>>;

/// Answers like an API server that only has Leases.
async fn answer(State(leases): State<Leases>, request: Request) -> Response {
    let status = |code: StatusCode| {
        let status = json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "", "reason": ""});
        (code, status.to_string()).into_response()
    };
    let text = |lease: &Lease| serde_json::to_string(lease).unwrap().into_response();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let mut leases = leases.lock();
    let Some(leases) = leases.as_mut() else {
        return status(StatusCode::SERVICE_UNAVAILABLE);
    };
    if method == Method::GET {
        return match leases.get(&path) {
            Some(lease) => text(lease),
            None => status(StatusCode::NOT_FOUND),
        };
    }
    let mut lease: Lease = serde_json::from_slice(&body).unwrap();
    let path = match method {
        Method::POST => format!("{path}/{}", lease.metadata.name.as_deref().unwrap()),
        _ => path,
    };
    let former = leases.get(&path).map(|former| former.metadata.resource_version.clone());
    if former.as_ref() != Some(&lease.metadata.resource_version) && (former.is_some() || method == Method::PUT) {
        return status(StatusCode::CONFLICT);
    }
    let version: u32 = former.flatten().map_or(0, |version| version.parse().unwrap());
    lease.metadata.resource_version = Some((version + 1).to_string());
    let answer = text(&lease);
    leases.insert(path, lease);
    answer
}

/// A process that holds both Leases.
struct Fixture {
    leases: Leases,
    fence: WriteFence,
    leadership: Leadership,
    renewal: JoinHandle<Result<(), LeaseError>>,
    /// The renewal ends when it is dropped.
    _release: oneshot::Sender<()>,
}

impl Fixture {
    async fn start(elect: bool) -> Self {
        let leases: Leases = Arc::new(Mutex::new(Some(HashMap::new())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&leases));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let client = Client::try_from(Config::new(address.parse().unwrap())).unwrap();
        let election = Election {
            elect,
            namespace: None,
            name: "own".to_owned(),
            cluster_lock_namespace: "locks".to_owned(),
            timings: LeaseTimings {
                duration: Duration::from_secs(2),
                renew_deadline: Duration::from_secs(1),
                retry_period: Duration::from_millis(50),
            },
        };
        let object = |namespace: &str, name: &str| {
            let me = HolderIdentity::new(None, "me", 1);
            LeaseObject::new(
                client.clone(),
                (namespace, name),
                me,
                election.timings,
                Clock::default(),
            )
        };
        let (lease, lock) = (object("own", "own"), object("locks", "lock").installed());
        let held = (
            lease.take(None).await.unwrap().unwrap(),
            lock.take(None).await.unwrap().unwrap(),
        );
        let fence = WriteFence::default();
        let renewer = LeaseRenewer::new(&election, fence.clone(), held, fence.clock().since_boot());
        let (release, released) = oneshot::channel();
        Self {
            leases,
            fence,
            leadership: renewer.leadership(),
            renewal: tokio::spawn(renewer.run(released)),
            _release: release,
        }
    }

    /// Waits until the fence is open or closed.
    async fn wait_for_fence(&self, open: bool) {
        let changed = async {
            while self.fence.may_write() != open {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, changed).await.unwrap();
    }

    /// Writes another holder into a Lease.
    fn give_away(leases: &mut HashMap<String, Lease>, namespace: &str, name: &str) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let lease = leases.get_mut(&path).unwrap();
        lease.spec.as_mut().unwrap().holder_identity = Some("another".to_owned());
        lease.metadata.resource_version = Some("1000000".to_owned());
    }
}

#[tokio::test]
async fn without_election_the_fence_closes_while_the_lease_cannot_be_renewed_and_reopens() {
    let fixture = Fixture::start(false).await;
    assert!(fixture.leadership.wait_until_writable().await);
    let leases = fixture.leases.lock().take();
    fixture.wait_for_fence(false).await;
    assert!(!fixture.renewal.is_finished());
    *fixture.leases.lock() = leases;
    assert!(fixture.leadership.wait_until_writable().await);
    assert!(!fixture.renewal.is_finished());
}

#[tokio::test]
async fn with_election_a_lease_that_cannot_be_renewed_is_lost() {
    let fixture = Fixture::start(true).await;
    fixture.leases.lock().take();
    let lost = fixture.renewal.await.unwrap().unwrap_err().to_string();
    assert_eq!(lost, "lost the Lease own/own: it could not be renewed for 1s");
    assert!(!fixture.fence.may_write());
    assert!(!fixture.leadership.wait_until_writable().await);
}

#[tokio::test]
async fn an_expired_lease_that_another_process_took_is_lost_without_election_too() {
    for (namespace, name) in [("own", "own"), ("locks", "lock")] {
        let fixture = Fixture::start(false).await;
        let mut leases = fixture.leases.lock().take();
        fixture.wait_for_fence(false).await;
        Fixture::give_away(leases.as_mut().unwrap(), namespace, name);
        *fixture.leases.lock() = leases;
        let lost = fixture.renewal.await.unwrap().unwrap_err().to_string();
        assert_eq!(lost, format!("lost the Lease {namespace}/{name}: another holds it now"));
        assert!(!fixture.fence.may_write());
    }
}

#[tokio::test]
async fn the_fence_closes_without_the_installed_lock_which_is_not_created() {
    let fixture = Fixture::start(false).await;
    let lock = "/apis/coordination.k8s.io/v1/namespaces/locks/leases/lock";
    let removed = fixture.leases.lock().as_mut().unwrap().remove(lock);
    fixture.wait_for_fence(false).await;
    assert!(!fixture.leases.lock().as_ref().unwrap().contains_key(lock));
    fixture
        .leases
        .lock()
        .as_mut()
        .unwrap()
        .insert(lock.to_owned(), removed.unwrap());
    fixture.wait_for_fence(true).await;
}
