//! What the annotation `nfs-operator.io/readopt` on a backend requests.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::NfsBackend;
use super::names::READOPT;

/// The volumes to recover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryRequest {
    /// Those of all live records.
    All,
    /// Only these.
    Volumes(BTreeSet<String>),
}

impl RecoveryRequest {
    /// Returns a backend's request; none if the annotation is absent, empty or `false`.
    pub fn of(backend: &NfsBackend) -> Option<Self> {
        let names: BTreeSet<String> = backend
            .annotations()
            .get(READOPT)?
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        match names.first().map(String::as_str) {
            None => None,
            Some("false") if names.len() == 1 => None,
            Some("true") if names.len() == 1 => Some(Self::All),
            Some(_) => Some(Self::Volumes(names)),
        }
    }

    /// Reports whether an administrator gave up the lost volumes of a backend: the annotation is `false`.
    pub fn is_declined(backend: &NfsBackend) -> bool {
        backend
            .annotations()
            .get(READOPT)
            .is_some_and(|value| value.trim() == "false")
    }

    /// Reports whether the request includes a volume.
    pub fn includes(&self, volume: &str) -> bool {
        match self {
            Self::All => true,
            Self::Volumes(names) => names.contains(volume),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_asks_for_all_for_some_or_for_nothing() {
        let backend = |value: &str| -> NfsBackend {
            let object = json!({"metadata": {"name": "b", "annotations": {READOPT: value}}, "spec": {"server": "s", "path": "/"}});
            serde_json::from_value(object).unwrap()
        };
        let of = |value: &str| RecoveryRequest::of(&backend(value));
        assert!(RecoveryRequest::is_declined(&backend("false")));
        assert!(!RecoveryRequest::is_declined(&backend("true")) && !RecoveryRequest::is_declined(&backend("")));
        assert_eq!(of("true"), Some(RecoveryRequest::All));
        assert_eq!(of("false"), None);
        assert_eq!(of(" , "), None);
        let some = of("pvc-1, pvc-2").unwrap();
        assert!(some.includes("pvc-1") && some.includes("pvc-2") && !some.includes("pvc-3"));
    }
}
