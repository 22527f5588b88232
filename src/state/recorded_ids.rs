//! Identities of exports that the volumes and archives of a backend record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;

use crate::api::NfsArchive;
use crate::api::names;
use crate::runtime::clients::Clients;
use crate::runtime::reads;
use crate::runtime::shared_read::SharedRead;
use crate::state::archives;
use crate::state::context::Context;

/// Identities of exports that the objects of a backend record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedIds {
    /// In annotations of volumes.
    pub volumes: BTreeSet<String>,
    /// In archives. They count if there are no volumes: an archive may be on a former export of its backend.
    pub archives: BTreeSet<String>,
}

impl RecordedIds {
    /// Returns those of the objects in the caches.
    pub fn cached(ctx: &Context, backend: &str) -> Self {
        Self {
            volumes: ctx.capacity.export_ids(backend),
            archives: archives::export_ids(ctx, backend),
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.archives.is_empty()
    }
}

/// Reads the identities from the API server, those of all backends at once: backends that are created together share a read.
#[derive(Default)]
pub struct LiveRecordedIds(SharedRead<Arc<BTreeMap<String, RecordedIds>>>);

impl LiveRecordedIds {
    /// Returns those of a backend at a time after the call.
    ///
    /// # Errors
    /// The API server does not list all volumes and archives.
    pub async fn read(&self, clients: &Clients, backend: &str) -> kube::Result<RecordedIds> {
        let all = self.0.read(async || fetch(clients).await.map(Arc::new)).await?;
        Ok(all.get(backend).cloned().unwrap_or_default())
    }
}

async fn fetch(clients: &Clients) -> kube::Result<BTreeMap<String, RecordedIds>> {
    let mut all = BTreeMap::<String, RecordedIds>::new();
    reads::each_metadata(clients, Api::<PersistentVolume>::all, |metadata| {
        if let Some((backend, id)) = annotated(metadata, names::VOLUME_BACKEND, names::VOLUME_EXPORT_ID) {
            all.entry(backend).or_default().volumes.insert(id);
        }
    })
    .await?;
    reads::each_metadata(clients, Api::<NfsArchive>::all, |metadata| {
        if let Some((backend, id)) = annotated(metadata, names::ARCHIVE_BACKEND, names::ARCHIVE_EXPORT_ID) {
            all.entry(backend).or_default().archives.insert(id);
        }
    })
    .await?;
    Ok(all)
}

fn annotated(metadata: &ObjectMeta, backend: &str, id: &str) -> Option<(String, String)> {
    let annotation = |name| metadata.annotations.as_ref()?.get(name).cloned();
    annotation(backend).zip(annotation(id)).filter(|(_, id)| !id.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    use super::*;

    fn object(name: &str, backend: &str, id: &str) -> Value {
        let annotations = json!({"nfs-operator.io/backend": backend, "nfs-operator.io/export-id": id});
        json!({"metadata": {"name": name, "annotations": annotations}})
    }

    /// Lists volumes on two pages, and archives on one.
    fn clients() -> Clients {
        let service = service_fn(|request: Request<Body>| {
            let uri = request.uri().to_string();
            let (items, token) = match (uri.contains("persistentvolumes"), uri.contains("continue=")) {
                (true, false) => (
                    vec![object("1", "main", "a"), json!({"metadata": {"name": "other"}})],
                    "more",
                ),
                (true, true) => (vec![object("2", "main", "b"), object("3", "second", "c")], ""),
                (false, _) => (vec![object("4", "main", "d"), object("5", "third", "")], ""),
            };
            let list = json!({"metadata": {"continue": token}, "items": items});
            async move { Ok::<_, BoxError>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        let client = Client::new(service, "default");
        Clients {
            calls: client.clone(),
            watches: client.clone(),
            lease: client,
        }
    }

    #[tokio::test]
    async fn the_identities_of_all_pages_count_for_their_backend() {
        let (live, clients) = (LiveRecordedIds::default(), clients());
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<BTreeSet<_>>();
        let main = live.read(&clients, "main").await.unwrap();
        assert_eq!((main.volumes, main.archives), (ids(&["a", "b"]), ids(&["d"])));
        let second = live.read(&clients, "second").await.unwrap();
        assert_eq!((second.volumes, second.archives), (ids(&["c"]), ids(&[])));
        for without in ["third", "fourth"] {
            assert!(live.read(&clients, without).await.unwrap().is_empty(), "{without}");
        }
    }
}
