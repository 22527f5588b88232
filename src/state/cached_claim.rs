//! The claims of the watch cache, in little memory.
//!
//! A claim that waits is kept until it is served, and a tenant chooses how many wait. The fields of a decoded claim take
//! several kilobytes: each map has a node with room for eleven entries, and each text an allocation. As JSON, the same claim
//! takes about one, and half of that compressed (docs/security.md, Budget). It is decoded when it is its turn.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::api::conditions::Reason;
use crate::api::names::CLAIM_CONDITION;
use crate::decide::restore_source::RestoreSource;
use crate::state::claim_condition;

/// The JSON of a claim that waits, with which other claims have most of their bytes in common.
const USUAL: &str = r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"annotations":{
"nfs-operator.io/placed-on":"","volume.beta.kubernetes.io/storage-provisioner":"nfs-operator.io/nfs",
"volume.kubernetes.io/storage-provisioner":"nfs-operator.io/nfs","volume.kubernetes.io/selected-node":""},
"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"","app.kubernetes.io/component":"","app.kubernetes.io/instance":"",
"app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"","app.kubernetes.io/part-of":"","app.kubernetes.io/version":""},
"name":"","namespace":"default","resourceVersion":"","uid":"00000000-0000-4000-8000-000000000000"},
"spec":{"accessModes":["ReadWriteOnce","ReadWriteMany"],"dataSourceRef":{"apiGroup":"nfs-operator.io","kind":"NfsArchive","name":""},
"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"nfs","volumeMode":"Filesystem"},
"status":{"conditions":[{"lastProbeTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z",
"message":"","reason":"CapacityExceeded","status":"False","type":"nfs-operator.io/Provisioned"}],"phase":"Pending"}}"#;

/// A claim of the watch cache. Clones share it: the cache, and the list that fills it, have the same copy.
#[derive(Debug, Clone)]
pub struct CachedClaim(Arc<Fields>);

#[derive(Debug, Clone)]
struct Fields {
    /// Name and namespace. Whatever else is here is copied several times, with each reference to the claim in the cache and
    /// in the queue of the controller.
    metadata: ObjectMeta,
    uid: Option<Box<str>>,
    /// The claim as JSON, compressed.
    json: Box<[u8]>,
    /// Length of the JSON.
    length: usize,
    is_bound: bool,
    fingerprint: Option<u64>,
    waiting_reason: Option<Reason>,
    restore: Option<Box<RestoreSource>>,
}

impl CachedClaim {
    /// Encodes a claim. `fingerprint` changes with each change of the claim that requires a reconciliation.
    pub fn new(claim: &PersistentVolumeClaim, fingerprint: Option<u64>) -> Self {
        let metadata = ObjectMeta {
            name: claim.metadata.name.clone(),
            namespace: claim.metadata.namespace.clone(),
            ..ObjectMeta::default()
        };
        // A claim that cannot be encoded cannot be decoded either, which its reconciliation reports.
        let json = serde_json::to_vec(claim).unwrap_or_default();
        Self(Arc::new(Fields {
            metadata,
            uid: claim.metadata.uid.as_deref().map(Into::into),
            json: compress_with_dict(&json, USUAL.as_bytes()).into_boxed_slice(),
            length: json.len(),
            is_bound: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound"),
            fingerprint,
            waiting_reason: waiting_reason(claim),
            restore: RestoreSource::of(claim).map(Box::new),
        }))
    }

    /// Decodes the claim.
    ///
    /// # Errors
    /// The claim could not be encoded.
    pub fn decode(&self) -> serde_json::Result<PersistentVolumeClaim> {
        let json = decompress_with_dict(&self.0.json, self.0.length, USUAL.as_bytes());
        serde_json::from_slice(&json.map_err(serde_json::Error::custom)?)
    }

    /// Returns the UID of the claim, which is not in its metadata here.
    pub fn uid(&self) -> Option<String> {
        self.0.uid.as_deref().map(str::to_owned)
    }

    /// Returns true if the claim is bound.
    pub fn is_bound(&self) -> bool {
        self.0.is_bound
    }

    /// Returns the fingerprint.
    pub fn fingerprint(&self) -> Option<u64> {
        self.0.fingerprint
    }

    /// Returns the reason of the claim's condition, if it shows that the claim has no volume. Only the operator's own
    /// reasons count, because it becomes the label of a metric.
    pub fn waiting_reason(&self) -> Option<Reason> {
        self.0.waiting_reason
    }

    /// Returns the archive that the claim requests as its data source.
    pub fn restore(&self) -> Option<&RestoreSource> {
        self.0.restore.as_deref()
    }
}

fn waiting_reason(claim: &PersistentVolumeClaim) -> Option<Reason> {
    let condition = claim_condition::find(claim, CLAIM_CONDITION).filter(|condition| condition.status != "True")?;
    Reason::parse(condition.reason.as_deref()?)
}

impl k8s_openapi::Resource for CachedClaim {
    const API_VERSION: &'static str = PersistentVolumeClaim::API_VERSION;
    const GROUP: &'static str = PersistentVolumeClaim::GROUP;
    const KIND: &'static str = PersistentVolumeClaim::KIND;
    const VERSION: &'static str = PersistentVolumeClaim::VERSION;
    const URL_PATH_SEGMENT: &'static str = PersistentVolumeClaim::URL_PATH_SEGMENT;
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for CachedClaim {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut Arc::make_mut(&mut self.0).metadata
    }
}

/// Required of whatever a controller reconciles. The claims of the cache are encoded by [`CachedClaim::new`].
impl<'de> Deserialize<'de> for CachedClaim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let claim = PersistentVolumeClaim::deserialize(deserializer)?;
        Ok(Self::new(&claim, None))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: &str, reason: &str) -> PersistentVolumeClaim {
        let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": "pvc-1"});
        let conditions: Value = json!([{"type": CLAIM_CONDITION, "status": status, "reason": reason}]);
        serde_json::from_value(json!({
            "metadata": {
                "name": "c", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"c": "d"},
            },
            "spec": {"resources": {"requests": {"storage": "1Gi"}}, "dataSourceRef": source},
            "status": {"phase": "Pending", "conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn a_cached_claim_has_all_fields() {
        let claim = claim("False", "NoSpace");
        let cached = CachedClaim::new(&claim, Some(1));
        assert_eq!(cached.decode().unwrap(), claim);
        let source = RestoreSource::Archive("pvc-1".to_owned());
        assert_eq!((cached.fingerprint(), cached.restore()), (Some(1), Some(&source)));
        assert_eq!(
            (cached.name_any(), cached.namespace()),
            ("c".to_owned(), Some("n".to_owned()))
        );
        assert_eq!(cached.uid(), claim.uid());
    }

    #[test]
    fn only_the_operators_own_reasons_count() {
        let reason = |status, reason| CachedClaim::new(&claim(status, reason), None).waiting_reason();
        assert_eq!(reason("False", "NoSpace"), Some(Reason::NoSpace));
        assert_eq!(reason("False", "x\nforged"), None);
        assert_eq!(reason("True", "NoSpace"), None);
    }
}
