//! Access to the Kubernetes API.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How long a call may be silent. Conditions, claims and volumes are small: a server that needs longer is not well,
/// and the object is tried again.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a watch may be silent: the server ends each after 290 s at most.
const WATCH_TIMEOUT: Duration = Duration::from_secs(300);

/// Why there is no access.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No configuration.
    #[error("no access to Kubernetes: set KUBECONFIG or run in a pod with a service account: {0}")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The file named by `--kubeconfig` cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The client could not be made of the configuration.
    #[error("cannot make a Kubernetes client: {0}")]
    Client(#[from] kube::Error),
}

/// Two clients on one configuration: watches are silent for minutes, calls must not be.
#[derive(Clone)]
pub struct Clients {
    /// For calls.
    pub calls: Client,
    /// For watches.
    pub watches: Client,
}

impl Clients {
    /// Takes the file if given, else what `kube` infers: KUBECONFIG, then the pod's service account.
    pub async fn new(kubeconfig: Option<&Path>) -> Result<Self, ClientError> {
        let mut config = match kubeconfig {
            Some(file) => {
                Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &KubeConfigOptions::default()).await?
            }
            None => Config::infer()
                .await
                .map_err(|cause| ClientError::Infer(Box::new(cause)))?,
        };
        // Retries are decided where it is known whether a call may be repeated.
        config.default_retry = false;
        config.read_timeout = Some(CALL_TIMEOUT);
        let calls = Client::try_from(config.clone())?;
        config.read_timeout = Some(WATCH_TIMEOUT);
        Ok(Self {
            calls,
            watches: Client::try_from(config)?,
        })
    }
}
