//! Events of the operator about cluster-scoped objects.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cli::cluster::{CommandError, each};

/// Namespace of events about cluster-scoped objects.
pub const NAMESPACE: &str = "default";

/// Passes each event with these fields to `visit`, in no order.
pub async fn each_event(client: &Client, fields: &str, visit: impl FnMut(Event)) -> Result<(), CommandError> {
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    each(&events, "events", ListParams::default().fields(fields), visit).await
}

/// Returns when an event was last reported.
pub fn event_time(event: &Event) -> Option<Timestamp> {
    let exact = event.event_time.as_ref().map(|time| time.0);
    exact.max(event.last_timestamp.as_ref().map(|time| time.0))
}
