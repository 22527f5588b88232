//! Arguments and errors of subcommands that access a cluster as a user.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use export_store::text::escape;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::runtime::api_error::api_error_text;
use crate::runtime::clients::{ClientError, user_client};
use crate::runtime::reads;
use crate::runtime::writes::http_status;

/// Requested number of objects in a page; the client adjusts it to their size.
const PAGE: u32 = 500;

/// The cluster, and the user as whom to access it.
#[derive(Args)]
pub struct ClusterArguments {
    /// Path of a kubeconfig. If unset, KUBECONFIG, ~/.kube/config or the service account of the pod is used.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. If unset, its current context.
    #[arg(long)]
    context: Option<String>,
}

impl ClusterArguments {
    /// Returns the arguments in a command line that is not complete yet.
    pub fn in_words(words: &[OsString]) -> Self {
        let kubeconfig = value_of(words, &["--kubeconfig"]).or_else(|| std::env::var_os("NFS_OPERATOR_KUBECONFIG"));
        let context = value_of(words, &["--context"]);
        Self {
            kubeconfig: kubeconfig.map(PathBuf::from),
            context: context.map(|context| context.to_string_lossy().into_owned()),
        }
    }

    /// Returns a client with the rights of the user. Lists that have a limit are read in pages of limited size.
    pub async fn client(&self) -> Result<Client, CommandError> {
        Ok(user_client(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The cluster cannot be accessed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The kinds of the operator are unknown to the API server.
    #[error(
        "cannot {action}: the cluster does not know this kind: install nfs-operator, or select its cluster with --context"
    )]
    NotInstalled {
        /// The action that failed.
        action: String,
    },
    /// The API server refused a request, or did not answer.
    #[error("cannot {action}: {}", api_error_text(cause))]
    Api {
        /// The action that failed.
        action: String,
        /// The API server's answer.
        #[source]
        cause: Box<kube::Error>,
    },
    /// Arguments contradict each other or the objects in the cluster.
    #[error("{0}")]
    Usage(String),
    /// What was requested is not possible now.
    #[error("{0}")]
    Refused(String),
    /// A file or the output cannot be written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An object cannot be written as JSON or YAML.
    #[error("{0}")]
    Format(String),
}

impl CommandError {
    /// Prints the error, and returns the exit code: 2 for invalid arguments and for a cluster that cannot be accessed.
    pub fn report(&self, program: &str) -> ExitCode {
        eprintln!("{program}: {}", escape(&self.to_string()));
        match self {
            Self::Client(_) | Self::NotInstalled { .. } | Self::Usage(_) => ExitCode::from(2),
            Self::Api { .. } | Self::Refused(_) | Self::Io(_) | Self::Format(_) => ExitCode::FAILURE,
        }
    }
}

/// Returns true if the user may not do it.
pub fn is_forbidden(error: &CommandError) -> bool {
    matches!(error, CommandError::Api { cause, .. } if http_status(cause) == Some(403))
}

/// Converts an error of an action such as `list NfsBackends`.
pub fn failed(action: impl Into<String>) -> impl FnOnce(kube::Error) -> CommandError {
    move |cause| CommandError::Api {
        action: action.into(),
        cause: Box::new(cause),
    }
}

/// Passes each object of a list to `visit`, one page after the other.
pub async fn each<K>(api: &Api<K>, what: &str, filter: ListParams, mut visit: impl FnMut(K)) -> Result<(), CommandError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = filter.limit(PAGE);
    loop {
        let list = api.list(&page).await.map_err(|error| match http_status(&error) {
            Some(404) => CommandError::NotInstalled {
                action: format!("list {what}"),
            },
            _ => failed(format!("list {what}"))(error),
        })?;
        list.items.into_iter().for_each(&mut visit);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// Reads all objects of a list that has few.
pub async fn all<K>(api: &Api<K>, what: &str) -> Result<Vec<K>, CommandError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut objects = Vec::new();
    each(api, what, ListParams::default(), |object| objects.push(object)).await?;
    Ok(objects)
}

/// Reads an object that must exist. `what` is its kind and name.
pub async fn get<K>(api: &Api<K>, name: &str, what: &str) -> Result<K, CommandError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let found = reads::get_opt(api, name)
        .await
        .map_err(failed(format!("read {what}")))?;
    found.ok_or_else(|| {
        let remedy = match api.namespace() {
            Some(_) => "correct its name, or the namespace with -n",
            None => "correct its name",
        };
        CommandError::Refused(format!("{what} does not exist: {remedy}"))
    })
}

/// Returns the value of a flag in an incomplete command line.
pub fn value_of(words: &[OsString], flags: &[&str]) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let word = word.to_string_lossy();
        for flag in flags {
            let Some(rest) = word.strip_prefix(flag) else { continue };
            match rest.strip_prefix('=') {
                _ if rest.is_empty() => return words.next().cloned(),
                Some(value) if flag.starts_with("--") => return Some(value.into()),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_in_an_incomplete_command_line() {
        let words: Vec<OsString> = ["kubectl-nfs", "explain", "-n", "shop", "--context=test", "pvc/"]
            .map(OsString::from)
            .to_vec();
        assert_eq!(value_of(&words, &["--namespace", "-n"]), Some("shop".into()));
        assert_eq!(value_of(&words, &["--context"]), Some("test".into()));
        assert_eq!(value_of(&words, &["--kubeconfig"]), None);
    }
}
