//! [`CallObserver`]: what a program learns about the calls of its clients, for example for metrics.

use std::fmt;
use std::time::Duration;

use crate::{NfsError, Status};

/// Kind of a call, by what the server has to do for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Looks up names or reads attributes.
    Lookup,
    /// Reads a page of a directory's listing.
    List,
    /// Reads content of a file.
    Read,
    /// Writes, copies or commits content of a file.
    Write,
    /// Changes names or attributes.
    Change,
}

impl CallKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::Lookup, Self::List, Self::Read, Self::Write, Self::Change];
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub enum CallOutcome<'a> {
    /// The server answered, with this status if not with success. Many of these are normal: a lookup of a name that does
    /// not exist is answered with `NotFound`.
    Answered(Option<Status>),
    /// There is no answer, or none that can be used.
    Failed(&'a NfsError),
}

/// Observes the calls and connections of a client. The methods are called often and must not block.
pub trait CallObserver: fmt::Debug + Send + Sync {
    /// A call ended. `elapsed`: the time for which its caller waited, reconnections and retries included. Calls that were
    /// cancelled, and those that establish or keep a session, are not observed.
    fn call_ended(&self, kind: CallKind, elapsed: Duration, outcome: CallOutcome<'_>);

    /// An attempt to connect ended. A client that was idle connects again with the next call.
    fn connect_ended(&self, error: Option<&NfsError>);
}

/// Observes nothing.
impl CallObserver for () {
    fn call_ended(&self, _kind: CallKind, _elapsed: Duration, _outcome: CallOutcome<'_>) {}

    fn connect_ended(&self, _error: Option<&NfsError>) {}
}
