//! Metrics of the calls to NFS servers.

use std::sync::Arc;
use std::time::Duration;

use nfs_client::{CallKind, CallObserver, CallOutcome, NfsError, Status};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::runtime::metrics::BackendLabels;

/// Upper bounds of the buckets, in seconds: few, because every backend has them for each kind of call. A near server
/// answers most calls within the first ones; the last one is half of the time after which a call fails.
const BUCKETS: [f64; 6] = [0.002, 0.01, 0.05, 0.25, 1.0, 5.0];

/// The calls to all NFS servers, by backend. Clones share the counters.
#[derive(Clone)]
pub struct NfsCalls {
    seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    errors: Family<ErrorLabels, Counter>,
    connections: Family<BackendLabels, Counter>,
    connection_failures: Family<BackendLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    backend: String,
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    backend: String,
    operation: &'static str,
    error: &'static str,
}

/// What went wrong in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallError {
    /// There was no answer in time.
    Timeout,
    /// There was no connection, or it was lost.
    Connection,
    /// The server answered with a fault: not merely that a name exists, or does not.
    Server,
}

impl CallError {
    const ALL: [Self; 3] = [Self::Timeout, Self::Connection, Self::Server];

    fn of(outcome: CallOutcome<'_>) -> Option<Self> {
        match outcome {
            CallOutcome::Answered(None) => None,
            CallOutcome::Answered(Some(status)) => is_fault(status).then_some(Self::Server),
            CallOutcome::Failed(NfsError::NotResponding { .. }) => Some(Self::Timeout),
            CallOutcome::Failed(NfsError::Fenced { .. }) => Some(Self::Connection),
            CallOutcome::Failed(error) if error.is_transport() => Some(Self::Connection),
            CallOutcome::Failed(_) => Some(Self::Server),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Server => "server",
        }
    }
}

/// Returns true for a status that is a problem of the export or its server. The others tell what exists and what is
/// supported, or concern one name.
fn is_fault(status: Status) -> bool {
    matches!(
        status,
        Status::NotPermitted
            | Status::Io
            | Status::Access
            | Status::NoSpace
            | Status::ReadOnly
            | Status::QuotaExceeded
            | Status::Stale
            | Status::WrongSecurity
            | Status::Moved
            | Status::Delayed
            | Status::BadOwner
            | Status::Other(_)
    )
}

fn operation(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Lookup => "lookup",
        CallKind::List => "list",
        CallKind::Read => "read",
        CallKind::Write => "write",
        CallKind::Change => "change",
    }
}

fn labels(backend: &str, kind: CallKind) -> CallLabels {
    CallLabels {
        backend: backend.to_owned(),
        operation: operation(kind),
    }
}

fn error_labels(backend: &str, kind: CallKind, error: CallError) -> ErrorLabels {
    ErrorLabels {
        backend: backend.to_owned(),
        operation: operation(kind),
        error: error.name(),
    }
}

impl Default for NfsCalls {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            errors: Family::default(),
            connections: Family::default(),
            connection_failures: Family::default(),
        }
    }
}

impl NfsCalls {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "nfs_operator_nfs_call_duration_seconds",
            "Time until a call to the NFS server ended, reconnections and retries included, in seconds, by operation: lookup (names and attributes), list, read, write (also copies on the server) or change (names and attributes)",
            self.seconds.clone(),
        );
        registry.register(
            "nfs_operator_nfs_call_errors",
            "Failed calls, by error: timeout (no answer in time), connection (none, or lost) or server (an answer such as Io, NoSpace, Access or Stale)",
            self.errors.clone(),
        );
        registry.register(
            "nfs_operator_nfs_connections",
            "Connections to the NFS server that were established; a new backend needs two, and one that makes no call for a minute connects again with the next",
            self.connections.clone(),
        );
        registry.register(
            "nfs_operator_nfs_connection_failures",
            "Attempts to connect to the NFS server that failed",
            self.connection_failures.clone(),
        );
    }

    /// Returns the observer of a backend's client. All series of the backend exist from now on.
    pub fn observer(&self, backend: &str) -> Arc<dyn CallObserver> {
        let of_backend = BackendLabels {
            backend: backend.to_owned(),
        };
        Arc::new(BackendCalls {
            kinds: CallKind::ALL.map(|kind| KindMetrics {
                seconds: self.seconds.get_or_create_owned(&labels(backend, kind)),
                errors: CallError::ALL
                    .map(|error| self.errors.get_or_create_owned(&error_labels(backend, kind, error))),
            }),
            connections: self.connections.get_or_create_owned(&of_backend),
            connection_failures: self.connection_failures.get_or_create_owned(&of_backend),
        })
    }

    /// Removes the series of a backend. What its client still reports is not counted.
    pub fn remove(&self, backend: &str) {
        for kind in CallKind::ALL {
            self.seconds.remove(&labels(backend, kind));
            for error in CallError::ALL {
                self.errors.remove(&error_labels(backend, kind, error));
            }
        }
        let of_backend = BackendLabels {
            backend: backend.to_owned(),
        };
        self.connections.remove(&of_backend);
        self.connection_failures.remove(&of_backend);
    }
}

