//! What an administrator decided about lost volumes, in annotations of their backend.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::NfsBackend;
use super::names::ABANDON_LOST_VOLUMES;
use super::requests::{BackendRequest, ids};

/// The volumes to recover, as requested and not handled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryRequest {
    /// Those of all live records.
    pub all: bool,
    /// Volumes that the administrator named.
    pub names: BTreeSet<String>,
}

impl RecoveryRequest {
    /// Returns a backend's request, if any is not handled yet.
    pub fn of(backend: &NfsBackend) -> Option<Self> {
        let names = BackendRequest::ReadoptVolumes.unhandled(backend).unwrap_or_default();
        let request = Self {
            all: BackendRequest::Readopt.unhandled(backend).is_some(),
            names: ids(names).map(str::to_owned).collect(),
        };
        (request.all || !request.names.is_empty()).then_some(request)
    }
}

/// The lost volumes that an administrator gave up: claims of their names get new ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AbandonedVolumes {
    all: bool,
    names: BTreeSet<String>,
}

impl AbandonedVolumes {
    /// Returns those of a backend. The UID of the backend stands for all of them, also those that are not known.
    pub fn of(backend: &NfsBackend) -> Self {
        let value = backend
            .annotations()
            .get(ABANDON_LOST_VOLUMES)
            .map_or("", String::as_str);
        let names: BTreeSet<String> = ids(value).map(str::to_owned).collect();
        Self {
            all: backend.uid().is_some_and(|uid| names.contains(&uid)),
            names,
        }
    }

    /// Reports whether all lost volumes of the backend were given up.
    pub fn all(&self) -> bool {
        self.all
    }

    /// Reports whether this volume was given up.
    pub fn includes(&self, volume: &str) -> bool {
        self.all || self.names.contains(volume)
    }

    /// Reports whether no volume was given up.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::names::{READOPT, READOPT_REQUESTED_AT};

    fn backend(annotations: Value) -> NfsBackend {
        let metadata = json!({"name": "b", "uid": "u-1", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"server": "s", "path": "/"}})).unwrap()
    }

    #[test]
    fn the_annotations_ask_for_all_for_some_or_for_nothing() {
        let of = |annotation: &str, value: &str| RecoveryRequest::of(&backend(json!({annotation: value})));
        assert!(of(READOPT_REQUESTED_AT, "now").unwrap().all);
        assert_eq!(of(READOPT_REQUESTED_AT, ""), None);
        assert_eq!(of(READOPT, " , "), None);
        let some = of(READOPT, "pvc-1, pvc-2@2").unwrap();
        assert!(!some.all && some.names.iter().map(String::as_str).eq(["pvc-1", "pvc-2"]));
    }

    #[test]
    fn lost_volumes_are_given_up_by_name_or_by_the_uid_of_their_backend() {
        let of = |value: &str| AbandonedVolumes::of(&backend(json!({ABANDON_LOST_VOLUMES: value})));
        assert!(of("pvc-1,pvc-2").includes("pvc-2") && !of("pvc-1").includes("pvc-2") && !of("pvc-1").all());
        assert!(of("u-1").includes("pvc-9") && of("u-1").all());
        assert!(!of("u-2").includes("pvc-9") && !of("true").all() && of("").is_empty());
    }
}
