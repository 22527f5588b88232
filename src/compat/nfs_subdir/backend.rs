//! Replacement of an nfs-subdir-external-provisioner: its export becomes the backend `default`.

use std::fmt;
use std::time::Duration;

use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::api::NfsBackend;
use crate::decide::reclaim::same_server;
use crate::runtime::api_error::api_error_text;
use crate::runtime::clients::Clients;
use crate::runtime::reads;
use crate::runtime::writes::http_status;

/// Name of the backend for the export.
pub const BACKEND: &str = "default";

/// Delay between attempts while the API server is unavailable.
const PAUSE: Duration = Duration::from_secs(2);

/// Export that NFS_SERVER and NFS_PATH define.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsSubdirExport {
    server: String,
    path: String,
}

/// Error that prevents the start of the operator.
#[derive(Debug, thiserror::Error)]
pub enum NfsSubdirBackendError {
    /// The backend exists with another address.
    #[error(
        "backend {BACKEND} is {found}, and NFS_SERVER and NFS_PATH specify {wanted}: correct one of them, or unset \
         NFS_SERVER, NFS_PATH and PROVISIONER_NAME and specify the backend with --provisioner-alias"
    )]
    OtherAddress {
        /// Address of the existing backend.
        found: String,
        /// Address from the environment.
        wanted: String,
    },
    /// The CRDs are not installed.
    #[error("the API server knows no NfsBackend: install the CRDs with `nfs-operator crd --apply`")]
    NoKind,
    /// The API server denies the request, or the environment does not define a valid backend.
    #[error(
        "cannot {action} backend {BACKEND} for NFS_SERVER and NFS_PATH: {}",
        api_error_text(cause)
    )]
    Api {
        /// Action that failed.
        action: &'static str,
        /// Error of the API server.
        #[source]
        cause: Box<kube::Error>,
    },
}

impl NfsSubdirExport {
    /// Returns the export, with the address normalized as in nfs-subdir.
    pub fn new(server: &str, path: &str) -> Self {
        let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let segments = path.split('/').filter(|segment| !matches!(*segment, "" | "."));
        let joined = segments.collect::<Vec<_>>().join("/");
        Self {
            server: bare.unwrap_or(server).to_owned(),
            // A relative path is left as it is: the API server rejects the backend.
            path: if path.starts_with('/') {
                format!("/{joined}")
            } else {
                joined
            },
        }
    }

    /// Checks that the backend, if it exists, has the address of this export; for a replica that may not write yet.
    /// Retries while the API server is unavailable.
    ///
    /// # Errors
    /// The backend has another address, or the API server denies the request.
    pub async fn check(&self, clients: &Clients) -> Result<(), NfsSubdirBackendError> {
        // `calls` cannot send requests before this process is the leader.
        self.find(&Api::all(clients.lease.clone())).await.map(drop)
    }

    /// Creates the backend if it does not exist. Retries while the API server is unavailable.
    ///
    /// # Errors
    /// The backend has another address, or cannot be created.
    pub async fn ensure(&self, clients: &Clients) -> Result<(), NfsSubdirBackendError> {
        let api: Api<NfsBackend> = Api::all(clients.calls.clone());
        while !self.find(&api).await? {
            let action = "create";
            match api.create(&PostParams::default(), &self.backend(action)?).await {
                Ok(_) => {
                    tracing::info!(server = self.server, path = self.path, "created backend {BACKEND}");
                    return Ok(());
                }
                // Created concurrently: the next attempt compares it.
                Err(error) if http_status(&error) == Some(409) => {}
                Err(error) if http_status(&error) == Some(404) => return Err(NfsSubdirBackendError::NoKind),
                Err(error) => wait_or_fail(action, error).await?,
            }
        }
        Ok(())
    }

    /// Returns true if the backend exists with the address of this export.
    async fn find(&self, api: &Api<NfsBackend>) -> Result<bool, NfsSubdirBackendError> {
        loop {
            match reads::get_opt(api, BACKEND).await {
                Ok(Some(there)) => return self.compare(&there).map(|()| true),
                Ok(None) => return Ok(false),
                Err(error) => wait_or_fail("read", error).await?,
            }
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the server, without brackets.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns true if a backend has the address of this export.
    pub fn is_of(&self, backend: &NfsBackend) -> bool {
        same_server(&backend.spec.server, &self.server) && *backend.spec.path == self.path
    }

    /// Returns true if both have the same address, however the server is spelled.
    pub fn is_same(&self, other: &Self) -> bool {
        same_server(&other.server, &self.server) && other.path == self.path
    }

    fn compare(&self, there: &NfsBackend) -> Result<(), NfsSubdirBackendError> {
        if self.is_of(there) {
            return Ok(());
        }
        Err(NfsSubdirBackendError::OtherAddress {
            found: format!("{}:{}", there.spec.server, there.spec.path),
            wanted: self.to_string(),
        })
    }

    /// Returns the manifest of a backend with the settings that match the behavior of nfs-subdir.
    pub fn manifest(&self, name: &str) -> Value {
        json!({
            "apiVersion": "nfs-operator.io/v1alpha1",
            "kind": "NfsBackend",
            "metadata": {"name": name},
            "spec": {
                "server": self.server,
                "path": self.path,
                "directory": {"mode": "0777", "existing": "Adopt"},
                "archivePolicy": {"onDelete": "Archive"},
            },
        })
    }

    fn backend(&self, action: &'static str) -> Result<NfsBackend, NfsSubdirBackendError> {
        serde_json::from_value(self.manifest(BACKEND)).map_err(|cause| NfsSubdirBackendError::Api {
            action,
            cause: Box::new(kube::Error::SerdeError(cause)),
        })
    }
}

impl fmt::Display for NfsSubdirExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.path)
    }
}

/// Returns an error if a retry cannot help; otherwise waits before the next attempt.
async fn wait_or_fail(action: &'static str, error: kube::Error) -> Result<(), NfsSubdirBackendError> {
    match http_status(&error) {
        Some(code) if code < 500 && !matches!(code, 408 | 409 | 429) => Err(NfsSubdirBackendError::Api {
            action,
            cause: Box::new(error),
        }),
        _ => {
            tracing::warn!(
                "cannot {action} backend {BACKEND}, retrying: {}",
                api_error_text(&error)
            );
            tokio::time::sleep(PAUSE).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn addresses_are_cleaned_as_nfs_subdir_cleaned_them() {
        for (server, path, cleaned) in [
            ("nfs", "/export/", ("nfs", "/export")),
            ("nfs", "//a/./b", ("nfs", "/a/b")),
            ("[fd00::1]", "/", ("fd00::1", "/")),
            ("nfs", "export", ("nfs", "export")),
        ] {
            let export = NfsSubdirExport::new(server, path);
            assert_eq!((export.server.as_str(), export.path.as_str()), cleaned);
        }
    }

    #[test]
    fn the_backend_is_the_same_export_however_it_is_spelled_and_no_other() {
        let backend = NfsSubdirExport::new("fd00::1", "/export").backend("create").unwrap();
        for (server, path, same) in [
            ("[fd00:0::1]", "/export/", true),
            ("fd00::2", "/export", false),
            ("fd00::1", "/", false),
        ] {
            assert_eq!(
                NfsSubdirExport::new(server, path).compare(&backend).is_ok(),
                same,
                "{server}:{path}"
            );
        }
    }
}
