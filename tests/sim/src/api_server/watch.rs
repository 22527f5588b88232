//! Watches: the changes of a kind as a stream of lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::answer::Refusal;
use super::http::{Link, TYPICAL_BODY};
use super::list;
use super::request::{Parameters, Target};
use super::store::{ChangeKind, Store};
use crate::objects::at;

/// Interval of bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Duration of a watch whose client sets none.
const DURATION: u64 = 1800;

/// An event of a watch.
enum Event {
    /// A change of an object, by its name in the API.
    Change(&'static str, Arc<Value>),
    /// The resource version is current.
    Bookmark(Value),
    /// The watch ends with a `Status`.
    Error(Value),
}

/// A watch in progress.
pub struct Watch {
    store: Arc<Mutex<Store>>,
    link: Link,
    target: Target,
    name: Option<String>,
    seen: u64,
    changed: watch::Receiver<()>,
    /// Number of changes of other objects since the last time that the watch might have been cut.
    passed: usize,
    ends: Instant,
    bookmarks: bool,
    /// Shows only the metadata of objects.
    metadata_only: bool,
    ready: VecDeque<Event>,
    ended: bool,
}

impl Watch {
    /// Begins a watch after the resource version of the request.
    pub fn begin(
        store: Arc<Mutex<Store>>,
        link: Link,
        target: Target,
        parameters: &Parameters,
        metadata_only: bool,
    ) -> Result<Self, Refusal> {
        let (current, compacted, changed, existing) = {
            let mut store = store.lock();
            let existing = store.list(target.kind, &target.namespace);
            let changed = store.subscribe(target.kind);
            (store.revision(), store.compacted(), changed, existing)
        };
        let from = parameters
            .get("resourceVersion")
            .and_then(|revision| revision.parse().ok())
            .unwrap_or(0);
        let name = parameters.selected_name().map(str::to_owned);
        let mut ready = VecDeque::new();
        let seen = match from {
            // Any state, followed by its changes.
            0 => {
                let selected = existing.iter().filter(|object| selects(name.as_deref(), object));
                ready.extend(selected.map(|object| Event::Change("ADDED", Arc::clone(object))));
                current
            }
            from if from < compacted => {
                let message = format!("too old resource version: {from} ({current})");
                ready.push_back(Event::Error(Refusal::expired(&message).status));
                current
            }
            from => from,
        };
        let seconds = parameters
            .get("timeoutSeconds")
            .and_then(|seconds| seconds.parse().ok());
        Ok(Self {
            store,
            link,
            target,
            name,
            seen,
            changed,
            passed: 0,
            ends: Instant::now() + Duration::from_secs(seconds.unwrap_or(DURATION)),
            bookmarks: parameters.is_set("allowWatchBookmarks"),
            metadata_only,
            ready,
            ended: false,
        })
    }

    /// Returns the lines of the watch.
    pub fn into_lines(self) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
        futures::stream::unfold(self, |mut watch| async move {
            let event = watch.next().await?;
            watch.ended = matches!(event, Event::Error(_));
            Some((watch.line(&event), watch))
        })
    }

