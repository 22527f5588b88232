//! Events about users' objects, sent in the background: an event that cannot be sent must not delay a volume.
//!
//! kube's `Recorder` caches every event of the last minutes to count repeats. With 10,000 claims, that needs more
//! memory than the rest of the operator. Here, an event is sent only when an outcome changes, so there are no repeats.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;

use crate::api::conditions::Reason;
use export_store::text::{escape, truncate};

/// Maximum number of unsent events. Further events are dropped and logged.
const QUEUE: usize = 4096;
/// Maximum number of events that are sent concurrently.
const SENDERS: usize = 8;
/// Maximum length of a note that the API server accepts, in bytes (events.k8s.io/v1).
const MAX_NOTE_LEN: usize = 1024;
/// Namespace for events about cluster-scoped objects, where `kubectl describe` looks for them.
const CLUSTER_NAMESPACE: &str = "default";

/// Queue of events to send. Clones share it.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    controller: String,
    instance: String,
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
    pub fn start(client: Client, controller: &str, instance: &str) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(send_all(client, receiver));
        Self {
            queue,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
        }
    }

    /// Queues an event about `regarding`.
    pub fn publish(&self, regarding: ObjectReference, severity: Severity, reason: Reason, action: &str, note: &str) {
        let event = self.event(regarding, severity, reason, action, note, Timestamp::now());
        if let Err(refused) = self.queue.try_send(event) {
            tracing::warn!(%reason, note, "event dropped: {refused}");
        }
    }

    fn event(
        &self,
        regarding: ObjectReference,
        severity: Severity,
        reason: Reason,
        action: &str,
        note: &str,
        now: Timestamp,
    ) -> Event {
        let namespace = regarding
            .namespace
            .clone()
            .unwrap_or_else(|| CLUSTER_NAMESPACE.to_owned());
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
            action: Some(action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(truncate(&escape(truncate(note, MAX_NOTE_LEN)), MAX_NOTE_LEN).to_owned()),
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
}

async fn send_all(client: Client, receiver: mpsc::Receiver<Event>) {
    use futures::StreamExt;
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|e| (e, receiver))
    });
    stream
        .for_each_concurrent(SENDERS, |event| {
            let client = client.clone();
            async move {
                let namespace = event.metadata.namespace.clone().unwrap_or_default();
                let api: Api<Event> = Api::namespaced(client, &namespace);
                if let Err(refused) = api.create(&PostParams::default(), &event).await {
                    tracing::warn!(reason = event.reason, note = event.note, "event not sent: {refused}");
                }
            }
        })
        .await;
}
