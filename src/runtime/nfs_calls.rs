//! Metrics of the calls to NFS servers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nfs_client::{CallKind, CallObserver, CallOutcome, NfsError, Status};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::runtime::metrics::encode_series;

/// Upper bounds of the buckets, in seconds: few, because every backend has them for each kind of call. A near server
/// answers most calls within the first ones; the last one is half of the time after which a call fails.
const BUCKETS: [f64; 6] = [0.002, 0.01, 0.05, 0.25, 1.0, 5.0];

/// The calls to all NFS servers, by backend. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct NfsCalls(Arc<Mutex<BTreeMap<String, Arc<BackendCalls>>>>);

/// The calls of one backend, which all of its clients count.
#[derive(Debug, Default)]
struct BackendCalls(Mutex<Counts>);

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// In the order of [`CallKind::ALL`].
    kinds: [KindCounts; CallKind::ALL.len()],
    connections: u64,
    connection_failures: u64,
}

/// The calls of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct KindCounts {
    /// Calls in each of the [`BUCKETS`], and those that took longer.
    buckets: [u64; BUCKETS.len() + 1],
    /// The time of all calls.
    total: Duration,
    /// In the order of [`CallError::ALL`].
    errors: [u64; CallError::ALL.len()],
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

impl NfsCalls {
    /// Returns the observer of a backend's client. All series of the backend exist from now on.
    pub fn observer(&self, backend: &str) -> Arc<dyn CallObserver> {
        Arc::clone(self.0.lock().entry(backend.to_owned()).or_default()) as _
    }

    /// Removes the series of a backend. What its client still reports is not counted.
    pub fn remove(&self, backend: &str) {
        self.0.lock().remove(backend);
    }
}

impl CallObserver for BackendCalls {
    fn call_ended(&self, kind: CallKind, elapsed: Duration, outcome: CallOutcome<'_>) {
        let mut counts = self.0.lock();
        // The discriminants are the positions in `ALL`.
        let Some(of_kind) = counts.kinds.get_mut(kind as usize) else {
            return;
        };
        let bucket = BUCKETS.partition_point(|bound| *bound < elapsed.as_secs_f64());
        if let Some(count) = of_kind.buckets.get_mut(bucket) {
            *count += 1;
        }
        of_kind.total += elapsed;
        if let Some(count) = CallError::of(outcome).and_then(|error| of_kind.errors.get_mut(error as usize)) {
            *count += 1;
        }
    }

    fn connect_ended(&self, error: Option<&NfsError>) {
        let mut counts = self.0.lock();
        match error {
            None => counts.connections += 1,
            Some(_) => counts.connection_failures += 1,
        }
    }
}

impl KindCounts {
    /// Returns the number of calls in each bucket, by its upper bound.
    fn buckets(&self) -> Vec<(f64, u64)> {
        BUCKETS.into_iter().chain([f64::INFINITY]).zip(self.buckets).collect()
    }
}

impl Collector for NfsCalls {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // Nothing is locked while the text is written.
        let backends: Vec<(String, Counts)> = {
            let backends = self.0.lock();
            let counts = |(backend, calls): (&String, &Arc<BackendCalls>)| (backend.clone(), *calls.0.lock());
            backends.iter().map(counts).collect()
        };
        let kinds = || {
            backends.iter().flat_map(|(backend, counts)| {
                let labels = move |kind| [("backend", backend.as_str()), ("operation", operation(kind))];
                let of_kind = move |(kind, counts)| (labels(kind), counts);
                CallKind::ALL.into_iter().zip(&counts.kinds).map(of_kind)
            })
        };
        let help = "Time until a call to the NFS server ended, reconnections and retries included, in seconds, by operation: lookup (names and attributes), list, read, write (also copies on the server) or change (names and attributes)";
        let name = "nfs_operator_nfs_call_duration_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, counts) in kinds() {
            let (calls, seconds) = (counts.buckets.iter().sum(), counts.total.as_secs_f64());
            let mut series = family.encode_family(&labels)?;
            series.encode_histogram::<NoLabelSet>(seconds, calls, &counts.buckets(), None)?;
        }
        let help = "Failed calls, by error: timeout (no answer in time), connection (none, or lost) or server (an answer such as Io, NoSpace, Access or Stale)";
        let errors = kinds().flat_map(|([backend, operation], counts)| {
            let labels = move |error: CallError| [backend, operation, ("error", error.name())];
            let of_error = move |(error, count)| (labels(error), ConstCounter::new(count));
            CallError::ALL.into_iter().zip(counts.errors).map(of_error)
        });
        encode_series(&mut encoder, ("nfs_operator_nfs_call_errors", help), errors)?;
        let of_backends = |count: fn(&Counts) -> u64| {
            let series = backends.iter();
            series.map(move |(backend, counts)| ([("backend", backend.as_str())], ConstCounter::new(count(counts))))
        };
        let help = "Connections to the NFS server that were established; a new backend needs two, and one that makes no call for a minute connects again with the next";
        let connections = of_backends(|counts| counts.connections);
        encode_series(&mut encoder, ("nfs_operator_nfs_connections", help), connections)?;
        let help = "Attempts to connect to the NFS server that failed";
        let failures = of_backends(|counts| counts.connection_failures);
        encode_series(&mut encoder, ("nfs_operator_nfs_connection_failures", help), failures)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    fn text(calls: &NfsCalls) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(calls.clone()));
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
            // A bucket includes its upper bound.
            (CallKind::Read, seconds(5), CallOutcome::Answered(None)),
            (CallKind::Read, seconds(6), CallOutcome::Answered(None)),
        ] {
            main.call_ended(kind, elapsed, outcome);
        }
        main.connect_ended(None);
        main.connect_ended(Some(&lost));
        let text = text(&calls);
        let name = "nfs_operator_nfs_call_";
        for series in [
            format!(r#"{name}duration_seconds_count{{backend="main",operation="lookup"}} 2"#),
            format!(r#"{name}duration_seconds_count{{backend="main",operation="read"}} 2"#),
            format!(r#"{name}duration_seconds_sum{{backend="main",operation="read"}} 11.0"#),
            format!(r#"{name}duration_seconds_bucket{{le="1.0",backend="main",operation="read"}} 0"#),
            format!(r#"{name}duration_seconds_bucket{{le="5.0",backend="main",operation="read"}} 1"#),
            format!(r#"{name}duration_seconds_bucket{{le="+Inf",backend="main",operation="read"}} 2"#),
            format!(r#"{name}duration_seconds_count{{backend="other",operation="read"}} 0"#),
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
