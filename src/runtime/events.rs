//! Events about users' objects, sent in the background: an event that cannot be sent must not delay a volume.
//!
//! kube's `Recorder` caches every event of the last minutes to count repeats. With 10,000 claims, that needs more
//! memory than the rest of the operator. Here, an event is sent only when an outcome changes, so there are no repeats.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use crate::api::conditions::Reason;
use crate::runtime::clock::Clock;
use export_store::fair_queue::FairQueue;
use export_store::text::{escape, truncate};

/// Maximum number of unsent events. Further events are dropped and logged.
const QUEUE: usize = 4096;
/// Maximum number of unsent events about objects of one namespace.
const QUEUE_OF_NAMESPACE: usize = QUEUE / 4;
/// Maximum number of events that are sent concurrently.
const SENDERS: usize = 8;
/// Maximum length of a note that the API server accepts, in bytes (events.k8s.io/v1).
const MAX_NOTE_LEN: usize = 1024;
/// Namespace for events about cluster-scoped objects, where `kubectl describe` looks for them.
const CLUSTER_NAMESPACE: &str = "default";

/// Queue of events to send. Clones share it.
#[derive(Clone)]
pub struct Events {
    unsent: Arc<Mutex<Unsent>>,
    /// Wakes a sender for each event.
    added: mpsc::UnboundedSender<()>,
    controller: String,
    instance: String,
    clock: Clock,
}

/// Events that are not sent yet. Namespaces take turns.
#[derive(Default)]
struct Unsent {
    queue: FairQueue<u64>,
    events: HashMap<u64, UnsentEvent>,
    last: u64,
}

/// What an event is made of, once it is sent: an [`Event`] takes several times as much memory.
struct UnsentEvent {
    regarding: ObjectReference,
    severity: Severity,
    reason: Reason,
    action: String,
    note: String,
    time: Timestamp,
}

impl Unsent {
    /// Adds an event about an object of a namespace. Returns false if there are too many.
    fn push(&mut self, namespace: &str, event: UnsentEvent) -> bool {
        if self.queue.len() >= QUEUE || self.queue.len_of(namespace) >= QUEUE_OF_NAMESPACE {
            return false;
        }
        self.last += 1;
        self.queue.push(self.last, namespace);
        self.events.insert(self.last, event);
        true
    }

    /// Removes and returns the next event.
    fn pop(&mut self) -> Option<UnsentEvent> {
        let next = self.queue.pop()?;
        self.events.remove(&next)
    }
}

/// Returns the namespace of an event: that of its object.
fn namespace_of(regarding: &ObjectReference) -> &str {
    regarding.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE)
}

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Informational.
    Normal,
    /// Indicates a problem.
    Warning,
}

impl Events {
    /// Starts the senders. They end when the last clone is dropped and the queue is empty.
    pub fn start(client: Client, controller: &str, instance: &str, clock: Clock) -> Self {
        let (added, receiver) = mpsc::unbounded_channel();
        let events = Self {
            unsent: Arc::default(),
            added,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
            clock,
        };
        let sender = Sender {
            client,
            unsent: Arc::clone(&events.unsent),
            controller: events.controller.clone(),
            instance: events.instance.clone(),
        };
        tokio::spawn(sender.send_all(receiver));
        events
    }

    /// Queues an event about `regarding`.
    pub fn publish(&self, regarding: ObjectReference, severity: Severity, reason: Reason, action: &str, note: &str) {
        let namespace = namespace_of(&regarding).to_owned();
        let event = UnsentEvent {
            regarding,
            severity,
            reason,
            action: action.to_owned(),
            note: truncate(note, MAX_NOTE_LEN).to_owned(),
            time: self.clock.now(),
        };
        if !lock(&self.unsent).push(&namespace, event) {
            tracing::warn!(%reason, note, "event dropped: too many wait to be sent");
            return;
        }
        // The receiver is dropped only at shutdown.
        let _ = self.added.send(());
    }
}

fn lock(unsent: &Mutex<Unsent>) -> MutexGuard<'_, Unsent> {
    unsent.lock()
}

/// Sends the queued events.
struct Sender {
    client: Client,
    unsent: Arc<Mutex<Unsent>>,
    controller: String,
    instance: String,
}

impl Sender {
    fn event(&self, unsent: UnsentEvent) -> Event {
        let UnsentEvent {
            regarding,
            severity,
            reason,
            action,
            note,
            time: now,
        } = unsent;
        let namespace = namespace_of(&regarding).to_owned();
        // A name may be at most 253 bytes, and the object's own name may be that long.
        let object: String = regarding.name.iter().flat_map(|name| name.chars()).take(180).collect();
        let object = object.trim_end_matches(['-', '.']);
        Event {
            metadata: ObjectMeta {
                // Unique by object, time and reason. Identical events within a nanosecond are one event.
                name: Some(format!(
                    "{object}.{:x}.{}",
                    now.as_nanosecond(),
                    reason.to_string().to_lowercase()
                )),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            action: Some(action),
            event_time: Some(MicroTime(now)),
            note: Some(truncate(&escape(&note), MAX_NOTE_LEN).to_owned()),
            reason: Some(reason.to_string()),
            regarding: Some(regarding),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(
                match severity {
                    Severity::Normal => "Normal",
                    Severity::Warning => "Warning",
                }
                .to_owned(),
            ),
            ..Event::default()
        }
    }

    async fn send_all(self, added: mpsc::UnboundedReceiver<()>) {
        let added = stream::unfold(added, |mut added| async { added.recv().await.map(|()| ((), added)) });
        added
            .for_each_concurrent(SENDERS, |()| async {
                let next = lock(&self.unsent).pop();
                if let Some(next) = next {
                    self.send(self.event(next)).await;
                }
            })
            .await;
    }

    async fn send(&self, event: Event) {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(refused) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(reason = event.reason, note = event.note, "event not sent: {refused}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(note: String) -> UnsentEvent {
        UnsentEvent {
            regarding: ObjectReference::default(),
            severity: Severity::Normal,
            reason: Reason::Provisioning,
            action: "Provision".to_owned(),
            note,
            time: Timestamp::default(),
        }
    }

    #[test]
    fn events_of_one_namespace_neither_delay_nor_displace_those_of_another() {
        let mut unsent = Unsent::default();
        let pushed = (0..QUEUE).filter(|number| unsent.push("large", event(number.to_string())));
        assert_eq!(pushed.count(), QUEUE_OF_NAMESPACE);
        assert!(unsent.push("small", event("small".to_owned())));
        let first: Vec<String> = (0..3).filter_map(|_| unsent.pop()).map(|event| event.note).collect();
        assert_eq!(first, ["0", "small", "1"]);
        assert!(unsent.push("large", event(String::new())), "it has room again");
    }
}
