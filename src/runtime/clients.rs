//! Clients of the Kubernetes API.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{HeaderValue, Request, Response, Uri, header};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::runtime::api_requests::ApiRequests;
use crate::runtime::fenced_stream::{FencedStream, NotLeader};
use crate::runtime::list_pages::paged;
use crate::runtime::throttle::throttled;
use crate::runtime::write_fence::WriteFence;

/// Maximum time without data on a call. Conditions, claims and volumes are small: a server that needs longer is
/// unhealthy, and the object is retried.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time without data on a watch. The server ends each watch after 290 s at most.
const WATCH_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum size of a connection's buffers in bytes. hyper's default is about 400 KiB, more than three pages of a list.
const MAX_BUFFER: usize = 64 << 10;

/// The Kubernetes API is not accessible.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No configuration was found.
    #[error("no access to Kubernetes: set KUBECONFIG or run in a pod with a service account: {0}")]
    Infer(#[source] Box<InferConfigError>),
    /// The kubeconfig does not exist.
    #[error("there is no kubeconfig {}: name one with KUBECONFIG or --kubeconfig", .0.display())]
    NoKubeconfig(PathBuf),
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[source] KubeconfigError),
    /// The client certificate has a version that TLS libraries without legacy code refuse.
    #[error(
        "the client certificate of the user in {0} has X.509 version 1, which is not supported: issue it again with an \
         extension, which makes it version 3 (openssl x509 -req -extfile FILE, with `extendedKeyUsage = clientAuth` in \
         FILE), and put it into the kubeconfig"
    )]
    CertificateVersion(String),
    /// The API server is behind a proxy.
    #[error(
        "the cluster in the kubeconfig has the proxy-url {0}, which is not supported: run the command where the API server can \
         be reached directly, or use a kubeconfig for a forwarded port"
    )]
    Proxy(String),
    /// No client can be created from the configuration.
    #[error("cannot make a Kubernetes client: {0}")]
    Client(#[from] kube::Error),
}

impl From<KubeconfigError> for ClientError {
    fn from(error: KubeconfigError) -> Self {
        match missing_file(&error) {
            Some(file) => Self::NoKubeconfig(file.to_owned()),
            None => Self::Kubeconfig(error),
        }
    }
}

impl From<InferConfigError> for ClientError {
    fn from(error: InferConfigError) -> Self {
        let kubeconfig = error.source().and_then(|source| source.downcast_ref());
        match kubeconfig.and_then(missing_file) {
            // Outside a pod, the missing service account says nothing.
            Some(file) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => Self::NoKubeconfig(file.to_owned()),
            _ => Self::Infer(Box::new(error)),
        }
    }
}

/// Returns the path of a kubeconfig that does not exist.
fn missing_file(error: &KubeconfigError) -> Option<&Path> {
    match error {
        KubeconfigError::ReadConfig(cause, file) if cause.kind() == io::ErrorKind::NotFound => Some(file),
        _ => None,
    }
}

/// Clients that share a configuration. Their timeouts differ, because a watch may be idle for minutes.
#[derive(Clone)]
pub struct Clients {
    /// Client for calls. Sends nothing while the write fence is closed.
    pub calls: Client,
    /// Client for watches.
    pub watches: Client,
    /// Client for the Lease and for requests that precede leadership. The write fence does not apply to it.
    pub lease: Client,
}

impl Clients {
    /// Creates the clients from the file. Without a file, `kube` infers the configuration from KUBECONFIG, then the
    /// pod's service account. `identity` is part of the user agent, which the API server's audit log contains. `max_in_flight`
    /// is the maximum time for which the kernel retransmits unacknowledged data of `calls`. If unset, the kernel's own
    /// limit of several minutes applies. `requests` counts what is sent.
    pub async fn new(
        kubeconfig: Option<&Path>,
        identity: &str,
        guard: &WriteFence,
        max_in_flight: Option<Duration>,
        requests: &ApiRequests,
    ) -> Result<Self, ClientError> {
        let mut config = load_config(kubeconfig, None).await?;
        let agent = format!("nfs-operator/{} ({identity})", env!("CARGO_PKG_VERSION"));
        // Omit the identity if the host name is not a valid header value.
        let agent = HeaderValue::from_str(&agent).unwrap_or(HeaderValue::from_static("nfs-operator"));
        config.headers.push((header::USER_AGENT, agent));
        // Callers retry writes, because only they know which are safe to repeat.
        config.default_retry = false;
        limit_silence(&mut config);
        // The first client, because its error names the kubeconfig.
        let lease = client(config.clone(), kubeconfig)?;
        let calls = guarded(config.clone(), guard, max_in_flight)?;
        Ok(Self {
            calls: throttled(requests.counted(calls)),
            lease: requests.counted(lease),
            watches: requests.counted(watching(config)?),
        })
    }
}