/// The metrics of one backend. Reporting a call looks up no label and allocates nothing.
#[derive(Debug)]
struct BackendCalls {
    /// In the order of [`CallKind::ALL`].
    kinds: [KindMetrics; CallKind::ALL.len()],
    connections: Counter,
    connection_failures: Counter,
}

#[derive(Debug)]
struct KindMetrics {
    seconds: Histogram,
    /// In the order of [`CallError::ALL`].
    errors: [Counter; CallError::ALL.len()],
}

impl CallObserver for BackendCalls {
    fn call_ended(&self, kind: CallKind, elapsed: Duration, outcome: CallOutcome<'_>) {
        // The discriminants are the positions in `ALL`.
        let Some(of_kind) = self.kinds.get(kind as usize) else {
            return;
        };
        of_kind.seconds.observe(elapsed.as_secs_f64());
        if let Some(errors) = CallError::of(outcome).and_then(|error| of_kind.errors.get(error as usize)) {
            errors.inc();
        }
    }

    fn connect_ended(&self, error: Option<&NfsError>) {
        match error {
            None => self.connections.inc(),
            Some(_) => self.connection_failures.inc(),
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn text(calls: &NfsCalls) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        calls.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn calls_are_counted_by_backend_operation_and_error() {
        let calls = NfsCalls::default();
        let (main, _other) = (calls.observer("main"), calls.observer("other"));
        let seconds = Duration::from_secs;
        let action = "test";
        let lost = NfsError::ConnectionLost {
            action,
            cause: String::new(),
            outcome_unknown: true,
        };
        let silent = NfsError::NotResponding {
            action,
            after: seconds(10),
            outcome_unknown: false,
        };
        for (kind, elapsed, outcome) in [
            (CallKind::Lookup, seconds(0), CallOutcome::Answered(None)),
            (
                CallKind::Lookup,
                seconds(0),
                CallOutcome::Answered(Some(Status::NotFound)),
            ),
            (
                CallKind::Change,
                seconds(0),
                CallOutcome::Answered(Some(Status::Exists)),
            ),
            (
                CallKind::Change,
                seconds(2),
                CallOutcome::Answered(Some(Status::NoSpace)),
            ),
            (CallKind::Write, seconds(2), CallOutcome::Failed(&lost)),
            (CallKind::List, seconds(10), CallOutcome::Failed(&silent)),
        ] {
            main.call_ended(kind, elapsed, outcome);
        }
        main.connect_ended(None);
        main.connect_ended(Some(&lost));
        let text = text(&calls);
        let name = "nfs_operator_nfs_call_";
        for series in [
            format!(r#"{name}duration_seconds_count{{backend="main",operation="lookup"}} 2"#),
            format!(r#"{name}duration_seconds_count{{backend="main",operation="read"}} 0"#),
            format!(r#"{name}duration_seconds_bucket{{le="1.0",backend="main",operation="change"}} 1"#),
            format!(r#"{name}duration_seconds_bucket{{le="5.0",backend="main",operation="change"}} 2"#),
            format!(r#"{name}errors_total{{backend="main",operation="lookup",error="server"}} 0"#),
            format!(r#"{name}errors_total{{backend="main",operation="change",error="server"}} 1"#),
            format!(r#"{name}errors_total{{backend="main",operation="write",error="connection"}} 1"#),
            format!(r#"{name}errors_total{{backend="main",operation="list",error="timeout"}} 1"#),
            format!(r#"{name}errors_total{{backend="other",operation="list",error="timeout"}} 0"#),
            r#"nfs_operator_nfs_connections_total{backend="main"} 1"#.to_owned(),
            r#"nfs_operator_nfs_connection_failures_total{backend="main"} 1"#.to_owned(),
        ] {
            assert!(text.lines().any(|line| line == series), "{series} in {text}");
        }
    }

    #[test]
    fn a_removed_backend_has_no_series_and_its_client_adds_none() {
        let calls = NfsCalls::default();
        let (removed, _stays) = (calls.observer("removed"), calls.observer("stays"));
        let before = text(&calls);
        assert!(before.contains(r#"backend="removed""#), "{before}");
        calls.remove("removed");
        removed.call_ended(
            CallKind::Lookup,
            Duration::ZERO,
            CallOutcome::Answered(Some(Status::Io)),
        );
        removed.connect_ended(None);
        let after = text(&calls);
        assert!(!after.contains("removed"), "{after}");
        assert!(after.contains(r#"backend="stays""#), "{after}");
    }

    #[test]
    fn each_kind_and_error_is_at_its_position() {
        for (position, kind) in CallKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
        for (position, error) in CallError::ALL.into_iter().enumerate() {
            assert_eq!(error as usize, position);
        }
    }
}
