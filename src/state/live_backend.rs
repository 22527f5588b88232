//! Reads of a backend's object from the API server, shared by reclaims that begin at the same time.

use std::sync::Arc;

use kube::Api;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api::NfsBackend;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;

/// The last read: when it began, and its result.
type LastRead = Option<(Instant, Option<Arc<NfsBackend>>)>;

/// Reads the object of one backend. Its policy decides what happens to data, so it is not taken from the watch cache
/// (data-safety rule 15).
#[derive(Default)]
pub struct LiveBackend(Mutex<LastRead>);

impl LiveBackend {
    /// Returns the object as it was at a time after the call. Callers that wait for a read in progress share the next one.
    ///
    /// # Errors
    /// The API server does not answer: nothing may be decided.
    pub async fn read(&self, api: &Api<NfsBackend>, name: &str) -> Result<Option<Arc<NfsBackend>>, WriteError> {
        let called = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((began, object)) = &*last
            && *began >= called
        {
            return Ok(object.clone());
        }
        let began = Instant::now();
        let object = reads::get_opt(api, name).await;
        let object = object.map_err(WriteError::action("read the backend before data is moved or removed"))?;
        let object = object.map(Arc::new);
        *last = Some((began, object.clone()));
        Ok(object)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;

    /// Answers each read after a moment with an object whose generation is the number of the read.
    fn api(reads: &Arc<AtomicUsize>) -> Api<NfsBackend> {
        let reads = Arc::clone(reads);
        let service = service_fn(move |_: Request<Body>| {
            let read = reads.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let object = json!({
                    "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend",
                    "metadata": {"name": "main", "generation": read},
                    "spec": {"server": "nfs", "path": "/"},
                });
                Ok::<_, BoxError>(Response::new(Body::from(object.to_string().into_bytes())))
            }
        });
        Api::all(Client::new(service, "default"))
    }

    #[tokio::test]
    async fn a_read_begins_after_the_call_and_is_shared_by_those_who_wait() {
        let reads = Arc::new(AtomicUsize::new(0));
        let (live, api) = (LiveBackend::default(), api(&reads));
        let generation = async || {
            let object = live.read(&api, "main").await.unwrap().unwrap();
            object.metadata.generation.unwrap()
        };
        // The first read begins before the others are called, so they need another one, which they share.
        let all = tokio::join!(generation(), generation(), generation(), generation());
        assert_eq!(all, (1, 2, 2, 2));
        assert_eq!(generation().await, 3, "an earlier read does not count");
        assert_eq!(reads.load(Ordering::SeqCst), 3);
    }
}
