//! Why directories were not accepted: the events that the operator published when it handled the request.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use kube::Client;

use crate::api::conditions::Reason;
use crate::api::requests::HandledRequest;
use crate::cli::cluster::{CommandError, is_forbidden};
use crate::cli::kubectl_nfs::events::{self, each_event, event_time};
use crate::cli::kubectl_nfs::progress::{self, Progress};

/// Maximum number of events for a request; the log of the operator has all refusals.
const MAX_EVENTS: usize = 10;
/// Maximum time until the events appear, which are sent in the background.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the number of volumes that were not accepted, from the end of a result: `…, 2 volumes not accepted`.
pub fn count(result: &str) -> usize {
    let last = result.rsplit(", ").next().unwrap_or_default();
    let number = last
        .strip_suffix(" not accepted")
        .and_then(|last| last.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Returns a line for each reason, and one about those that are not shown.
pub async fn reasons(
    client: &Client,
    backend: &str,
    handled: &HandledRequest,
    refused: usize,
) -> Result<Vec<String>, CommandError> {
    let what = format!("the events of NfsBackend {backend}");
    let found = progress::wait_or_text(&what, TIMEOUT, async || match read(client, backend, handled).await {
        Err(error) if is_forbidden(&error) => Ok(Progress::Done(None)),
        found => match found? {
            found if found.len() >= refused.min(MAX_EVENTS) => Ok(Progress::Done(Some(found))),
            found => Ok(Progress::Waits(format!("{} of {refused} are sent", found.len()))),
        },
    })
    .await?;
    let mut lines = match found {
        Ok(None) => {
            return Ok(vec![format!(
                "the reasons are not shown, because you may not list events in namespace {}",
                events::NAMESPACE
            )]);
        }
        Ok(Some(found)) => found,
        // Events may be lost. Those that exist are shown.
        Err(_) => read(client, backend, handled).await?,
    };
    if refused > lines.len() {
        lines.push(format!(
            "and {} more: see the log of the operator",
            refused - lines.len()
        ));
    }
    Ok(lines)
}

async fn read(client: &Client, backend: &str, handled: &HandledRequest) -> Result<Vec<String>, CommandError> {
    let reason = Reason::DirectoryNotAccepted;
    let fields = format!("involvedObject.kind=NfsBackend,involvedObject.name={backend},reason={reason}");
    let mut notes = Vec::new();
    each_event(client, &fields, |event| notes.extend(note(event, handled))).await?;
    notes.sort();
    Ok(notes)
}

/// Returns the note of an event of this request: it is published just before the time at which the request was handled,
/// which has whole seconds.
fn note(event: Event, handled: &HandledRequest) -> Option<String> {
    let tolerance = SignedDuration::from_secs(1);
    let is_of_request = match (event_time(&event), &handled.handled_time) {
        (Some(time), Some(handled)) => time.duration_since(handled.0).abs() <= tolerance,
        _ => true,
    };
    event.message.filter(|_| is_of_request)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_result_says_how_many_were_refused() {
        for (result, refused) in [
            (
                "1 directory is accepted, 1 of them changed now, 0 volumes not accepted",
                0,
            ),
            (
                "0 directories are accepted, 0 of them changed now, 1 volume not accepted",
                1,
            ),
            (
                "3 directories are accepted, 2 of them changed now, 12 volumes not accepted",
                12,
            ),
            ("something that a newer release reports", 0),
        ] {
            assert_eq!(count(result), refused, "{result}");
        }
    }

    #[test]
    fn only_events_of_the_request_are_its_reasons() {
        let handled = json!({"name": "accept-directories", "value": "pvc-1@2", "handledTime": "2026-01-01T12:00:00Z"});
        let handled: HandledRequest = serde_json::from_value(handled).unwrap();
        let note_at = |time: &str| {
            let event = json!({"metadata": {}, "involvedObject": {}, "eventTime": time, "message": "why"});
            note(serde_json::from_value(event).unwrap(), &handled)
        };
        assert_eq!(note_at("2026-01-01T12:00:00.900000Z").as_deref(), Some("why"));
        assert_eq!(note_at("2026-01-01T11:59:59.100000Z").as_deref(), Some("why"));
        assert_eq!(note_at("2026-01-01T11:59:50.000000Z"), None);
    }
}
