//! Reads of single objects whose names come from other objects or from an export, and of the metadata of all objects.
//!
//! A name may be any text: a tenant writes `spec.volumeName` of a claim, for example, and the client inserts a name
//! into the path of the request as it is. A name that no object can have is therefore not requested. A test
//! (`tests/layers.rs`) rejects the methods of [`Api`] that these functions replace elsewhere.
//!
//! An object does not exist only if the API server says so: data are archived or deleted because of that. A proxy that does
//! not find the server, and an API server that does not know the kind, answer with the same HTTP status.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::api::NfsBackup;
use crate::decide::object_name::is_object_name;
use crate::runtime::clients::Clients;
use crate::runtime::writes::is_not_found;

/// Maximum number of objects in a page of metadata: that of kubectl and of client-go.
const METADATA_PAGE: u32 = 500;

/// Returns an object, or `None` if it does not exist or no object can have this name.
pub async fn get_opt<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    match is_object_name(name) {
        true => unless_missing(api.get(name).await),
        false => Ok(None),
    }
}

/// Returns what was read, or `None` if the API server answered that there is no such object.
fn unless_missing<T>(read: kube::Result<T>) -> kube::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the metadata of an object, or `None` if it does not exist or no object can have this name.
pub async fn get_metadata_opt<K>(api: &Api<K>, name: &str) -> kube::Result<Option<PartialObjectMeta<K>>>
where
    K: Clone + DeserializeOwned + Debug,
{
    match is_object_name(name) {
        true => unless_missing(api.get_metadata(name).await),
        false => Ok(None),
    }
}

/// Calls `observe` with the metadata of each object of an API at one moment. Uses the client for watches, which limits the bytes
/// of a page: tenants decide how large the objects are.
pub async fn each_metadata<K>(
    clients: &Clients,
    api: impl FnOnce(Client) -> Api<K>,
    observe: impl FnMut(&ObjectMeta),
) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    each_metadata_of(&api(clients.watches.clone()), observe).await
}

/// The same, with a client that limits the bytes of a page.
pub async fn each_metadata_of<K>(api: &Api<K>, mut observe: impl FnMut(&ObjectMeta)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().limit(METADATA_PAGE);
    loop {
        let list = api.list_metadata(&page).await?;
        list.items.iter().for_each(|object| observe(&object.metadata));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Returns a claim, or `None` if it does not exist or no claim can have these names.
pub async fn get_claim(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<PersistentVolumeClaim>> {
    match is_object_name(namespace) {
        true => get_opt(&Api::namespaced(client.clone(), namespace), name).await,
        false => Ok(None),
    }
}

/// Returns a backup, or `None` if it does not exist or no backup can have these names.
pub async fn get_backup(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<NfsBackup>> {
    match is_object_name(namespace) {
        true => get_opt(&Api::namespaced(client.clone(), namespace), name).await,
        false => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use axum::http::{Request, Response};
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;

    #[tokio::test]
    async fn an_object_is_missing_only_if_the_api_server_says_so() {
        let answer = |body: String| {
            let service = service_fn(move |_: Request<Body>| {
                let body = Body::from(body.clone().into_bytes());
                async move { Ok::<_, BoxError>(Response::builder().status(404).body(body)?) }
            });
            Api::<PersistentVolume>::all(Client::new(service, "default"))
        };
        let status = |reason: &str| {
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
                "message": "not found", "code": 404})
        };
        let missing = answer(status("NotFound").to_string());
        assert!(get_opt(&missing, "pvc-1").await.unwrap().is_none());
        assert!(get_metadata_opt(&missing, "pvc-1").await.unwrap().is_none());
        // The API server does not know the kind; a proxy does not find the API server.
        for body in [
            "404 page not found\n",
            "<html>Not Found</html>",
            "",
            &status("").to_string(),
        ] {
            let unclear = answer(body.to_owned());
            assert!(get_opt(&unclear, "pvc-1").await.is_err(), "{body:?}");
            assert!(get_metadata_opt(&unclear, "pvc-1").await.is_err(), "{body:?}");
        }
    }

    #[tokio::test]
    async fn a_name_that_no_object_can_have_is_not_requested() {
        let requested = Arc::new(Mutex::new(Vec::<String>::new()));
        let requests = Arc::clone(&requested);
        let service = service_fn(move |request: Request<Body>| {
            requests.lock().push(request.uri().to_string());
            async {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "NotFound", "message": "not found", "code": 404});
                let body = Body::from(status.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(404).body(body)?)
            }
        });
        let client = Client::new(service, "default");
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        for name in [
            "",
            "?limit=0",
            "../secrets",
            "a/b",
            "a%2fb",
            "A",
            "a b",
            "a?watch=1",
            ".",
            "..",
            "a\n",
        ] {
            assert!(get_opt(&volumes, name).await.unwrap().is_none(), "{name:?}");
            assert!(get_metadata_opt(&volumes, name).await.unwrap().is_none(), "{name:?}");
            assert!(get_claim(&client, "team", name).await.unwrap().is_none(), "{name:?}");
            assert!(get_claim(&client, name, "data").await.unwrap().is_none(), "{name:?}");
        }
        assert_eq!(*requested.lock(), Vec::<String>::new());
        assert!(get_opt(&volumes, "pvc-1.a").await.unwrap().is_none());
        assert!(get_claim(&client, "team", "data").await.unwrap().is_none());
        assert_eq!(
            *requested.lock(),
            [
                "/api/v1/persistentvolumes/pvc-1.a",
                "/api/v1/namespaces/team/persistentvolumeclaims/data"
            ]
        );
    }
}