/// Returns a client for commands of a user, whose lists have pages of limited size.
///
/// # Errors
/// There is no usable kubeconfig, or it has no such context.
pub async fn user_client(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ClientError> {
    let mut config = load_config(kubeconfig, context).await?;
    let agent = HeaderValue::from_static(concat!("nfs-operator/", env!("CARGO_PKG_VERSION"), " (cli)"));
    config.headers.push((header::USER_AGENT, agent));
    // Commands report a failure, and the user decides whether to repeat it.
    config.default_retry = false;
    limit_silence(&mut config);
    Ok(paged(client(config, kubeconfig)?))
}

fn limit_silence(config: &mut Config) {
    config.read_timeout = Some(CALL_TIMEOUT);
    // The time begins with a request. Otherwise, that of one on a kept connection begins with the end of the last one.
    config.reset_reader_on_write = true;
}

/// Reads the configuration. The operator and its commands connect to the API server directly: `kube` would use the proxy
/// of HTTPS_PROXY even for a server that NO_PROXY lists, so these variables are ignored.
async fn load_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ClientError> {
    let mut config = read_config(kubeconfig, context).await?;
    match config.proxy_url.take() {
        Some(proxy) if !is_of_environment(&proxy, |name| std::env::var(name).ok()) => {
            Err(ClientError::Proxy(proxy.to_string()))
        }
        _ => Ok(config),
    }
}

/// Returns true if `kube` took the proxy from the environment, not from the kubeconfig.
fn is_of_environment(proxy: &Uri, variable: impl Fn(&str) -> Option<String>) -> bool {
    let values = ["HTTPS_PROXY", "https_proxy"].into_iter().filter_map(variable);
    values
        .filter_map(|value| value.parse::<Uri>().ok())
        .any(|value| value == *proxy)
}

async fn read_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ClientError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    match (kubeconfig, context) {
        (Some(file), _) => Ok(Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?),
        (None, Some(_)) => Ok(Config::from_kubeconfig(&options).await?),
        (None, None) => Ok(Config::infer().await?),
    }
}

/// Creates a client. The error for a certificate that the TLS library refuses names the file that contains it.
fn client(config: Config, kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    Client::try_from(config).map_err(|error| match format!("{error:?}").contains("UnsupportedCertVersion") {
        true => ClientError::CertificateVersion(match kubeconfig {
            Some(file) => file.display().to_string(),
            None => std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".to_owned()),
        }),
        false => ClientError::Client(error),
    })
}

/// A service that answers requests to the API server.
pub type ApiService = HttpService<axum::body::Body>;

type HttpService<B> = BoxCloneSyncService<Request<Body>, Response<B>, BoxError>;

impl Clients {
    /// Creates the clients over a service instead of connections. The write fence is checked when a request is passed to the
    /// service.
    pub fn over(service: ApiService, namespace: &str, fence: &WriteFence) -> Self {
        let (fence, unfenced) = (fence.clone(), service.clone());
        let fenced = service_fn(move |request: Request<Body>| {
            let (may_write, service) = (fence.may_write(), unfenced.clone());
            async move {
                match may_write {
                    true => service.oneshot(request).await,
                    false => Err(NotLeader.into()),
                }
            }
        });
        Self {
            calls: throttled(Client::new(fenced, namespace)),
            watches: watching_over(service.clone(), namespace),
            lease: Client::new(service, namespace),
        }
    }
}

/// Returns a client for watches and the lists that they begin with.
fn watching(mut config: Config) -> Result<Client, kube::Error> {
    config.read_timeout = Some(WATCH_TIMEOUT);
    Ok(watching_over(over_tcp(&config, tcp())?, &config.default_namespace))
}

/// The same over a service.
fn watching_over<B>(service: HttpService<B>, namespace: &str) -> Client
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    // A list consists of many reads. If one of them is refused for overload, it alone is repeated, after the time that
    // the API server asks for: a list that began again with its first page might never end.
    let retried = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryPolicy::server_retry()))
        .service(service);
    paged(Client::new(retried, namespace))
}

