//! The Secret that associates records on exports with this cluster: the signing key and the cluster ID.
//!
//! It is created at the first start and never overwritten. A cluster that is recreated with the saved Secret takes over
//! the records of the former one (docs/disaster-recovery.md).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

use crate::runtime::api_error::api_error_text;
use crate::runtime::writes::http_status;
use export_store::{KEY_LENGTH, RecordsKey};

/// Field of the Secret with the key that signs records: 32 random bytes.
const KEY: &str = "key";
/// Optional field of the Secret with the key before a rotation, whose signatures are valid too.
const PREVIOUS_KEY: &str = "previous-key";
/// Field of the Secret with the cluster's ID on exports.
const CLUSTER_ID: &str = "cluster-id";

/// Pause before a request is retried that the API server did not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Location of the Secret.
#[derive(Debug, Clone)]
pub struct RecordsSecret {
    /// Namespace. If unset, the namespace of the Kubernetes configuration.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// Contents of the Secret.
#[derive(Debug, Clone)]
pub struct RecordsSecretData {
    /// The cluster's ID on exports.
    pub cluster_id: String,
    /// The key that signs records.
    pub key: RecordsKey,
}

/// The signing key is not available.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server denies access.
    #[error(
        "cannot {action} the Secret {secret}, which contains the key that signs records on exports: {}; apply \
         config/rbac, or correct --records-namespace and --records-secret",
        api_error_text(cause)
    )]
    Refused {
        /// The action that failed.
        action: &'static str,
        /// Namespace and name.
        secret: String,
        /// The API server's answer.
        #[source]
        cause: Box<kube::Error>,
    },
    /// The Secret's data is invalid.
    #[error(
        "the Secret {secret} is invalid: data.{field} {fault}. Restore the Secret from its backup \
         (docs/disaster-recovery.md); the operator never overwrites it. Without a backup, delete it: the operator creates \
         a new one, and the records on exports must be adopted manually"
    )]
    Damaged {
        /// Namespace and name.
        secret: String,
        /// The invalid field.
        field: &'static str,
        /// The reason.
        fault: String,
    },
    /// The cluster's ID cannot be read.
    #[error("cannot read the namespace kube-system, whose uid is the cluster's id: {}", api_error_text(.0))]
    ClusterId(#[source] Box<kube::Error>),
}

