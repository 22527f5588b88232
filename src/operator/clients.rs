//! Access to the Kubernetes API.

use std::path::Path;
use std::time::Duration;

use axum::http::{HeaderValue, Method, Request, header};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::BoxError;
use tower::filter::FilterLayer;

use super::guard::Guard;

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

/// A write was not sent.
#[derive(Debug, thiserror::Error)]
#[error("this process does not lead: it writes nothing")]
struct NotLeading;

/// Clients on one configuration: watches are silent for minutes, calls must not be.
#[derive(Clone)]
pub struct Clients {
    /// For calls. Writes are sent only while the guard is open.
    pub calls: Client,
    /// For watches.
    pub watches: Client,
    /// For the Lease alone, which is written to before the guard is open.
    pub lease: Client,
}

impl Clients {
    /// Takes the file if given, else what `kube` infers: KUBECONFIG, then the pod's service account. `identity` stands
    /// in the API server's audit log beside each request.
    pub async fn new(kubeconfig: Option<&Path>, identity: &str, guard: &Guard) -> Result<Self, ClientError> {
        let mut config = match kubeconfig {
            Some(file) => {
                Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &KubeConfigOptions::default()).await?
            }
            None => Config::infer()
                .await
                .map_err(|cause| ClientError::Infer(Box::new(cause)))?,
        };
        let agent = format!("nfs-operator/{} ({identity})", env!("CARGO_PKG_VERSION"));
        // A host's name that is no text for a header is left out.
        let agent = HeaderValue::from_str(&agent).unwrap_or(HeaderValue::from_static("nfs-operator"));
        config.headers.push((header::USER_AGENT, agent));
        // Retries are decided where it is known whether a call may be repeated.
        config.default_retry = false;
        config.read_timeout = Some(CALL_TIMEOUT);
        let lease = Client::try_from(config.clone())?;
        let calls = guarded(config.clone(), guard)?;
        config.read_timeout = Some(WATCH_TIMEOUT);
        Ok(Self {
            calls,
            watches: Client::try_from(config)?,
            lease,
        })
    }
}

/// A client that sends nothing but GET while the guard is closed.
fn guarded(config: Config, guard: &Guard) -> Result<Client, kube::Error> {
    let guard = guard.clone();
    let ask = move |request: Request<Body>| {
        if *request.method() == Method::GET || guard.is_open() {
            Ok(request)
        } else {
            Err(BoxError::from(NotLeading))
        }
    };
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&FilterLayer::new(ask))
        .build())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use kube::api::{Patch, PatchParams};

    use super::*;

    #[tokio::test]
    async fn no_write_is_sent_while_the_guard_is_closed() {
        let guard = Guard::default();
        // Nobody listens at port 1: what is sent fails otherwise.
        let client = guarded(Config::new("http://127.0.0.1:1".parse().unwrap()), &guard).unwrap();
        let api: Api<Namespace> = Api::all(client);
        let refused = |error: kube::Error| format!("{error:?}").contains("NotLeading");
        let write = async || {
            let patch = Patch::Merge(serde_json::json!({}));
            api.patch("a", &PatchParams::default(), &patch).await.unwrap_err()
        };
        assert!(refused(write().await));
        assert!(!refused(api.get("a").await.unwrap_err()), "reading is free");
        guard.open(None);
        assert!(!refused(write().await));
        guard.close();
        assert!(refused(write().await));
    }
}
