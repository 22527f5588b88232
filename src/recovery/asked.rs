//! What the annotation on a backend asks for. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt;

use crate::api::NfsBackend;
use crate::api::names::READOPT;

/// Which volumes are to be made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryRequest {
    /// Those of all live records.
    All,
    /// These, whatever else there is.
    Volumes(BTreeSet<String>),
}

impl RecoveryRequest {
    /// Whether a volume is among them.
    pub fn includes(&self, volume: &str) -> bool {
        match self {
            Self::All => true,
            Self::Volumes(names) => names.contains(volume),
        }
    }
}

/// What a backend asks for; nothing where the annotation is absent, empty or `false`.
pub fn requested(object: &NfsBackend) -> Option<RecoveryRequest> {
    let names: BTreeSet<String> = object
        .annotations()
        .get(READOPT)?
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    match names.first().map(String::as_str) {
        None => None,
        Some("false") if names.len() == 1 => None,
        Some("true") if names.len() == 1 => Some(RecoveryRequest::All),
        Some(_) => Some(RecoveryRequest::Volumes(names)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_asks_for_all_for_some_or_for_nothing() {
        let of = |value: &str| {
            let object = json!({"metadata": {"name": "b", "annotations": {READOPT: value}}, "spec": {"server": "s", "path": "/"}});
            requested(&serde_json::from_value(object).unwrap())
        };
        assert_eq!(of("true"), Some(RecoveryRequest::All));
        assert_eq!(of("false"), None);
        assert_eq!(of(" , "), None);
        let some = of("pvc-1, pvc-2").unwrap();
        assert!(some.includes("pvc-1") && some.includes("pvc-2") && !some.includes("pvc-3"));
    }
}
