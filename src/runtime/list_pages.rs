//! Lists in pages of limited size. Does not depend on what the objects contain.
//!
//! `kube` keeps a page as bytes, as text and as objects before it passes on the first object. With a fixed number of
//! objects per page, the memory for it is chosen by whoever creates the largest objects; with a small number, a list of
//! a million objects takes longer than the API server retains it. The number is therefore adjusted to the bytes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tower::service_fn;

/// Maximum size of a page in bytes, unless a single object is larger (docs/security.md, Budget).
const MAX_PAGE: usize = 128 << 10;
/// Maximum size of a page with a single object. etcd stores at most 1.5 MiB, and JSON may be larger than that.
const MAX_OBJECT: usize = 8 << 20;
/// Number of objects in the first page.
const FIRST: u32 = 25;
/// Maximum number of objects in a page: that of kubectl and of client-go.
const MOST: u32 = 500;

/// The number of objects in the next page, by path of the list without the namespace: tenants may create any number of them.
#[derive(Default)]
struct PageSizes(Mutex<HashMap<String, u32>>);

/// Returns a client whose lists have pages of limited size, whatever their `limit`. All other requests are unchanged.
pub fn paged(client: Client) -> Client {
    let sizes = Arc::new(PageSizes::default());
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (sizes, client) = (Arc::clone(&sizes), client.clone());
        async move {
            match is_page(&request) {
                true => sizes.send(&client, &request.into_parts().0).await,
                false => client.send(request).await,
            }
        }
    });
    Client::new(service, namespace)
}

/// Returns true if the request is for a page of a list.
fn is_page(request: &Request<Body>) -> bool {
    let mut parameters = request.uri().query().unwrap_or_default().split('&');
    request.method() == Method::GET && parameters.any(|parameter| parameter.starts_with("limit="))
}

/// Returns the path of a list without its namespace.
fn without_namespace(path: &str) -> String {
    let parts = path
        .split_once("/namespaces/")
        .and_then(|(before, rest)| Some((before, rest.split_once('/')?.1)));
    parts.map_or_else(|| path.to_owned(), |(before, kind)| format!("{before}/{kind}"))
}

impl PageSizes {
    /// Requests a page. A page that is too large is dropped as soon as that is known, and requested again with fewer
    /// objects.
    async fn send(&self, client: &Client, request: &Parts) -> kube::Result<Response<Body>> {
        let list = &without_namespace(request.uri.path());
        loop {
            let objects = self.get(list);
            let page = client.send(with_limit(request, objects)?).await?;
            if !page.status().is_success() {
                return Ok(page);
            }
            let (head, body) = page.into_parts();
            let largest = if objects == 1 { MAX_OBJECT } else { MAX_PAGE };
            match to_bytes(axum::body::Body::new(body), largest).await {
                Ok(bytes) => {
                    // Twice as many objects of this size would still fit.
                    if bytes.len() < MAX_PAGE / 2 {
                        self.set(list, (objects * 2).min(MOST));
                    }
                    return Ok(Response::from_parts(head, Body::from(bytes)));
                }
                Err(error) if objects == 1 => return Err(kube::Error::Service(Box::new(error))),
                // Too large, or interrupted.
                Err(_) => self.set(list, (objects / 4).max(1)),
            }
        }
    }

    fn get(&self, list: &str) -> u32 {
        self.0.lock().get(list).copied().unwrap_or(FIRST)
    }

    fn set(&self, list: &str, objects: u32) {
        self.0.lock().insert(list.to_owned(), objects);
    }
}