/// An invalid field of a Secret, and the reason.
pub type Fault = (&'static str, String);

impl RecordsSecret {
    /// Returns the Secret's contents. Creates the Secret if it does not exist. If several processes create it at once,
    /// all use the one that was created first.
    pub async fn ensure(&self, client: &Client) -> Result<RecordsSecretData, SecretError> {
        self.read_or_make(client, false).await
    }

    /// Checks that the Secret is valid or can be created, without creating it: another operator may hold the Lease, and
    /// this one may have been started in a wrong namespace.
    pub async fn check(&self, client: &Client) -> Result<(), SecretError> {
        self.read_or_make(client, true).await.map(drop)
    }

    async fn read_or_make(&self, client: &Client, dry_run: bool) -> Result<RecordsSecretData, SecretError> {
        let namespace = self.namespace.as_deref().unwrap_or(client.default_namespace());
        let store = Store {
            secret: format!("{namespace}/{}", self.name),
            name: &self.name,
            secrets: Api::namespaced(client.clone(), namespace),
            namespaces: Api::all(client.clone()),
            dry_run,
        };
        loop {
            if let Some(records) = store.read_or_make().await? {
                return Ok(records);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

struct Store<'a> {
    /// Namespace and name.
    secret: String,
    name: &'a str,
    secrets: Api<Secret>,
    namespaces: Api<Namespace>,
    /// True if the API server only checks the creation.
    dry_run: bool,
}

impl Store<'_> {
    /// Returns the contents, or `None` to retry.
    async fn read_or_make(&self) -> Result<Option<RecordsSecretData>, SecretError> {
        match self.secrets.get_opt(self.name).await {
            Ok(Some(found)) => self.parsed(&found).map(Some),
            Ok(None) => self.make().await,
            Err(error) => self.retry_or_fail("read", error),
        }
    }

    /// Reads the Secret that another process created at the same time.
    async fn read_winners(&self) -> Result<Option<RecordsSecretData>, SecretError> {
        match self.secrets.get(self.name).await {
            Ok(found) => self.parsed(&found).map(Some),
            // It was deleted meanwhile: start over.
            Err(error) if http_status(&error) == Some(404) => Ok(None),
            Err(error) => self.retry_or_fail("read", error),
        }
    }

    async fn make(&self) -> Result<Option<RecordsSecretData>, SecretError> {
        let Some(cluster_id) = self.cluster_id().await? else {
            return Ok(None);
        };
        let wanted = secret(self.name, &cluster_id, &rand::random());
        let params = PostParams {
            dry_run: self.dry_run,
            ..PostParams::default()
        };
        match self.secrets.create(&params, &wanted).await {
            Ok(checked) if self.dry_run => self.parsed(&checked).map(Some),
            Ok(made) => {
                tracing::info!(
                    secret = self.secret,
                    "created the key that signs records on exports: keep a copy of this Secret outside the cluster"
                );
                self.parsed(&made).map(Some)
            }
            Err(error) if http_status(&error) == Some(409) => self.read_winners().await,
            Err(error) => self.retry_or_fail("create", error),
        }
    }

    async fn cluster_id(&self) -> Result<Option<String>, SecretError> {
        match self.namespaces.get_metadata("kube-system").await {
            Ok(namespace) => Ok(namespace.uid()),
            Err(error) if is_refusal(&error) => Err(SecretError::ClusterId(Box::new(error))),
            Err(error) => {
                tracing::warn!("the API server does not answer; retrying: {}", api_error_text(&error));
                Ok(None)
            }
        }
    }

    fn parsed(&self, found: &Secret) -> Result<RecordsSecretData, SecretError> {
        parse(found).map_err(|(field, fault)| SecretError::Damaged {
            secret: self.secret.clone(),
            field,
            fault,
        })
    }

    fn retry_or_fail(
        &self,
        action: &'static str,
        error: kube::Error,
    ) -> Result<Option<RecordsSecretData>, SecretError> {
        if is_refusal(&error) {
            return Err(SecretError::Refused {
                action,
                secret: self.secret.clone(),
                cause: Box::new(error),
            });
        }
        tracing::warn!(
            secret = self.secret,
            "the API server does not answer; retrying: {}",
            api_error_text(&error)
        );
        Ok(None)
    }
}

/// Returns true if the API server refused and would refuse again: a 4xx status other than 429.
fn is_refusal(error: &kube::Error) -> bool {
    http_status(error).is_some_and(|status| (400..500).contains(&status) && status != 429)
}

/// Returns the Secret to create. It is immutable, because after an accidental edit no record would be recognized.
fn secret(name: &str, cluster_id: &str, key: &[u8; KEY_LENGTH]) -> Secret {
    let data = [(KEY, key.to_vec()), (CLUSTER_ID, cluster_id.as_bytes().to_vec())];
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(data.map(|(name, bytes)| (name.to_owned(), ByteString(bytes))).into()),
        ..Secret::default()
    }
}

/// Reads the contents of a Secret.
///
/// # Errors
/// The invalid field, and the reason. It contains nothing of the key.
pub fn parse(secret: &Secret) -> Result<RecordsSecretData, Fault> {
    let none = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let field = |name: &'static str| match data.get(name) {
        Some(bytes) => Ok(bytes.0.as_slice()),
        None => Err((name, "is missing".to_owned())),
    };
    let mut key = RecordsKey::new(parse_key(KEY, field(KEY)?)?);
    if let Some(previous) = data.get(PREVIOUS_KEY) {
        key = key.with_previous(parse_key(PREVIOUS_KEY, &previous.0)?);
    }
    let cluster_id = field(CLUSTER_ID)?;
    if !is_uid(cluster_id) {
        return Err((
            CLUSTER_ID,
            "is not a UID (36 lowercase hexadecimal digits and dashes)".to_owned(),
        ));
    }
    Ok(RecordsSecretData {
        cluster_id: String::from_utf8_lossy(cluster_id).into_owned(),
        key,
    })
}

fn parse_key<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a [u8; KEY_LENGTH], Fault> {
    let wrong_length = |_| (field, format!("has {} bytes instead of {KEY_LENGTH}", bytes.len()));
    bytes.try_into().map_err(wrong_length)
}

/// Returns true if the bytes have the format of a namespace's UID. No other kind of name on an export has it.
fn is_uid(bytes: &[u8]) -> bool {
    let dash = |place: usize| matches!(place, 8 | 13 | 18 | 23);
    bytes.len() == 36
        && bytes.iter().enumerate().all(|(place, byte)| match byte {
            b'-' => dash(place),
            b'0'..=b'9' | b'a'..=b'f' => !dash(place),
            _ => false,
        })
}

#[cfg(test)]
mod tests;
