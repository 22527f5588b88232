//! The one-shot requests of a backend that were handled, or are being carried out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::api::NfsBackend;
use crate::api::requests::{BackendRequest, HandledRequest, recorded};

/// Result of an acceptance that is older than the first report, such as one in the manifest of a new object.
const TOO_EARLY: &str = "ignored: it was set before the backend had reported anything that it could accept";

/// Log of the requests of one backend. The status has what was handled, and the cache may have an older status.
#[derive(Default)]
pub struct RequestLog(Mutex<Log>);

#[derive(Default)]
struct Log {
    /// By name. Includes requests that only another release knows.
    handled: BTreeMap<String, HandledRequest>,
    submitted: BTreeMap<BackendRequest, String>,
}

impl RequestLog {
    /// Restores what the previous process handled, from the status. An object without one is new: its acceptances
    /// are recorded as handled, without being carried out.
    pub fn restore(&self, object: &NfsBackend, now: Timestamp) {
        let Some(status) = &object.status else {
            let acceptances = BackendRequest::ALL.iter().filter(|request| request.is_acceptance());
            for (request, value) in acceptances.filter_map(|request| Some((*request, request.value(object)?))) {
                tracing::warn!(
                    backend = object.name_any(),
                    "{}: {value} is {TOO_EARLY}",
                    request.annotation()
                );
                self.complete_with(request, value, Some(TOO_EARLY.to_owned()), now);
            }
            return;
        };
        let handled = status.handled_requests.iter();
        let handled = handled.map(|handled| (handled.name.clone(), handled.clone()));
        self.0.lock().handled = handled.collect();
    }

    /// Returns the value of a request that was not handled yet.
    pub fn due<'a>(&self, object: &'a NfsBackend, request: BackendRequest) -> Option<&'a str> {
        let value = request.value(object)?;
        let log = self.0.lock();
        let handled = log.handled.get(request.name());
        let is_handled = handled.is_some_and(|handled| handled.is_of(value));
        (!is_handled).then_some(value)
    }

    /// Hands a request that is due to the background task that carries it out. Returns true if the task does not have it
    /// yet.
    pub fn submit(&self, object: &NfsBackend, request: BackendRequest) -> bool {
        let Some(value) = self.due(object, request) else {
            return false;
        };
        let former = self.0.lock().submitted.insert(request, value.to_owned());
        former.as_deref() != Some(value)
    }

    /// Forgets that a request was handed to its task, because it is not due any more.
    pub fn withdraw(&self, request: BackendRequest) {
        self.0.lock().submitted.remove(&request);
    }

    /// Returns the value of a request that was submitted and is not complete.
    pub fn submitted(&self, request: BackendRequest) -> Option<String> {
        self.0.lock().submitted.get(&request).cloned()
    }

    /// Records that a value was handled. The next status lists it.
    pub fn complete(&self, request: BackendRequest, value: &str, now: Timestamp) {
        self.complete_with(request, value, None, now);
    }

    /// Like [`complete`](Self::complete), with a result of at most 256 bytes.
    pub fn complete_with(&self, request: BackendRequest, value: &str, result: Option<String>, now: Timestamp) {
        let mut log = self.0.lock();
        if log.submitted.get(&request).is_some_and(|submitted| submitted == value) {
            log.submitted.remove(&request);
        }
        let name = request.name().to_owned();
        if log.handled.get(&name).is_some_and(|handled| handled.is_of(value)) {
            return;
        }
        let handled = HandledRequest {
            name: name.clone(),
            value: recorded(value).into_owned(),
            result,
            // The API has whole seconds.
            handled_time: Timestamp::from_second(now.as_second()).ok().map(Time),
        };
        log.handled.insert(name, handled);
    }

    /// Returns what was handled, for the status.
    pub fn handled(&self) -> Vec<HandledRequest> {
        self.0.lock().handled.values().cloned().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::names::SCAN_REQUESTED_AT;

    fn backend(value: Option<&str>, handled: &[HandledRequest]) -> NfsBackend {
        let annotations: BTreeMap<_, _> = value.into_iter().map(|value| (SCAN_REQUESTED_AT, value)).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "b", "annotations": annotations},
            "spec": {"server": "s", "path": "/"},
            "status": {"handledRequests": handled},
        }))
        .unwrap()
    }

    #[test]
    fn a_value_is_carried_out_once_also_after_a_restart_and_if_it_is_removed_and_set_again() {
        let (log, scan, now) = (RequestLog::default(), BackendRequest::Scan, Timestamp::UNIX_EPOCH);
        let asked = backend(Some("1"), &[]);
        assert!(log.submit(&asked, scan));
        assert!(!log.submit(&asked, scan), "it is being carried out");
        log.complete(scan, "1", now);
        assert_eq!(log.submitted(scan), None);
        assert_eq!(log.due(&asked, scan), None, "the cache has no status yet");
        assert_eq!(log.due(&backend(None, &[]), scan), None);
        assert_eq!(log.due(&asked, scan), None, "removed and set again");
        let restarted = RequestLog::default();
        restarted.restore(&backend(Some("1"), &log.handled()), now);
        assert_eq!(restarted.due(&asked, scan), None);
        assert_eq!(restarted.due(&backend(Some("2"), &[]), scan), Some("2"));
    }

    #[test]
    fn an_acceptance_that_an_object_is_created_with_is_not_carried_out() {
        let now = Timestamp::UNIX_EPOCH;
        for request in BackendRequest::ALL {
            let created = |value: &str| {
                serde_json::from_value::<NfsBackend>(json!({
                    "metadata": {"name": "b", "annotations": {request.annotation(): value}},
                    "spec": {"server": "s", "path": "/"},
                }))
                .unwrap()
            };
            let log = RequestLog::default();
            log.restore(&created("1"), now);
            let expected = (!request.is_acceptance()).then_some("1");
            assert_eq!(log.due(&created("1"), *request), expected, "{request:?}");
            let result = log.handled().first().and_then(|handled| handled.result.clone());
            assert_eq!(result.is_some(), request.is_acceptance(), "{request:?}");
            assert_eq!(log.due(&created("1@later"), *request), Some("1@later"), "{request:?}");
        }
    }

    #[test]
    fn a_value_that_is_set_meanwhile_is_carried_out_afterwards() {
        let (log, scan, now) = (RequestLog::default(), BackendRequest::Scan, Timestamp::UNIX_EPOCH);
        log.submit(&backend(Some("1"), &[]), scan);
        let other = backend(Some("2"), &[]);
        assert!(log.submit(&other, scan));
        log.complete(scan, "1", now);
        assert_eq!(log.submitted(scan).as_deref(), Some("2"));
        assert_eq!(log.due(&other, scan), Some("2"));
    }
}
