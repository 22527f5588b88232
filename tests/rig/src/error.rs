//! The rig's errors.

use std::{path::PathBuf, process::ExitStatus, time::Duration};

/// An error of the rig.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An action failed.
    #[error("{action}: {source}")]
    Failed {
        /// The action, such as `read /tmp/file`.
        action: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The test certificate authority failed to create a certificate.
    #[error("create a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// This machine lacks something that the rig needs.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to provide it.
        remedy: String,
    },
    /// A program exited while it was still needed.
    #[error("{name} exited ({status}); the end of its log {}:\n{tail}", log.display())]
    ProcessExited {
        /// The program.
        name: String,
        /// Its exit status.
        status: ExitStatus,
        /// The path of its log.
        log: PathBuf,
        /// The last lines of that log.
        tail: String,
    },
    /// A command failed.
    #[error("{command}: {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard output and standard error.
        output: String,
    },
    /// A condition was not met in time.
    #[error("waited {:.1} s for {what}; last state: {last}", waited.as_secs_f64())]
    Timeout {
        /// The condition.
        what: String,
        /// The time that was waited.
        waited: Duration,
        /// The last observed state.
        last: String,
    },
    /// The rig was used in a way that cannot work, or found a state that it does not expect.
    #[error("{0}")]
    Usage(String),
    /// A NetworkPolicy contains something that the rig's node cannot enforce.
    #[error("the rig cannot enforce NetworkPolicy {namespace}/{name}: {what}")]
    UnsupportedPolicy {
        /// The policy's namespace.
        namespace: String,
        /// The policy's name.
        name: String,
        /// The part that is not supported.
        what: String,
    },
    /// The operator's RBAC rules differ from what it uses.
    #[error("the operator's RBAC rules differ from what it uses:\n{}", .0.join("\n"))]
    Rbac(Vec<String>),
    /// The shared rig or the shared virtual machine failed to start. Every test that needs it gets this error.
    #[error("start the shared rig: {0}")]
    SharedStart(String),
}

/// A result with the rig's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Converts errors of other crates to [`Error::Failed`].
pub trait ResultExt<T> {
    /// Adds the action that failed, such as `read /tmp/file`. `action` is called only on an error.
    ///
    /// # Errors
    /// The converted error.
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> ResultExt<T> for Result<T, E> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Failed {
            action: action(),
            source: Box::new(source),
        })
    }
}