/// Returns the request with another `limit`.
fn with_limit(request: &Parts, objects: u32) -> kube::Result<Request<Body>> {
    let parameters = request.uri.query().unwrap_or_default().split('&');
    let parameters: Vec<String> = parameters
        .map(|parameter| match parameter.starts_with("limit=") {
            true => format!("limit={objects}"),
            false => parameter.to_owned(),
        })
        .collect();
    let uri = format!("{}?{}", request.uri.path(), parameters.join("&"));
    let uri: Uri = uri
        .parse()
        .map_err(axum::http::Error::from)
        .map_err(kube::Error::HttpError)?;
    let mut page = Request::get(uri).body(Body::empty()).map_err(kube::Error::HttpError)?;
    page.headers_mut().clone_from(&request.headers);
    page.extensions_mut().clone_from(&request.extensions);
    Ok(page)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use futures::TryStreamExt;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::runtime::watcher::Event;
    use kube::runtime::{WatchStreamExt, watcher};
    use kube::{Api, ResourceExt};
    use serde_json::json;
    use tower::BoxError;

    use super::*;

    type Pages = Arc<Mutex<Vec<(usize, usize)>>>;

    /// Returns a client of an API server with claims of these sizes, and the pages that it sent: objects and bytes.
    fn server(sizes: Vec<usize>) -> (Client, Pages) {
        let pages = Pages::default();
        let sent = Arc::clone(&pages);
        let server = service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let value = |name: &str| {
                let parameter = query.split('&').find_map(|parameter| parameter.strip_prefix(name));
                parameter.map(|value| value.parse::<usize>().unwrap())
            };
            let (from, limit) = (value("continue=").unwrap_or(0), value("limit=").unwrap());
            let to = (from + limit).min(sizes.len());
            let items: Vec<_> = (from..to)
                .map(|number| {
                    let annotations = json!({"filler": "x".repeat(sizes[number])});
                    json!({"metadata": {"name": format!("c{number}"), "namespace": "a", "annotations": annotations}})
                })
                .collect();
            let next = (to < sizes.len()).then(|| to.to_string());
            let list = json!({"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": items,
                "metadata": {"resourceVersion": "1", "continue": next}});
            let body = list.to_string().into_bytes();
            sent.lock().push((to - from, body.len()));
            std::future::ready(Ok::<_, BoxError>(Response::new(Body::from(body))))
        });
        (paged(Client::new(server, "default")), pages)
    }

    /// Returns the names of all claims, in the order in which a watch lists them.
    async fn list(client: Client) -> Vec<String> {
        let api: Api<PersistentVolumeClaim> = Api::all(client);
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let listed = events.try_take_while(|event| std::future::ready(Ok(!matches!(event, Event::InitDone))));
        let claims = listed.try_filter_map(|event| {
            let claim = match event {
                Event::InitApply(claim) => Some(claim.name_any()),
                _ => None,
            };
            std::future::ready(Ok(claim))
        });
        claims.try_collect().await.unwrap()
    }

    #[test]
    fn lists_in_all_namespaces_share_their_size() {
        let claims = "/api/v1/persistentvolumeclaims";
        assert_eq!(
            without_namespace("/api/v1/namespaces/team/persistentvolumeclaims"),
            claims
        );
        for path in [claims, "/api/v1/namespaces", "/api/v1/namespaces/team"] {
            assert_eq!(without_namespace(path), path);
        }
    }

    #[tokio::test]
    async fn large_objects_are_listed_a_few_at_a_time_and_small_ones_many() {
        // Small, large, and small ones again.
        let sizes: Vec<usize> = (0..3000)
            .map(|number| if (1000..1005).contains(&number) { 600 << 10 } else { 10 })
            .collect();
        let (client, pages) = server(sizes);
        let names: Vec<String> = (0..3000).map(|number| format!("c{number}")).collect();
        assert_eq!(list(client).await, names);
        let pages = pages.lock().clone();
        let (used, dropped): (Vec<_>, Vec<_>) = pages
            .into_iter()
            .partition(|(objects, bytes)| *objects == 1 || *bytes <= MAX_PAGE);
        assert!(used.iter().all(|(_, bytes)| *bytes < 1 << 20));
        assert!(dropped.len() <= 10, "{} pages were dropped", dropped.len());
        let of_small = used.iter().filter(|(objects, _)| *objects > 1).count();
        assert!(of_small < 25, "{of_small} pages for 2995 small objects");
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_for_the_api_server_ends_the_list() {
        let (client, pages) = server(vec![10, 9 << 20]);
        let api: Api<PersistentVolumeClaim> = Api::all(client);
        let first = kube::api::ListParams::default().limit(50);
        let page = api.list(&first).await.unwrap();
        assert_eq!(page.items.len(), 1, "{:?}", pages.lock());
        let second = first.continue_token(page.metadata.continue_.unwrap().as_str());
        assert!(matches!(api.list(&second).await, Err(kube::Error::Service(_))));
    }

    #[test]
    fn only_pages_of_lists_are_changed() {
        let is_page = |uri: &str| is_page(&Request::get(uri).body(Body::empty()).unwrap());
        assert!(is_page("/api/v1/persistentvolumes?limit=500&continue=abc"));
        assert!(!is_page("/api/v1/persistentvolumes?watch=true&timeoutSeconds=290"));
        assert!(!is_page("/api/v1/persistentvolumes/limit=1"));
        let request = Request::get("/list?a=b&limit=500&continue=limit%3D")
            .body(Body::empty())
            .unwrap();
        let page = with_limit(&request.into_parts().0, 3).unwrap();
        assert_eq!(page.uri(), "/list?a=b&limit=3&continue=limit%3D");
    }
}
