//! What can go wrong in the rig, each variant naming the action that failed.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// An error of the rig.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, folder, socket or process could not be worked with.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The API server was asked for something and did not do it.
    #[error("{doing}: {source}")]
    Kube {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// An HTTP endpoint of the operator did not answer.
    #[error("{doing}: {source}")]
    Http {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: reqwest::Error,
    },
    /// A certificate of the throw-away authority could not be made.
    #[error("make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// JSON could not be read or written.
    #[error("{doing}: {source}")]
    Json {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: serde_json::Error,
    },
    /// Something that the rig needs is not on this machine.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// A program ended although it should have gone on.
    #[error("{name} ended ({status}); the end of its log {}:\n{tail}", log.display())]
    Ended {
        /// The program.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Where its log is.
        log: PathBuf,
        /// The last lines of that log.
        tail: String,
    },
    /// A command that runs to its end failed.
    #[error("{command}: {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        output: String,
    },
    /// Something that was waited for did not come about.
    #[error("waited {:.1} s for {what}; at last: {last}", waited.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        waited: Duration,
        /// What was seen at the last look.
        last: String,
    },
    /// The rig was used in a way that cannot work.
    #[error("{0}")]
    Usage(String),
    /// A NetworkPolicy says what the rig's node can't enforce.
    #[error("the rig can't enforce NetworkPolicy {namespace}/{name}: {what}")]
    Policy {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What can't be enforced.
        what: String,
    },
    /// The operator's rights are not those that it uses.
    #[error("the operator's rights are not those that it uses:\n{}", .0.join("\n"))]
    Rights(Vec<String>),
    /// The shared rig could not be started; every test that asks for it gets this.
    #[error("start the shared rig: {0}")]
    Shared(String),
}

/// The rig's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to errors of other crates.
pub(crate) trait Doing<T> {
    /// Turns the error into ours; `doing` is only run when there is one.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: doing(), source })
    }
}

impl<T> Doing<T> for kube::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Kube {
            doing: doing(),
            source: Box::new(source),
        })
    }
}

impl<T> Doing<T> for reqwest::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Http { doing: doing(), source })
    }
}

impl<T> Doing<T> for serde_json::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Json { doing: doing(), source })
    }
}
