//! Reads of a backend's object from the API server, shared by reclaims and backups that begin at the same time.

use std::sync::Arc;

use kube::Api;

use crate::api::NfsBackend;
use crate::runtime::reads;
use crate::runtime::shared_read::SharedRead;
use crate::runtime::writes::WriteError;

/// Reads the object of one backend. Its policy decides what happens to data and who may copy it where, so it is not taken from
/// the watch cache (data-safety rule 15).
#[derive(Default)]
pub struct LiveBackend(SharedRead<Option<Arc<NfsBackend>>>);

impl LiveBackend {
    /// Returns the object as it was at a time after the call.
    ///
    /// # Errors
    /// The API server does not answer: nothing may be decided.
    pub async fn read(&self, api: &Api<NfsBackend>, name: &str) -> Result<Option<Arc<NfsBackend>>, WriteError> {
        let fetch = async || reads::get_opt(api, name).await.map(|object| object.map(Arc::new));
        let read = self.0.read(fetch).await;
        read.map_err(WriteError::action("read the policy of the backend"))
    }
}
