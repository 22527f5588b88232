//! Why a list is empty: the object that selects it may not exist.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cli::cluster::{CommandError, failed, is_forbidden};
use crate::runtime::reads;

/// Returns `: Namespace NAME does not exist` for the end of a sentence. Empty if it exists, or if the user may not read
/// it.
pub async fn note_namespace(client: &Client, name: &str) -> Result<String, CommandError> {
    note::<Namespace>(&Api::all(client.clone()), name, "Namespace").await
}

/// The same for an object of any kind.
pub async fn note<K>(api: &Api<K>, name: &str, kind: &str) -> Result<String, CommandError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let found = reads::get_metadata_opt(api, name).await;
    match found.map_err(failed(format!("read {kind} {name}"))) {
        Err(error) if is_forbidden(&error) => Ok(String::new()),
        found => Ok(match found? {
            Some(_) => String::new(),
            None => format!(": {kind} {name} does not exist"),
        }),
    }
}
