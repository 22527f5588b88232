//! In the place of an nfs-subdir-external-provisioner: its export as the backend `default`.

use std::time::Duration;

use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::api::NfsBackend;
use crate::decide::policy::same_server;
use crate::runtime::clients::Clients;
use crate::runtime::writes::http_status;

/// The backend that the export becomes.
pub const BACKEND: &str = "default";

/// Until the API server answers again.
const PAUSE: Duration = Duration::from_secs(2);

/// The export that NFS_SERVER and NFS_PATH name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InheritedExport {
    server: String,
    path: String,
}

/// Why the operator does not start.
#[derive(Debug, thiserror::Error)]
pub enum DropInError {
    /// The backend is another export.
    #[error(
        "backend {BACKEND} is {found}, and NFS_SERVER and NFS_PATH say {wanted}: correct one of them, or leave NFS_SERVER, \
         NFS_PATH and PROVISIONER_NAME out and name the backend with --provisioner-alias"
    )]
    OtherAddress {
        /// Its address.
        found: String,
        /// The environment's.
        wanted: String,
    },
    /// The kind is not there.
    #[error("the API server knows no NfsBackend: install the CRDs with `nfs-operator crd --apply`")]
    NoKind,
    /// It may not, or what the environment says can't be a backend.
    #[error("cannot {action} backend {BACKEND} for NFS_SERVER and NFS_PATH: {cause}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// The API server's answer.
        #[source]
        cause: Box<kube::Error>,
    },
}

impl InheritedExport {
    /// The address, cleaned as nfs-subdir cleaned it for its volumes.
    pub fn new(server: &str, path: &str) -> Self {
        let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let segments = path.split('/').filter(|segment| !matches!(*segment, "" | "."));
        let joined = segments.collect::<Vec<_>>().join("/");
        Self {
            server: bare.unwrap_or(server).to_owned(),
            // A path that is not absolute is refused with the backend, in the API server's words.
            path: if path.starts_with('/') {
                format!("/{joined}")
            } else {
                joined
            },
        }
    }

    /// Looks whether the backend, if it is there, is this export; for a replica that may not write yet.
    ///
    /// # Errors
    /// It has another address. An API server that does not answer is waited for.
    pub async fn check(&self, clients: &Clients) -> Result<(), DropInError> {
        // Before the Lease is ours, `calls` send nothing.
        self.find(&Api::all(clients.lease.clone())).await.map(drop)
    }

    /// Makes the backend if it is missing.
    ///
    /// # Errors
    /// It has another address, or it can't be made. An API server that does not answer is waited for.
    pub async fn ensure(&self, clients: &Clients) -> Result<(), DropInError> {
        let api: Api<NfsBackend> = Api::all(clients.calls.clone());
        while !self.find(&api).await? {
            let action = "make";
            match api.create(&PostParams::default(), &self.backend(action)?).await {
                Ok(_) => {
                    tracing::info!(server = self.server, path = self.path, "made backend {BACKEND}");
                    return Ok(());
                }
                // Somebody was faster: what that one made is looked at.
                Err(error) if http_status(&error) == Some(409) => {}
                Err(error) if http_status(&error) == Some(404) => return Err(DropInError::NoKind),
                Err(error) => wait_or_fail(action, error).await?,
            }
        }
        Ok(())
    }

    /// Whether the backend is there.
    async fn find(&self, api: &Api<NfsBackend>) -> Result<bool, DropInError> {
        loop {
            match api.get_opt(BACKEND).await {
                Ok(Some(there)) => return self.compare(&there).map(|()| true),
                Ok(None) => return Ok(false),
                Err(error) => wait_or_fail("read", error).await?,
            }
        }
    }

    fn compare(&self, there: &NfsBackend) -> Result<(), DropInError> {
        let (server, path) = (&*there.spec.server, &*there.spec.path);
        if same_server(server, &self.server) && path == self.path {
            return Ok(());
        }
        Err(DropInError::OtherAddress {
            found: format!("{server}:{path}"),
            wanted: format!("{}:{}", self.server, self.path),
        })
    }

    /// As nfs-subdir treated its export.
    fn backend(&self, action: &'static str) -> Result<NfsBackend, DropInError> {
        serde_json::from_value(json!({
            "apiVersion": "nfs-operator.io/v1alpha1",
            "kind": "NfsBackend",
            "metadata": {"name": BACKEND},
            "spec": {
                "server": self.server,
                "path": self.path,
                "directory": {"mode": "0777", "existing": "Adopt"},
                "archivePolicy": {"onDelete": "Archive"},
            },
        }))
        .map_err(|cause| DropInError::Api {
            action,
            cause: Box::new(kube::Error::SerdeError(cause)),
        })
    }
}

/// A refusal ends it; silence and a server in trouble do not.
async fn wait_or_fail(action: &'static str, error: kube::Error) -> Result<(), DropInError> {
    match http_status(&error) {
        Some(code) if code < 500 && !matches!(code, 408 | 409 | 429) => Err(DropInError::Api {
            action,
            cause: Box::new(error),
        }),
        _ => {
            tracing::warn!("cannot {action} backend {BACKEND}, trying again: {error}");
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
            let export = InheritedExport::new(server, path);
            assert_eq!((export.server.as_str(), export.path.as_str()), cleaned);
        }
    }

    #[test]
    fn the_backend_is_the_same_export_however_it_is_spelled_and_no_other() {
        let backend = InheritedExport::new("fd00::1", "/export").backend("make").unwrap();
        for (server, path, same) in [
            ("[fd00:0::1]", "/export/", true),
            ("fd00::2", "/export", false),
            ("fd00::1", "/", false),
        ] {
            assert_eq!(
                InheritedExport::new(server, path).compare(&backend).is_ok(),
                same,
                "{server}:{path}"
            );
        }
    }
}