/// Returns a client that sends nothing while the write fence is closed.
fn guarded(config: Config, guard: &WriteFence, max_in_flight: Option<Duration>) -> Result<Client, kube::Error> {
    let mut tcp = tcp();
    tcp.set_tcp_user_timeout(max_in_flight);
    let guard = guard.clone();
    let fenced = tcp.map_response(move |stream| FencedStream::new(stream, guard.clone()));
    Ok(Client::new(over_tcp(&config, fenced)?, config.default_namespace))
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // The TLS layer is added later.
    tcp.enforce_http(false);
    tcp
}

/// Returns the stack that `kube` builds, without its trace: `kube` accepts neither a connector nor a limit of the buffers.
fn over_tcp<T>(config: &Config, tcp: T) -> Result<HttpService<Incoming>, kube::Error>
where
    T: Service<Uri> + Clone + Send + Sync + 'static,
    T::Response: Connection + Read + Write + Send + Unpin + 'static,
    T::Future: Send + 'static,
    T::Error: Into<BoxError>,
{
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(MAX_BUFFER)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(BoxCloneSyncService::new(service))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use std::future::ready;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use futures::TryStreamExt;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use kube::api::{Patch, PatchParams};
    use kube::runtime::watcher;
    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server. Returns its request counter and its URL.
    async fn server() -> (Arc<AtomicUsize>, String) {
        let requests: Arc<AtomicUsize> = Arc::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (counted, address) = (Arc::clone(&requests), listener.local_addr().unwrap());
        let answer = async move || {
            counted.fetch_add(1, Ordering::Relaxed);
            r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}"#
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
        (requests, format!("http://{address}"))
    }

    #[test]
    fn a_proxy_of_the_environment_is_distinguished_from_that_of_the_kubeconfig() {
        let proxy: Uri = "http://proxy.example.com:3128".parse().unwrap();
        for (name, value, expected) in [
            ("HTTPS_PROXY", "http://proxy.example.com:3128", true),
            ("https_proxy", "http://proxy.example.com:3128/", true),
            ("HTTPS_PROXY", "http://other.example.com:3128", false),
            ("HTTP_PROXY", "http://proxy.example.com:3128", false),
        ] {
            let variable = |asked: &str| (asked == name).then(|| value.to_owned());
            assert_eq!(is_of_environment(&proxy, variable), expected, "{name}={value}");
        }
    }

    #[tokio::test]
    async fn a_page_that_an_overloaded_server_refuses_does_not_restart_the_list() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (listener, log) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::clone(&requests));
        let address = listener.local_addr().unwrap();
        let answer = async move |uri: Uri| {
            let is_second = uri.query().unwrap_or_default().contains("continue=second");
            let mut log = log.lock();
            log.push(is_second);
            let refused = is_second && log.iter().filter(|second| **second).count() == 1;
            let next = if is_second { "" } else { "second" };
            let body = format!(
                r#"{{"kind": "NamespaceList", "apiVersion": "v1",
                    "metadata": {{"resourceVersion": "1", "continue": "{next}"}},
                    "items": [{{"metadata": {{"name": "{}"}}}}]}}"#,
                log.len()
            );
            match refused {
                true => (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", "1")], String::new()),
                false => (StatusCode::OK, [("Content-Type", "application/json")], body),
            }
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
        let client = watching(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let api: Api<Namespace> = Api::all(client);
        let events = watcher(api, watcher::Config::default());
        let listed = events.try_take_while(|event| ready(Ok(!matches!(event, watcher::Event::InitDone))));
        let events: Vec<_> = listed.try_collect().await.unwrap();
        assert_eq!(*requests.lock(), [false, true, true]);
        assert_eq!(events.len(), 3, "the beginning and two namespaces: {events:?}");
    }

    #[tokio::test]
    async fn nothing_is_sent_while_the_guard_is_closed_over_a_new_connection_or_a_kept_one() {
        let (requests, address) = server().await;
        let guard = WriteFence::default();
        let max_in_flight = Some(Duration::from_secs(5));
        let client = guarded(Config::new(address.parse().unwrap()), &guard, max_in_flight).unwrap();
        let api: Api<Namespace> = Api::all(client);
        let refused = |error: kube::Error| format!("{error:?}").contains("NotLeader");
        let write = async || {
            let patch = Patch::Merge(serde_json::json!({}));
            api.patch("a", &PatchParams::default(), &patch).await
        };
        assert!(refused(write().await.unwrap_err()));
        guard.open(None);
        write().await.unwrap();
        guard.close();
        assert!(refused(write().await.unwrap_err()));
        assert!(refused(api.get("a").await.unwrap_err()));
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }
}