    /// Returns the next event, or `None` at the end of the watch.
    async fn next(&mut self) -> Option<Event> {
        loop {
            self.link.wait_while_paused().await;
            // At each change that the server has, whether or not it concerns this watch.
            let chances = 1 + std::mem::take(&mut self.passed);
            if self.ended || (0..chances).any(|_| self.link.cuts_watch()) {
                return None;
            }
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.changed.mark_unchanged();
            self.collect();
            if !self.ready.is_empty() {
                sleep(self.link.watch_delay(self.target.kind.plural)).await;
                continue;
            }
            let bookmark = (Instant::now() + BOOKMARKS).min(self.ends);
            match timeout_at(bookmark, self.changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) if Instant::now() >= self.ends => return None,
                Err(_) if self.bookmarks => {
                    self.collect();
                    if !self.ready.is_empty() {
                        continue;
                    }
                    let metadata = json!({"resourceVersion": self.seen.to_string(), "creationTimestamp": null});
                    let object = json!({"kind": self.target.kind.kind, "apiVersion": self.target.kind.api_version(),
                        "metadata": metadata});
                    return Some(Event::Bookmark(object));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns an event as the client wants to see it. Its type comes first, as the real server writes it.
    fn line(&self, event: &Event) -> Result<Bytes, std::io::Error> {
        let (kind, object) = match event {
            Event::Change(kind, object) => (*kind, &**object),
            Event::Bookmark(object) => ("BOOKMARK", object),
            Event::Error(status) => ("ERROR", status),
        };
        let mut line = Vec::with_capacity(TYPICAL_BODY);
        line.extend_from_slice(b"{\"type\":\"");
        line.extend_from_slice(kind.as_bytes());
        line.extend_from_slice(b"\",\"object\":");
        match self.metadata_only && !matches!(event, Event::Error(_)) {
            true => serde_json::to_writer(&mut line, &list::metadata_of(object))?,
            false => serde_json::to_writer(&mut line, object)?,
        }
        line.extend_from_slice(b"}\n");
        Ok(line.into())
    }

    /// Takes the changes since the last look.
    fn collect(&mut self) {
        let store = self.store.lock();
        // Forgotten changes of other kinds are no gap.
        if self.seen < store.forgotten(self.target.kind) {
            let message = format!("too old resource version: {} ({})", self.seen, store.revision());
            self.ready.push_back(Event::Error(Refusal::expired(&message).status));
            return;
        }
        for change in store.changes_after(self.seen) {
            let key = &change.key;
            let in_namespace = self.target.namespace.is_empty() || key.namespace == self.target.namespace;
            if key.plural == self.target.kind.plural && in_namespace && selects(self.name.as_deref(), &change.object) {
                let kind = match change.kind {
                    ChangeKind::Added => "ADDED",
                    ChangeKind::Modified => "MODIFIED",
                    ChangeKind::Deleted => "DELETED",
                };
                self.ready.push_back(Event::Change(kind, Arc::clone(&change.object)));
            } else {
                self.passed += 1;
            }
        }
        self.seen = store.revision();
    }
}

fn selects(name: Option<&str>, object: &Value) -> bool {
    name.is_none_or(|name| at(object, "/metadata/name").is_some_and(|found| found == name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use axum::body::BodyDataStream;
    use axum::http::Request;
    use futures::StreamExt;
    use kube::client::Body;
    use tower::ServiceExt;

    use super::*;
    use crate::api_server::{ApiServer, NoFaults};
    use crate::clock::SimulatedClock;
    use crate::life::Life;

    const NAMESPACES: &str = "/api/v1/namespaces";
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

    fn create(server: &ApiServer, path: &str, name: &str) {
        let object = json!({"metadata": {"name": name}, "spec": {}});
        server.call("test", "POST", path, &object).unwrap();
    }

    /// Begins a watch of namespaces from now on.
    async fn watch_namespaces(server: &ApiServer) -> BodyDataStream {
        let revision = server.revision();
        let path = format!("{NAMESPACES}?watch=true&allowWatchBookmarks=true&resourceVersion={revision}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let service = server.service("test", Life::default(), Arc::new(NoFaults));
        service.oneshot(request).await.unwrap().into_body().into_data_stream()
    }

    async fn next(lines: &mut BodyDataStream) -> Value {
        serde_json::from_slice(&lines.next().await.unwrap().unwrap()).unwrap()
    }

    fn server() -> ApiServer {
        ApiServer::new(1, Arc::new(SimulatedClock::new(Instant::now())))
    }

    #[tokio::test(start_paused = true)]
    async fn forgotten_changes_are_a_gap_for_the_watches_of_their_kind_alone() {
        let server = server();
        let mut lines = watch_namespaces(&server).await;
        create(&server, LEASES, "first");
        server.compact();
        create(&server, NAMESPACES, "first");
        let event = next(&mut lines).await;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!("first"))
        );
        create(&server, NAMESPACES, "second");
        server.compact();
        create(&server, NAMESPACES, "third");
        let event = next(&mut lines).await;
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
        assert!(lines.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookmark_is_as_new_as_the_changes_of_all_kinds() {
        let server = server();
        let mut lines = watch_namespaces(&server).await;
        create(&server, LEASES, "first");
        let event = next(&mut lines).await;
        let revision = json!(server.revision().to_string());
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["resourceVersion"]),
            (&json!("BOOKMARK"), &revision)
        );
    }
}
